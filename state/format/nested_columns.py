"""Converts Arrow columns of arrays, maps and structs to the stored form of their values, and back.

The stored form is that of ``values``: what msgpack packs. No value becomes a Python object of its type on the way:
Spark has more of them, such as years after 9999, strings that are no UTF-8, and structs with two fields of one name.
"""

from __future__ import annotations

from typing import Any, Final

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    MapType,
    NullType,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)

from .arrow import bitmap
from .nulls import as_list
from .slots import DECIMAL_BYTES, is_text
from .values import from_unscaled

_TEMPORAL = (DateType, DayTimeIntervalType, TimestampNTZType, TimestampType, TimeType)
_BYTES: Final = "surrogateescape"
"""Bytes that are no UTF-8 pass through Python's strings unchanged."""


def packed(column: pa.Array, dtype: DataType) -> list[bytes]:
    """Return the values of a nested column, which has no null where its type has none, as bytes; none for null."""
    pack = msgpack.Packer(unicode_errors=_BYTES).pack
    return [b"" if value is None else pack(value) for value in _stored(column, dtype)]


def unpacked(items: list[bytes | None], dtype: DataType, arrow: pa.DataType) -> pa.Array:
    """Return the column whose values have these bytes, in which None stands for null."""
    values = [None if item is None else msgpack.unpackb(item, unicode_errors=_BYTES) for item in items]
    return _built(values, dtype, arrow)


# --- columns to stored values -------------------------------------------------------------------------------


def _stored(column: pa.Array, dtype: DataType) -> list[Any]:
    if isinstance(dtype, StructType):
        return _scattered(column, _stored_structs(_valid(column), dtype))
    if isinstance(dtype, ArrayType):
        present = _valid(column)
        return _scattered(column, _cut(_stored(present.flatten(), dtype.elementType), present))
    if isinstance(dtype, MapType):
        present = _valid(as_list(column))
        entries = present.flatten()
        keys, items = _stored(entries.field(0), dtype.keyType), _stored(entries.field(1), dtype.valueType)
        pairs = [list(pair) for pair in zip(keys, items, strict=True)]
        return _scattered(column, _cut(pairs, present))
    return _stored_leaves(column, dtype)


def _stored_structs(present: pa.Array, dtype: StructType) -> list[Any]:
    fields = [_stored(present.field(at), field.dataType) for at, field in enumerate(dtype.fields)]
    return list(map(list, zip(*fields, strict=True))) if fields else [[] for _ in range(len(present))]


def _stored_leaves(column: pa.Array, dtype: DataType) -> list[Any]:
    if isinstance(dtype, NullType):
        return [None] * len(column)
    if isinstance(dtype, _TEMPORAL):
        values: list[Any] = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64()).to_pylist()
        return values
    if isinstance(dtype, DecimalType):
        fixed = pa.Array.from_buffers(
            pa.binary(DECIMAL_BYTES), len(column), column.buffers(), offset=column.offset
        )
        unscaled: list[Any] = fixed.to_pylist()
        return unscaled
    if is_text(dtype):
        texts = column.cast(pa.binary()).to_pylist()
        return [None if text is None else text.decode(errors=_BYTES) for text in texts]
    plain: list[Any] = column.to_pylist()
    return plain


def _valid(column: pa.Array) -> pa.Array:
    return column.filter(column.is_valid()) if column.null_count else column


def _scattered(column: pa.Array, values: list[Any]) -> list[Any]:
    """Return the values of a column, given those that are not null."""
    if not column.null_count:
        return values
    given = iter(values)
    return [next(given) if valid else None for valid in column.is_valid().to_pylist()]


def _cut(items: list[Any], lists: pa.Array) -> list[list[Any]]:
    """Return the items of each list of a column without nulls, whose items are these."""
    found, at = [], 0
    for length in pc.list_value_length(lists).to_pylist():
        found.append(items[at : at + length])
        at += length
    return found


# --- stored values to columns -------------------------------------------------------------------------------


def _built(values: list[Any], dtype: DataType, arrow: pa.DataType) -> pa.Array:
    if isinstance(dtype, StructType):
        present = [[None] * len(dtype.fields) if value is None else value for value in values]
        columns = list(zip(*present, strict=True)) or [()] * len(dtype.fields)
        children = [
            _built(list(column), field.dataType, inner.type)
            for column, field, inner in zip(columns, dtype.fields, arrow, strict=True)
        ]
        buffers = [_validity(values)]
        return pa.Array.from_buffers(arrow, len(values), buffers, children=children)
    if isinstance(dtype, ArrayType):
        items = [item for value in values if value is not None for item in value]
        return _lists(values, arrow, _built(items, dtype.elementType, arrow.value_type))
    if isinstance(dtype, MapType):
        pairs = [pair for value in values if value is not None for pair in value]
        keys = _built([key for key, _ in pairs], dtype.keyType, arrow.key_type)
        items = _built([item for _, item in pairs], dtype.valueType, arrow.item_type)
        entry = pa.struct([arrow.key_field, arrow.item_field])
        entries = pa.Array.from_buffers(entry, len(pairs), [None], children=[keys, items])
        return _lists(values, arrow, entries)
    if isinstance(dtype, _TEMPORAL):
        return pa.array(values, pa.int32() if arrow.bit_width == 32 else pa.int64()).view(arrow)
    if isinstance(dtype, DecimalType):
        decode = from_unscaled(dtype)
        return pa.array([None if value is None else decode(value) for value in values], arrow)
    if is_text(dtype):
        texts = [None if value is None else value.encode(errors=_BYTES) for value in values]
        return pa.array(texts, pa.binary()).view(arrow)
    return pa.array(values, arrow)


def _lists(values: list[Any], arrow: pa.DataType, items: pa.Array) -> pa.Array:
    ends = np.cumsum([0, *(0 if value is None else len(value) for value in values)]).astype(np.int32)
    buffers = [_validity(values), pa.py_buffer(ends)]
    return pa.Array.from_buffers(arrow, len(values), buffers, children=[items])


def _validity(values: list[Any]) -> pa.Buffer | None:
    present = np.array([value is not None for value in values], np.bool_)
    return None if present.all() else bitmap(present)
