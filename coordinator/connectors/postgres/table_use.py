"""What a sink does with its table, and what keeps the table from taking it: its columns, rules, keys and rights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

import attrs

from ...sinks.two_phase.limits import Limits
from . import rows, sql
from .catalog import Column, Relation
from .positions import UNLOGGED, rights_problems
from .session import Session

if TYPE_CHECKING:
    import pyarrow as pa

_KINDS: Final = {"v": "view", "m": "materialized view", "f": "foreign table", "S": "sequence", "i": "index"}
_WRITABLE: Final = {"r", "p"}
"""Tables and partitioned tables."""


@attrs.frozen
class TableUse:
    """What a sink does with its table."""

    table: str
    """Its name, for messages."""
    mode: Literal["append", "upsert"]
    key: tuple[str, ...]
    deleted: str | None

    def written(self, names: Iterable[str]) -> list[str]:
        """Return which columns of rows are columns of the table."""
        return [name for name in names if name != self.deleted]

    def limits(self, columns: Iterable[Column]) -> Limits:
        """Return which columns, and lists in them, take no nulls, and how long texts may be."""
        import pyarrow as pa

        columns = list(columns)
        never_null = frozenset(column.name for column in columns if column.not_null)
        if self.deleted is not None:
            # Of a row that marks a deletion, the key alone counts.
            never_null &= set(self.key)
        item = pa.field("item", pa.string(), nullable=False)
        lists = tuple(pa.field(column.name, pa.list_(item)) for column in columns if column.no_null_items)
        return Limits(never_null, lengths_of(columns), lists)

    def problems(
        self, session: Session, found: Relation, present: Sequence[Column], schema: pa.Schema
    ) -> list[str]:
        """Return what keeps the table from taking the rows, each as a sentence without its full stop."""
        if found.kind not in _WRITABLE:
            return [f"{self.table} is a {_KINDS.get(found.kind, 'relation')} and not a table"]
        columns = {column.name: column for column in present}
        wanted = self.written(schema.names)
        problems = self.column_problems(columns, schema)
        problems += [
            f"column {column.name!r} of the table takes no nulls, has no default, and the query does not have it"
            for column in columns.values()
            if column.name not in wanted and column.not_null and not column.has_default
        ]
        if found.is_unlogged:
            problems.append(UNLOGGED.format(self.table))
        if found.has_row_security:
            problems.append("the table has row-level security for the user, and COPY does not work with it")
        if self.mode == "upsert":
            problems += self._upsert_problems(session, found, columns)
        return [*problems, *rights_problems(session, found)]

    def column_problems(self, columns: Mapping[str, Column], schema: pa.Schema) -> list[str]:
        """Return what keeps the columns of rows from those of the table, each as a sentence without its full stop."""
        return [
            problem
            for name in self.written(schema.names)
            for problem in self._column_problems(columns.get(name), schema.field(name))
        ]

    def _column_problems(self, column: Column | None, field: pa.Field) -> Iterator[str]:
        if column is None:
            yield f"the table has no column {field.name!r} ({rows.type_for(field.type) or field.type})"
            return
        if column.is_generated:
            yield f"column {field.name!r} of the table is generated and cannot be written"
        elif not rows.fits(field.type, column.type):
            yield (
                f"column {field.name!r} is {column.sql_type} and the query's is {field.type} "
                f"({rows.type_for(field.type)})"
            )
        elif self.mode == "upsert" and column.is_always_identity and field.name not in self.key:
            yield f"column {field.name!r} of the table is GENERATED ALWAYS AS IDENTITY and cannot be updated"
        rights = {"INSERT": column.may_insert}
        if self.mode == "upsert":
            rights |= {"UPDATE": column.may_update or field.name in self.key, "SELECT": column.may_select}
        missing = [right for right, given in rights.items() if not given]
        if missing:
            yield f"the user has no right to {' and '.join(missing)} column {field.name!r}"

    def _upsert_problems(
        self, session: Session, found: Relation, columns: Mapping[str, Column]
    ) -> Iterator[str]:
        keys = [set(names) for (names,) in session.query(sql.UNIQUE_KEYS, found.oid)]
        if set(self.key) not in keys:
            names = ", ".join(self.key)
            yield f"the table has no primary key or unique index on ({names}), which an upsert needs"
        for name in self.key:
            if name in columns and not columns[name].not_null:
                yield f"key column {name!r} of the table takes nulls: make it NOT NULL"
        for rule, event in session.query(sql.RULES, found.oid):
            # COPY passes rules over, and so an append does.
            if event != "DELETE" or self.deleted is not None:
                yield f"the table has the rule {rule!r} ON {event}, and an upsert does not work with it: use a trigger"
        ((may_make_temporary, may_delete),) = session.query(
            "SELECT has_database_privilege(current_database(), 'TEMPORARY'), has_table_privilege(%s, 'DELETE')",
            found.oid,
        )
        if not may_make_temporary:
            yield "the user has no right to make TEMPORARY tables in the database"
        if self.deleted is not None and not may_delete:
            yield "the user has no right to DELETE from the table"


def lengths_of(columns: Iterable[Column]) -> dict[str, int]:
    """Return the most characters that columns of text may have, by name."""
    return {column.name: column.type.length for column in columns if column.type.length is not None}
