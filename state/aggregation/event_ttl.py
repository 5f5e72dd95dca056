"""Aggregates whose keys live by event time: a key goes once the watermark has passed its last or first row by a time.

Beside its aggregates, a key has the end that one of its rows gave it, and the event time of that row: the last one of
those that are not earlier, or the first one of those that are. Each batch that has rows of the key decides by the time
to live that is declared then. So a key keeps its end when the time to live is changed, as a value does that lives by
processing time. If none by event time is declared any more, rows take the end away.

At the end of batch N, each key is removed whose end is at or before the batch's watermark, whatever is declared. Until
then its rows count, also those that come in batch N. So what a key has does not depend on how its rows are combined,
nor on the clock of any machine: a stream that is read again removes the same keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import LongType, StructField, StructType

from ...storage.checkpoints.manifest import StateRecord
from ..format.arrow import BYTES, from_numpy, milliseconds, nulled, to_numpy, valid
from ..format.evolution import BOOKKEEPING, EARLIER_TIMES, END, TIME
from ..format.keyspace import WINDOWS, value_prefix
from ..format.schema import arrow_struct, from_json, to_json
from ..operators.arrow_expiry import TimeToLive
from ..operators.arrow_processor import ArrowInput, ArrowSpec
from ..operators.attempts import Attempts
from ..operators.engine import Chunk, RuntimeContext, with_prefix
from ..operators.expiry_index import ASLEEP_MS, entries, take_due
from ..operators.task_state import TaskState
from ..rpc.access import Entries
from .accumulators import MinMax
from .aggregate_operator import (
    STATE,
    AggregateOperator,
    AggregateProcessor,
    Aggregation,
    Combine,
    ToAccumulators,
    aggregation,
)
from .aggregates import ITSELF, AccumulatorInput, Input

Longs = npt.NDArray[np.int64]

_OF_ROWS: Final = "$rows_time"
"""The accumulator with the time of the row that decides among those of a batch. It is not stored."""
_STORED: Final = (StructField(TIME, LongType()), StructField(END, LongType()))
_NEVER: Final = np.iinfo(np.int64).max
"""The end of a key that has none."""


def living(
    schema: StructType,
    by: Sequence[str],
    columns: Mapping[str, tuple[str, str]],
    *,
    uid: str,
    combine: Combine = "auto",
    ttl: TimeToLive | None = None,
) -> Aggregation:
    """Describe running aggregates of all rows of a key, by whichever clock it lives.

    Args:
        schema, by, columns, uid, combine: as for ``aggregation``.
        ttl: how long a key lives; None: for ever.

    Raises:
        DefinitionError: an argument cannot be used.
    """
    if ttl is None or ttl.column is None:
        made = aggregation(schema, by, columns, uid=uid, combine=combine, ttl=ttl)
        return attrs.evolve(made, spec=attrs.evolve(made.spec, operator=partial(LivingOperator, None)))
    of = MinMax(_OF_ROWS, schema[ttl.column].dataType, greatest=ttl.since == "last")
    time = AccumulatorInput(of, Input(ttl.column, ITSELF))
    made = aggregation(schema, by, columns, uid=uid, combine=combine, also=[time])
    own = attrs.evolve(made.spec.aggregates, sources=made.spec.aggregates.sources[:-1])
    states = {STATE: StateRecord((to_json(StructType([*own.state.fields, *_STORED])),))}
    spec = attrs.evolve(made.spec, states=states, operator=partial(LivingOperator, ttl), aggregates=own)
    return attrs.evolve(made, spec=spec)


def lives_by_event_time(record: StateRecord) -> bool:
    """Return whether keys of aggregates in a state of this description may have an end in event time."""
    return not BOOKKEEPING.isdisjoint(from_json(record.versions[-1]).names)


class LivingOperator(AggregateOperator):
    """Aggregates of all rows in one task.

    A key that has an end has an entry under ``WINDOWS`` at its end, or before.

    Args:
        ttl: how long keys live by event time; None: they live by processing time, or for ever.
        spec, context, to_accumulators: as for ``AggregateOperator``.
    """

    def __init__(
        self,
        ttl: TimeToLive | None,
        spec: ArrowSpec,
        context: RuntimeContext,
        to_accumulators: ToAccumulators | None,
    ) -> None:
        super().__init__(spec, context, to_accumulators)
        assert isinstance(spec.processor, AggregateProcessor), "aggregates have this processor"
        self._ttl = ttl
        self._until = context.times.watermark_ms
        own = spec.processor.states[STATE]
        assert isinstance(own, StructType), "their schema is no DDL"
        # The processor knows nothing of ends.
        self._schemas = {STATE: own}
        self._stored: pa.StructType = self._packings[STATE].arrow_type
        self._ends_kept = lives_by_event_time(spec.states[STATE])
        self._written = [pa.array([], BYTES)]
        self._ends = [np.empty(0, np.int64)]
        """When the keys end that this batch has written, or removed."""
        self._is_new = np.empty(0, np.bool_)
        """Of the keys that were processed last, those that need an entry."""

    def process(self, chunk: Chunk, state: TaskState) -> Iterator[pa.RecordBatch]:
        """Process some keys, and enter those that need an entry."""
        yield from super().process(chunk, state)
        if self._ends_kept:
            groups, new = chunk.groups, self._is_new
            state.put(
                entries(WINDOWS, groups.shards[new], groups.keys.filter(from_numpy(new)), self._ends[-1][new])
            )
            self._written.append(groups.keys)

    def finish(self, state: TaskState, attempts: Attempts) -> Iterator[pa.RecordBatch]:
        """Remove the keys whose time has ended."""
        yield from super().finish(state, attempts)
        if not self._ends_kept:
            return
        written, ends_written = pa.concat_arrays(self._written), np.concatenate(self._ends)
        for shards, keys in take_due(WINDOWS, state, self._until):
            names = with_prefix(value_prefix(STATE), keys)
            held = state.fetch_before(shards, names)
            totals = self._packings[STATE].unpack(held)
            _, ends = self._before(totals)
            at = pc.index_in(keys, value_set=written)
            is_written = valid(at)
            if at.null_count < len(at):
                ends = np.where(is_written, ends_written[to_numpy(at, 0)], ends)
            gone = ends <= self._until
            removed = names.filter(from_numpy(gone))
            state.put(Entries(shards[gone], removed, pa.nulls(len(removed), BYTES)))
            later = ~gone & (ends != _NEVER)
            if self._ttl is None:
                # An earlier version has not stored the end: it depends on the time to live that is declared next.
                asleep = ~is_written & (self._earlier_times(totals) != _NEVER)
                later, ends = later | asleep, np.where(asleep, self._until + ASLEEP_MS, ends)
            state.put(entries(WINDOWS, shards[later], keys.filter(from_numpy(later)), ends[later]))

    def _call(self, given: ArrowInput) -> tuple[pa.Table | None, dict[str, pa.Array]]:
        if not self._ends_kept:
            return super()._call(given)
        held = given.states[STATE]
        output, states = super()._call(attrs.evolve(given, states={STATE: self._own(held)}))
        totals = states[STATE]
        times, ends = self._after(held, totals)
        gone = ends <= self._until
        # What is stored has an entry at its end, or before; that of an earlier version may be later.
        self._is_new = ~gone & (ends != _NEVER) & (self._numbers(held, END) > ends)
        self._ends.append(ends)
        return output, {STATE: nulled(self._with_ends(totals, times, ends), gone)}

    def _own(self, held: pa.StructArray) -> pa.StructArray:
        """Return what the processor is to have of stored totals: no time, so that it returns that of the batch."""
        own = arrow_struct(self._schemas[STATE])
        columns = [
            pa.nulls(len(held), field.type) if field.name == _OF_ROWS else pc.struct_field(held, field.name)
            for field in own
        ]
        return pa.StructArray.from_arrays(columns, fields=list(own), mask=held.is_null())

    def _with_ends(self, totals: pa.StructArray, times: Longs, ends: Longs) -> pa.StructArray:
        """Return totals of the processor as they are stored."""
        without = ends == _NEVER
        kept = {TIME: from_numpy(times, without), END: from_numpy(ends, without)}
        columns = [
            totals.field(field.name)
            if field.name not in BOOKKEEPING
            else kept.get(field.name, pa.nulls(len(totals), field.type))
            for field in self._stored
        ]
        return pa.StructArray.from_arrays(columns, fields=list(self._stored))

    def _after(self, held: pa.StructArray, totals: pa.StructArray) -> tuple[Longs, Longs]:
        """Return when keys end after a batch that has rows of them, with the time of the row that decides."""
        if self._ttl is None:
            return np.zeros(len(held), np.int64), np.full(len(held), _NEVER, np.int64)
        times, ends = self._before(held)
        of_rows = totals.field(_OF_ROWS)
        found = milliseconds(of_rows)
        later = found >= times if self._ttl.since == "last" else found < times
        decides = valid(of_rows) & ((ends == _NEVER) | later)
        return np.where(decides, found, times), np.where(decides, found + self._ttl.ms, ends)

    def _before(self, held: pa.StructArray) -> tuple[Longs, Longs]:
        """Return when stored keys end, in milliseconds since 1970, with the time of the row that has decided."""
        times, ends = (self._numbers(held, name) for name in (TIME, END))
        if self._ttl is not None:
            # An earlier version has stored the time alone.
            earlier = self._earlier_times(held)
            derived = (ends == _NEVER) & (earlier != _NEVER)
            times = np.where(derived, earlier, times)
            ends = np.where(derived, earlier + self._ttl.ms, ends)
        return times, ends

    def _earlier_times(self, held: pa.StructArray) -> Longs:
        found = np.full(len(held), _NEVER, np.int64)
        for name in EARLIER_TIMES:
            if self._stored.get_field_index(name) >= 0:
                times = pc.struct_field(held, name)
                found = np.where(valid(times), milliseconds(times), found)
        return found

    def _numbers(self, held: pa.StructArray, name: str) -> Longs:
        if self._stored.get_field_index(name) < 0:
            return np.full(len(held), _NEVER, np.int64)
        numbers: Longs = to_numpy(pc.struct_field(held, name), _NEVER)
        return numbers
