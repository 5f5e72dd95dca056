"""Single values by their Spark type: checks and converts them for storage, and converts them back.

Values are stored as msgpack takes them. Integers, floats, booleans, strings, bytes and null stay as they are. A
date, timestamp, time or interval is the integer that Spark keeps for it. A decimal is its unscaled integer in 16
bytes, little-endian. A struct is an array, and a map is an array of pairs, so that its keys can have any type.
Reading returns what PySpark's ``ValueState.get`` returns: a Row for a struct, naive local time for a timestamp.

A value of another type than its field is an error. PySpark stores another value without a word: null (for an int in a
double field), its text (for 1 in a string field), or its lower bits (for 2**31 in an int field). A map may also be
given as a list of pairs, which is how the rows of the input have it.
"""

from __future__ import annotations

import ctypes
import datetime
import decimal
import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
from pyspark.sql import types

from ..errors import DefinitionError, StateTypeError
from ..user_code import text_of
from .slots import DECIMAL_BYTES
from .structs import FieldsError, named

Convert = Callable[[Any], Any]

INTEGER_BITS: dict[type[types.DataType], int] = {
    types.ByteType: 8,
    types.ShortType: 16,
    types.IntegerType: 32,
    types.LongType: 64,
}

_TEXT = (types.StringType, types.CharType, types.VarcharType)
_TEMPORAL: dict[type[types.DataType], type[Any]] = {
    types.DateType: datetime.date,
    types.TimestampType: datetime.datetime,
    types.TimestampNTZType: datetime.datetime,
    types.TimeType: datetime.time,
    types.DayTimeIntervalType: datetime.timedelta,
}
PLAIN: dict[type[types.DataType], type] = {
    types.BooleanType: bool,
    types.ByteType: int,
    types.ShortType: int,
    types.IntegerType: int,
    types.LongType: int,
    types.DoubleType: float,
    types.StringType: str,
    types.BinaryType: bytes,
}
"""Types whose values are stored as they are, and the Python type of the values."""

_WIDE = decimal.Context(prec=76, rounding=decimal.ROUND_HALF_UP)


@attrs.frozen
class StateName:
    """A state and its operator, as errors name them."""

    operator: str
    state: str

    def value_error(self, field: str, expected: str, value: object, advice: str = "") -> StateTypeError:
        """Return the error for a value that does not fit a field."""
        return self.error(field, expected, describe(value), advice)

    def error(self, field: str, expected: str, found: str, advice: str = "") -> StateTypeError:
        """Return the error for something that does not fit a field; an empty ``field`` is the value as a whole."""
        where = f"field {field!r} of " if field else ""
        what = f"a value does not fit {where}state {self.state!r} of operator {self.operator!r}"
        return StateTypeError(what, expected, found, advice)

    def unsupported(self, found: str) -> DefinitionError:
        """Return the error for a type that the state cannot hold."""
        return DefinitionError(
            f"state {self.state!r} of operator {self.operator!r} has a type that a state cannot hold",
            "a type that can be stored",
            found,
            "convert the values to another type",
        )


def describe(value: object) -> str:
    """Return a value and its type as short text for an error."""
    text = text_of(value, repr)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"


def bounds(dtype: types.DataType) -> tuple[int, int]:
    """Return the least and the greatest value of an integer type."""
    bits = INTEGER_BITS[type(dtype)]
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def encoder(name: StateName, path: str, dtype: types.DataType, nullable: bool) -> Convert:
    """Return a function that checks a value of a type and converts it to its stored form.

    For a value of another type the function raises a StateTypeError, with the path inside the field.

    Raises:
        DefinitionError: a state cannot hold the type.
    """
    expected = dtype.simpleString()
    advice = "give str(value), which is what PySpark makes of it" if isinstance(dtype, _TEXT) else ""
    convert = _convert(name, path, dtype)

    def encode(value: Any) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if value is None:
            if nullable:
                return None
            raise name.value_error(path, f"{expected} that is not null", value)
        try:
            return convert(value)
        except FieldsError as error:
            raise name.error(path, error.expected, f"a struct {error.wrong}: {describe(value)}") from error
        except (TypeError, ValueError, ArithmeticError) as error:
            raise name.value_error(path, expected, value, advice) from error

    return encode


def _convert(name: StateName, path: str, dtype: types.DataType) -> Convert:
    """Return a function that converts a value (never None) to what msgpack packs; it raises ValueError on others."""
    kind = type(dtype)
    if kind in INTEGER_BITS:
        low, high = bounds(dtype)

        def integer(value: Any) -> int:
            if type(value) is not int or not low <= value <= high:
                raise ValueError(value)
            return value

        return integer
    if kind in (types.BooleanType, types.DoubleType):
        return _exact(PLAIN[kind])
    if isinstance(dtype, types.FloatType):
        return lambda value: ctypes.c_float(_exact(float)(value)).value
    if isinstance(dtype, _TEXT):
        return _text
    if isinstance(dtype, types.BinaryType):
        return _binary
    if isinstance(dtype, types.DecimalType):
        return _decimal(dtype)
    if kind in _TEMPORAL:
        return _temporal(dtype)
    if isinstance(dtype, types.ArrayType):
        element = encoder(name, f"{path}[]", dtype.elementType, dtype.containsNull)
        return lambda value: [element(item) for item in sequence(value)]
    if isinstance(dtype, types.MapType):
        if not _hashable(dtype.keyType):
            raise name.unsupported(f"a map with array or map keys in field {path!r}")
        key = encoder(name, f"{path}.key", dtype.keyType, False)
        item = encoder(name, f"{path}.value", dtype.valueType, dtype.valueContainsNull)
        return lambda value: [
            [key(k), item(v)]
            for k, v in (value.items() if isinstance(value, dict) else instance(value, (list,)))
        ]
    if isinstance(dtype, types.StructType):
        return _struct(name, path, dtype)
    if isinstance(dtype, types.NullType):
        return _instance_of_nothing
    raise name.unsupported(f"type {dtype.simpleString()} in field {path!r}")


def _hashable(dtype: types.DataType) -> bool:
    """Return whether the Python values of a type can be keys of a dict."""
    if isinstance(dtype, types.StructType):
        return all(_hashable(field.dataType) for field in dtype.fields)
    return not isinstance(dtype, types.ArrayType | types.MapType)


def _exact(expected: type) -> Convert:
    def exact(value: Any) -> Any:
        if not isinstance(value, expected):
            raise TypeError(value)
        return value

    return exact


def instance(value: Any, kinds: tuple[type, ...]) -> Any:
    """Return a value of one of these types; raise TypeError for any other."""
    if not isinstance(value, kinds):
        raise TypeError(value)
    return value


def sequence(value: Any) -> Sequence[Any]:
    """Return the items of a list, a tuple, a NumPy array or a pandas Series; raise TypeError for anything else."""
    if isinstance(value, list | tuple):
        return value
    # Arrays and Series have this method; so do NumPy's scalars, whose result is no list.
    to_list = getattr(value, "tolist", None)
    items = None if to_list is None else to_list()
    return instance(items, (list,))  # type: ignore[no-any-return]


def _instance_of_nothing(value: Any) -> None:
    raise TypeError(value)


def _text(value: Any) -> str:
    text: str = instance(value, (str,))
    text.encode()
    return text


def _binary(value: Any) -> bytes:
    return bytes(instance(value, (bytes, bytearray)))


def _decimal(dtype: types.DecimalType) -> Convert:
    exponent = decimal.Decimal(1).scaleb(-dtype.scale)
    limit = 10**dtype.precision

    def encode(value: Any) -> bytes:
        scaled = instance(value, (decimal.Decimal,)).quantize(exponent, context=_WIDE)
        unscaled = int(scaled.scaleb(dtype.scale, _WIDE))
        if not -limit < unscaled < limit:
            raise ValueError(value)
        return unscaled.to_bytes(DECIMAL_BYTES, "little", signed=True)

    return encode


def _temporal(dtype: types.DataType) -> Convert:
    kind = _TEMPORAL[type(dtype)]

    def encode(value: Any) -> Any:
        if not isinstance(value, kind) or (kind is datetime.date and isinstance(value, datetime.datetime)):
            raise TypeError(value)
        if isinstance(dtype, types.TimestampNTZType) and value.tzinfo is not None:
            raise ValueError(value)
        if kind is datetime.datetime and value.tzinfo is None and isinstance(dtype, types.TimestampType):
            return _local_micros(value)
        return dtype.toInternal(value)

    return encode


def _local_micros(value: datetime.datetime) -> int:
    """Return the microseconds since 1970 of a local time; ``fold`` says which one is meant of an hour that comes twice.

    PySpark asks the C library, which then answers as it has answered last.
    """
    try:
        seconds = value.replace(microsecond=0).timestamp()
    except (ValueError, OverflowError):
        # A day at the end of the calendar, where no hour comes twice.
        seconds = time.mktime(value.timetuple())
    return int(seconds) * 1_000_000 + value.microsecond


def _struct(name: StateName, path: str, dtype: types.StructType) -> Convert:
    fields = [encoder(name, f"{path}.{field.name}", field.dataType, field.nullable) for field in dtype.fields]

    def encode(value: Any) -> list[Any]:
        if isinstance(value, dict):
            return [encode(item) for encode, item in zip(fields, named(value, dtype.names), strict=True)]
        if len(instance(value, (tuple, list))) != len(fields):
            raise ValueError(value)
        return [encode(item) for encode, item in zip(fields, value, strict=True)]

    return encode


def decoder(dtype: types.DataType) -> Convert | None:
    """Return a function that converts a stored value (never None) to a Python value; None if it is one already."""
    if isinstance(dtype, types.DecimalType):
        return from_unscaled(dtype)
    if type(dtype) in _TEMPORAL:
        return dtype.fromInternal
    if isinstance(dtype, types.ArrayType):
        element = nullable(decoder(dtype.elementType))
        return lambda items: [element(item) for item in items]
    if isinstance(dtype, types.MapType):
        key, item = nullable(decoder(dtype.keyType)), nullable(decoder(dtype.valueType))
        return lambda pairs: {key(k): item(v) for k, v in pairs}
    if isinstance(dtype, types.StructType):
        # A Row class made from names keeps their order; Row(**fields) would, too, but cannot hold every name.
        row, fields = types.Row(*dtype.names), [nullable(decoder(field.dataType)) for field in dtype.fields]
        return lambda items: row(*(decode(item) for decode, item in zip(fields, items, strict=True)))
    return None


def from_unscaled(dtype: types.DecimalType) -> Convert:
    """Return a function that converts the bytes of a decimal's unscaled integer to the decimal."""
    scale = dtype.scale

    def decode(data: bytes) -> decimal.Decimal:
        return decimal.Decimal(int.from_bytes(data, "little", signed=True)).scaleb(-scale, _WIDE)

    return decode


def nullable(decode: Convert | None) -> Convert:
    """Return a function that converts as ``decode`` does (None: not at all) and leaves None as it is."""
    if decode is None:
        return lambda item: item
    return lambda item: None if item is None else decode(item)
