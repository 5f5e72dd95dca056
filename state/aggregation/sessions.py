"""Aggregates of sessions of event time: the rows of a key between which there is no gap as long as that of the session.

A row is a session that ends a gap later, and sessions of a key that overlap are one. As in Spark (found by experiment
on 4.3), so is one that begins just when another ends. What is late, and when a session closes, is said in ``windows``.
Rows are late one by one, before they are merged.

The state of a key has its open sessions as columns: a list of starts, one of ends, and one for each accumulator. A key
has an entry under ``WINDOWS`` at the end of the session that ends first, or before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, StructField, StructType, TimestampType

from ...storage.checkpoints.manifest import StateRecord
from ..format.arrow import BYTES, from_numpy, microseconds, milliseconds, to_numpy, valid
from ..format.keys import KeyCodec
from ..format.keyspace import WINDOWS, value_prefix
from ..format.rows import SLICE
from ..format.schema import arrow_schema, from_json, to_json
from ..operators.arrow_fit import fit_states, fit_table
from ..operators.arrow_processor import ArrowInput, ArrowProcessor, ArrowResult, ArrowSpec
from ..operators.attempts import Attempts
from ..operators.engine import Chunk, RuntimeContext, with_prefix
from ..operators.expiry_index import entries, take_due
from ..operators.task_state import TaskState
from ..rpc.access import Entries, ShardColumn
from .aggregate_operator import Aggregation, ToAccumulators
from .aggregates import Aggregates
from .reduce import array
from .windows import END, START, PunctualOperator, as_windows

SESSIONS: Final = "sessions"
"""The only state of the operator: a struct of lists, which have an item for each open session of a key."""

_NONE: Final = np.iinfo(np.int64).max

Longs = npt.NDArray[np.int64]


# --- on the driver ------------------------------------------------------------------------------------------


def in_sessions(made: Aggregation, window: StructField) -> Aggregation:
    """Return aggregates of sessions.

    Args:
        made: aggregates whose last key columns are ``START`` and ``END``. The operator is keyed by those before.
        window: the column of the output that has the session.
    """
    inner, by = made.spec.inner, made.by[:-2]
    rows, output = from_json(inner.input), from_json(inner.output)
    parts = rows.fields[len(made.by) :]
    state = StructType(
        [
            StructField(name, ArrayType(kind))
            for name, kind in [
                (START, TimestampType()),
                (END, TimestampType()),
                *(
                    (own.name, part.dataType)
                    for own, part in zip(made.spec.aggregates.state, parts, strict=True)
                ),
            ]
        ]
    )
    states = {SESSIONS: StateRecord((to_json(state),))}
    key = [rows[name] for name in by]
    own = attrs.evolve(
        inner,
        processor=SessionProcessor(made.spec.aggregates, tuple(part.name for part in parts), state, window),
        states=states,
        output=to_json(StructType([window, *key, *output.fields[len(made.by) :]])),
    )
    spec = attrs.evolve(made.spec, inner=own, states=states, operator=SessionOperator)
    return attrs.evolve(made, spec=spec)


def holds_sessions(name: str, record: StateRecord) -> bool:
    """Return whether a state of this name and description holds sessions."""
    return name == SESSIONS and from_json(record.versions[-1]).names[:2] == [START, END]


# --- in a task ----------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class Sessions:
    """Sessions of some keys, those of a key adjacent."""

    keys: Longs
    """The number of the key of each session, ascending."""
    starts: Longs
    """In microseconds since 1970."""
    ends: Longs
    accumulators: Sequence[pa.Array]

    def where(self, chosen: npt.NDArray[np.bool_]) -> Sessions:
        """Return some of the sessions."""
        mask = from_numpy(chosen)
        parts = [part.filter(mask) for part in self.accumulators]
        return Sessions(self.keys[chosen], self.starts[chosen], self.ends[chosen], parts)

    def then(self, later: Sessions) -> Sessions:
        """Return these and others behind them, which may be of the same keys."""
        return Sessions(
            np.concatenate((self.keys, later.keys)),
            np.concatenate((self.starts, later.starts)),
            np.concatenate((self.ends, later.ends)),
            [
                pa.concat_arrays([one, other.cast(one.type)])
                for one, other in zip(self.accumulators, later.accumulators, strict=True)
            ],
        )

    def merged(self, aggregates: Aggregates) -> Sessions:
        """Return sessions in which those that overlap are one. The order within a session stays, for first and last."""
        order = np.lexsort((self.starts, self.keys))
        keys, starts, ends = self.keys[order], self.starts[order], self.ends[order]
        # The latest end so far, key by key: keys ascend, so a code of both ascends from key to key.
        distinct, ranks = np.unique(ends, return_inverse=True)
        latest = distinct[np.maximum.accumulate(keys * len(distinct) + ranks) % max(len(distinct), 1)]
        begins = np.ones(len(keys), np.bool_)
        begins[1:] = (keys[1:] != keys[:-1]) | (starts[1:] > latest[:-1])
        first = np.flatnonzero(begins)
        number = np.empty(len(keys), np.int64)
        number[order] = np.cumsum(begins) - 1
        by_arrival = from_numpy(np.argsort(number, kind="stable"))
        bounds = np.append(first, len(keys))
        parts = aggregates.merge([part.take(by_arrival) for part in self.accumulators], bounds)
        return Sessions(keys[first], starts[first], latest[bounds[1:] - 1], parts)


class SessionProcessor(ArrowProcessor):
    """Merges rows into the open sessions of their keys, and outputs the sessions that close."""

    def __init__(
        self, aggregates: Aggregates, parts: Sequence[str], state: StructType, window: StructField
    ) -> None:
        """Create the processor.

        Args:
            aggregates: the aggregates to compute.
            parts: names of the input columns with accumulators.
            state: schema of the state.
            window: the column of the output that has the session.
        """
        self.states = {SESSIONS: state}  # type: ignore[misc]
        self._aggregates = aggregates
        self._parts = tuple(parts)
        self._window = to_json(StructType([window]))

    def process(self, given: ArrowInput) -> ArrowResult:
        """Process some keys."""
        rows = given.rows
        new = Sessions(
            given.numbers,
            microseconds(array(rows.column(START))),
            microseconds(array(rows.column(END))),
            [array(rows.column(name)) for name in self._parts],
        )
        held = self.opened(given.states[SESSIONS])
        return self.close(held.then(new), given.keys, given.times.watermark_ms)

    def opened(self, held: pa.StructArray) -> Sessions:
        """Return the sessions of keys, given their states, which may be null."""
        lists = dict(zip((field.name for field in held.type), held.flatten(), strict=True))
        lengths = to_numpy(pc.fill_null(pc.list_value_length(lists[START]), 0)).astype(np.int64)
        keys = np.repeat(np.arange(len(held), dtype=np.int64), lengths)
        parts = [_items(column, lengths) for name, column in lists.items() if name not in (START, END)]
        starts, ends = (microseconds(_items(lists[name], lengths)) for name in (START, END))
        return Sessions(keys, starts, ends, parts)

    def close(self, sessions: Sessions, keys: pa.Table, watermark_ms: int) -> ArrowResult:
        """Merge sessions; return those that are closed as output, and the others as state.

        Args:
            sessions: of the keys, not merged yet.
            keys: the key columns, a row for each key.
            watermark_ms: the watermark of the batch.
        """
        merged = sessions.merged(self._aggregates)
        are_closed = merged.ends <= watermark_ms * 1000
        states = {SESSIONS: self._stored(merged.where(~are_closed), len(keys))}
        return ArrowResult(self._output(merged.where(are_closed), keys), states)

    def _output(self, closed: Sessions, keys: pa.Table) -> pa.Table:
        output = keys.take(from_numpy(closed.keys))
        window = as_windows(from_numpy(closed.starts), from_numpy(closed.ends), self._window)
        output = output.add_column(0, from_json(self._window).names[0], window)
        results = self._aggregates.finish(closed.accumulators)
        for field, column in zip(self._aggregates.output, results, strict=True):
            output = output.append_column(field.name, column)
        return output

    def _stored(self, left: Sessions, keys: int) -> pa.StructArray:
        counts = np.bincount(left.keys, minlength=keys)
        offsets = from_numpy(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
        columns = [from_numpy(left.starts), from_numpy(left.ends), *left.accumulators]
        schema = arrow_schema(self.states[SESSIONS])  # type: ignore[arg-type]
        lists = [
            pa.ListArray.from_arrays(offsets, column.cast(field.type.value_type), type=field.type)
            for column, field in zip(columns, schema, strict=True)
        ]
        return pa.StructArray.from_arrays(lists, fields=list(schema), mask=from_numpy(counts == 0))


class SessionOperator(PunctualOperator):
    """Aggregates of sessions in one task."""

    def __init__(
        self, spec: ArrowSpec, context: RuntimeContext, to_accumulators: ToAccumulators | None
    ) -> None:
        super().__init__(spec, context, to_accumulators)
        assert isinstance(spec.processor, SessionProcessor), "sessions have this processor"
        self._processor = spec.processor
        rows = from_json(spec.input)
        self._codec = KeyCodec(StructType(rows.fields[: rows.names.index(START)]))
        self._before = self._next = np.empty(0, np.int64)
        """Of the keys of the chunk, when the first session ends, before and after; ``_NONE`` if none is open."""
        self._processed: list[tuple[pa.Array, Longs]] = [(pa.array([], BYTES), self._next)]
        """The keys that this batch is done with, with ``_next`` of each."""

    def process(self, chunk: Chunk, state: TaskState) -> Iterator[pa.RecordBatch]:
        """Process some keys, and enter those whose next session ends before those that they had."""
        yield from super().process(chunk, state)
        groups = chunk.groups
        # ``_NONE`` is later than any end.
        self._enter(state, groups.shards, groups.keys, self._next, self._next < self._before)
        self._processed.append((groups.keys, self._next))

    def finish(self, state: TaskState, attempts: Attempts) -> Iterator[pa.RecordBatch]:
        """Close the sessions that the watermark has passed of keys that have had no rows."""
        yield from super().finish(state, attempts)
        for shards, keys in take_due(WINDOWS, state, self._context.times.watermark_ms):
            # A key may have several entries.
            at = pc.index_in(keys, value_set=pa.concat_arrays([done for done, _ in self._processed]))
            known = valid(at)
            ends = np.concatenate([ends for _, ends in self._processed])[
                to_numpy(at.filter(from_numpy(known)))
            ]
            mine = keys.filter(from_numpy(known))
            self._enter(state, shards[known], mine, ends, ends != _NONE)
            yield from self._close(shards[~known], keys.filter(from_numpy(~known)), state)

    def _call(self, given: ArrowInput) -> tuple[pa.Table | None, dict[str, pa.Array]]:
        output, states = super()._call(given)
        self._before, self._next = next_ends(given.states[SESSIONS]), next_ends(states[SESSIONS])
        return output, states

    def _close(self, shards: ShardColumn, keys: pa.Array, state: TaskState) -> Iterator[pa.RecordBatch]:
        held = state.fetch_before(shards, with_prefix(value_prefix(SESSIONS), keys))
        there = valid(held)
        shards, keys, held = shards[there], keys.filter(from_numpy(there)), held.filter(from_numpy(there))
        packing, processor = self._packings[SESSIONS], self._processor
        result = processor.close(
            processor.opened(packing.unpack(held)),
            self._codec.decode_columns(keys),
            self._context.times.watermark_ms,
        )
        values = fit_states(result.states, self._spec.uid, self._schemas, len(keys))[SESSIONS]
        state.put(Entries(shards, with_prefix(value_prefix(SESSIONS), keys), packing.pack(values)))
        ends = next_ends(values)
        self._enter(state, shards, keys, ends, ends != _NONE)
        self._processed.append((keys, ends))
        output = fit_table(result.output, self._spec.uid, self._output)
        if output is not None:
            yield from output.to_batches(max_chunksize=SLICE)

    def _enter(
        self,
        state: TaskState,
        shards: ShardColumn,
        keys: pa.Array,
        ends: Longs,
        chosen: npt.NDArray[np.bool_],
    ) -> None:
        state.put(entries(WINDOWS, shards[chosen], keys.filter(from_numpy(chosen)), ends[chosen]))


def next_ends(states: pa.StructArray) -> Longs:
    """Return when the session of each key that ends first does, in milliseconds since 1970, rounded up.

    Args:
        states: of the keys, null or a struct of lists; sessions of a key are in the order of their ends.
    """
    lists = pc.struct_field(states, END)
    some = to_numpy(pc.fill_null(pc.list_value_length(lists), 0)) > 0
    ends = np.full(len(states), _NONE, np.int64)
    ends[some] = milliseconds(pc.list_element(lists.filter(from_numpy(some)), 0))
    return ends


def _items(column: pa.Array, lengths: Longs) -> pa.Array:
    """Return the items of lists, of which those that are null have so many nulls."""
    there = valid(column)
    if there.all():
        return column.flatten()
    known = np.repeat(there, lengths)
    return column.flatten().take(from_numpy(np.cumsum(known) - 1, ~known))
