"""Columns of text and bytes with 64-bit offsets, for those that have too many bytes for 32-bit offsets.

An array with 32-bit offsets, as Spark gives it, holds less than 2 GiB of text. A column in several chunks may have
more, and its chunks can be joined only with wider offsets.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

NARROW: Final = 1 << 30
"""The most bytes of a column that keeps its 32-bit offsets; half of what they can address."""


def widened(table: pa.Table) -> pa.Table:
    """Return a table whose columns can each be joined into one array: those of too many bytes have 64-bit offsets."""
    for at, field in enumerate(table.schema):
        column = table.column(at)
        if column.nbytes > NARROW and (wide := _wide(field.type)) != field.type:
            table = table.set_column(at, field.with_type(wide), column.cast(wide))
    return table


def narrowed(table: pa.Table, types: pa.Schema) -> pa.Table:
    """Return a table whose columns have their declared types, but for those that still have too many bytes."""
    for at, field in enumerate(table.schema):
        declared, column = types.field(field.name), table.column(at)
        if field.type != declared.type and column.nbytes <= NARROW:
            table = table.set_column(at, declared, column.cast(declared.type))
    return table


def _wide(dtype: pa.DataType) -> pa.DataType:
    """Return the type with 64-bit offsets for text and bytes, nested ones too."""
    if pa.types.is_string(dtype):
        return pa.large_string()
    if pa.types.is_binary(dtype):
        return pa.large_binary()
    if pa.types.is_struct(dtype):
        return pa.struct([field.with_type(_wide(field.type)) for field in dtype])
    if pa.types.is_list(dtype):
        return pa.list_(dtype.value_field.with_type(_wide(dtype.value_type)))
    if pa.types.is_map(dtype):
        return pa.map_(
            dtype.key_field.with_type(_wide(dtype.key_type)),
            dtype.item_field.with_type(_wide(dtype.item_type)),
        )
    return dtype
