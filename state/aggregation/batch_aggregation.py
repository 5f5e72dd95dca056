"""Running aggregates over batch DataFrames: what runs in the tasks, for each place where rows can be combined."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol, Self

import attrs
import pyarrow as pa

from ..errors import invalid_argument
from ..format.arrow import to_numpy
from ..operators.dataframe import ArrowFunction, Combiner
from .aggregate_operator import AggregateSpec, Aggregation, Combine
from .combining import Combined, Combining, PreAggregation
from .partial_aggregation import RowsToAccumulators
from .sql_partials import ALL_ROWS, SqlPartials, SqlToAccumulators, sql_partials

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext
    from pyspark.sql import DataFrame


class Define(Protocol):
    """Describes running aggregates.

    Raises:
        DefinitionError: an argument of theirs cannot be used.
    """

    def __call__(self, *, combine: Combine) -> Aggregation: ...  # noqa: D102


@attrs.frozen(eq=False)
class Tally:
    """Counts, over all tasks, how many rows there were before they were combined, and how many after.

    What is combined again is counted again, so the counts serve decisions about speed and nothing else.
    """

    rows: Accumulator[int]
    sent: Accumulator[int]

    @classmethod
    def begin(cls, context: SparkContext) -> Self:
        """Make a tally that is zero, on the driver."""
        return cls(context.accumulator(0), context.accumulator(0))

    def add(self, rows: int, sent: int) -> None:
        """Count rows, in a task."""
        self.rows.add(rows)
        self.sent.add(sent)

    def total(self) -> Combined:
        """Return the counts so far, on the driver."""
        return Combined(self.rows.value, self.sent.value)


@attrs.frozen
class BatchAggregation:
    """Running aggregates over batches, ready to be put into an operator."""

    rows: DataFrame
    """The columns that the operator needs."""
    specs: Mapping[PreAggregation, AggregateSpec]
    """The operator for each place where rows can be combined. All have the same state."""
    combiner: Combiner
    """For ``PreAggregation.PYTHON``."""
    partials: SqlPartials | None
    """For ``PreAggregation.SQL``; None if SQL cannot combine the rows."""
    tally: Tally


def batch_aggregation(df: DataFrame, define: Define, *, combine: Combining, tally: Tally) -> BatchAggregation:
    """Describe running aggregates over batches, on the driver.

    Args:
        df: the input.
        define: describes the aggregates over its rows.
        combine: where rows are to be combined.
        tally: counts the rows.

    Raises:
        DefinitionError: an argument cannot be used.
    """
    if combine not in ("auto", "sql", "python", "none"):
        raise invalid_argument("combine", "'auto', 'sql', 'python' or 'none'", repr(combine))
    plain, combined = define(combine=False), define(combine="auto")
    convert = plain.spec.to_accumulators
    assert isinstance(convert, RowsToAccumulators), "rows come uncombined"
    assert combined.combiner is not None, "rows are combined"
    rows = plain.rows(df)
    found = sql_partials(convert.aggregates, rows.schema, plain.by, convert.inputs)
    if isinstance(found, str) and combine == "sql":
        raise invalid_argument("combine", "aggregates and keys that Spark combines by hashing", found)
    specs = {
        PreAggregation.PYTHON: combined.spec,
        PreAggregation.NOWHERE: attrs.evolve(plain.spec, to_accumulators=_CountedRows(convert, tally)),
    }
    partials = None if isinstance(found, str) else found
    if partials is not None:
        of_sql = SqlToAccumulators(convert.aggregates, partials, convert.names)
        specs[PreAggregation.SQL] = attrs.evolve(plain.spec, to_accumulators=_CountedPartials(of_sql, tally))
    combiner = Combiner(_CountedCombiner(combined.combiner.function, tally))
    return BatchAggregation(rows, specs, combiner, partials, tally)


@attrs.frozen
class _CountedRows:
    convert: Callable[[pa.RecordBatch], pa.RecordBatch]
    tally: Tally

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.tally.add(len(batch), len(batch))
        return self.convert(batch)


@attrs.frozen
class _CountedPartials:
    convert: SqlToAccumulators
    tally: Tally

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.tally.add(int(to_numpy(batch.column(ALL_ROWS.columns[0])).sum()), len(batch))
        return self.convert(batch)


@attrs.frozen
class _CountedCombiner:
    function: ArrowFunction
    tally: Tally

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in self.function(self._counted(batches)):
            self.tally.add(0, len(batch))
            yield batch

    def _counted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.tally.add(len(batch), 0)
            yield batch
