"""Partial results of aggregates by Spark's own SQL: its aggregate functions, and their buffers as accumulators.

Structured Streaming has no aggregation without state, but within ``foreachBatch`` a micro-batch is a batch DataFrame.
Of that, each of Spark's tasks combines the rows of a key in the JVM with generated code before it would send them on. A
buffer of Spark's function for each key is what comes to Python.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types

from ..format.arrow import to_numpy, valid
from ..operators.dataframe import SHARD, quoted
from ..operators.hashing import can_hash
from .accumulators import (
    Accumulator,
    Arrays,
    Count,
    DecimalSum,
    DoubleSum,
    FirstLast,
    IntegerSum,
    MinMax,
    Moments,
    Overflow,
    WithCount,
    arrow_type,
)
from .aggregates import Aggregates
from .reduce import array, with_nulls, with_type

_SAFE_DECIMAL: Final = 28
"""The most digits of a decimal whose sums, with ten digits more, cannot overflow."""
_LONG_DECIMAL: Final = 8
"""The most digits of a decimal that Spark adds up as a long, without its scale."""
_LOW: Final = 0xFFFFFFFF
_FIXED: Final = (
    types.BooleanType,
    types.ByteType,
    types.ShortType,
    types.IntegerType,
    types.LongType,
    types.FloatType,
    types.DoubleType,
    types.DecimalType,
    types.DateType,
    types.TimestampType,
    types.TimestampNTZType,
    types.DayTimeIntervalType,
)
"""Types that Spark keeps in its hash aggregation. With a value of another type, it sorts every row."""


# --- what SQL computes --------------------------------------------------------------------------------------


@attrs.frozen
class SqlFunction:
    """An aggregate function of Spark's SQL over a column."""

    text: str
    buffer: tuple[types.DataType, ...]
    """What it keeps of the rows of a group."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns with its buffer."""
        return tuple(f"__chandy_{self.text}_{at}" for at in range(len(self.buffer)))


ALL_ROWS: Final = SqlFunction("count(1)", (types.LongType(),))
"""Counts the rows that a partial result is of."""


def functions_of(accumulator: Accumulator, column: str, *, nullable: bool) -> tuple[SqlFunction, ...] | None:
    """Return functions of whose buffers an accumulator is made; None if SQL has none that fit.

    Args:
        column: Spark SQL of its input column.
        nullable: whether the column may have nulls.
    """
    match accumulator:
        case Count():
            # Spark would count all rows just once.
            return (_function("count", column, types.LongType()) if nullable else ALL_ROWS,)
        case IntegerSum(column=types.LongType()):
            # Two halves: so no intermediate sum overflows.
            return (
                _function("sum", f"shiftright({column}, 32)", types.LongType()),
                _function("sum", f"{column} & {_LOW}", types.LongType()),
            )
        case IntegerSum():
            return (_function("sum", f"cast({column} as bigint)", types.LongType()),)
        case DoubleSum():
            return (_function("sum", f"cast({column} as double)", types.DoubleType()),)
        case DecimalSum(column=types.DecimalType() as dtype):
            if dtype.precision <= _LONG_DECIMAL:
                return (_function("sum", column, types.LongType()),)
            if dtype.precision > _SAFE_DECIMAL:
                return None
            return (
                _function(
                    "sum", column, types.DecimalType(dtype.precision + 10, dtype.scale), types.BooleanType()
                ),
            )
        case WithCount():
            total = functions_of(accumulator.sum, column, nullable=nullable)
            count = functions_of(Count(accumulator.name, accumulator.column), column, nullable=nullable)
            return None if total is None or count is None else (*total, *count)
        case MinMax(column=dtype) if isinstance(dtype, _FIXED):
            return (_function("max" if accumulator.greatest else "min", column, dtype),)
        case FirstLast(column=dtype) if isinstance(dtype, _FIXED):
            return (_function("last" if accumulator.last else "first", column, dtype, types.BooleanType()),)
        case Moments():
            return (_function("var_pop", f"cast({column} as double)", *(types.DoubleType(),) * 3),)
        case _:
            return None


def _function(name: str, argument: str, *buffer: types.DataType) -> SqlFunction:
    return SqlFunction(f"{name}({argument})", buffer)


# --- its results as accumulators ----------------------------------------------------------------------------


def accumulators_of(accumulator: Accumulator, buffers: Sequence[pa.Array]) -> Arrays:
    """Return the accumulators of groups of rows.

    Args:
        buffers: the columns of the buffers of its ``functions_of``, with a value for each group.

    Raises:
        Overflow: a value does not fit into its type.
    """
    match accumulator:
        case IntegerSum(column=types.LongType()):
            return [_from_halves(accumulator, *buffers)]
        case DecimalSum(column=types.DecimalType() as given):
            dtype = arrow_type(accumulator.fields[0].dataType)
            if given.precision <= _LONG_DECIMAL:
                return [with_type(buffers[0].cast(pa.decimal128(19, 0)), dtype)]
            total, empty = buffers
            return [pc.if_else(empty, pa.nulls(len(total), dtype), total)]
        case WithCount():
            return [*accumulators_of(accumulator.sum, buffers[:-1]), buffers[-1]]
        case _:
            return [
                found.cast(arrow_type(field.dataType))
                for found, field in zip(buffers, accumulator.fields, strict=True)
            ]


def _from_halves(accumulator: Accumulator, highs: pa.Array, lows: pa.Array) -> pa.Array:
    high, low = to_numpy(highs), to_numpy(lows)
    high = high + (low >> 32)
    if ((high < -(1 << 31)) | (high >= 1 << 31)).any():
        raise Overflow(accumulator.name, types.LongType())
    return with_nulls((high << 32) | (low & _LOW), valid(highs) if highs.null_count else None)


# --- for all aggregates of an operator ----------------------------------------------------------------------


@attrs.frozen
class SqlPartials:
    """How Spark's SQL computes the partial results of an operator's aggregates, of the rows of ``Aggregation.rows``."""

    key: types.StructType
    sources: tuple[tuple[SqlFunction, ...], ...]
    """The functions for each source of the aggregates."""

    @property
    def functions(self) -> tuple[SqlFunction, ...]:
        """All functions, each once, with ``ALL_ROWS`` among them."""
        return tuple(dict.fromkeys((ALL_ROWS, *itertools.chain(*self.sources))))

    @property
    def schema(self) -> types.StructType:
        """Schema of the partial results: the key columns, then the buffer of each function."""
        fields = [
            types.StructField(name, dtype)
            for function in self.functions
            for name, dtype in zip(function.columns, function.buffer, strict=True)
        ]
        return types.StructType([*self.key.fields, *fields])


@attrs.frozen
class SqlToAccumulators:
    """Converts partial results of SQL to accumulators, one for each row."""

    aggregates: Aggregates
    partials: SqlPartials
    names: tuple[str, ...]
    """The names of the columns that are returned: the key columns, then one for each field of the state."""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch's key columns, its accumulators and ``SHARD``.

        Raises:
            AggregateOverflowError: a value does not fit into its type.
        """
        keys = [batch.column(name) for name in self.partials.key.names]
        try:
            columns = [*keys, *self._accumulators(batch), batch.column(SHARD)]
        except Overflow as overflow:
            raise overflow.of(self.aggregates.operator) from None
        return pa.RecordBatch.from_arrays(columns, names=[*self.names, SHARD])

    def _accumulators(self, batch: pa.RecordBatch) -> Arrays:
        found: Arrays = []
        for source, functions in zip(self.aggregates.sources, self.partials.sources, strict=True):
            buffers = [array(batch.column(name)) for function in functions for name in function.columns]
            found += accumulators_of(source.accumulator, buffers)
        return found


def sql_partials(
    aggregates: Aggregates, rows: types.StructType, by: Sequence[str], inputs: Sequence[str | None]
) -> SqlPartials | str:
    """Return how SQL computes the partial results of aggregates, or why it does not.

    Args:
        aggregates: what the operator computes.
        rows: schema of the rows of ``Aggregation.rows``.
        by: the names of the key columns.
        inputs: the name of the input column of each source of the aggregates; None if it needs no column.
    """
    key = types.StructType([rows[name] for name in by])
    for field in key.fields:
        if not can_hash(types.StructType([field])):
            return f"key column {field.name!r} of type {field.dataType.simpleString()}"
    sources = []
    for source, name in zip(aggregates.sources, inputs, strict=True):
        accumulator = source.accumulator
        found = (
            functions_of(accumulator, "1", nullable=False)
            if name is None
            else functions_of(accumulator, quoted(name), nullable=rows[name].nullable)
        )
        if found is None:
            return f"{accumulator.name} of type {accumulator.column.simpleString()}"
        sources.append(found)
    return SqlPartials(key, tuple(sources))
