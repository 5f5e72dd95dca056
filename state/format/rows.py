"""Converts Arrow tables to PySpark rows, and rows to Arrow record batches.

The values are those of PySpark's own row-style ``transformWithState`` (measured on 4.3). A processor gets Arrow's
Python values: a struct is a dict, a map a list of pairs, a timestamp an aware datetime in the session's time zone. It
yields Rows, which are taken by name, and in which a naive datetime for a timestamp column is UTC.
"""

from __future__ import annotations

import datetime
import decimal
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types

from ..errors import DefinitionError, OutputTypeError
from .schema import arrow_schema
from .structs import FieldsError, has_names, named
from .values import INTEGER_BITS, describe, instance, sequence

SLICE = 10_000
"""Rows that are converted to Python objects at a time, and rows of an output record batch."""

Convert = Callable[[Any], Any]

_ACCEPTED: dict[type[types.DataType], tuple[type, ...]] = {
    types.BooleanType: (bool, np.bool_),
    types.FloatType: (float, int, np.floating, np.integer),
    types.DoubleType: (float, int, np.floating, np.integer),
    types.DecimalType: (decimal.Decimal, int),
    types.StringType: (str,),
    types.CharType: (str,),
    types.VarcharType: (str,),
    types.BinaryType: (bytes, bytearray),
    types.DateType: (datetime.date,),
    types.TimestampType: (datetime.datetime,),
    types.TimestampNTZType: (datetime.datetime,),
    types.TimeType: (datetime.time,),
    types.DayTimeIntervalType: (datetime.timedelta,),
    types.NullType: (),
    **dict.fromkeys(INTEGER_BITS, (int, np.integer)),
}
"""The Python types that each column type accepts. Arrow itself would truncate 1.5 to 1 in an integer column."""


def check_columns(schema: types.StructType, what: str) -> None:
    """Refuse columns whose values a processor cannot get or give as Python values.

    Raises:
        DefinitionError: a column, or a part of one, has such a type, or is a struct with two fields of one name.
    """
    for field in schema.fields:
        repeated = _repeated(field.dataType)
        if repeated is not None:
            raise DefinitionError(
                f"column {field.name!r} of {what} cannot go from Spark to Python and back",
                "structs whose fields have names of their own",
                f"two fields named {repeated!r} in one struct",
                "give one of the fields another name",
            )
        unsupported = _unsupported(field.dataType)
        if unsupported is not None:
            raise DefinitionError(
                f"column {field.name!r} of {what} has a type that a processor cannot hold",
                "a type with Python values",
                unsupported.simpleString(),
                "cast the column to another type",
            )


def _repeated(dtype: types.DataType) -> str | None:
    """Return a name that two fields of one struct in a type have, which Spark's way to Arrow refuses; None if none."""
    if isinstance(dtype, types.ArrayType):
        return _repeated(dtype.elementType)
    if isinstance(dtype, types.MapType):
        return _repeated(dtype.keyType) or _repeated(dtype.valueType)
    if isinstance(dtype, types.StructType):
        twice = (name for name in dtype.names if dtype.names.count(name) > 1)
        return next(twice, None) or next(
            filter(None, (_repeated(field.dataType) for field in dtype.fields)), None
        )
    return None


def _unsupported(dtype: types.DataType) -> types.DataType | None:
    if isinstance(dtype, types.ArrayType):
        return _unsupported(dtype.elementType)
    if isinstance(dtype, types.MapType):
        return _unsupported(dtype.keyType) or _unsupported(dtype.valueType)
    if isinstance(dtype, types.StructType):
        return next(filter(None, (_unsupported(field.dataType) for field in dtype.fields)), None)
    return None if type(dtype) in _ACCEPTED else dtype


# --- in -----------------------------------------------------------------------------------------------------


def row_type(names: Sequence[str]) -> type[types.Row]:
    """Return a subclass of Row for rows with these columns, which pickles, compares and prints as Row does.

    ``Row`` finds a column by searching a list of names in Python. The subclass finds it as a namedtuple does, ten
    times as fast. Names that Row itself defines (``count``, ``index``) keep their meaning, as in PySpark.
    """
    members: dict[str, Any] = {"__slots__": (), "__fields__": list(names)}
    # The getters of a namedtuple read the tuple's item directly; itemgetter would use Row's own lookup.
    getters = namedtuple("_Getters", [f"at{position}" for position in range(len(names))])  # type: ignore[misc]
    for position, name in reversed(list(enumerate(names))):
        if not hasattr(types.Row, name) and not name.startswith("__"):
            members[name] = vars(getters)[f"at{position}"]
    return type("Row", (types.Row,), members)


class RowReader:
    """Converts tables with the same columns to rows."""

    def __init__(self, names: Sequence[str]) -> None:
        self._type = row_type(names)

    def rows(self, table: pa.Table) -> list[types.Row]:
        """Return the rows of ``table``, which has the columns that the reader was made for."""
        values = zip(*map(to_pylist, table.columns), strict=True)
        return list(map(tuple.__new__, repeat(self._type), values))

    def groups(self, table: pa.Table, bounds: Sequence[int]) -> Iterator[Iterator[types.Row]]:
        """Yield an iterator over the rows of each group, where group i has rows bounds[i] to bounds[i+1].

        Up to ``SLICE`` rows are converted at a time; a group with more rows converts them as it is read. Groups must be
        taken in order; the caller may stop before the end of one.
        """
        for first, last in group_ranges(bounds):
            start, stop = bounds[first], bounds[last]
            if stop - start > SLICE:
                yield self._slices(table, start, stop)
            else:
                rows = self.rows(table.slice(start, stop - start))
                for low, high in zip(bounds[first:last], bounds[first + 1 : last + 1], strict=True):
                    yield iter(rows[low - start : high - start])

    def _slices(self, table: pa.Table, start: int, stop: int) -> Iterator[types.Row]:
        parts = (table.slice(low, min(SLICE, stop - low)) for low in range(start, stop, SLICE))
        return chain.from_iterable(map(self.rows, parts))


def group_ranges(bounds: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the ends of ranges of groups that have at most ``SLICE`` rows together, or of one group that has more."""
    first = 0
    while first < len(bounds) - 1:
        start, last = bounds[first], first + 1
        while last < len(bounds) - 1 and bounds[last + 1] - start <= SLICE:
            last += 1
        yield first, last
        first = last


def to_pylist(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return a column's Python values, the same ones as its own ``to_pylist``."""
    if not (pa.types.is_timestamp(column.type) and column.type.tz):
        values: list[Any] = column.to_pylist()
        return values
    # A time zone costs 3 microseconds for each value, and the same timestamps tend to come many times.
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    encoded = array.dictionary_encode(null_encoding="encode")
    distinct = encoded.dictionary.to_pylist()
    return [distinct[index] for index in encoded.indices.to_pylist()]


# --- out ----------------------------------------------------------------------------------------------------


class RowWriter:
    """Converts the rows that an operator's processor yields to record batches."""

    def __init__(self, schema: types.StructType, operator: str) -> None:
        """Compile the writer for an output schema that ``check_columns`` has accepted."""
        self.arrow_schema = arrow_schema(schema)
        self._operator = operator
        self._names = list(schema.names)
        self._columns = [
            _ColumnWriter(operator, field.name, field.dataType, field.nullable) for field in schema.fields
        ]

    def batch(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """Return ``rows`` as one record batch.

        A Row with names is taken by name, and must have exactly the columns of the output. Any other tuple is taken by
        position.

        Raises:
            OutputTypeError: a row does not fit the output schema.
        """
        columns = zip(*map(self._values, rows), strict=True)
        arrays = [writer.array(values) for writer, values in zip(self._columns, columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)

    def _values(self, row: Any) -> Sequence[Any]:
        if not isinstance(row, tuple):
            raise OutputTypeError(self._operator, "a row", "a Row or a tuple", describe(row))
        fields = getattr(row, "__fields__", None)
        if fields is None or fields == self._names:
            if len(row) != len(self._names):
                found = f"{len(row)}: {describe(row)}"
                raise OutputTypeError(
                    self._operator, "a row", f"{len(self._names)} columns ({', '.join(self._names)})", found
                )
            return row
        try:
            return named(row, self._names)
        except FieldsError as error:
            found = f"a Row {error.wrong}: {describe(row)}"
            raise OutputTypeError(self._operator, "a row", error.expected, found) from error


class _ColumnWriter:
    """Converts the values of one output column to an Arrow array."""

    def __init__(self, operator: str, name: str, dtype: types.DataType, nullable: bool) -> None:
        self._operator = operator
        self._name = name
        self._dtype = dtype
        self._nullable = nullable
        self._arrow = arrow_schema(types.StructType().add(name, dtype)).field(0).type
        self._convert = _converter(dtype)
        self._nested = isinstance(dtype, types.ArrayType | types.MapType | types.StructType)
        self._good: set[type] = {type(None)} if nullable else set()

    def array(self, values: Sequence[Any]) -> pa.Array:
        """Return the values as an array of exactly the column's type."""
        if self._nested:
            values = [self._checked(value) for value in values]
        else:
            self._check_types(values)
        try:
            array = pa.array(values, self._arrow)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            for value in values:
                self._arrow_checked(value)
            raise
        if isinstance(array, pa.ChunkedArray):
            raise OutputTypeError(
                self._operator,
                f"output column {self._name!r}",
                f"less than 2 GiB in {SLICE:,} rows, as Arrow can hold it",
                f"{array.nbytes:,} bytes",
            )
        return array

    def _check_types(self, values: Sequence[Any]) -> None:
        """Check the first value of each type that is new: outside of collections and structs the type decides."""
        for found in dict.fromkeys(map(type, values)):
            if found not in self._good:
                self._checked(next(value for value in values if type(value) is found))

    def _checked(self, value: Any) -> Any:
        if value is None:
            if not self._nullable:
                raise self._mismatch(value, " that is not null")
            return None
        try:
            converted = self._convert(value)
        except FieldsError as error:
            part, found = f"output column {self._name!r}", f"a struct {error.wrong} in {describe(value)}"
            raise OutputTypeError(self._operator, part, error.expected, found) from error
        except (TypeError, ValueError) as error:
            raise self._mismatch(value) from error
        self._good.add(type(value))
        return converted

    def _arrow_checked(self, value: Any) -> None:
        try:
            pa.array([value], self._arrow)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise self._mismatch(value) from error

    def _mismatch(self, value: Any, expected: str = "") -> OutputTypeError:
        part = f"output column {self._name!r}"
        return OutputTypeError(self._operator, part, self._dtype.simpleString() + expected, describe(value))


def _converter(dtype: types.DataType) -> Convert:
    """Return a function that checks the type of a value (never None) and converts it to what Arrow takes."""
    if isinstance(dtype, types.ArrayType):
        element = _optional(dtype.elementType, dtype.containsNull)
        return lambda value: [element(item) for item in sequence(value)]
    if isinstance(dtype, types.MapType):
        key, item = _optional(dtype.keyType, False), _optional(dtype.valueType, dtype.valueContainsNull)
        return lambda value: [
            (key(k), item(v))
            for k, v in (value.items() if isinstance(value, dict) else instance(value, (list,)))
        ]
    if isinstance(dtype, types.StructType):
        return _struct_converter(dtype)
    accepted = _ACCEPTED[type(dtype)]
    refused = (bool, np.bool_) if type(dtype) is not types.BooleanType else ()

    def leaf(value: Any) -> Any:
        if not isinstance(value, accepted) or isinstance(value, refused):
            raise TypeError(value)
        return value

    return leaf


def _optional(dtype: types.DataType, nullable: bool) -> Convert:
    convert = _converter(dtype)

    def optional(value: Any) -> Any:
        if value is not None:
            return convert(value)
        if not nullable:
            raise ValueError(value)
        return None

    return optional


def _struct_converter(dtype: types.StructType) -> Convert:
    fields = [(field.name, _optional(field.dataType, field.nullable)) for field in dtype.fields]

    def struct(value: Any) -> dict[str, Any]:
        items = named(value, dtype.names) if has_names(value) else instance(value, (tuple,))
        if len(items) != len(fields):
            raise ValueError(value)
        return {name: convert(item) for (name, convert), item in zip(fields, items, strict=True)}

    return struct
