"""The tables of a database as PostgreSQL's catalog has them, and what tells one from its namesakes."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from . import rows, sql
from .session import Session
from .sql import TableName


@attrs.frozen
class Found:
    """A relation of the database."""

    oid: int
    name: TableName
    kind: str
    """``relkind``."""
    has_row_security: bool
    is_unlogged: bool
    """Whether it, or a partition of it, is empty after a crash of the server."""


@attrs.frozen
class Identity:
    """Tells a table from others that have or had its name, by the ids that the database gives to tables."""

    positions: int
    """The table of positions."""
    table: int

    def __str__(self) -> str:
        return f"{self.positions}/{self.table}"

    def is_of(self, recorded: str | None) -> bool:
        """Return whether what was recorded with an identity is of this table, too.

        A database that was dumped and restored has given new ids to both tables.

        Args:
            recorded: the identity; None if something was recorded without one, which counts for any table.
        """
        if recorded is None:
            return True
        positions, _, table = recorded.partition("/")
        return positions != str(self.positions) or table == str(self.table)


@attrs.frozen
class Column:
    """A column of the target table."""

    name: str
    sql_type: str
    type: rows.ColumnType
    not_null: bool
    has_default: bool
    is_generated: bool
    is_always_identity: bool
    may_insert: bool
    may_update: bool
    may_select: bool


def find(session: Session, name: TableName) -> Found | None:
    """Return the relation of this name; None if there is none."""
    found = session.query(sql.FIND_TABLE, name.sql)
    if not found:
        return None
    oid, schema, table, *rest = found[0]
    return Found(oid, TableName(table, schema), *rest)


def columns_of(session: Session, found: Found) -> Iterator[Column]:
    """Yield the columns of a relation in their order."""
    for name, sql_type, type, category, modifier, is_array, *rest in session.query(sql.COLUMNS, found.oid):
        yield Column(name, sql_type, rows.ColumnType.of(type, category, modifier, is_array), *rest)
