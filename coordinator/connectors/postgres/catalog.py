"""The tables of a database as PostgreSQL's catalog has them."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from . import rows, sql
from .session import Session
from .sql import TableName


@attrs.frozen
class Relation:
    """A relation of the database."""

    oid: int
    name: TableName
    kind: str
    """``relkind``."""
    has_row_security: bool
    is_unlogged: bool
    """Whether it, or a partition of it, is empty after a crash of the server."""


@attrs.frozen
class Column:
    """A column of the target table."""

    name: str
    sql_type: str
    type: rows.ColumnType
    base_type: str
    """As SQL: the type itself, or of a domain the type that it is made from."""
    not_null: bool
    """Also because its type is a domain that is."""
    no_null_items: bool
    """Whether it is of lists that take no nulls."""
    has_default: bool
    is_generated: bool
    is_always_identity: bool
    may_insert: bool
    may_update: bool
    may_select: bool


def find(session: Session, name: TableName) -> Relation | None:
    """Return the relation of this name; None if there is none."""
    found = session.query(sql.FIND_TABLE, name.sql)
    if not found:
        return None
    oid, schema, table, *rest = found[0]
    return Relation(oid, TableName(table, schema), *rest)


def columns_of(session: Session, found: Relation) -> Iterator[Column]:
    """Yield the columns of a relation in their order."""
    for name, sql_type, type, category, modifier, is_array, *rest in session.query(
        sql.COLUMNS, found.oid, found.oid
    ):
        yield Column(name, sql_type, rows.ColumnType.of(type, category, modifier, is_array), *rest)
