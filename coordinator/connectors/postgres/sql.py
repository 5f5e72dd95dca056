"""The SQL of the PostgreSQL sink as text, and names in it. No client is needed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

POSITIONS: Final = "chandy_positions"
"""The table with the position of each writer, in the schema of the table that it writes to."""
DEAD_LETTER: Final = {
    "writer": "text NOT NULL",
    "checkpoint": "bigint",
    "time": "timestamptz NOT NULL DEFAULT now()",
    "error": "text NOT NULL",
    "row": "json NOT NULL",
}
"""The columns of a table of dead letters. The checkpoint is null for a batch that is published at once."""
ROWS: Final = "chandy_rows"
"""The temporary table that an upsert collects its rows in."""
ORDER: Final = "chandy_row"
"""The column of the temporary table with the order of the rows."""
NAME_BYTES: Final = 63
"""Bytes of a name in PostgreSQL."""
# A part is what stands between double quotes, with quotes doubled in it, or has neither quotes nor dots.
_PART: Final = r'(?:"((?:[^"]|"")+)"|([^".]+))'
_NAME: Final = re.compile(rf"(?:{_PART}\.)?{_PART}")


def quoted(name: str) -> str:
    """Return a name as an identifier of SQL that means exactly this name."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def _list(names: Sequence[str]) -> str:
    return ", ".join(quoted(name) for name in names)


@attrs.frozen
class TableName:
    """A table, with its schema if that is given."""

    name: str
    schema: str | None = None

    @classmethod
    def parse(cls, text: str) -> TableName | None:
        """Return the table that ``table`` or ``schema.table`` names, each part as it is; None if it names none.

        A part that has a dot in it stands in double quotes.
        """
        match = _NAME.fullmatch(text)
        if match is None:
            return None
        schema_quoted, schema, name_quoted, name = match.groups()
        whole = schema_quoted.replace('""', '"') if schema_quoted else schema
        return cls(name_quoted.replace('""', '"') if name_quoted else name, whole)

    @property
    def sql(self) -> str:
        """The name as SQL has it."""
        return f"{quoted(self.schema)}.{quoted(self.name)}" if self.schema else quoted(self.name)

    def beside(self, name: str) -> TableName:
        """Return another table of the same schema."""
        return attrs.evolve(self, name=name)


def session_name(writer: str) -> str:
    """Return the ``application_name`` of a writer's sessions: plain, short enough, and no other writer's."""
    plain = f"chandy {writer}"
    if plain.isascii() and plain.isprintable() and len(plain) <= NAME_BYTES:
        return plain
    digest = hashlib.sha256(writer.encode()).hexdigest()[:12]
    readable = "".join(c if c.isascii() and c.isprintable() else "?" for c in plain)
    return f"{readable[: NAME_BYTES - len(digest) - 1]} {digest}"


# --- tables -------------------------------------------------------------------------------------------------


def create_table(table: TableName, columns: Mapping[str, str], key: Sequence[str]) -> str:
    """Return the statement that makes the target table.

    Args:
        table: its name.
        columns: the SQL type of each column by name.
        key: columns of the primary key; empty if it has none.
    """
    parts = [f"{quoted(name)} {type}" for name, type in columns.items()]
    if key:
        parts.append(f"PRIMARY KEY ({_list(key)})")
    return f"CREATE TABLE IF NOT EXISTS {table.sql} ({', '.join(parts)})"


def create_positions(positions: TableName) -> str:
    """Return the statement that makes the table of positions."""
    return (
        f"CREATE TABLE IF NOT EXISTS {positions.sql} "
        "(writer text PRIMARY KEY, store text NOT NULL, generation bigint NOT NULL, epoch bigint, target text)"
    )


def create_dead_letters(table: TableName) -> str:
    """Return the statement that makes a table of dead letters."""
    columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in DEAD_LETTER.items())
    return f"CREATE TABLE IF NOT EXISTS {table.sql} ({columns})"


def insert_dead_letter(table: TableName) -> str:
    """Return the statement that writes a dead letter, except for its time."""
    return f'INSERT INTO {_in_query(table)} (writer, checkpoint, error, "row") VALUES (%s, %s, %s, %s)'


def add_target(positions: TableName) -> str:
    """Return the statement that brings a table of positions of an earlier version up to date."""
    return f"ALTER TABLE {positions.sql} ADD COLUMN IF NOT EXISTS target text"


# --- rows ---------------------------------------------------------------------------------------------------


def copy(table: TableName, columns: Sequence[str]) -> str:
    """Return the statement that reads rows as text into columns of a table."""
    return f"COPY {table.sql} ({_list(columns)}) FROM STDIN"


def keep_as_it_is(table: TableName) -> str:
    """Return the statement that keeps everybody from altering a table, but not its rows, to the end of the transaction.

    ``LOCK TABLE`` needs a right to the whole table; this one needs the right to insert a column.
    """
    return f"EXPLAIN INSERT INTO {table.sql} DEFAULT VALUES"


def create_rows(table: TableName, columns: Mapping[str, str], deleted: str | None) -> str:
    """Return the statement that makes the temporary table of an upsert.

    Args:
        table: the target.
        columns: the types of the columns, by name. A domain's is that of its base: what the domain does not take may
            stand in a row that marks a deletion.
        deleted: the column that marks deletions; None: there is none.
    """
    mark = f", false AS {quoted(deleted)}" if deleted is not None else ""
    values = ", ".join(f"{quoted(name)}::{type} AS {quoted(name)}" for name, type in columns.items())
    rows = f"SELECT {values}{mark} FROM {table.sql} WITH NO DATA"
    return f"CREATE TEMPORARY TABLE {quoted(ROWS)} ON COMMIT DROP AS {rows}"


def _order_beside(columns: Sequence[str]) -> str:
    """Return the name of the column with the order of the rows, which no other column of the temporary table has."""
    name = ORDER
    while name in columns:
        name += "_"
    return name


def number_rows(columns: Sequence[str]) -> str:
    """Return the statement that has the temporary table, which has these columns, number its rows as they come."""
    return (
        f"ALTER TABLE {quoted(ROWS)} ADD {quoted(_order_beside(columns))} bigint GENERATED ALWAYS AS IDENTITY"
    )


def merge(table: TableName, columns: Sequence[str], key: Sequence[str], deleted: str | None) -> str:
    """Return the statement that brings the last row of each key from the temporary table into the target.

    Args:
        table: the target.
        columns: all columns of the target that are written, with the key.
        key: the columns of the key.
        deleted: the column whose true rows delete their key; None if no column does.
    """
    order = _order_beside(columns if deleted is None else [*columns, deleted])
    latest = (
        f"latest AS (SELECT DISTINCT ON ({_list(key)}) * FROM {quoted(ROWS)} "
        f"ORDER BY {_list(key)}, {quoted(order)} DESC)"
    )
    gone = kept = ""
    if deleted is not None:
        same = " AND ".join(f"target.{quoted(name)} = latest.{quoted(name)}" for name in key)
        mark = f"latest.{quoted(deleted)}"
        gone = f", gone AS (DELETE FROM {table.sql} AS target USING latest WHERE {same} AND {mark} IS TRUE)"
        kept = f" WHERE {mark} IS NOT TRUE"
    values = [name for name in columns if name not in key]
    changes = ", ".join(f"{quoted(name)} = EXCLUDED.{quoted(name)}" for name in values)
    action = f"UPDATE SET {changes}" if values else "NOTHING"
    return (
        f"WITH {latest}{gone} INSERT INTO {table.sql} ({_list(columns)}) OVERRIDING SYSTEM VALUE "
        f"SELECT {_list(columns)} FROM latest{kept} ON CONFLICT ({_list(key)}) DO {action}"
    )


# --- positions ----------------------------------------------------------------------------------------------


def _in_query(table: TableName) -> str:
    """A table's name where the client looks for parameters."""
    return table.sql.replace("%", "%%")


def read_position(positions: TableName) -> str:
    """Return the query for a writer's record."""
    return f"SELECT store, generation, epoch FROM {_in_query(positions)} WHERE writer = %s"


def lock_position(positions: TableName) -> str:
    """Return the query for a writer's record that keeps everybody else from changing it."""
    return f"{read_position(positions)} FOR UPDATE"


def insert_position(positions: TableName) -> str:
    """Return the statement that makes a writer's first record unless there is one."""
    return (
        f"INSERT INTO {_in_query(positions)} (writer, store, generation, epoch) VALUES (%s, %s, %s, NULL) "
        "ON CONFLICT (writer) DO NOTHING"
    )


def take_position(positions: TableName) -> str:
    """Return the statement that says who publishes."""
    return f"UPDATE {_in_query(positions)} SET store = %s, generation = %s WHERE writer = %s"


def move_position(positions: TableName) -> str:
    """Return the statement that says which epoch is the newest one, and of which table."""
    return f"UPDATE {_in_query(positions)} SET epoch = %s, target = %s WHERE writer = %s"


def read_target(positions: TableName) -> str:
    """Return the query for the table that a writer's position is of."""
    return f"SELECT target FROM {_in_query(positions)} WHERE writer = %s"


# --- the server's catalogs ----------------------------------------------------------------------------------

# Settings that a server does not have are passed over. A server that forgets commits would lose epochs whose staged
# rows are gone.
SETTINGS: Final = """
SELECT set_config(name, wanted, false) FROM pg_settings JOIN unnest(%s::text[], %s::text[]) AS given (name, wanted)
USING (name)
UNION ALL SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'
"""
FIND_TABLE: Final = """
SELECT c.oid, n.nspname, c.relname, c.relkind::text, row_security_active(c.oid),
    c.relpersistence = 'u' OR EXISTS (
        SELECT 1 FROM pg_partition_tree(c.oid) t JOIN pg_class p ON p.oid = t.relid WHERE p.relpersistence = 'u'
    )
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
# The type of a domain is that of its base, which may be a domain, and that of an array is its elements'.
COLUMNS: Final = """
WITH RECURSIVE part AS (
    SELECT attnum, 0 AS step, atttypid AS type, atttypmod AS modifier, false AS is_item
    FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT attnum, step + 1, CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.typelem END,
        CASE t.typtype WHEN 'd' THEN t.typtypmod ELSE modifier END, is_item OR t.typtype <> 'd'
    FROM part JOIN pg_type t ON t.oid = part.type
    WHERE t.typtype = 'd' OR t.typcategory = 'A' AND t.typelem <> 0 AND NOT is_item
), inner_part AS (
    SELECT DISTINCT ON (attnum) * FROM part JOIN pg_type t ON t.oid = part.type ORDER BY attnum, step DESC
), whole AS (
    SELECT DISTINCT ON (attnum) * FROM part WHERE NOT is_item ORDER BY attnum, step DESC
), nulls AS (
    SELECT attnum, bool_or(t.typnotnull AND NOT is_item) AS whole, bool_or(t.typnotnull AND is_item) AS items
    FROM part JOIN pg_type t ON t.oid = part.type GROUP BY attnum
)
SELECT a.attname, format_type(a.atttypid, a.atttypmod), i.typname, i.typcategory::text, i.modifier, i.is_item,
    format_type(w.type, w.modifier), a.attnotnull OR n.whole, n.items,
    a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL, a.attgenerated <> '',
    a.attidentity = 'a', has_column_privilege(a.attrelid, a.attnum, 'INSERT'),
    has_column_privilege(a.attrelid, a.attnum, 'UPDATE'), has_column_privilege(a.attrelid, a.attnum, 'SELECT')
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
JOIN inner_part i USING (attnum) JOIN whole w USING (attnum) JOIN nulls n USING (attnum)
WHERE a.attrelid = %s ORDER BY a.attnum
"""
RULES: Final = """
SELECT rulename, CASE ev_type WHEN '2' THEN 'UPDATE' WHEN '3' THEN 'INSERT' ELSE 'DELETE' END
FROM pg_rewrite WHERE ev_class = %s AND ev_type IN ('2', '3', '4') AND ev_enabled IN ('O', 'A') ORDER BY rulename
"""
# ON CONFLICT takes no index over expressions or a part of the rows, and none that is checked at the commit.
UNIQUE_KEYS: Final = """
SELECT array_agg(a.attname::text) FROM pg_index i
CROSS JOIN unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) AS k (attnum)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = %s AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid
"""
# A transaction that has locked a row has left its number in it, and holds the lock on this number.
HOLDERS: Final = """
SELECT l.pid, a.application_name, a.usename
FROM {positions} p JOIN pg_locks l ON l.locktype = 'transactionid' AND l.granted AND l.transactionid = p.xmax
LEFT JOIN pg_stat_activity a ON a.pid = l.pid WHERE p.writer = %s AND l.pid <> pg_backend_pid()
"""
TERMINATE: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND application_name = %s"
)
# The transaction that inserts a writer's first record has locked a row that nobody else sees.
NAMESAKES: Final = """
SELECT pid, application_name, usename FROM pg_stat_activity
WHERE application_name = %s AND datname = current_database() AND pid <> pg_backend_pid()
"""


def find_holders(positions: TableName) -> str:
    """Return the query for the sessions that have locked a writer's record."""
    return HOLDERS.format(positions=_in_query(positions))
