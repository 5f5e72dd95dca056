"""State values as bytes, by the schema of their state: checked on the way in, msgpack inside.

A value is a msgpack array of its fields in schema order. Integers, floats, booleans, strings, bytes and
null are msgpack's own; a date, timestamp, time or interval is the integer that Spark keeps for it; a
decimal is text; a struct is an array; a map is an array of pairs, so that its keys can have any type. What
``decode`` returns is what PySpark's ``ValueState.get`` returns: a tuple, with Row for structs, naive local
time for timestamps.

PySpark stores null for a value of another type (an int in a double field); here that is an error.
"""

from __future__ import annotations

import ctypes
import datetime
import decimal
from collections.abc import Callable
from typing import Any

import attrs
import msgpack
import numpy as np
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    Row,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
    VarcharType,
)

from .errors import StateTypeError, UnsupportedStateError

Convert = Callable[[Any], Any]

INTEGER_BITS: dict[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}

_TEXT = (StringType, CharType, VarcharType)
_TEMPORAL: dict[type[DataType], type[Any]] = {
    DateType: datetime.date,
    TimestampType: datetime.datetime,
    TimestampNTZType: datetime.datetime,
    TimeType: datetime.time,
    DayTimeIntervalType: datetime.timedelta,
}
_PLAIN: dict[type[DataType], type] = {
    BooleanType: bool,
    ByteType: int,
    ShortType: int,
    IntegerType: int,
    LongType: int,
    DoubleType: float,
    StringType: str,
    BinaryType: bytes,
}
"""Types whose values msgpack takes and gives as they are."""

_SIGNATURES = 64
"""How many combinations of field types one codec remembers; above that, values are checked field by field."""

_WIDE = decimal.Context(prec=76, rounding=decimal.ROUND_HALF_UP)


@attrs.frozen
class StateName:
    """A state and the operator that it belongs to; names both in errors."""

    operator: str
    state: str

    def mismatch(self, field: str, expected: str, value: object) -> StateTypeError:
        """Return the error that says what ``field`` expected and what it was given."""
        return StateTypeError(self.operator, self.state, field, expected, describe(value))


def describe(value: object) -> str:
    """Return a value and its type as short text for an error."""
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"


class ValueCodec:
    """Turns the values of one state into bytes and back."""

    def __init__(self, schema: StructType, name: StateName) -> None:
        """Compile the codec.

        Raises:
            UnsupportedStateError: a field has a type that a state cannot hold.
        """
        self._name = name
        self._schema = schema
        self._pack: Callable[[Any], bytes] = msgpack.Packer().pack
        self._encoders = [
            _encoder(name, field.name, field.dataType, field.nullable) for field in schema.fields
        ]
        self._decoders = [_decoder(field.dataType) for field in schema.fields]
        self._flat = not any(self._decoders)
        self._primary = [_PLAIN.get(type(field.dataType)) for field in schema.fields]
        self._bounds = [
            (position, *bounds(field.dataType))
            for position, field in enumerate(schema.fields)
            if type(field.dataType) in INTEGER_BITS
        ]
        self._signatures: set[tuple[type, ...]] = set()

    def encode(self, value: Any) -> bytes:
        """Return the bytes of ``value``: a tuple, Row or list with one item a field, in schema order.

        Raises:
            StateTypeError: it has another shape, or an item has another type than its field.
        """
        if type(value) is tuple and tuple(map(type, value)) in self._signatures:
            for position, low, high in self._bounds:
                item = value[position]
                if item is not None and not low <= item <= high:
                    break
            else:
                try:
                    return self._pack(value)
                except ValueError:
                    # A string that is not UTF-8: the slow way says which.
                    pass
        return self._encode_checked(value)

    def decode(self, data: bytes) -> tuple[Any, ...]:
        """Return the value that ``encode`` was given, as PySpark would return it.

        Raises:
            StateTypeError: the bytes hold another number of fields than the schema has.
        """
        items: tuple[Any, ...] = msgpack.unpackb(data, use_list=not self._flat)
        if len(items) != len(self._decoders):
            raise StateTypeError(
                self._name.operator,
                self._name.state,
                "",
                f"stored values with {len(self._decoders)} fields, as the processor declares it",
                f"one with {len(items)}, written under another schema",
            )
        if self._flat:
            return items
        return tuple(
            item if decode is None or item is None else decode(item)
            for item, decode in zip(items, self._decoders, strict=True)
        )

    def _encode_checked(self, value: Any) -> bytes:
        if not isinstance(value, tuple | list) or len(value) != len(self._encoders):
            shape = ", ".join(
                f"{field.name} {field.dataType.simpleString()}" for field in self._schema.fields
            )
            raise self._name.mismatch("", f"a tuple of {len(self._encoders)} ({shape})", value)
        data = self._pack([encode(item) for encode, item in zip(self._encoders, value, strict=True)])
        self._remember(tuple(map(type, value)))
        return data

    def _remember(self, signature: tuple[type, ...]) -> None:
        """Let values of these types pass without a check of each field, if that is the same."""
        plain = all(
            found is primary or (primary is not None and found is type(None))
            for found, primary in zip(signature, self._primary, strict=True)
        )
        if plain and len(self._signatures) < _SIGNATURES:
            self._signatures.add(signature)


def bounds(dtype: DataType) -> tuple[int, int]:
    """Return the least and the greatest value of an integer type."""
    bits = INTEGER_BITS[type(dtype)]
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def _encoder(name: StateName, path: str, dtype: DataType, nullable: bool) -> Convert:
    expected = dtype.simpleString()
    convert = _convert(name, path, dtype)

    def encode(value: Any) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if value is None:
            if nullable:
                return None
            raise name.mismatch(path, f"{expected} that is not null", value)
        try:
            return convert(value)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise name.mismatch(path, expected, value) from error

    return encode


def _convert(name: StateName, path: str, dtype: DataType) -> Convert:
    """Return what turns a value that is not None into what msgpack packs; it raises ValueError on others."""
    kind = type(dtype)
    if kind in INTEGER_BITS:
        low, high = bounds(dtype)

        def integer(value: Any) -> int:
            if type(value) is not int or not low <= value <= high:
                raise ValueError(value)
            return value

        return integer
    if kind in (BooleanType, DoubleType):
        return _exact(_PLAIN[kind])
    if isinstance(dtype, FloatType):
        return lambda value: ctypes.c_float(_exact(float)(value)).value
    if isinstance(dtype, _TEXT):
        return _text
    if isinstance(dtype, BinaryType):
        return _binary
    if isinstance(dtype, DecimalType):
        return _decimal(dtype)
    if kind in _TEMPORAL:
        return _temporal(dtype)
    if isinstance(dtype, ArrayType):
        element = _encoder(name, f"{path}[]", dtype.elementType, dtype.containsNull)
        return lambda value: [element(item) for item in _instance(value, (list, tuple, np.ndarray))]
    if isinstance(dtype, MapType):
        if not _hashable(dtype.keyType):
            raise UnsupportedStateError(
                name.operator, f"a map with array or map keys in state {name.state!r}"
            )
        key = _encoder(name, f"{path}.key", dtype.keyType, False)
        item = _encoder(name, f"{path}.value", dtype.valueType, dtype.valueContainsNull)
        return lambda value: [[key(k), item(v)] for k, v in _instance(value, (dict,)).items()]
    if isinstance(dtype, StructType):
        return _struct(name, path, dtype)
    if isinstance(dtype, NullType):
        return _instance_of_nothing
    raise UnsupportedStateError(
        name.operator, f"type {dtype.simpleString()} in field {path!r} of state {name.state!r}"
    )


def _hashable(dtype: DataType) -> bool:
    """Whether the Python values of a type can be keys of a dict."""
    if isinstance(dtype, StructType):
        return all(_hashable(field.dataType) for field in dtype.fields)
    return not isinstance(dtype, ArrayType | MapType)


def _exact(expected: type) -> Convert:
    def exact(value: Any) -> Any:
        if not isinstance(value, expected):
            raise TypeError(value)
        return value

    return exact


def _instance(value: Any, kinds: tuple[type, ...]) -> Any:
    if not isinstance(value, kinds):
        raise TypeError(value)
    return value


def _instance_of_nothing(value: Any) -> None:
    raise TypeError(value)


def _text(value: Any) -> str:
    text: str = _instance(value, (str,))
    text.encode()
    return text


def _binary(value: Any) -> bytes:
    return bytes(_instance(value, (bytes, bytearray)))


def _decimal(dtype: DecimalType) -> Convert:
    exponent = decimal.Decimal(1).scaleb(-dtype.scale)
    limit = decimal.Decimal(10) ** (dtype.precision - dtype.scale)

    def encode(value: Any) -> str:
        scaled = _instance(value, (decimal.Decimal,)).quantize(exponent, context=_WIDE)
        if not abs(scaled) < limit:
            raise ValueError(value)
        return str(scaled)

    return encode


def _temporal(dtype: DataType) -> Convert:
    kind = _TEMPORAL[type(dtype)]

    def encode(value: Any) -> Any:
        if not isinstance(value, kind) or (kind is datetime.date and isinstance(value, datetime.datetime)):
            raise TypeError(value)
        if isinstance(dtype, TimestampNTZType) and value.tzinfo is not None:
            raise ValueError(value)
        return dtype.toInternal(value)

    return encode


def _struct(name: StateName, path: str, dtype: StructType) -> Convert:
    fields = [
        (field.name, _encoder(name, f"{path}.{field.name}", field.dataType, field.nullable))
        for field in dtype.fields
    ]

    def encode(value: Any) -> list[Any]:
        if isinstance(value, dict):
            if not value.keys() <= set(dtype.names):
                raise ValueError(value)
            return [encode(value.get(field)) for field, encode in fields]
        if len(_instance(value, (tuple, list))) != len(fields):
            raise ValueError(value)
        return [encode(item) for (_, encode), item in zip(fields, value, strict=True)]

    return encode


def _decoder(dtype: DataType) -> Convert | None:
    """Return what turns an unpacked item that is not None into a Python value; None if it is one already."""
    if isinstance(dtype, DecimalType):
        return decimal.Decimal
    if type(dtype) in _TEMPORAL:
        return dtype.fromInternal
    if isinstance(dtype, ArrayType):
        element = _nullable(_decoder(dtype.elementType))
        return lambda items: [element(item) for item in items]
    if isinstance(dtype, MapType):
        key, item = _nullable(_decoder(dtype.keyType)), _nullable(_decoder(dtype.valueType))
        return lambda pairs: {key(k): item(v) for k, v in pairs}
    if isinstance(dtype, StructType):
        # A Row class made from names keeps their order; Row(**fields) would, too, but cannot hold every name.
        row, fields = Row(*dtype.names), [_nullable(_decoder(field.dataType)) for field in dtype.fields]
        return lambda items: row(*(decode(item) for decode, item in zip(fields, items, strict=True)))
    return None


def _nullable(decode: Convert | None) -> Convert:
    if decode is None:
        return lambda item: item
    return lambda item: None if item is None else decode(item)
