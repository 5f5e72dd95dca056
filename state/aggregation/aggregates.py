"""The aggregate functions, and the plan of an operator's aggregates: their accumulators and their results.

Semantics, names and result types are those of Spark SQL in ANSI mode, with one difference. Rows that are added up
together (those of a key in a batch, or in one task if rows are combined before the shuffle) overflow if their sum does
not fit into its type, but not if only an intermediate sum does not fit.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types

from ..errors import invalid_argument
from ..format.arrow import from_numpy, scalar, to_numpy, valid
from ..operators.dataframe import quoted
from ..operators.hashing import xxhash64
from . import sketch
from .accumulators import (
    Accumulator,
    Arrays,
    Count,
    DecimalSum,
    Distinct,
    DoubleSum,
    FirstLast,
    IntegerSum,
    MinMax,
    Moments,
    Overflow,
    WithCount,
    arrow_type,
)
from .reduce import Bounds, array, with_nulls

ALL_ROWS: Final = "*"
"""The column in ``("*", "count")``."""

_INTEGERS = (types.ByteType, types.ShortType, types.IntegerType, types.LongType)
_NUMBERS = (*_INTEGERS, types.FloatType, types.DoubleType, types.DecimalType)
_STRINGS = (types.StringType, types.CharType, types.VarcharType)
_ORDERED = (
    *_NUMBERS,
    *_STRINGS,
    types.BooleanType,
    types.BinaryType,
    types.DateType,
    types.TimestampType,
    types.TimestampNTZType,
    types.DayTimeIntervalType,
    types.TimeType,
)

# --- results ------------------------------------------------------------------------------------------------


def _itself(accumulators: Sequence[pa.Array], dtype: types.DataType, name: str) -> pa.Array:
    return accumulators[0]


def _or_zero(accumulators: Sequence[pa.Array], dtype: types.DataType, name: str) -> pa.Array:
    return accumulators[0].fill_null(scalar(0, accumulators[0].type))


def _mean(accumulators: Sequence[pa.Array], dtype: types.DataType, name: str) -> pa.Array:
    total, count = accumulators
    found = to_numpy(count)
    divisor = np.maximum(found, 1)
    if not isinstance(dtype, types.DecimalType):
        return with_nulls(to_numpy(total, 0.0) / divisor, found > 0)
    # Arrow truncates the quotient, but it has at least ten digits more than the mean after rounding.
    exact = pc.divide(
        total.cast(pa.decimal256(38, total.type.scale)), from_numpy(divisor).cast(pa.decimal256(19, 0))
    )
    rounded = pc.round(exact, dtype.scale, round_mode="half_towards_infinity")
    wide = rounded.cast(pa.decimal256(76, dtype.scale), safe=False)
    limit = pa.scalar(decimal.Decimal(10) ** (dtype.precision - dtype.scale), wide.type)
    if pc.any(pc.greater_equal(pc.abs(wide), limit)).as_py():
        raise Overflow(name, dtype)
    return wide.cast(arrow_type(dtype))


def _variance(accumulators: Sequence[pa.Array], dtype: types.DataType, name: str) -> pa.Array:
    return _spread(accumulators, fewer=1, root=False)


def _deviation(accumulators: Sequence[pa.Array], dtype: types.DataType, name: str) -> pa.Array:
    return _spread(accumulators, fewer=1, root=True)


def _population_variance(accumulators: Sequence[pa.Array], dtype: types.DataType, name: str) -> pa.Array:
    return _spread(accumulators, fewer=0, root=False)


def _population_deviation(accumulators: Sequence[pa.Array], dtype: types.DataType, name: str) -> pa.Array:
    return _spread(accumulators, fewer=0, root=True)


def _spread(accumulators: Sequence[pa.Array], fewer: int, root: bool) -> pa.Array:
    degrees = to_numpy(accumulators[0]) - fewer
    squares = to_numpy(accumulators[2], 0.0) / np.maximum(degrees, 1)
    return with_nulls(np.sqrt(squares) if root else squares, degrees > 0)


def _distinct(accumulators: Sequence[pa.Array], dtype: types.DataType, name: str) -> pa.Array:
    return from_numpy(sketch.estimates(accumulators[0]))


Finish = Callable[[Sequence[pa.Array], types.DataType, str], pa.Array]


# --- what is sent of a column -------------------------------------------------------------------------------


@attrs.frozen
class Sent:
    """What is sent to Python of a column."""

    sql: str
    """Spark SQL, in which ``{column}`` stands for the column."""
    arrow: Callable[[pa.Array], pa.Array]
    """Computes the same without Spark."""


def _as_it_is(column: pa.Array) -> pa.Array:
    return column


def _whether_it_is_there(column: pa.Array) -> pa.Array:
    there = valid(column)
    return from_numpy(there, ~there)


def _its_hash(column: pa.Array) -> pa.Array:
    return from_numpy(xxhash64([column]), ~valid(column))


ITSELF: Final = Sent("{column}", _as_it_is)
PRESENCE: Final = Sent("if({column} is null, null, true)", _whether_it_is_there)
HASH: Final = Sent("if({column} is null, null, xxhash64({column}))", _its_hash)


@attrs.frozen
class Input:
    """A column of the input, and what is sent of it."""

    column: str
    sent: Sent

    @property
    def expression(self) -> str:
        """Spark SQL over the input."""
        return self.sent.sql.format(column=quoted(self.column))

    def of(self, rows: pa.Table) -> pa.Array:
        """Return what is sent of rows, without Spark. A hash must be one that ``hashing.can_hash`` accepts."""
        return self.sent.arrow(array(rows.column(self.column)))


# --- functions ----------------------------------------------------------------------------------------------


@attrs.frozen
class Function:
    """An aggregate function."""

    accepts: tuple[type[types.DataType], ...] | None
    """The types of column that it accepts; None: any."""
    accumulator: Callable[[str, types.DataType], Accumulator]
    """Returns the accumulator for a column's name and type."""
    finish: Finish
    """Computes the results from the accumulators."""
    result: Callable[[types.DataType], types.DataType]
    """Returns the type of the result for a type of column."""
    nullable: bool = True
    sent: Sent = ITSELF


def _sum(column: str, dtype: types.DataType) -> Accumulator:
    name = f"sum({column})"
    if isinstance(dtype, _INTEGERS):
        return IntegerSum(name, dtype)
    return DecimalSum(name, dtype) if isinstance(dtype, types.DecimalType) else DoubleSum(name, dtype)


def _sum_and_count(column: str, dtype: types.DataType) -> Accumulator:
    name = f"mean({column})"
    accumulators = DecimalSum(name, dtype) if isinstance(dtype, types.DecimalType) else DoubleSum(name, dtype)
    return WithCount(name, dtype, accumulators)


def _sum_type(dtype: types.DataType) -> types.DataType:
    if isinstance(dtype, _INTEGERS):
        return types.LongType()
    if isinstance(dtype, types.DecimalType):
        return types.DecimalType(min(38, dtype.precision + 10), dtype.scale)
    return types.DoubleType()


def _mean_type(dtype: types.DataType) -> types.DataType:
    if isinstance(dtype, types.DecimalType):
        return types.DecimalType(min(38, dtype.precision + 4), min(38, dtype.scale + 4))
    return types.DoubleType()


def _same(dtype: types.DataType) -> types.DataType:
    return dtype


def _long(dtype: types.DataType) -> types.DataType:
    return types.LongType()


def _double(dtype: types.DataType) -> types.DataType:
    return types.DoubleType()


def _moments(finish: Finish) -> Function:
    return Function(_NUMBERS, lambda c, t: Moments(f"moments({c})", t), finish, _double)


FUNCTIONS: Final[Mapping[str, Function]] = {
    "count": Function(
        None,
        lambda c, t: Count(f"count({c})", t),
        _or_zero,
        _long,
        nullable=False,
        sent=PRESENCE,
    ),
    "sum": Function(_NUMBERS, _sum, _itself, _sum_type),
    "mean": Function(_NUMBERS, _sum_and_count, _mean, _mean_type),
    "min": Function(_ORDERED, lambda c, t: MinMax(f"min({c})", t, False), _itself, _same),
    "max": Function(_ORDERED, lambda c, t: MinMax(f"max({c})", t, True), _itself, _same),
    "first": Function(None, lambda c, t: FirstLast(f"first({c})", t, False), _itself, _same),
    "last": Function(None, lambda c, t: FirstLast(f"last({c})", t, True), _itself, _same),
    "variance": _moments(_variance),
    "stddev": _moments(_deviation),
    "var_pop": _moments(_population_variance),
    "stddev_pop": _moments(_population_deviation),
    "approx_distinct": Function(
        None,
        lambda c, t: Distinct(f"approx_distinct({c})", t),
        _distinct,
        _long,
        nullable=False,
        sent=HASH,
    ),
}
"""The aggregate functions by name."""

SYNONYMS: Final[Mapping[str, str]] = {
    "avg": "mean",
    "var_samp": "variance",
    "stddev_samp": "stddev",
    "approx_count_distinct": "approx_distinct",
}


# --- what one operator computes -----------------------------------------------------------------------------


@attrs.frozen
class AccumulatorInput:
    """An accumulator and its input."""

    accumulator: Accumulator
    input: Input | None
    """None if the accumulator needs no column."""


@attrs.frozen
class Result:
    """A column of the output."""

    name: str
    source: int
    """The position of its accumulator among the sources."""
    finish: Finish
    dtype: types.DataType
    nullable: bool


@attrs.frozen
class Aggregates:
    """All aggregates of an operator. Several results can share one accumulator."""

    operator: str
    sources: tuple[AccumulatorInput, ...]
    results: tuple[Result, ...]

    @property
    def state(self) -> types.StructType:
        """Schema of the accumulators of a key."""
        return types.StructType([field for source in self.sources for field in source.accumulator.fields])

    @property
    def output(self) -> tuple[types.StructField, ...]:
        """The output columns after the key columns."""
        return tuple(types.StructField(one.name, one.dtype, one.nullable) for one in self.results)

    def from_rows(self, columns: Sequence[pa.Array | None], rows: int) -> Arrays:
        """Return the accumulators of single rows, an array for each field of ``state``.

        Args:
            columns: the column of each source; None if it needs no column.
            rows: the number of rows.
        """
        ones = from_numpy(np.ones(rows, np.bool_))
        return [
            part
            for source, column in zip(self.sources, columns, strict=True)
            for part in source.accumulator.from_rows(ones if column is None else column)
        ]

    def merge(self, accumulators: Sequence[pa.Array], bounds: Bounds) -> Arrays:
        """Return merged accumulators, one for each group of adjacent ones.

        Raises:
            AggregateOverflowError: a value does not fit into its type.
        """
        if len(bounds) == 1:
            return [array(part).slice(0, 0) for part in accumulators]
        try:
            return [
                part
                for source, mine in zip(self.sources, self._split(accumulators), strict=True)
                for part in source.accumulator.merge(mine, bounds)
            ]
        except Overflow as overflow:
            raise overflow.of(self.operator) from None

    def merge_pairs(self, older: Sequence[pa.Array], newer: Sequence[pa.Array]) -> Arrays:
        """Return the merged older and newer accumulators of each key.

        Raises:
            AggregateOverflowError: a value does not fit into its type.
        """
        size = len(newer[0])
        if all(part.null_count == size for part in older):
            return list(newer)
        pairs = from_numpy(np.arange(2 * size).reshape(2, -1).T.reshape(-1))
        both = [
            pa.concat_arrays([old, new.cast(old.type)]).take(pairs)
            for old, new in zip(older, newer, strict=True)
        ]
        return self.merge(both, np.arange(0, 2 * size + 1, 2))

    def finish(self, accumulators: Sequence[pa.Array]) -> Arrays:
        """Return the output columns after the key columns.

        Raises:
            AggregateOverflowError: a result does not fit into its type.
        """
        split = list(self._split(accumulators))
        try:
            return [
                one.finish(split[one.source], one.dtype, self.sources[one.source].accumulator.name).cast(
                    arrow_type(one.dtype)
                )
                for one in self.results
            ]
        except Overflow as overflow:
            raise overflow.of(self.operator) from None

    def _split(self, accumulators: Sequence[pa.Array]) -> list[list[pa.Array]]:
        found, at = [], 0
        for source in self.sources:
            size = len(source.accumulator.fields)
            found.append([array(part) for part in accumulators[at : at + size]])
            at += size
        return found


def plan(
    operator: str, schema: types.StructType, by: Sequence[str], columns: Mapping[str, tuple[str, str]]
) -> Aggregates:
    """Plan the aggregates of an operator.

    Args:
        operator: its uid, for errors.
        schema: of the input.
        by: names of the key columns.
        columns: the input column and the function, by name of the output column.

    Raises:
        DefinitionError: a column or a function does not exist, or the function does not accept the column.
    """
    if not columns:
        raise invalid_argument("columns", "at least one aggregate, e.g. total=('price', 'sum')", "none")
    sources: list[AccumulatorInput] = []
    results = []
    for name, given in columns.items():
        column, function = _pair(name, given)
        if name in by:
            raise invalid_argument("columns", "names other than those of the key columns", repr(name))
        source, kind = _source(name, column, function, schema)
        if source not in sources:
            sources.append(source)
        dtype = kind.result(source.accumulator.column)
        results.append(Result(name, sources.index(source), kind.finish, dtype, kind.nullable))
    return Aggregates(operator, tuple(sources), tuple(results))


def _pair(name: str, given: object) -> tuple[str, str]:
    match given:
        case (str() as column, str() as function):
            return column, SYNONYMS.get(function, function)
        case _:
            raise invalid_argument(name, "a pair of column and function, as ('price', 'sum')", repr(given))


def _source(
    name: str, column: str, function: str, schema: types.StructType
) -> tuple[AccumulatorInput, Function]:
    kind = FUNCTIONS.get(function)
    if kind is None:
        known = ", ".join(sorted({*FUNCTIONS, *SYNONYMS}))
        raise invalid_argument(name, f"one of the functions {known}", repr(function))
    if column == ALL_ROWS:
        if function != "count":
            raise invalid_argument(name, "a column, because only 'count' takes '*'", repr(function))
        return AccumulatorInput(kind.accumulator(column, types.BooleanType()), None), kind
    if column not in schema.names:
        raise invalid_argument(name, f"one of the columns {', '.join(schema.names)}", repr(column))
    dtype = schema[column].dataType
    if not _accepts(function, kind, dtype):
        found = f"{column!r} of type {dtype.simpleString()}"
        advice = "cast the column"
        if "collate" in dtype.simpleString().lower():
            advice += ", such as column COLLATE UTF8_BINARY, or lower(column) COLLATE UTF8_BINARY to ignore the case"
        raise invalid_argument(name, f"a column with a type that {function} accepts", found, advice)
    return AccumulatorInput(kind.accumulator(column, dtype), Input(column, kind.sent)), kind


def _accepts(function: str, kind: Function, dtype: types.DataType) -> bool:
    if kind.accepts is not None:
        bytewise = not isinstance(dtype, types.StringType) or dtype.isUTF8BinaryCollation()
        return isinstance(dtype, kind.accepts) and bytewise
    return function != "approx_distinct" or _hashes_tell(dtype)


def _hashes_tell(dtype: types.DataType) -> bool:
    """Return whether equal values of a type have equal hashes: not maps, nor strings whose collation ignores case."""
    if isinstance(dtype, types.StructType):
        return all(_hashes_tell(field.dataType) for field in dtype.fields)
    if isinstance(dtype, types.ArrayType):
        return _hashes_tell(dtype.elementType)
    return not isinstance(dtype, types.MapType) and (
        not isinstance(dtype, types.StringType) or bool(dtype.isUTF8BinaryCollation())
    )
