"""Removes expired state from the shards, without looking at any other state.

Reads never see an expired value. This module frees the space that it takes. A variable with a time to live has an
index under ordered keys: one entry for a key's value, list or map, with the time at which to check it. That is when its
first part expires, rounded up to an eighth of the time to live. An update keeps the entry, so it costs nothing. At the
time of the entry, what has expired is removed, and if something is left, it gets a new entry. An entry is never deleted
before its time, because that would require a search for it.
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


def rounded(expiry_ms: int, ttl_ms: int) -> int:
    """Return the time of the index entry for what expires at ``expiry_ms``: the same time, or a little later."""
    width = max(1, ttl_ms // _PRECISION)
    return -(-expiry_ms // width) * width


def new_entry_time(variable: Variable, held: bytes | None, data: bytes | None, now: int) -> int | None:
    """Return the time of the index entry to add when ``held`` becomes ``data``; None if there is one already.

    State with a live part always has an entry. After a change of the time to live, the entry may be late.
    """
    latest = variable.latest(data)
    if latest is None or variable.ttl_ms is None:
        return None
    before = variable.latest(held)
    has_entry = before is not None and now < before <= latest
    return None if has_entry else rounded(latest, variable.ttl_ms)


def clean(state: TaskState, variables: Iterable[Variable], current: CurrentKey) -> None:
    """Remove everything that has expired, after the batch's changes."""
    by_prefix = {variable.prefix: variable for variable in variables}
    seen: set[bytes] = set()
    for entries in list(state.scan(*keyspace.due(keyspace.EXPIRY, current.now))):
        state.put(Entries(entries.shards, entries.keys, pa.nulls(len(entries), BYTES)))
        named = [keyspace.split_timed(key)[1] for key in entries.keys.to_pylist()]
        wanted = []
        for at, key in enumerate(named):
            # If the variable has been dropped, only its entry is left.
            if key not in seen and keyspace.variable_of(key) in by_prefix:
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
        variable = variables[prefixes[index]]
        variable.enter(held)
        earliest = variable.clean()
        data = variable.leave()
        if data != held:
            current.put(names[index], data)
        if earliest is not None:
            time = rounded(earliest, variable.ttl_ms or 0)
            current.put(keyspace.timed_key(keyspace.EXPIRY, time, names[index]), b"")
    current.index = -1
