"""Arrow columns as PostgreSQL has them: which types fit, and rows as the text that COPY reads. No client is needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import attrs

from ..values import calendar_day, clock, is_near

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_ROWS: Final = 10_000
"""Rows that are turned into text at a time."""
NULL: Final = "\\N"
_UNIT: Final = {"s": "seconds", "ms": "milliseconds", "us": "microseconds"}
# Their input functions read any text, and say which text they refuse.
_FROM_TEXT: Final = frozenset("SEUIGR")
"""Categories of types that a string may be written to: strings, enums, JSON, UUID and others of their own, addresses,
geometry, ranges."""


@attrs.frozen
class ColumnType:
    """The type of a column of a table, as ``pg_type`` and ``pg_attribute`` have it; that of a domain is its base's."""

    name: str
    """``typname``, such as ``int8``; of an array that of its elements."""
    category: str = ""
    """``typcategory``; of an array that of its elements."""
    precision: int | None = None
    """Digits of a numeric, or of the fraction of a second. None: any."""
    scale: int = 0
    is_array: bool = False
    length: int | None = None
    """Characters of a text. None: any number."""
    has_seconds: bool = True
    """Whether an interval keeps seconds."""

    @classmethod
    def of(cls, name: str, category: str, modifier: int, is_array: bool) -> ColumnType:
        """Return the type that ``pg_attribute`` has with a type modifier; -1 is none.

        What a modifier means is in the server's ``numerictypmodin``, ``intervaltypmodin`` and ``anychar_typmodin``.
        """
        plain = cls(name, category, is_array=is_array)
        if modifier < 0:
            return plain
        if name == "numeric":
            digits = modifier - 4
            # The scale has 11 bits with its sign.
            scale = ((digits & 0x7FF) ^ 0x400) - 0x400
            return attrs.evolve(plain, precision=digits >> 16 & 0xFFFF, scale=scale)
        if name in _TIMES:
            return attrs.evolve(plain, precision=modifier)
        if name == "interval":
            fraction, fields = modifier & 0xFFFF, modifier >> 16 & 0x7FFF
            precision = None if fraction == 0xFFFF else fraction
            return attrs.evolve(plain, precision=precision, has_seconds=bool(fields & _SECOND))
        if name in ("varchar", "bpchar"):
            return attrs.evolve(plain, length=modifier - 4)
        return plain


_TIMES: Final = frozenset({"time", "timetz", "timestamp", "timestamptz"})
_OTHER_TEXT: Final = frozenset({"bytea", "bpchar", "name", "char"})
"""Types that read text and change it: they fill it with blanks, or cut it off without a word."""
_SECOND: Final = 1 << 12
"""The bit of seconds among the fields of an interval."""
_FRACTION: Final = {"s": 0, "ms": 3, "us": 6, "ns": 6}
"""Digits of a second's fraction by Arrow's unit. The server has six, and so have Spark's times, also in nanoseconds."""


# --- types --------------------------------------------------------------------------------------------------


def type_for(type: pa.DataType) -> str | None:
    """Return the type that holds all values of an Arrow type, as SQL; None if there is none."""
    import pyarrow as pa

    types = pa.types
    if types.is_list(type) or types.is_large_list(type):
        element = None if _is_list(type.value_type) else type_for(type.value_type)
        return f"{element}[]" if element else None
    if types.is_decimal(type):
        # Arrow's scale may be negative, and that of PostgreSQL before 15 may not.
        return f"numeric({type.precision + max(0, -type.scale)}, {max(0, type.scale)})"
    names = _names(type)
    return _SQL[names[0]] if names else None


def fits(type: pa.DataType, column: ColumnType) -> bool:
    """Return whether a column takes the values of an Arrow type as they are, as far as types can tell."""
    import pyarrow as pa

    types = pa.types
    if types.is_null(type):
        return True
    if _is_list(type):
        element = attrs.evolve(column, is_array=False)
        return column.is_array and not _is_list(type.value_type) and fits(type.value_type, element)
    if column.is_array:
        return False
    if types.is_decimal(type):
        return column.name == "numeric" and (
            column.precision is None
            or (column.scale >= type.scale and column.precision - column.scale >= type.precision - type.scale)
        )
    if _is_text(type):
        return column.name not in _OTHER_TEXT and column.category in _FROM_TEXT
    if types.is_timestamp(type) or types.is_time(type) or types.is_duration(type):
        keeps_all = column.precision is None or column.precision >= _FRACTION[type.unit]
        return column.name in _names(type) and keeps_all and column.has_seconds
    if column.name == "numeric" and types.is_integer(type):
        return column.precision is None or column.precision - column.scale >= _DIGITS[type.bit_width]
    return column.name in _names(type)


_SQL: Final = {
    "bool": "boolean",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "float4": "real",
    "float8": "double precision",
    "text": "text",
    "bytea": "bytea",
    "date": "date",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
    "time": "time",
    "interval": "interval",
    "numeric": "numeric(20)",
}
_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 20}


def _names(type: pa.DataType) -> tuple[str, ...]:
    """The names of the scalar types that hold all values of an Arrow type, the closest first."""
    import pyarrow as pa

    types = pa.types
    if types.is_integer(type):
        width: int = type.bit_width if types.is_signed_integer(type) else type.bit_width + 1
        return tuple(
            name
            for name, bits in (("int2", 16), ("int4", 32), ("int8", 64), ("numeric", 65))
            if width <= bits
        )
    if types.is_timestamp(type):
        return ("timestamp",) if type.tz is None else ("timestamptz",)
    if types.is_duration(type):
        return ("interval",) if type.unit in _UNIT else ()
    for is_one, names in (
        (types.is_boolean, ("bool",)),
        (types.is_float16, ("float4", "float8")),
        (types.is_float32, ("float4", "float8")),
        (types.is_float64, ("float8",)),
        (_is_text, ("text",)),
        (_is_binary, ("bytea",)),
        (types.is_date, ("date",)),
        (types.is_time, ("time",)),
    ):
        if is_one(type):
            return names
    return ()


def would_be_cut(values: pa.ChunkedArray, length: int) -> bool:
    """Return whether a text, or one in a list, has more characters than a column takes only because of its blanks."""
    import pyarrow.compute as pc

    if _is_list(values.type):
        return would_be_cut(pc.list_flatten(values), length)
    if not _is_text(values.type):
        return False
    is_long = pc.greater(pc.utf8_length(values), length)
    if not pc.any(is_long).as_py():
        return False
    trimmed = pc.utf8_rtrim(values, characters=" ")
    return bool(pc.any(pc.and_(is_long, pc.less_equal(pc.utf8_length(trimmed), length))).as_py())


def _is_list(type: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(type) or pa.types.is_large_list(type))


def _is_text(type: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(type) or pa.types.is_large_string(type))


def _is_binary(type: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_binary(type) or pa.types.is_large_binary(type) or pa.types.is_fixed_size_binary(type)
    )


# --- rows ---------------------------------------------------------------------------------------------------


def copy_text(table: pa.Table) -> Iterator[memoryview]:
    """Yield the rows of a table in COPY's text format, some thousands at a time, as UTF-8.

    Whole columns are turned into text at once, so that no Python code runs for a row, except for lists and bytes.
    """
    for start in range(0, table.num_rows, CHUNK_ROWS):
        # Consecutive rows of a table may be in several chunks of memory.
        for batch in table.slice(start, CHUNK_ROWS).combine_chunks().to_batches():
            yield _lines(batch)


def texts(row: pa.Table) -> dict[str, str | None]:
    """Return the values of one row as texts that the input functions of their types read, by the names of columns.

    A byte of a text that is no UTF-8 becomes an escape of its own, such as ``\\xff``.
    """
    import pyarrow as pa

    found: dict[str, str | None] = {}
    for name, column in zip(row.column_names, row.columns, strict=True):
        (value,) = _text(column.combine_chunks()).cast(pa.large_binary()).to_pylist()
        found[name] = None if value is None else value.decode(errors="backslashreplace")
    return found


def _lines(batch: pa.RecordBatch) -> memoryview:
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = [_escaped(_text(column)) for column in batch.columns]
    lines = pc.binary_join_element_wise(
        *columns, _text_scalar("\t"), null_handling="replace", null_replacement=NULL
    )
    ended = pc.binary_join_element_wise(lines, _text_scalar("\n"), _text_scalar(""))
    # The text of a large string array is one buffer, value after value: that is what COPY reads.
    assert pa.types.is_large_string(ended.type)
    return memoryview(ended.buffers()[2])


def _text(column: pa.Array) -> pa.Array:
    """A column's values as text that the input function of its type reads."""
    import pyarrow as pa
    import pyarrow.compute as pc

    type = column.type
    if _is_list(type):
        return _list_text(column)
    if _is_binary(type):
        return _strings([None if value is None else f"\\x{value.hex()}" for value in column.to_pylist()])
    if pa.types.is_timestamp(type):
        # Without its zone the value is that of UTC.
        plain = pc.cast(column, pa.timestamp(type.unit))
        zone = "" if type.tz is None else "+00"
        return _with(plain, zone) if is_near(plain) else _moments(plain, zone)
    if pa.types.is_date(type) and not is_near(column):
        days = pc.cast(column, pa.int32()).to_pylist()
        return _strings([None if day is None else _in_era(day, "") for day in days])
    if pa.types.is_float32(type):
        # A column of double precision would make another value of the shortest text for a single.
        return pc.cast(pc.cast(column, pa.float64()), pa.large_string())
    if pa.types.is_duration(type):
        return _with(pc.cast(column, pa.int64()), f" {_UNIT[type.unit]}")
    return pc.cast(column, pa.large_string())


def _moments(column: pa.Array, zone: str) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    micros = pc.cast(pc.cast(column, pa.timestamp("us")), pa.int64()).to_pylist()
    moments = [None if one is None else clock(one) for one in micros]
    return _strings([None if one is None else _in_era(one[0], f" {one[1]}{zone}") for one in moments])


def _in_era(days: int, time: str) -> str:
    """Return a day of any year, and its time, as the server reads it."""
    year, day = calendar_day(days)
    return f"{year:04}-{day}{time}" if year > 0 else f"{1 - year:04}-{day}{time} BC"


def _list_text(column: pa.Array) -> pa.Array:
    values = _text(column.flatten()).to_pylist()
    texts: list[str | None] = []
    at = 0
    for length in column.value_lengths().to_pylist():
        if length is None:
            texts.append(None)
            continue
        texts.append("{" + ",".join(map(_element, values[at : at + length])) + "}")
        at += length
    return _strings(texts)


def _element(value: str | None) -> str:
    if value is None:
        return "NULL"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _escaped(column: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    for character, escape in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        column = pc.replace_substring(column, character, escape)
    return column


def _with(column: pa.Array, ending: str) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(
        pc.cast(column, pa.large_string()), _text_scalar(ending), _text_scalar("")
    )


def _strings(values: list[str | None]) -> pa.Array:
    import pyarrow as pa

    return pa.array(values, pa.large_string())


def _text_scalar(value: str) -> pa.Scalar:
    import pyarrow as pa

    return pa.scalar(value, pa.large_string())
