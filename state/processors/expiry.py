"""Removes expired items of a processor's states, as the expiry index says (``operators.expiry_index``).

Elements of a list behind longer-lived ones stay, as long as they are the smaller part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from ..format import keyspace
from ..format.arrow import BYTES
from ..operators.expiry_index import ASLEEP_MS, rounded, take_due
from ..operators.task_state import TaskState
from ..rpc.access import Entries
from .variable import CurrentKey, Variable


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
    for shards, named in take_due(keyspace.EXPIRY, state, current.now):
        _clean(Entries(shards, named, state.fetch(shards, named)), by_prefix, current)


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
