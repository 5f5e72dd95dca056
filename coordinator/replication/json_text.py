"""Rows in JSON: one text for each value, whatever the session's settings, and another one for another value.

| type | JSON |
|---|---|
| whole numbers, decimals, booleans | as they are |
| floats | the shortest number of this value; ``"NaN"``, ``"Infinity"``, ``"-Infinity"`` |
| string | text; a byte that is no UTF-8 is the escape of a lone surrogate, as Python's ``surrogateescape`` has it |
| binary | Base64 |
| date, time, timestamp | ISO 8601 with six digits of a second; a timestamp in UTC with ``Z``, or without a zone |
| interval | seconds in ISO 8601: ``PT-90.000001S`` |
| struct | an object with all fields |
| map | an object, or for keys that are no texts an array of objects ``key`` and ``value`` |
"""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import attrs
from pyspark.sql import types as T  # noqa: N812 (its usual name)

from ..connectors.values import calendar_day, clock, is_near
from ..errors import ReplicaError

if TYPE_CHECKING:
    import pyarrow as pa

EARLIER: Final = 1
"""Version of the texts of earlier versions, which Spark wrote by settings of the session."""
EXACT: Final = 2
"""Version of the texts that this module alone writes."""

_NULL: Final = "null"
_TEXTS: Final = (T.StringType, T.CharType, T.VarcharType)
_SAME_TEXT: Final = (
    *(T.NullType, T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.DecimalType),
    *(*_TEXTS, T.BinaryType, T.DateType),
)
"""The types that Spark writes in the same way, whatever its settings."""
_SAME_VALUE: Final = (*_SAME_TEXT, T.FloatType, T.DoubleType)
"""Those that a reader gets from the texts of both."""
_OTHERS: Final = (T.TimestampType, T.TimestampNTZType, T.TimeType, T.DayTimeIntervalType)
_SPECIAL: Final = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
_ESCAPED: Final = re.compile(r'["\\\x00-\x1f\ud800-\udfff]')
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_SECOND: Final = 1_000_000


def version_of(key: T.StructType, value: T.StructType) -> int:
    """Return the earliest version whose messages replace those that are written now, and mean the same to readers.

    Raises:
        ReplicaError: there is no JSON for a column.
    """
    for name, struct in (("key", key), ("value", value)):
        _check(struct, name)
    return EARLIER if _consists_of(key, _SAME_TEXT) and _consists_of(value, _SAME_VALUE) else EXACT


@attrs.frozen
class JsonWriter:
    """Encodes the structs of a column as messages. It is sent to tasks."""

    def encode(self, column: pa.Array) -> pa.Array:
        """Return a column of texts; null stays null."""
        import pyarrow as pa

        texts = zip(column.is_valid().to_pylist(), _texts(column), strict=True)
        return pa.array([text if is_there else None for is_there, text in texts], pa.string())


def _check(type_: T.DataType, name: str) -> None:
    match type_:
        case T.StructType():
            if twice := {one for one in type_.names if type_.names.count(one) > 1}:
                raise _refused(
                    "columns of different names", f"{sorted(twice)[0]!r} twice in {name}", "rename one"
                )
            for field in type_:
                _check(field.dataType, f"{name}.{field.name}")
        case T.ArrayType():
            _check(type_.elementType, name)
        case T.MapType():
            _check(type_.keyType, name)
            _check(type_.valueType, name)
        case _ if not isinstance(type_, (*_SAME_VALUE, *_OTHERS)):
            raise _refused("types that a replica has in JSON", f"{type_.simpleString()} in {name}", "cast it")


def _refused(expected: str, found: str, advice: str) -> ReplicaError:
    return ReplicaError("a state cannot be replicated in JSON", expected, found, advice)


def _consists_of(type_: T.DataType, leaves: tuple[type[T.DataType], ...]) -> bool:
    match type_:
        case T.StructType():
            return all(_consists_of(field.dataType, leaves) for field in type_)
        case T.ArrayType():
            return _consists_of(type_.elementType, leaves)
        case T.MapType():
            return isinstance(type_.keyType, _TEXTS) and _consists_of(type_.valueType, leaves)
    return isinstance(type_, leaves)


# --- texts of columns ---------------------------------------------------------------------------------------


def _texts(column: pa.Array) -> list[str]:
    """Return the text of each value of a column."""
    import pyarrow as pa

    type_ = column.type
    if pa.types.is_null(type_):
        return [_NULL] * len(column)
    if pa.types.is_struct(type_):
        names = [f"{_text(field.name.encode())}:" for field in type_]
        fields = [
            [name + text for text in _texts(of)] for name, of in zip(names, column.flatten(), strict=True)
        ]
        rows = zip(*fields, strict=True) if fields else itertools.repeat((), len(column))
        return _where_valid(column, (_object(row) for row in rows))
    if pa.types.is_map(type_):
        entries = _in_object if _is_text(type_.key_type) else _in_list
        # A slice of a map has the keys and items of the whole, which its offsets point into.
        items = list(map(entries, _texts(column.keys), _texts(column.items)))
        around = _object if _is_text(type_.key_type) else _list
        return _where_valid(column, (around(items[start:end]) for start, end in _bounds(column)))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        items = _texts(column.values)
        return _where_valid(column, (_list(items[start:end]) for start, end in _bounds(column)))
    if (pa.types.is_date32(type_) or pa.types.is_timestamp(type_)) and is_near(column):
        return _near(column)
    stored, text = _scalar(type_)
    values = column.cast(stored).to_pylist()
    return [_NULL if value is None else text(value) for value in values]


def _near(column: pa.Array) -> list[str]:
    """Return the texts of dates or timestamps of years that Arrow writes, which does so for all at once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    zone = '"'
    if pa.types.is_timestamp(column.type):
        zone = '"' if column.type.tz is None else 'Z"'
        column = column.cast(pa.timestamp("us"))
    texts = pc.replace_substring(column.cast(pa.string()), " ", "T")
    return [_NULL if text is None else f'"{text}{zone}' for text in texts.to_pylist()]


def _bounds(column: pa.Array) -> Iterable[tuple[int, int]]:
    return itertools.pairwise(column.offsets.to_pylist())


def _where_valid(column: pa.Array, texts: Iterable[str]) -> list[str]:
    valid = column.is_valid().to_pylist()
    return [text if is_there else _NULL for is_there, text in zip(valid, texts, strict=True)]


def _object(members: Iterable[str]) -> str:
    return f"{{{','.join(members)}}}"


def _list(items: Iterable[str]) -> str:
    return f"[{','.join(items)}]"


def _in_object(key: str, value: str) -> str:
    return f"{key}:{value}"


def _in_list(key: str, value: str) -> str:
    return f'{{"key":{key},"value":{value}}}'


# --- texts of values ----------------------------------------------------------------------------------------


def _is_text(type_: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _scalar(type_: pa.DataType) -> tuple[pa.DataType, Callable[[Any], str]]:
    """Return the type in which values of a type are turned into texts, and how. Python's own have fewer years."""
    import pyarrow as pa

    types = pa.types
    if _is_text(type_):
        # Nobody has checked that the bytes are UTF-8.
        return pa.large_binary(), _text
    if types.is_binary(type_) or types.is_large_binary(type_):
        return type_, lambda value: f'"{base64.b64encode(value).decode()}"'
    if types.is_boolean(type_):
        return type_, lambda value: "true" if value else "false"
    if types.is_floating(type_):
        return type_, _float
    if types.is_date(type_):
        return pa.int32(), lambda days: f'"{_date(days)}"'
    if types.is_timestamp(type_):
        zone = "" if type_.tz is None else "Z"
        return pa.int64(), lambda micros: f'"{_moment(micros)}{zone}"'
    if types.is_time(type_):
        return pa.time64("us"), lambda time: f'"{time.isoformat("microseconds")}"'
    if types.is_duration(type_):
        return pa.int64(), _duration
    return type_, str


def _text(value: bytes) -> str:
    text = value.decode(errors="surrogateescape")
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(found: re.Match[str]) -> str:
    return _ESCAPES.get(found[0]) or f"\\u{ord(found[0]):04X}"


def _float(value: float) -> str:
    return _SPECIAL.get(text := repr(value), text)


def _date(days: int) -> str:
    year, day = calendar_day(days)
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04}-{day}"


def _moment(micros: int) -> str:
    days, time = clock(micros)
    return f"{_date(days)}T{time}"


def _duration(micros: int) -> str:
    seconds, fraction = divmod(abs(micros), _SECOND)
    return f'"PT{"-" if micros < 0 else ""}{seconds}.{fraction:06}S"'
