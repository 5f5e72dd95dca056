"""Running aggregates as a keyed operator: an Arrow processor that merges accumulators into those in the state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, Self

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.types import StructField, StructType

from ...storage.checkpoints.manifest import OperatorRecord, StateRecord
from ..errors import invalid_argument
from ..format.schema import from_json, to_json
from ..operators.arrow_expiry import TimeToLive
from ..operators.arrow_processor import (
    ArrowInput,
    ArrowOperator,
    ArrowProcessor,
    ArrowResult,
    ArrowSpec,
    with_shard,
)
from ..operators.dataframe import SHARD, Combiner, quoted
from ..operators.engine import RuntimeContext, collect
from .aggregates import AccumulatorInput, Aggregates, Input, plan
from .partial_aggregation import PartialAggregation, RowsToAccumulators
from .reduce import array

Combine = Literal["auto"] | bool
"""Whether rows of one key are combined before they are sent to the key's task."""

ToAccumulators = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Converts rows to the key columns, accumulators and the shard; rows are those of the input, or partial results."""

STATE = "aggregates"
"""The only state of the operator: a struct with all accumulators of a key."""


class AggregateProcessor(ArrowProcessor):
    """Merges accumulators into those in the state, and outputs the results."""

    def __init__(self, aggregates: Aggregates, accumulators: Sequence[str]) -> None:
        """Create the processor.

        Args:
            aggregates: the aggregates to compute.
            accumulators: names of the input columns with the accumulators.
        """
        self._aggregates = aggregates
        self._columns = tuple(accumulators)
        self.states = {STATE: aggregates.state}  # type: ignore[misc]

    def process(self, given: ArrowInput) -> ArrowResult:
        """Process some keys; return one row for each key."""
        aggregates, held = self._aggregates, given.states[STATE]
        fields = [held.type.field(at) for at in range(held.type.num_fields)]
        # Columns that came through the JVM have the session's time zone.
        accumulators = [
            array(given.rows.column(name)).cast(field.type)
            for name, field in zip(self._columns, fields, strict=True)
        ]
        if len(given) < len(given.rows):
            accumulators = aggregates.merge(accumulators, given.bounds)
        if held.null_count < len(held):
            accumulators = aggregates.merge_pairs(held.flatten(), accumulators)
        totals = pa.StructArray.from_arrays(accumulators, fields=fields)
        return ArrowResult(self.results(given.keys, accumulators), {STATE: totals})

    def results(self, keys: pa.Table, accumulators: Sequence[pa.Array]) -> pa.Table:
        """Return the rows of the output for some keys.

        Args:
            keys: the key columns, a row for each key.
            accumulators: of each key, in the order of the state's fields.
        """
        for field, column in zip(self._aggregates.output, self._aggregates.finish(accumulators), strict=True):
            keys = keys.append_column(field.name, column)
        return keys


@attrs.frozen
class AggregateSpec:
    """An operator that computes running aggregates."""

    inner: ArrowSpec
    to_accumulators: ToAccumulators | None
    """Converts rows to accumulators; None if a combiner has done so before the shuffle."""
    states: dict[str, StateRecord]
    operator: Callable[[ArrowSpec, RuntimeContext, ToAccumulators | None], ArrowOperator]
    """Creates the operator for one task."""
    aggregates: Aggregates

    @property
    def output(self) -> str:
        """Schema of the output as Spark's JSON."""
        return self.inner.output

    def taking_up(self, record: OperatorRecord) -> Self:
        """Return the operator for states of earlier versions."""
        return attrs.evolve(self, states=record.states_of(self.states))

    @contextmanager
    def open(self, context: RuntimeContext) -> Iterator[ArrowOperator]:
        """Create the operator for one task."""
        yield self.operator(attrs.evolve(self.inner, states=self.states), context, self.to_accumulators)


class AggregateOperator(ArrowOperator):
    """Running aggregates in one task."""

    def __init__(
        self, spec: ArrowSpec, context: RuntimeContext, to_accumulators: ToAccumulators | None
    ) -> None:
        super().__init__(spec, context)
        self._to_accumulators = to_accumulators
        self._rows = with_shard(from_json(spec.input))

    def prepare(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        """Return the rows as accumulators."""
        if self._to_accumulators is not None:
            batches = map(self._to_accumulators, batches)
        return collect(batches, self._rows)


@attrs.frozen
class Aggregation:
    """Running aggregates over rows of one schema, ready to be put into an operator."""

    by: tuple[str, ...]
    inputs: dict[str, Input]
    """The columns that are needed beside the key columns, by name."""
    spec: AggregateSpec
    combiner: Combiner | None

    def rows(self, df: DataFrame) -> DataFrame:
        """Return only the columns that the operator needs, so that no others are sent to Python."""
        return df.select(
            *(F.col(quoted(name)) for name in self.by),
            *(F.expr(one.expression).alias(name) for name, one in self.inputs.items()),
        )

    def arrow_rows(self, rows: pa.Table) -> pa.Table:
        """Return what ``rows`` returns, without Spark, with the shard column at the end."""
        found = rows.select(list(self.by))
        for name, one in self.inputs.items():
            found = found.append_column(name, one.of(rows))
        return found.append_column(SHARD, rows.column(SHARD))


def aggregation(
    schema: StructType,
    by: Sequence[str],
    columns: Mapping[str, tuple[str, str]],
    *,
    uid: str,
    combine: Combine = "auto",
    ttl: TimeToLive | None = None,
    also: Sequence[AccumulatorInput] = (),
) -> Aggregation:
    """Describe running aggregates, on the driver.

    Args:
        schema: of the rows.
        by: names of the key columns.
        columns: the input column and the function, by name of the output column.
        uid: of the operator.
        combine: whether to combine rows before the shuffle; "auto": each task decides by how often keys repeat.
        ttl: how long a key lives, in processing time; None: for ever.
        also: accumulators that the operator needs beside those of the columns.

    Raises:
        DefinitionError: an argument cannot be used.
    """
    if not (combine == "auto" or isinstance(combine, bool)):
        raise invalid_argument("combine", "'auto', True or False", repr(combine))
    key = StructType([schema[name] for name in by])
    aggregates = plan(uid, schema, by, columns)
    aggregates = attrs.evolve(aggregates, sources=(*aggregates.sources, *also))
    needed = dict.fromkeys(source.input for source in aggregates.sources)
    names = {one: f"__chandy_input_{at}" for at, one in enumerate(needed) if one is not None}
    accumulators = [f"__chandy_part_{at}" for at in range(len(aggregates.state))]
    fields = [
        StructField(part, own.dataType) for part, own in zip(accumulators, aggregates.state, strict=True)
    ]
    partial_rows = StructType([*key.fields, *fields])
    to_accumulators = RowsToAccumulators(
        aggregates,
        tuple(by),
        tuple(None if source.input is None else names[source.input] for source in aggregates.sources),
        tuple(partial_rows.names),
    )
    output = StructType([*key.fields, *aggregates.output])
    states = {STATE: StateRecord((to_json(aggregates.state),), ttl_ms=ttl.ms if ttl else None)}
    processor = AggregateProcessor(aggregates, accumulators)
    since = ttl.since if ttl else "last"
    inner = ArrowSpec(uid, to_json(partial_rows), to_json(output), states, processor, since)
    inputs = {name: one for one, name in names.items()}
    combiner = None
    if combine is not False:
        combiner = Combiner(PartialAggregation(to_accumulators, to_json(key), always=combine is True))
    spec = AggregateSpec(inner, None if combiner else to_accumulators, states, AggregateOperator, aggregates)
    return Aggregation(tuple(by), inputs, spec, combiner)
