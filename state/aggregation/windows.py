"""Aggregates of windows of event time: once the watermark has passed a window, it is closed and its state removed.

As in Spark (found by experiment on 4.3), in batch N a row is late, and dropped, if its window ends at or before the
watermark of batch N-1. After the rows of batch N, each window is closed that ends at or before its watermark. With the
output mode "update" a batch outputs the windows that it has changed, with "append" those that it closes.

A key has the start and the end of a window as columns of their own. A struct, as Spark and the output have it, would be
three times as slow on its way to Python and in the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.types import StructField, StructType, TimestampType

from ..errors import invalid_argument
from ..format.arrow import BYTES, from_numpy, milliseconds, nulled, to_numpy, valid
from ..format.keys import KeyCodec
from ..format.keyspace import WINDOWS, value_prefix
from ..format.rows import SLICE
from ..format.schema import arrow_schema, from_json, to_json
from ..format.values import describe
from ..operators.arrow_fit import fit_table
from ..operators.arrow_processor import ArrowInput, ArrowProcessor, ArrowResult, ArrowSpec
from ..operators.attempts import Attempts
from ..operators.dataframe import folding, quoted
from ..operators.engine import Chunk, RuntimeContext, with_prefix
from ..operators.expiry_index import entries, take_due
from ..operators.task_state import TaskState
from ..operators.time_mode import EventTime
from ..rpc.access import Entries
from .aggregate_operator import STATE, AggregateOperator, AggregateProcessor, Aggregation, ToAccumulators
from .reduce import array

START: Final = "window_start"
END: Final = "window_end"
"""The names of the first key columns, of type timestamp."""
WINDOW: Final = "window"
SESSION_WINDOW: Final = "session_window"
"""The names of the first column of the output, as Spark calls it: a struct of ``start`` and ``end``."""
_TIME_WINDOW: Final = "spark.timeWindow"
_SESSION_WINDOW: Final = "spark.sessionWindow"
"""How Spark marks the columns of its windows, in their metadata."""
_CLOSES: Final = "chandy.closes"
"""How the key column ``END`` is marked where the operator closes windows, in its metadata."""
_GIVEN: Final = "__chandy_window"
_TIME: Final = TimestampType()
_END: Final = EventTime(END, window=False)


# --- on the driver ------------------------------------------------------------------------------------------


@attrs.frozen
class WindowColumn:
    """The windows that rows are in."""

    output: StructField
    """The column of the output that has the window: a struct of ``start`` and ``end``."""
    are_sessions: bool
    """Whether windows of a key that overlap are one."""


def windowed_stream(df: DataFrame, window: object, by: Sequence[str]) -> tuple[DataFrame, WindowColumn]:
    """Return a row for each window that a row of a stream is in, with the columns ``START`` and ``END``.

    Args:
        df: a streaming DataFrame with a watermark.
        window: what ``pyspark.sql.functions.window`` or ``session_window`` returns, over the column with the watermark.
        by: names of the columns to group by beside the window.

    Raises:
        DefinitionError: it is no such window, or a column has the name of one that is added.
    """
    expected = "a window or a session_window of pyspark.sql.functions, such as window('time', '10 minutes')"
    if not isinstance(window, Column):
        raise invalid_argument("window", expected, describe(window))
    fold = folding(df)
    if taken := [
        name
        for name in df.columns
        if fold(name) in (START, END) or (name in by and fold(name) in (WINDOW, SESSION_WINDOW))
    ]:
        advice = "rename it by withColumnRenamed"
        raise invalid_argument(
            "df", "no column with the name of one that window= adds", repr(taken[0]), advice
        )
    rows = df.withColumn(_GIVEN, window)
    field = rows.schema[_GIVEN]
    are_sessions = _SESSION_WINDOW in field.metadata
    if not are_sessions and _TIME_WINDOW not in field.metadata:
        raise invalid_argument("window", expected, f"a column of type {field.dataType.simpleString()}")
    if EventTime.of(StructType([field])) is None:
        expected = (
            "a window over the column that df.withWatermark(column, delay) was given, so that it closes"
        )
        raise invalid_argument("window", expected, "one over a column without a watermark")
    start = F.col(f"{_GIVEN}.start").alias(START)
    end = F.col(f"{_GIVEN}.end").alias(END, metadata={_CLOSES: True})
    columns = [F.col(quoted(name)) for name in df.columns]
    name = SESSION_WINDOW if are_sessions else WINDOW
    output = StructField(name, field.dataType, metadata=field.metadata)
    return rows.select(start, end, *columns), WindowColumn(output, are_sessions)


def closes_windows(key_schema: str) -> bool:
    """Return whether an operator whose key columns have this schema, as Spark's JSON, closes windows."""
    return any(_CLOSES in field.metadata for field in from_json(key_schema).fields)


def closing(key: StructType) -> StructType:
    """Return the key columns of an operator, marked as those of windows that close if they begin with a window."""
    if [(field.name, field.dataType) for field in key.fields[:2]] != [(START, _TIME), (END, _TIME)]:
        return key
    start, end, *others = key.fields
    marked = StructField(END, _TIME, end.nullable, end.metadata | {_CLOSES: True})
    return StructType([start, marked, *others])


def windowed(made: Aggregation, window: StructField, *, only_closed: bool) -> Aggregation:
    """Return aggregates whose windows close.

    Args:
        made: aggregates whose first key columns are ``START`` and ``END``.
        window: the column of the output in their place.
        only_closed: whether a window is output once, when it is closed; otherwise whenever it has changed.
    """
    inner, processor = made.spec.inner, made.spec.inner.processor
    assert isinstance(processor, AggregateProcessor), "aggregates have this processor"
    key, output = from_json(inner.input).fields[: len(made.by)], from_json(inner.output).fields
    own = attrs.evolve(
        inner,
        processor=WindowProcessor(
            processor, to_json(StructType(key)), to_json(StructType([window])), only_closed
        ),
        output=to_json(StructType([window, *output[2:]])),
    )
    return attrs.evolve(made, spec=attrs.evolve(made.spec, inner=own, operator=WindowOperator))


# --- in a task ----------------------------------------------------------------------------------------------


class WindowProcessor(ArrowProcessor):
    """Merges accumulators into those of windows that are open, and outputs results."""

    def __init__(self, aggregates: AggregateProcessor, key: str, window: str, only_closed: bool) -> None:
        """Create the processor.

        Args:
            aggregates: merges accumulators.
            key: schema of the key columns as Spark's JSON.
            window: schema of the column ``WINDOW`` as Spark's JSON.
            only_closed: as for ``windowed``.
        """
        self.aggregates = aggregates
        self.key = key
        self.only_closed = only_closed
        self._window = window
        self.states = aggregates.states  # type: ignore[misc]

    def process(self, given: ArrowInput) -> ArrowResult:
        """Process some windows. Those that are closed have no state afterwards."""
        found = self.aggregates.process(given)
        closed = ends_ms(given.keys) <= given.times.watermark_ms
        totals, output = found.states[STATE], self.output(found.output)
        if self.only_closed:
            output = output.filter(from_numpy(closed))
        return ArrowResult(output, {STATE: nulled(totals, closed)})

    def output(self, results: pa.Table) -> pa.Table:
        """Return results with windows in place of their starts and ends."""
        windows = as_windows(array(results.column(START)), array(results.column(END)), self._window)
        return results.select(results.column_names[2:]).add_column(0, WINDOW, windows)


class PunctualOperator(AggregateOperator):
    """Aggregates in one task whose rows have the column ``END``: those that are late are left out."""

    def prepare(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        """Return the accumulators of rows that are not late."""
        table = super().prepare(batches)
        kept = _END.without_late(table, self._context.times.late_ms)
        self.late_rows += len(table) - len(kept)
        return kept


class WindowOperator(PunctualOperator):
    """Aggregates of windows in one task.

    Each window with state has an entry under ``WINDOWS`` at its end, or before. It goes with the state when the window
    closes.
    """

    def __init__(
        self, spec: ArrowSpec, context: RuntimeContext, to_accumulators: ToAccumulators | None
    ) -> None:
        super().__init__(spec, context, to_accumulators)
        assert isinstance(spec.processor, WindowProcessor), "windows have this processor"
        self._processor = spec.processor
        self._codec = KeyCodec(from_json(spec.processor.key))
        self._closed = [pa.array([], BYTES)]
        """The keys of windows that this batch has closed."""

    def process(self, chunk: Chunk, state: TaskState) -> Iterator[pa.RecordBatch]:
        """Process some windows, and enter those that are new."""
        yield from super().process(chunk, state)
        groups, (held,) = chunk.groups, chunk.held
        known, ends = valid(held), ends_ms(groups.key_columns)
        closed = ends <= self._context.times.watermark_ms
        new = ~known & ~closed
        state.put(entries(WINDOWS, groups.shards[new], groups.keys.filter(from_numpy(new)), ends[new]))
        self._closed.append(groups.keys.filter(from_numpy(known & closed)))

    def finish(self, state: TaskState, attempts: Attempts) -> Iterator[pa.RecordBatch]:
        """Close the windows that the watermark has passed: remove their state, and output them if they were not."""
        yield from super().finish(state, attempts)
        for shards, keys in take_due(WINDOWS, state, self._context.times.watermark_ms):
            windows = self._codec.decode_columns(keys)
            ends = ends_ms(windows)
            due = ends <= self._context.times.watermark_ms
            state.put(entries(WINDOWS, shards[~due], keys.filter(from_numpy(~due)), ends[~due]))
            # A window may have several entries.
            due &= ~to_numpy(pc.is_in(keys, value_set=pa.concat_arrays(self._closed)))
            chosen = from_numpy(due)
            self._closed.append(keys.filter(chosen))
            names = with_prefix(value_prefix(STATE), self._closed[-1])
            if self._processor.only_closed:
                yield from self._results(windows.filter(chosen), state.fetch_before(shards[due], names))
            state.put(Entries(shards[due], names, pa.nulls(len(names), BYTES)))

    def _results(self, windows: pa.Table, held: pa.Array) -> Iterator[pa.RecordBatch]:
        there = held.is_valid()
        accumulators = self._packings[STATE].unpack(held.filter(there)).flatten()
        columns = windows.filter(there)
        results = self._processor.output(self._processor.aggregates.results(columns, accumulators))
        output = fit_table(results, self._spec.uid, self._output)
        if output is not None:
            yield from output.to_batches(max_chunksize=SLICE)


def as_windows(starts: pa.Array, ends: pa.Array, window: str) -> pa.StructArray:
    """Return windows as they are output, given the schema of their column as Spark's JSON."""
    (field,) = arrow_schema(from_json(window))
    bounds = [column.cast(own.type) for column, own in zip((starts, ends), field.type, strict=True)]
    return pa.StructArray.from_arrays(bounds, fields=list(field.type))


def ends_ms(keys: pa.Table) -> npt.NDArray[np.int64]:
    """Return when the windows of some keys end, in milliseconds since 1970, rounded up."""
    return milliseconds(array(keys.column(END)))
