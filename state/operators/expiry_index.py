"""The expiry index of a shard: what to look at, and when, to remove expired state without looking at any other state.

Reads never see an expired value. The index frees the space that it takes. It is under ordered keys with the times at
which to check a key's value, list or map. The invariant:

    Whatever has an expiry has an entry in the index. It is checked when it has expired, or ``ASLEEP_MS`` later if its
    state was not declared meanwhile.

An update that finds an entry keeps it, so it costs nothing. An entry's time is that of the first expiry, rounded up to
an eighth of the time to live. If something is left that will expire, it gets a new entry. An entry is never deleted
before its time, because that would require a search for it.

The invariant holds through every change of what an operator declares: a shorter time to live adds entries that are
earlier, and a state that is not declared for a while keeps its entries, which are put off, until its values are gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..format import keyspace
from ..format.arrow import BYTES, from_numpy, scalar, to_numpy
from ..rpc.access import Entries, ShardColumn
from .task_state import TaskState

Times = TypeVar("Times", int, npt.NDArray[np.int64])

_PRECISION: Final = 8
ASLEEP_MS: Final = 600_000
"""How long an entry is put off whose state the operator does not declare now, but may declare again."""


def rounded(expiry_ms: Times, ttl_ms: int) -> Times:
    """Return the time of the index entry for what expires at ``expiry_ms``: the same time, or a little later."""
    width = max(1, ttl_ms // _PRECISION)
    return -(-expiry_ms // width) * width


def take_due(index: bytes, state: TaskState, now: int) -> Iterator[tuple[ShardColumn, pa.Array]]:
    """Delete the entries that are due; yield the shards and the keys that they name, in pieces.

    Those of one shard are adjacent. A key is in a piece once, and may be in several pieces.

    Args:
        index: the prefix of the entries: ``EXPIRY``, or ``WINDOWS``, which are no expiry but are found in the same way.
        state: of the task.
        now: the time up to which entries are due, in milliseconds since 1970.
    """
    for due in list(state.scan(*keyspace.due(index, now))):
        state.put(Entries(due.shards, due.keys, pa.nulls(len(due), BYTES)))
        named = keyspace.named_by(due.keys)
        _, first = np.unique(to_numpy(named.dictionary_encode().indices), return_index=True)
        first.sort()
        yield due.shards[first], named.take(from_numpy(first))


def entries(index: bytes, shards: ShardColumn, named: pa.Array, times: npt.NDArray[Any]) -> Entries:
    """Return entries of the index.

    Args:
        index: as for ``take_due``.
        shards: the shard of each.
        named: the keys of the state.
        times: when to look at them, in milliseconds since 1970.
    """
    empty = pa.nulls(len(named), BYTES).fill_null(scalar(b"", BYTES))
    return Entries(shards, keyspace.timed_keys(index, times, named), empty)
