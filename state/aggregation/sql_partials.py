"""Partial results of aggregates by Spark's own SQL: what it computes of a batch, and those columns as accumulators.

Structured Streaming has no aggregation without state, but within ``foreachBatch`` a micro-batch is a batch DataFrame.
Over that, Spark combines the rows of a key in the JVM with generated code, and only one row for each key of the batch
comes to Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import attrs
import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from ..format.arrow import from_numpy, to_numpy, valid
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
from .reduce import array, with_nulls

if TYPE_CHECKING:
    from pyspark.sql import Column

ROWS: Final = "__chandy_rows"
"""The column with the number of rows that a partial result is of."""

_SAFE_DECIMAL: Final = 28
"""The most digits of a decimal whose sums, with ten digits more, cannot overflow."""
_LOW: Final = 0xFFFFFFFF
_FIXED: Final = (
    BooleanType,
    ByteType,
    ShortType,
    IntegerType,
    LongType,
    FloatType,
    DoubleType,
    DecimalType,
    DateType,
    TimestampType,
    TimestampNTZType,
    DayTimeIntervalType,
)
"""Types that Spark keeps in its hash aggregation. With a value of another type, it sorts every row."""


# --- what SQL computes --------------------------------------------------------------------------------------


def expressions_of(accumulator: Accumulator, column: str) -> tuple[str, ...] | None:
    """Return Spark SQL for the partial results of which an accumulator is made; None if SQL has none that fit.

    Args:
        accumulator: the accumulator.
        column: Spark SQL of its input column; a constant to count all rows.
    """
    match accumulator:
        case Count():
            return (f"count({column})",)
        case IntegerSum(column=LongType()):
            # Two halves: so no intermediate sum overflows.
            return (f"sum(shiftright({column}, 32))", f"sum({column} & {_LOW})")
        case IntegerSum():
            return (f"sum(cast({column} as bigint))",)
        case DoubleSum():
            return (f"sum(cast({column} as double))",)
        case DecimalSum(column=DecimalType() as dtype):
            return (f"sum({column})",) if dtype.precision <= _SAFE_DECIMAL else None
        case WithCount():
            total = expressions_of(accumulator.sum, column)
            return None if total is None else (*total, f"count({column})")
        case MinMax():
            function = "max" if accumulator.greatest else "min"
            return (f"{function}({column})",) if isinstance(accumulator.column, _FIXED) else None
        case FirstLast():
            function = "last" if accumulator.last else "first"
            return (f"{function}({column})",) if isinstance(accumulator.column, _FIXED) else None
        case Moments():
            number = f"cast({column} as double)"
            return (f"count({column})", f"avg({number})", f"var_pop({number})")
        case _:
            return None


# --- its results as accumulators ----------------------------------------------------------------------------


def accumulators_of(accumulator: Accumulator, found: Sequence[pa.Array]) -> Arrays:
    """Return the accumulators of groups of rows.

    Args:
        accumulator: the accumulator.
        found: the columns that its ``expressions_of`` have given, with a value for each group.

    Raises:
        Overflow: a value does not fit into its type.
    """
    match accumulator:
        case IntegerSum(column=LongType()):
            return [_from_halves(accumulator, *found)]
        case WithCount():
            return [*accumulators_of(accumulator.sum, found[:-1]), found[-1]]
        case FirstLast():
            seen = from_numpy(np.ones(len(found[0]), np.bool_))
            return [found[0].cast(arrow_type(accumulator.column)), seen]
        case Moments():
            count, mean, variance = found
            squares = to_numpy(variance, 0.0) * to_numpy(count)
            return [count, from_numpy(to_numpy(mean, 0.0)), from_numpy(squares)]
        case _:
            return [found[0].cast(arrow_type(accumulator.fields[0].dataType))]


def _from_halves(accumulator: Accumulator, highs: pa.Array, lows: pa.Array) -> pa.Array:
    high, low = to_numpy(highs), to_numpy(lows)
    high = high + (low >> 32)
    if ((high < -(1 << 31)) | (high >= 1 << 31)).any():
        raise Overflow(accumulator.name, LongType())
    return with_nulls((high << 32) | (low & _LOW), valid(highs) if highs.null_count else None)


# --- for all aggregates of an operator ----------------------------------------------------------------------


@attrs.frozen
class SqlPartials:
    """How Spark's SQL computes the partial results of an operator's aggregates, of the rows of ``Aggregation.rows``."""

    by: tuple[str, ...]
    expressions: tuple[tuple[str, ...], ...]
    """Spark SQL for each source of the aggregates, over the operator's input."""

    def columns(self) -> tuple[list[Column], list[Column]]:
        """Return the columns to group by, and those of the partial results; the last is ``ROWS``."""
        texts = [text for source in self.expressions for text in source]
        results = [F.expr(text).alias(f"__chandy_sql_{at}") for at, text in enumerate(texts)]
        return [F.col(quoted(name)) for name in self.by], [*results, F.count("*").alias(ROWS)]


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
        keys = [batch.column(name) for name in self.partials.by]
        try:
            columns = [*keys, *self._accumulators(batch), batch.column(SHARD)]
        except Overflow as overflow:
            raise overflow.of(self.aggregates.operator) from None
        return pa.RecordBatch.from_arrays(columns, names=[*self.names, SHARD])

    def _accumulators(self, batch: pa.RecordBatch) -> Arrays:
        found: Arrays = []
        at = len(self.partials.by)
        for source, texts in zip(self.aggregates.sources, self.partials.expressions, strict=True):
            columns = [array(batch.column(at + number)) for number in range(len(texts))]
            found += accumulators_of(source.accumulator, columns)
            at += len(texts)
        return found


def sql_partials(aggregates: Aggregates, key: StructType, inputs: Sequence[str | None]) -> SqlPartials | str:
    """Return how SQL computes the partial results of aggregates, or why it does not.

    Args:
        aggregates: what the operator computes.
        key: schema of the key columns.
        inputs: the name of the input column of each source of the aggregates; None if it needs no column.
    """
    for field in key.fields:
        if not can_hash(StructType([field])):
            return f"key column {field.name!r} of type {field.dataType.simpleString()}"
    expressions = []
    for source, name in zip(aggregates.sources, inputs, strict=True):
        found = expressions_of(source.accumulator, "1" if name is None else quoted(name))
        if found is None:
            return f"{source.accumulator.name} of type {source.accumulator.column.simpleString()}"
        expressions.append(found)
    return SqlPartials(tuple(key.names), tuple(expressions))
