"""Keys as bytes: one canonical byte string for each tuple of key values that Spark's GROUP BY tells apart.

A key is a packed row (see ``packing``) of its columns in canonical form: -0.0 becomes 0.0, every NaN the same NaN,
and a timestamp its instant, whatever its time zone. Null is a value. So two keys have the same bytes exactly if Spark
groups them together. The version in the first byte is always 0, and there is no expiry.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types

from ..errors import DefinitionError, StateTypeError
from .arrow import BYTES, scalar
from .packing import Packing
from .values import INTEGER_BITS, StateName, nullable

Convert = Callable[[Any], Any]

_NAN = float("nan")
_WIDE = decimal.Context(prec=76)
_PLAIN = {
    *INTEGER_BITS,
    types.BooleanType,
    types.BinaryType,
    types.NullType,
    types.DateType,
    types.TimestampType,
    types.TimestampNTZType,
    types.DayTimeIntervalType,
    types.TimeType,
}
"""Types whose values are already canonical when they are packed."""


class _KeyName(StateName):
    """Names the key columns in errors."""

    def error(self, field: str, expected: str, found: str, advice: str = "") -> StateTypeError:
        where = f"key column {field!r}" if field else "the key"
        return StateTypeError(f"a value does not fit {where}", expected, found)


_KEY = _KeyName("", "key")


class KeyCodec:
    """Converts the keys of one operator to bytes and back."""

    def __init__(self, schema: types.StructType) -> None:
        """Compile the codec for key columns.

        Raises:
            DefinitionError: rows cannot be grouped by a column.
        """
        self.schema = schema
        self._canonical = [_canonical(field.name, field.dataType) for field in schema.fields]
        # Two plans of one query may differ in which columns can be null; the bytes of a key must not differ.
        nullable = types.StructType(
            [types.StructField(field.name, field.dataType) for field in schema.fields]
        )
        self._packing = Packing([nullable], _KEY)

    def encode(self, key: Sequence[Any]) -> bytes:
        """Return the bytes of one key, given its values in the order of the key columns.

        The values may be as Arrow gives them or as PySpark shows them. A struct is a dict, a Row or a tuple. A
        timestamp is an aware datetime, or a naive one in Python's local time zone as PySpark's ``collect`` returns it.
        A float or double may be given as an int, and a decimal as an int or with fewer digits, if it is the same
        number.

        Raises:
            StateTypeError: a value does not fit its key column.
        """
        # A text is a sequence as well, and a single value in place of a key is the likeliest mistake.
        if not isinstance(key, tuple | list) or len(key) != len(self._canonical):
            return self._packing.pack_row(key)
        return self._packing.pack_row(
            tuple(
                value if value is None or convert is None else convert(value)
                for convert, value in zip(self._canonical, key, strict=True)
            )
        )

    def encode_columns(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Return the bytes of the key in each row of the key columns, of type ``BYTES``."""
        rows = pa.StructArray.from_arrays(self.canonical(columns), names=self.schema.names)
        return self._packing.pack(rows)

    def canonical(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the key columns in canonical form: values that are equal for Spark become equal."""
        return [_canonical_column(column) for column in columns]

    def decode(self, data: bytes) -> tuple[Any, ...]:
        """Return the key with these bytes, as rows of the input have it; timestamps are in UTC."""
        columns = self.decode_columns(pa.array([data], BYTES)).columns
        return tuple(column[0].as_py() for column in columns)

    def shown(self, data: bytes) -> str:
        """Return the key with these bytes as text; in hexadecimal if Python has no values for it."""
        try:
            return str(self.decode(data))
        except (ValueError, OverflowError):
            return data.hex()

    def decode_columns(self, data: pa.Array) -> pa.Table:
        """Return the key columns of keys with these bytes (of type ``BYTES``); timestamps are in UTC."""
        rows = self._packing.unpack(data)
        return pa.Table.from_arrays(rows.flatten(), names=self.schema.names)


def _canonical(column: str, dtype: types.DataType) -> Convert | None:
    """Return a function that makes a value (never None) canonical; None if it is canonical already.

    The function leaves values of another type as they are: the packing refuses them.
    """
    kind = type(dtype)
    if kind in _PLAIN:
        return None
    if isinstance(dtype, types.StringType):
        if not dtype.isUTF8BinaryCollation():
            raise _cannot_group(column, dtype, "does not compare strings by their bytes")
        return None
    if kind in (types.FloatType, types.DoubleType):
        return _canonical_float
    if isinstance(dtype, types.DecimalType):
        return _canonical_decimal(column, dtype)
    if isinstance(dtype, types.ArrayType):
        element = nullable(_canonical(f"{column}[]", dtype.elementType))
        return lambda items: list(map(element, items)) if isinstance(items, list | tuple) else items
    if isinstance(dtype, types.StructType):
        return _canonical_struct(column, dtype)
    reason = "Spark does not group by" if isinstance(dtype, types.MapType) else "is not supported in a key"
    raise _cannot_group(column, dtype, reason)


def _cannot_group(column: str, dtype: types.DataType, reason: str) -> DefinitionError:
    return DefinitionError(
        f"rows cannot be grouped by key column {column!r}",
        "numbers, strings, bytes, dates, timestamps, or structs and arrays of them",
        f"type {dtype.simpleString()}, which {reason}",
        "cast the column, or choose another key",
    )


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


def _canonical_decimal(column: str, dtype: types.DecimalType) -> Convert:
    exponent = decimal.Decimal(1).scaleb(-dtype.scale)

    def convert(value: Any) -> Any:
        number = decimal.Decimal(value) if value.__class__ is int else value
        # Rounding to the column's scale would make it another key.
        if (
            isinstance(number, decimal.Decimal)
            and number.is_finite()
            and number.quantize(exponent, context=_WIDE) != number
        ):
            raise _KEY.error(column, f"{dtype.simpleString()} without rounding", repr(value))
        return number

    return convert


def _canonical_struct(column: str, dtype: types.StructType) -> Convert:
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
    """Return a column in which all floats are canonical, nested ones too."""
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
