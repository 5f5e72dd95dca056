"""Running aggregates as a keyed operator: an Arrow processor over partial results, and what goes before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.types import StructField, StructType

from ...storage.manifest import StateRecord
from ..errors import DefinitionError
from ..format.schema import from_json, to_json
from ..operators.arrow_processor import (
    ArrowInput,
    ArrowOperator,
    ArrowProcessor,
    ArrowResult,
    ArrowSpec,
    with_shard,
)
from ..operators.dataframe import Combiner, quoted
from ..operators.engine import Run, collect
from .aggregates import Aggregates, plan
from .combining import Combining, Lift
from .reduce import array

Combine = Literal["auto"] | bool
"""Whether rows of one key are combined before they are sent to the key's task."""

STATE = "aggregates"
"""The one state of the operator: a struct with all partial results of a key."""


class AggregateProcessor(ArrowProcessor):
    """Adds partial results to those that are kept, and puts out the totals."""

    def __init__(self, aggregates: Aggregates, parts: Sequence[str]) -> None:
        """Make the processor.

        Args:
            aggregates: what to compute.
            parts: names of the columns with the partial results.
        """
        self._aggregates = aggregates
        self._parts = tuple(parts)
        self.states = {STATE: aggregates.state}  # type: ignore[misc]

    def process(self, given: ArrowInput) -> ArrowResult:
        """Process some keys; each key has one row of output."""
        aggregates, held = self._aggregates, given.states[STATE]
        fields = [held.type.field(at) for at in range(held.type.num_fields)]
        # What came through the JVM has the session's time zone.
        parts = [
            array(given.rows.column(name)).cast(field.type)
            for name, field in zip(self._parts, fields, strict=True)
        ]
        if len(given) < len(given.rows):
            parts = aggregates.combine(parts, given.bounds)
        if held.null_count < len(held):
            parts = aggregates.merge(held.flatten(), parts)
        totals = pa.StructArray.from_arrays(parts, fields=fields)
        output = given.keys
        for field, column in zip(aggregates.output, aggregates.finish(parts), strict=True):
            output = output.append_column(field.name, column)
        return ArrowResult(output, {STATE: totals})


@attrs.frozen
class AggregateSpec:
    """An operator that keeps running aggregates."""

    inner: ArrowSpec
    lift: Lift | None
    """What makes partial results of rows; None if a combiner has done it before the shuffle."""
    states: dict[str, StateRecord]

    @property
    def output(self) -> str:
        """Schema of the output as Spark's JSON."""
        return self.inner.output

    @contextmanager
    def open(self, run: Run) -> Iterator[ArrowOperator]:
        """Make the operator for one task."""
        yield _AggregateOperator(attrs.evolve(self.inner, states=self.states), run, self.lift)


class _AggregateOperator(ArrowOperator):
    def __init__(self, spec: ArrowSpec, run: Run, lift: Lift | None) -> None:
        super().__init__(spec, run)
        self._lift = lift
        self._rows = with_shard(from_json(spec.input))

    def prepare(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        """Return partial results."""
        return collect(batches if self._lift is None else map(self._lift, batches), self._rows)


@attrs.frozen
class Aggregation:
    """Running aggregates over rows of one schema, ready to be put into a task."""

    by: tuple[str, ...]
    inputs: dict[str, str]
    """The columns that are needed beside those of the key: Spark SQL by name."""
    spec: AggregateSpec
    combiner: Combiner | None

    def rows(self, df: DataFrame) -> DataFrame:
        """Return the columns that the operator takes: nothing else comes to Python."""
        return df.select(
            *(F.col(quoted(name)) for name in self.by),
            *(F.expr(expression).alias(name) for name, expression in self.inputs.items()),
        )


def aggregation(
    schema: StructType,
    by: Sequence[str],
    columns: Mapping[str, tuple[str, str]],
    *,
    uid: str,
    combine: Combine = "auto",
) -> Aggregation:
    """Describe running aggregates, on the driver.

    Args:
        schema: of the rows.
        by: names of the key columns, which it has.
        columns: by name of the output's column the input's column and the function.
        uid: of the operator.
        combine: whether to combine before the shuffle; "auto": each task finds out whether that makes rows fewer.

    Raises:
        DefinitionError: an argument cannot be used.
    """
    if not (combine == "auto" or isinstance(combine, bool)):
        raise DefinitionError("combine", "'auto', True or False", repr(combine))
    key = StructType([schema[name] for name in by])
    aggregates = plan(uid, schema, by, columns)
    expressions = dict.fromkeys(source.expression for source in aggregates.sources)
    names = {text: f"__chandy_input_{at}" for at, text in enumerate(expressions) if text is not None}
    parts = [f"__chandy_part_{at}" for at in range(len(aggregates.state))]
    fields = [StructField(part, own.dataType) for part, own in zip(parts, aggregates.state, strict=True)]
    partial_rows = StructType([*key.fields, *fields])
    lift = Lift(
        aggregates,
        tuple(by),
        tuple(
            None if source.expression is None else names[source.expression] for source in aggregates.sources
        ),
        tuple(partial_rows.names),
    )
    output = StructType([*key.fields, *aggregates.output])
    states = {STATE: StateRecord((to_json(aggregates.state),))}
    processor = AggregateProcessor(aggregates, parts)
    inner = ArrowSpec(uid, to_json(partial_rows), to_json(output), states, processor)
    inputs = {name: text for text, name in names.items()}
    if combine is False:
        return Aggregation(tuple(by), inputs, AggregateSpec(inner, lift, states), None)
    combiner = Combiner(Combining(lift, to_json(key), always=combine is True))
    return Aggregation(tuple(by), inputs, AggregateSpec(inner, None, states), combiner)
