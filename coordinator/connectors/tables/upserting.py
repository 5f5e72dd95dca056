"""What sinks that replace rows by key have in common: their key, and the last row of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ...sinks.two_phase.errors import OutputError
from .schema import rows_with_null

if TYPE_CHECKING:
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


def without(schema: pa.Schema, deleted: str) -> pa.Schema:
    """Return a schema without the column that marks deletions, which is none of the table."""
    return schema.remove(schema.get_field_index(deleted))


def last_by_key(rows: pa.Table, key: tuple[str, ...], target: str) -> pa.Table:
    """Return the last row of each key, in the order of the rows.

    Raises:
        OutputError: a row has a null in its key. Such a row equals no other, and would be added again and again.
    """
    import pyarrow as pa

    for name in key:
        if rows.column(name).null_count:
            raise OutputError(
                f"{target} refuses rows",
                f"key column {name!r} to be never null",
                rows_with_null(rows, name),
                "filter them in the query, or choose another key",
            )
    number = "_chandy_number"
    numbered = rows.select(list(key)).append_column(number, pa.array(range(rows.num_rows), pa.int64()))
    last = numbered.group_by(list(key)).aggregate([(number, "max")]).column(f"{number}_max")
    return rows.take(last.combine_chunks().sort())
