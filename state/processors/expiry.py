"""Removes expired state from the shards, without looking at any other state.

Reads never see an expired value. This module frees the space that it takes, by an index under ordered keys with the
times at which to check a key's value, list or map. The invariant:

    Whatever has an expiry has an entry in the index. It is checked when it has expired, or ``ASLEEP_MS`` later if its
    state was not declared meanwhile.

What has expired is removed then, except elements of a list behind longer-lived ones, as long as they are the smaller
part of it. An update that finds an entry keeps it, so it costs nothing. An entry's time is that of the first expiry,
rounded up to an eighth of the time to live. If something is left that will expire, it gets a new entry. An entry is
never deleted before its time, because that would require a search for it.

The invariant holds through every change of what a processor declares: a shorter time to live adds entries that are
earlier, and a state that is not declared for a while keeps its entries, which are put off, until its values are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import pyarrow as pa

from ..format import keyspace
from ..format.arrow import BYTES
from ..operators.engine import TaskState
from ..rpc.access import Entries
from .variable import CurrentKey, Variable

_PRECISION: Final = 8
ASLEEP_MS: Final = 600_000
"""How long an entry is put off whose state the processor does not declare now, but may declare again."""


def rounded(expiry_ms: int, ttl_ms: int) -> int:
    """Return the time of the index entry for what expires at ``expiry_ms``: the same time, or a little later."""
    width = max(1, ttl_ms // _PRECISION)
    return -(-expiry_ms // width) * width


def new_entry_time(variable: Variable, held: bytes | None, data: bytes | None, now: int) -> int | None:
    """Return the time of the index entry to add when ``held`` becomes ``data``; None if there is one already.

    State with a live part that expires has an entry. If it lives longer than what is written now, because the time to
    live has become shorter, its entry may be too late for that.
    """
    latest = variable.latest(data)
    if latest is None or variable.ttl_ms is None:
        return None
    before, next_expiry = variable.latest(held), min(latest, now + variable.ttl_ms)
    has_entry = before is not None and now < before <= next_expiry
    return None if has_entry else rounded(next_expiry, variable.ttl_ms)


def clean(state: TaskState, variables: Iterable[Variable], current: CurrentKey) -> None:
    """Remove everything that has expired, after the batch's changes."""
    by_prefix = {variable.prefix: variable for variable in variables}
    seen: set[bytes] = set()
    for entries in list(state.scan(*keyspace.due(keyspace.EXPIRY, current.now))):
        state.put(Entries(entries.shards, entries.keys, pa.nulls(len(entries), BYTES)))
        named = [keyspace.split_timed(key)[1] for key in entries.keys.to_pylist()]
        wanted = []
        for at, key in enumerate(named):
            if key not in seen:
                seen.add(key)
                wanted.append(at)
        if wanted:
            keys = pa.array([named[at] for at in wanted], BYTES)
            _clean(
                Entries(entries.shards[wanted], keys, state.fetch(entries.shards[wanted], keys)),
                by_prefix,
                current,
            )


def _clean(entries: Entries, variables: Mapping[bytes, Variable], current: CurrentKey) -> None:
    names = entries.keys.to_pylist()
    prefixes = [keyspace.variable_of(name) for name in names]
    keys = pa.array([name[len(prefix) :] for name, prefix in zip(names, prefixes, strict=True)], BYTES)
    current.chunk(entries.shards, keys)
    for index, held in enumerate(entries.values.to_pylist()):
        if held is None:
            continue
        current.index = index
        variable = variables.get(prefixes[index])
        if variable is None:
            # A value of a state that is not declared now. If the state was deleted, there is none.
            current.put(keyspace.timed_key(keyspace.EXPIRY, current.now + ASLEEP_MS, names[index]), b"")
            continue
        variable.enter(held)
        earliest = variable.clean()
        data = variable.leave()
        if data != held:
            current.put(names[index], data)
        if earliest is not None:
            time = rounded(earliest, variable.ttl_ms or 0)
            current.put(keyspace.timed_key(keyspace.EXPIRY, time, names[index]), b"")
    current.index = -1
