"""Aggregates whose keys live by event time: a key goes once the watermark has passed its last or first row by a time.

The event time of that row is an accumulator of the key, beside those of its aggregates. At the end of batch N, each key
is removed whose time to live has ended at or before the batch's watermark. Until then its rows count, also those that
come in batch N. So what a key has does not depend on how its rows are combined, nor on the clock of any machine: a
stream that is read again removes the same keys.
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
from pyspark.sql.types import StructType

from ...storage.checkpoints.manifest import StateRecord
from ..format.arrow import BYTES, from_numpy, milliseconds, nulled, to_numpy, valid
from ..format.keyspace import WINDOWS, value_prefix
from ..format.schema import from_json
from ..operators.arrow_expiry import Since, TimeToLive
from ..operators.arrow_processor import ArrowInput, ArrowSpec
from ..operators.attempts import Attempts
from ..operators.engine import Chunk, RuntimeContext, with_prefix
from ..operators.expiry_index import entries, take_due
from ..operators.task_state import TaskState
from ..rpc.access import Entries
from .accumulators import MinMax
from .aggregate_operator import STATE, AggregateOperator, Aggregation, Combine, ToAccumulators, aggregation
from .aggregates import ITSELF, AccumulatorInput, Input

_FIELDS: Final[Mapping[Since, str]] = {"last": "$last_time", "first": "$first_time"}
"""The field of the state that has the event time, by what the time to live begins with."""
_NEVER: Final = np.iinfo(np.int64).max
"""The end of a key that has no event time."""


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
        return aggregation(schema, by, columns, uid=uid, combine=combine, ttl=ttl)
    of = MinMax(_FIELDS[ttl.since], schema[ttl.column].dataType, greatest=ttl.since == "last")
    time = AccumulatorInput(of, Input(ttl.column, ITSELF))
    made = aggregation(schema, by, columns, uid=uid, combine=combine, also=[time])
    return attrs.evolve(made, spec=attrs.evolve(made.spec, operator=partial(EventTtlOperator, ttl)))


def lives_by_event_time(record: StateRecord) -> bool:
    """Return whether the keys of aggregates in a state of this description live by event time."""
    return not set(from_json(record.versions[-1]).names).isdisjoint(_FIELDS.values())


class EventTtlOperator(AggregateOperator):
    """Aggregates in one task whose keys live by event time.

    A key that has an end has an entry under ``WINDOWS`` at its end, or before.
    """

    def __init__(
        self,
        ttl: TimeToLive,
        spec: ArrowSpec,
        context: RuntimeContext,
        to_accumulators: ToAccumulators | None,
    ) -> None:
        super().__init__(spec, context, to_accumulators)
        self._ttl = ttl
        self._until = context.times.watermark_ms
        self._written = [pa.array([], BYTES)]
        self._ends = [np.empty(0, np.int64)]
        """When the keys end that this batch has written, or removed."""
        self._is_new = np.empty(0, np.bool_)
        """Of the keys that were processed last, those that need an entry."""

    def process(self, chunk: Chunk, state: TaskState) -> Iterator[pa.RecordBatch]:
        """Process some keys, and enter those that are new."""
        yield from super().process(chunk, state)
        groups, new = chunk.groups, self._is_new
        state.put(
            entries(WINDOWS, groups.shards[new], groups.keys.filter(from_numpy(new)), self._ends[-1][new])
        )
        self._written.append(groups.keys)

    def finish(self, state: TaskState, attempts: Attempts) -> Iterator[pa.RecordBatch]:
        """Remove the keys whose time has ended."""
        yield from super().finish(state, attempts)
        written, ends_written = pa.concat_arrays(self._written), np.concatenate(self._ends)
        for shards, keys in take_due(WINDOWS, state, self._until):
            names = with_prefix(value_prefix(STATE), keys)
            held = state.fetch_before(shards, names)
            ends = np.where(valid(held), self._ends_of(self._packings[STATE].unpack(held)), _NEVER)
            at = pc.index_in(keys, value_set=written)
            if at.null_count < len(at):
                ends = np.where(valid(at), ends_written[to_numpy(at, 0)], ends)
            gone = ends <= self._until
            removed = names.filter(from_numpy(gone))
            state.put(Entries(shards[gone], removed, pa.nulls(len(removed), BYTES)))
            later = ~gone & (ends != _NEVER)
            state.put(entries(WINDOWS, shards[later], keys.filter(from_numpy(later)), ends[later]))

    def _call(self, given: ArrowInput) -> tuple[pa.Table | None, dict[str, pa.Array]]:
        output, states = super()._call(given)
        totals = states[STATE]
        before, ends = self._ends_of(given.states[STATE]), self._ends_of(totals)
        gone = ends <= self._until
        self._is_new = ~gone & (ends != _NEVER) & ((before == _NEVER) | (before > ends))
        self._ends.append(ends)
        return output, states | {STATE: nulled(totals, gone)}

    def _ends_of(self, totals: pa.StructArray) -> npt.NDArray[np.int64]:
        """Return when the time to live of keys ends, in milliseconds since 1970, rounded up."""
        times = pc.struct_field(totals, _FIELDS[self._ttl.since])
        return np.where(valid(times), milliseconds(times) + self._ttl.ms, _NEVER)
