"""Times to live of states that are handled as whole columns: what has expired, and when what is written now will."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..format.arrow import BYTES, from_numpy, nulled, scalar, to_numpy, valid
from ..format.keyspace import EXPIRY
from ..format.packing import expiries
from ..rpc.access import Entries, ShardColumn
from .expiry_index import ASLEEP_MS, entries, rounded, take_due
from .task_state import TaskState

Since = Literal["last", "first"]
"""Whether a time to live starts over with each change of a key, or runs from the first one."""


@attrs.frozen
class TimeToLive:
    """How long the values of a state live."""

    ms: int
    since: Since = "last"
    column: str | None = None
    """The column with the event time, by which they live; None: they live by processing time."""


@attrs.define(eq=False)
class ColumnExpiry:
    """The expiry of an operator's states in one batch of one task."""

    now: int
    """Processing time of the batch, in milliseconds since 1970."""
    ttl: Mapping[bytes, TimeToLive | None]
    """By the prefix of the state, for all that are declared. None: what is written now never expires."""
    _written: list[pa.Array] = attrs.field(factory=list, init=False)
    """The keys under which values were written, while any state has a time to live."""

    def live(self, held: pa.Array) -> pa.Array:
        """Return stored values, null where they have expired.

        A value keeps its expiry until it is written again, whatever time to live is declared meanwhile.
        """
        gone = to_numpy(pc.less_equal(expiries(held), scalar(self.now, pa.int64())), null=False)
        return nulled(held, gone)

    def of(self, prefix: bytes, held: pa.Array) -> pa.Array | None:
        """Return when values that are written now expire; None: never.

        Args:
            prefix: of the state.
            held: the live values that they replace.
        """
        ttl = self.ttl[prefix]
        if ttl is None:
            return None
        renewed = np.full(len(held), self.now + ttl.ms, np.int64)
        if ttl.since == "first":
            before = expiries(held)
            renewed = np.where(valid(before), to_numpy(before), renewed)
        return from_numpy(renewed)

    def record(self, prefix: bytes, changes: Entries, held: pa.Array, state: TaskState) -> None:
        """Put what the index needs for values that are written.

        Args:
            prefix: of the state.
            changes: the values, which may have null for a key that is removed, by their whole keys.
            held: the live values that they replace.
            state: gets the entries.
        """
        if not any(self.ttl.values()):
            return
        kept, ttl = valid(changes.values), self.ttl[prefix]
        self._written.append(changes.keys.filter(from_numpy(kept)))
        if ttl is None:
            return
        before, after = expiries(held), to_numpy(expiries(changes.values))
        found = to_numpy(before)
        # State that lives longer than what is written now has an entry that may be too late, see ``expiry_index``.
        new = kept & ~(valid(before) & (found > self.now) & (found <= after))
        keys = changes.keys.filter(from_numpy(new))
        state.put(entries(EXPIRY, changes.shards[new], keys, rounded(after[new], ttl.ms)))

    def clean(self, state: TaskState) -> None:
        """Remove everything that has expired, after the batch's changes."""
        # Without a time to live, nothing was noted of what the batch has written over values that had one.
        fetch = state.fetch_before if any(self.ttl.values()) else state.fetch
        for shards, keys in take_due(EXPIRY, state, self.now):
            held = fetch(shards, keys)
            asleep = valid(held)
            for prefix, ttl in self.ttl.items():
                mine = to_numpy(pc.starts_with(keys, prefix))
                asleep &= ~mine
                if mine.any():
                    chosen = from_numpy(mine)
                    self._clean(shards[mine], keys.filter(chosen), held.filter(chosen), ttl, state)
            # Their states are not declared now.
            later = np.full(int(asleep.sum()), self.now + ASLEEP_MS, np.int64)
            state.put(entries(EXPIRY, shards[asleep], keys.filter(from_numpy(asleep)), later))

    def _clean(
        self, shards: ShardColumn, keys: pa.Array, held: pa.Array, ttl: TimeToLive | None, state: TaskState
    ) -> None:
        """Remove what has expired of values that a state had before the batch, and enter the others again."""
        written, before, ms = self._is_written(keys), expiries(held), ttl.ms if ttl else 0
        old = ~written & valid(before)
        expires = np.where(written, self.now + ms, to_numpy(before))
        gone = old & (expires <= self.now)
        removed = keys.filter(from_numpy(gone))
        state.put(Entries(shards[gone], removed, pa.nulls(len(removed), BYTES)))
        # What was written without an expiry is looked at no more.
        again = (old & ~gone) | (written if ttl else False)
        state.put(entries(EXPIRY, shards[again], keys.filter(from_numpy(again)), rounded(expires[again], ms)))

    def _is_written(self, keys: pa.Array) -> npt.NDArray[np.bool_]:
        if not self._written:
            return np.zeros(len(keys), np.bool_)
        return to_numpy(pc.is_in(keys, value_set=pa.concat_arrays(self._written)))
