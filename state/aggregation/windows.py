"""Aggregates of windows of event time: once the watermark has passed a window, it is closed and its state removed.

As in Spark (found by experiment on 4.3), in batch N a row is late, and dropped, if its window ends at or before the
watermark of batch N-1. After the rows of batch N, each window is closed that ends at or before its watermark. With the
output mode "update" a batch outputs the windows that it has changed, with "append" those that it closes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from ..errors import invalid_argument
from ..format.arrow import BYTES, from_numpy, to_numpy, valid
from ..format.keys import KeyCodec
from ..format.keyspace import WINDOWS, value_prefix
from ..format.rows import SLICE
from ..format.schema import from_json
from ..format.values import describe
from ..operators.arrow_fit import fit_table
from ..operators.arrow_processor import ArrowInput, ArrowProcessor, ArrowResult, ArrowSpec
from ..operators.attempts import Attempts
from ..operators.dataframe import folding
from ..operators.engine import Chunk, RuntimeContext, with_prefix
from ..operators.expiry_index import entries, take_due
from ..operators.task_state import TaskState
from ..operators.time_mode import EventTime
from ..rpc.access import Entries
from .aggregate_operator import STATE, AggregateOperator, AggregateProcessor, Aggregation, ToAccumulators
from .reduce import array

WINDOW: Final = "window"
"""The name of the key column that Spark's ``window`` makes: a struct of ``start`` and ``end``."""
_TIME_WINDOW: Final = "spark.timeWindow"
_SESSION_WINDOW: Final = "spark.sessionWindow"
"""How Spark marks the columns of its windows, in their metadata."""
_CLOSES: Final = "chandy.window"
"""How the key column of windows is marked that the operator closes, in its metadata."""


# --- on the driver ------------------------------------------------------------------------------------------


def with_windows(df: DataFrame, window: object) -> DataFrame:
    """Return a stream with a row for each window that a row is in, in the column ``WINDOW``.

    Args:
        df: a streaming DataFrame with a watermark.
        window: what ``pyspark.sql.functions.window`` returns, over the column with the watermark.

    Raises:
        DefinitionError: it is no such window, or ``df`` has a column of that name.
    """
    if not isinstance(window, Column):
        expected = "a window of event time, such as pyspark.sql.functions.window('time', '10 minutes')"
        raise invalid_argument("window", expected, describe(window))
    fold = folding(df)
    if fold(WINDOW) in map(fold, df.columns):
        advice = "rename it by withColumnRenamed"
        raise invalid_argument("df", f"no column {WINDOW!r}, which the output has", "one", advice)
    found = df.withColumn(WINDOW, window)
    field = found.schema[WINDOW]
    if _SESSION_WINDOW in field.metadata:
        expected = "a tumbling or a sliding window, as pyspark.sql.functions.window makes them"
        advice = "use transform_with_state with a timer for sessions"
        raise invalid_argument("window", expected, "a session window", advice)
    if _TIME_WINDOW not in field.metadata:
        expected = "a window of event time, such as pyspark.sql.functions.window('time', '10 minutes')"
        raise invalid_argument("window", expected, f"a column of type {field.dataType.simpleString()}")
    if EventTime.of(StructType([field])) is None:
        expected = (
            "a window over the column that df.withWatermark(column, delay) was given, so that windows close"
        )
        raise invalid_argument("window", expected, "one over a column without a watermark")
    marked = found[WINDOW].alias(WINDOW, metadata=field.metadata | {_CLOSES: True})
    return found.withColumn(WINDOW, marked)


def closes_windows(key_schema: str) -> bool:
    """Return whether an operator whose key columns have this schema, as Spark's JSON, closes windows."""
    return any(_CLOSES in field.metadata for field in from_json(key_schema).fields)


def windowed(made: Aggregation, *, only_closed: bool) -> Aggregation:
    """Return aggregates whose windows close.

    Args:
        made: aggregates with the key column ``WINDOW``.
        only_closed: whether a window is output once, when it is closed; otherwise whenever it has changed.
    """
    inner, processor = made.spec.inner, made.spec.inner.processor
    assert isinstance(processor, AggregateProcessor), "aggregates have this processor"
    own = attrs.evolve(inner, processor=WindowProcessor(processor, only_closed))
    return attrs.evolve(made, spec=attrs.evolve(made.spec, inner=own, operator=WindowOperator))


# --- in a task ----------------------------------------------------------------------------------------------


class WindowProcessor(ArrowProcessor):
    """Merges accumulators into those of windows that are open, and outputs results."""

    def __init__(self, aggregates: AggregateProcessor, only_closed: bool) -> None:
        """Create the processor; the arguments are those of ``windowed``."""
        self.aggregates = aggregates
        self.only_closed = only_closed
        self.states = aggregates.states  # type: ignore[misc]

    def process(self, given: ArrowInput) -> ArrowResult:
        """Process some windows. Those that are closed have no state afterwards."""
        found = self.aggregates.process(given)
        closed = ends_ms(given.keys) <= given.times.watermark_ms
        totals, output = found.states[STATE], found.output
        if closed.any():
            totals = totals.take(from_numpy(np.arange(len(totals)), closed))
        if self.only_closed and output is not None:
            output = output.filter(from_numpy(closed))
        return ArrowResult(output, {STATE: totals})


class WindowOperator(AggregateOperator):
    """Aggregates of windows in one task.

    Each window with state has an entry under ``WINDOWS`` by its end, which goes with the state when the window closes.
    """

    def __init__(
        self, spec: ArrowSpec, context: RuntimeContext, to_accumulators: ToAccumulators | None
    ) -> None:
        super().__init__(spec, context, to_accumulators)
        processor = spec.processor
        assert isinstance(processor, WindowProcessor), "windows have this processor"
        self._processor = processor
        rows = from_json(spec.input).fields
        self._codec = KeyCodec(StructType(rows[: len(rows) - len(self._schemas[STATE])]))
        self._time = EventTime(WINDOW, window=True)
        self._closed = [pa.array([], BYTES)]
        """The keys of windows that had rows in this batch and were closed by it."""

    def prepare(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        """Return the accumulators of rows that are not late."""
        table = super().prepare(batches)
        kept = self._time.without_late(table, self._context.times.late_ms)
        self.late_rows += len(table) - len(kept)
        return kept

    def process(self, chunk: Chunk, state: TaskState) -> Iterator[pa.RecordBatch]:
        """Process some windows, and enter those that are new."""
        yield from super().process(chunk, state)
        groups, (held,) = chunk.groups, chunk.held
        ends, known = ends_ms(groups.key_columns), valid(held)
        is_closed = ends <= self._context.times.watermark_ms
        new = ~known & ~is_closed
        state.put(entries(WINDOWS, groups.shards[new], groups.keys.filter(from_numpy(new)), ends[new]))
        self._closed.append(groups.keys.filter(from_numpy(known & is_closed)))

    def finish(self, state: TaskState, attempts: Attempts) -> Iterator[pa.RecordBatch]:
        """Close the windows that the watermark has passed: remove their state, and output them if they were not."""
        yield from super().finish(state, attempts)
        closed = pa.concat_arrays(self._closed)
        for shards, keys in take_due(WINDOWS, state, self._context.times.watermark_ms):
            left = pc.invert(pc.is_in(keys, value_set=closed))
            shards, keys = shards[to_numpy(left)], keys.filter(left)
            # No window that has had rows in this batch is left.
            names = with_prefix(value_prefix(STATE), keys)
            held = state.fetch_before(shards, names)
            state.put(Entries(shards, names, pa.nulls(len(names), BYTES)))
            if self._processor.only_closed:
                yield from self._results(keys, held)

    def _results(self, keys: pa.Array, held: pa.Array) -> Iterator[pa.RecordBatch]:
        there = held.is_valid()
        accumulators = self._packings[STATE].unpack(held.filter(there)).flatten()
        columns = self._codec.decode_columns(keys.filter(there))
        results = self._processor.aggregates.results(columns, accumulators)
        output = fit_table(results, self._spec.uid, self._output)
        if output is not None:
            yield from output.to_batches(max_chunksize=SLICE)


def ends_ms(keys: pa.Table) -> npt.NDArray[np.int64]:
    """Return when the windows of some keys end, in milliseconds since 1970, rounded up."""
    ends = pc.struct_field(array(keys.column(WINDOW)), "end")
    return -(-to_numpy(ends.cast(pa.timestamp("us", ends.type.tz)).cast(pa.int64())) // 1000)
