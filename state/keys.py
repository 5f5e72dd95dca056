"""Keys as bytes: one canonical byte string for each tuple of key values that Spark's GROUP BY tells apart.

A key is a msgpack array of its columns in order. Two keys have the same bytes exactly if Spark groups them
together: -0.0 is 0.0, every NaN is one NaN, null is a value, a timestamp is its instant whatever the time
zone.

| type | msgpack |
|---|---|
| boolean, integers, string, binary, null | its own |
| float, double | a 64-bit float, zero and NaN made one |
| decimal | text of the unscaled integer |
| date; timestamp, timestamp_ntz, interval; time | integer: days; microseconds; nanoseconds |
| struct, array | an array |

msgpack values are self-delimiting: what follows a key's bytes cannot be taken for a part of it.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
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
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)

from .errors import KeyTypeError
from .values import INTEGER_BITS

Convert = Callable[[Any], Any]

_NAN = float("nan")
_WIDE = decimal.Context(prec=76)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)

_AS_INTEGER: dict[type[DataType], tuple[pa.DataType, pa.DataType]] = {
    DateType: (pa.date32(), pa.int32()),
    TimestampNTZType: (pa.timestamp("us"), pa.int64()),
    DayTimeIntervalType: (pa.duration("us"), pa.int64()),
    TimeType: (pa.time64("ns"), pa.int64()),
}
"""Arrow types through which a column becomes its canonical integers."""


class KeyCodec:
    """Turns the keys of one operator into bytes and back."""

    def __init__(self, schema: StructType) -> None:
        """Compile the codec for key columns.

        Raises:
            KeyTypeError: rows cannot be grouped by a column.
        """
        self.schema = schema
        self._canonical = []
        self._original = []
        for field in schema.fields:
            canonical, original = _converters(field.name, field.dataType)
            self._canonical.append(canonical)
            self._original.append(original)
        self._pack: Callable[[Any], bytes] = msgpack.Packer().pack

    def encode(self, key: Sequence[Any]) -> bytes:
        """Return the bytes of a key whose values are Arrow's: aware timestamps, dicts for structs."""
        return self._pack(
            [
                value if value is None or convert is None else convert(value)
                for convert, value in zip(self._canonical, key, strict=True)
            ]
        )

    def encode_columns(self, columns: Sequence[pa.Array]) -> list[bytes]:
        """Return the bytes of the key in each row of key columns of equal length."""
        lists = [
            self.column(position, column).to_pylist()
            if is_simple(self.schema.fields[position].dataType)
            else _map(self._canonical[position], column.to_pylist())
            for position, column in enumerate(columns)
        ]
        return list(map(self._pack, zip(*lists, strict=True)))

    def column(self, position: int, column: pa.Array) -> pa.Array:
        """Return a column of a simple type with equal values for equal keys, as msgpack is to hold them."""
        dtype = self.schema.fields[position].dataType
        if isinstance(dtype, FloatType | DoubleType):
            # Adding zero turns -0.0 into 0.0.
            wide = pc.add(column.cast(pa.float64()), 0.0)
            return pc.if_else(pc.is_nan(wide), _NAN, wide)
        if isinstance(dtype, TimestampType):
            return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        if type(dtype) in _AS_INTEGER:
            first, second = _AS_INTEGER[type(dtype)]
            return column.cast(first).cast(second)
        return column

    def decode(self, data: bytes) -> tuple[Any, ...]:
        """Return the key that has these bytes, as rows show it; timestamps are in UTC."""
        return tuple(
            value if value is None or convert is None else convert(value)
            for convert, value in zip(self._original, msgpack.unpackb(data), strict=True)
        )


def is_simple(dtype: DataType) -> bool:
    """Whether Arrow can bring a column of this type into canonical form as a whole."""
    return not isinstance(dtype, StructType | ArrayType | DecimalType | NullType)


def _map(convert: Convert | None, values: list[Any]) -> list[Any]:
    return values if convert is None else [None if value is None else convert(value) for value in values]


def _converters(column: str, dtype: DataType) -> tuple[Convert | None, Convert | None]:
    """Return what makes a value canonical and what undoes it, both for values that are not None."""
    kind = type(dtype)
    if kind in INTEGER_BITS or kind in (BooleanType, BinaryType, NullType):
        return None, None
    if isinstance(dtype, StringType):
        if not dtype.isUTF8BinaryCollation():
            raise KeyTypeError(column, dtype.simpleString(), "does not compare strings by their bytes")
        return None, None
    if kind in (FloatType, DoubleType):
        return lambda value: _NAN if value != value else value + 0.0, None
    if isinstance(dtype, DecimalType):
        scale = dtype.scale
        return (
            lambda value: str(int(value.scaleb(scale, _WIDE))),
            lambda text: decimal.Decimal(text).scaleb(-scale, _WIDE),
        )
    if isinstance(dtype, TimestampType):
        return lambda value: (value - _EPOCH) // _MICROSECOND, lambda count: _EPOCH + count * _MICROSECOND
    if isinstance(dtype, TimestampNTZType):
        start = _EPOCH.replace(tzinfo=None)
        return lambda value: (value - start) // _MICROSECOND, lambda count: start + count * _MICROSECOND
    if kind in _AS_INTEGER:
        return dtype.toInternal, dtype.fromInternal
    if isinstance(dtype, ArrayType):
        to_element, from_element = _converters(f"{column}[]", dtype.elementType)
        return lambda values: _map(to_element, values), lambda values: _map(from_element, values)
    if isinstance(dtype, StructType):
        return _struct(column, dtype)
    what = "Spark does not group by" if isinstance(dtype, MapType) else "is not supported in a key"
    raise KeyTypeError(column, dtype.simpleString(), what)


def _struct(column: str, dtype: StructType) -> tuple[Convert, Convert]:
    fields = [(name, *_converters(f"{column}.{name}", dtype[name].dataType)) for name in dtype.names]

    def canonical(value: dict[str, Any]) -> list[Any]:
        return [_map(to_field, [value[name]])[0] for name, to_field, _ in fields]

    def original(items: list[Any]) -> dict[str, Any]:
        return {
            name: _map(from_field, [item])[0]
            for (name, _, from_field), item in zip(fields, items, strict=True)
        }

    return canonical, original
