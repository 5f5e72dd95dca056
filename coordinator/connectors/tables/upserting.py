"""What sinks that replace rows by key have in common: their key, and the last row of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ...sinks.two_phase.errors import OutputError
from ...sinks.two_phase.limits import one_key
from .schema import fit

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

Mode = Literal["append", "upsert"]
"""Whether rows are added, or replace those with the same key."""


def check_mode(target: str, mode: Mode, key: tuple[str, ...]) -> None:
    """Check that a sink that upserts has a key, and no other.

    Raises:
        OutputError: it is otherwise.
    """
    if (mode == "upsert") != bool(key):
        raise OutputError(
            f"{target} cannot be used as a sink",
            'key columns with mode="upsert", and none with mode="append"',
            f"mode={mode!r} and key={key!r}",
            'set key=("id",), say, or leave it out',
        )


def check_deleted(target: str, schema: pa.Schema, mode: Mode, key: tuple[str, ...], deleted: str) -> None:
    """Check that the rows have the column that marks deletions, and that keys can be deleted.

    Raises:
        OutputError: it is otherwise.
    """
    import pyarrow as pa

    is_there = deleted in schema.names and pa.types.is_boolean(schema.field(deleted).type)
    if mode != "upsert" or deleted in key or not is_there:
        raise OutputError(
            f"{target} cannot be used as a sink",
            f'mode="upsert" and a boolean column {deleted!r} apart from the key, for deleted={deleted!r}',
            f"mode={mode!r}, key={key!r} and columns {', '.join(f'{one.name} {one.type}' for one in schema)}",
            "correct the query, or leave `deleted` out",
        )


def unmarked(
    target: str, schema: pa.Schema, mode: Mode, key: tuple[str, ...], deleted: str | None
) -> pa.Schema:
    """Return the schema of rows without the column that marks deletions, which is none of the table.

    Raises:
        OutputError: they do not have the column, or no keys can be deleted.
    """
    if deleted is None:
        return schema
    check_deleted(target, schema, mode, key, deleted)
    return schema.remove(schema.get_field_index(deleted))


def last_rows(
    tables: Iterable[pa.Table],
    table: pa.Schema,
    key: tuple[str, ...],
    deleted: str | None,
    target: str,
    *,
    fill: bool,
) -> pa.Table:
    """Return the last row of each key in the form of a table, then with the mark of deletions if rows have one.

    Args:
        tables: the rows, in their order.
        table: the schema of the table.
        key: the columns of the key.
        deleted: the column that marks deletions; None if there is none.
        target: the table, for messages.
        fill: as for ``fit``.

    Raises:
        OutputError: a row does not fit.
    """
    import pyarrow as pa

    marked = table if deleted is None else table.append(pa.field(deleted, pa.bool_()))
    fitted = [fit(rows, marked, target, fill=fill) for rows in tables]
    return last_by_key(pa.concat_tables(fitted), key)


def last_by_key(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """Return the last row of each key, in the order of the rows, and what is one key as one value."""
    import pyarrow as pa

    for name in key:
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), one_key(rows.column(at)))
    number = "_chandy_number"
    numbered = rows.select(list(key)).append_column(number, pa.array(range(rows.num_rows), pa.int64()))
    last = numbered.group_by(list(key)).aggregate([(number, "max")]).column(f"{number}_max")
    return rows.take(last.combine_chunks().sort())
