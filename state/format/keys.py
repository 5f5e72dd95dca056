"""Keys as bytes: one canonical byte string for each tuple of key values that Spark's GROUP BY tells apart.

A key is a packed row (see ``packing``) of its columns, made canonical before: -0.0 is 0.0, every NaN is one NaN,
a timestamp is its instant whatever the time zone. Null is a value. So two keys have the same bytes exactly if Spark
groups them together. The version in the first byte is always 0, and there is no expiry.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)

from ..errors import KeyTypeError, KeyValueError
from .arrow import BYTES, scalar
from .packing import Packing
from .values import INTEGER_BITS, StateName, nullable

Convert = Callable[[Any], Any]

_NAN = float("nan")
_WIDE = decimal.Context(prec=76)
_PLAIN = {
    *INTEGER_BITS,
    BooleanType,
    BinaryType,
    NullType,
    DateType,
    TimestampType,
    TimestampNTZType,
    DayTimeIntervalType,
    TimeType,
}
"""Types whose values are canonical as they are packed."""


class _KeyName(StateName):
    """Names the key in errors."""

    def misfit(self, field: str, expected: str, found: str) -> KeyValueError:
        return KeyValueError(field, expected, found)


class KeyCodec:
    """Turns the keys of one operator into bytes and back."""

    def __init__(self, schema: StructType) -> None:
        """Compile the codec for key columns.

        Raises:
            KeyTypeError: rows cannot be grouped by a column.
        """
        self.schema = schema
        self._canonical = [_canonical(field.name, field.dataType) for field in schema.fields]
        # Whether a column can have nulls may differ between two plans of one query; a key's bytes may not.
        nullable = StructType([StructField(field.name, field.dataType) for field in schema.fields])
        self._packing = Packing([nullable], _KeyName("", "key"))

    def encode(self, key: Sequence[Any]) -> bytes:
        """Return the bytes of one key, with its values in the order of the key columns.

        The values may be as Arrow gives them or as PySpark shows them: a struct is a dict, a Row or a tuple; a
        timestamp is an aware datetime, or a naive one in Python's local time zone, as which PySpark's ``collect``
        shows it. A float or double may be given as an int and a decimal as an int or with fewer digits, if it is
        the same number.

        Raises:
            KeyValueError: it has other values than the key columns can have.
        """
        # A text is a sequence, too, and a single value in place of a key is the likeliest mistake.
        if not isinstance(key, tuple | list) or len(key) != len(self._canonical):
            return self._packing.pack_row(key)
        return self._packing.pack_row(
            tuple(
                value if value is None or convert is None else convert(value)
                for convert, value in zip(self._canonical, key, strict=True)
            )
        )

    def encode_columns(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Return the bytes of the key in each row of key columns of equal length; of type ``BYTES``."""
        rows = pa.StructArray.from_arrays(self.canonical(columns), names=self.schema.names)
        return self._packing.pack(rows)

    def canonical(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Return key columns with equal values where Spark takes two values for equal."""
        return [_canonical_column(column) for column in columns]

    def decode(self, data: bytes) -> tuple[Any, ...]:
        """Return the key that has these bytes, as rows of the input have it; timestamps are in UTC."""
        columns = self.decode_columns(pa.array([data], BYTES)).columns
        return tuple(column[0].as_py() for column in columns)

    def decode_columns(self, data: pa.Array) -> pa.Table:
        """Return the key columns of keys, given their bytes (of type ``BYTES``); timestamps are in UTC."""
        rows = self._packing.unpack(data)
        return pa.Table.from_arrays(rows.flatten(), names=self.schema.names)


def _canonical(column: str, dtype: DataType) -> Convert | None:
    """Return what makes a value that is not None canonical, None if it is that already.

    Values of another type pass as they are: the packing refuses them.
    """
    kind = type(dtype)
    if kind in _PLAIN:
        return None
    if isinstance(dtype, StringType):
        if not dtype.isUTF8BinaryCollation():
            raise KeyTypeError(column, dtype.simpleString(), "does not compare strings by their bytes")
        return None
    if kind in (FloatType, DoubleType):
        return _canonical_float
    if isinstance(dtype, DecimalType):
        return _canonical_decimal(column, dtype)
    if isinstance(dtype, ArrayType):
        element = nullable(_canonical(f"{column}[]", dtype.elementType))
        return lambda items: list(map(element, items)) if isinstance(items, list | tuple) else items
    if isinstance(dtype, StructType):
        return _canonical_struct(column, dtype)
    what = "Spark does not group by" if isinstance(dtype, MapType) else "is not supported in a key"
    raise KeyTypeError(column, dtype.simpleString(), what)


def _canonical_float(value: Any) -> Any:
    if value.__class__ is int:
        try:
            return float(value) if float(value) == value else value
        except OverflowError:
            return value
    if not isinstance(value, float):
        return value
    # Adding zero turns -0.0 into 0.0.
    return _NAN if value != value else value + 0.0


def _canonical_decimal(column: str, dtype: DecimalType) -> Convert:
    exponent = decimal.Decimal(1).scaleb(-dtype.scale)

    def convert(value: Any) -> Any:
        number = decimal.Decimal(value) if value.__class__ is int else value
        # Rounded to the column's scale, it would be another key.
        if (
            isinstance(number, decimal.Decimal)
            and number.is_finite()
            and number.quantize(exponent, context=_WIDE) != number
        ):
            raise KeyValueError(column, f"{dtype.simpleString()} without rounding", repr(value))
        return number

    return convert


def _canonical_struct(column: str, dtype: StructType) -> Convert:
    fields = [
        (field.name, nullable(_canonical(f"{column}.{field.name}", field.dataType))) for field in dtype.fields
    ]

    def convert(value: Any) -> Any:
        if isinstance(value, dict):
            known = {name: convert(value[name]) for name, convert in fields if name in value}
            return {**value, **known}
        if isinstance(value, tuple | list) and len(value) == len(fields):
            return [convert(item) for (_, convert), item in zip(fields, value, strict=True)]
        return value

    return convert


def _canonical_column(column: pa.Array) -> pa.Array:
    """Return a column whose floats are canonical, at whatever depth."""
    dtype = column.type
    if pa.types.is_floating(dtype):
        summed = pc.add(column, scalar(0.0, dtype))
        return pc.if_else(pc.is_nan(summed), scalar(_NAN, dtype), summed)
    if not _has_floats(dtype):
        return column
    if pa.types.is_struct(dtype):
        children = [_canonical_column(column.field(at)) for at in range(dtype.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(dtype), mask=column.is_null())
    children = [_canonical_column(column.values)]
    return pa.Array.from_buffers(
        dtype, len(column), column.buffers()[:2], offset=column.offset, children=children
    )


def _has_floats(dtype: pa.DataType) -> bool:
    if pa.types.is_struct(dtype):
        return any(_has_floats(field.type) for field in dtype)
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
        return _has_floats(dtype.value_type)
    return bool(pa.types.is_floating(dtype))
