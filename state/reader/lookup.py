"""What one key has in one state variable, read from outside of any task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import Row

from ...storage.manifest import StateKind, StateRecord
from ..format import keyspace
from ..format.packing import Packing
from ..format.schema import from_json
from ..format.values import StateName
from ..processors.list_state import HeldList
from ..processors.map_state import HeldMap
from ..processors.value_state import HeldValue
from ..processors.variable import CurrentKey

Fetch = Callable[[Sequence[bytes]], list[bytes | None]]
"""Gives what a shard holds under keys, in their order; None for a key that is not there."""

Held = Row | list[Row] | dict[tuple[Any, ...], Row]
"""What a value, a list or a map holds."""

_ATTEMPTS = 10


def held_by(record: StateRecord, name: StateName, key: bytes, fetch: Fetch, now_ms: int) -> Held | None:
    """Return what a state variable holds for a key: a row, a list of rows, or rows by a map's keys.

    The parts of a large list or map come in a second call of ``fetch``; should the state change in between, it is
    read again.

    Args:
        record: the variable.
        name: its name, for errors.
        key: the key's canonical bytes, see ``keys``.
        fetch: reads the key's shard.
        now_ms: what has expired by then, in milliseconds since 1970, counts as not there.

    Returns:
        None if there is no value, list or map.

    Raises:
        StateTypeError: what is stored does not fit the record.
    """
    where = keyspace.value_prefix(name.state) + key
    (held,) = fetch([where])
    for _ in range(_ATTEMPTS):
        if held is None:
            return None
        found = _decode(record, name, held, _OneKey(name.operator, key, fetch, now_ms))
        if record.kind is StateKind.VALUE:
            return found
        (again,) = fetch([where])
        if again == held:
            break
        held = again
    return found


class _OneKey(CurrentKey):
    """The only key there is, whose state is read and never changed."""

    def __init__(self, operator: str, key: bytes, fetch: Fetch, now_ms: int) -> None:
        super().__init__(operator)
        self.now = now_ms
        self._only = key
        self._read = fetch

    @property
    def key(self) -> bytes:
        return self._only

    def fetch(self, keys: Sequence[bytes]) -> list[bytes | None]:
        # A part may be gone when the state has changed since its header was read; then that has changed, too.
        return [b"" if found is None else found for found in self._read(keys)]


def _decode(record: StateRecord, name: StateName, held: bytes, current: CurrentKey) -> Held | None:
    versions = [from_json(version) for version in record.versions]
    packing, prefix = Packing(versions, name), keyspace.value_prefix(name.state)
    row = Row(*versions[-1].names)
    if record.kind is StateKind.LIST:
        elements = HeldList(name, prefix, packing, None, current)
        elements.enter(held)
        return [row(*element) for element in elements.get()] or None
    if record.kind is StateKind.MAP:
        assert record.map_key is not None, "the record of a map says what its keys are"
        keys = Packing([from_json(record.map_key)], name)
        entries = HeldMap(name, prefix, keys, packing, None, current)
        entries.enter(held)
        return {key: row(*value) for key, value in entries.iterator()} or None
    value = HeldValue(name, prefix, packing, None, current)
    value.enter(held)
    found = value.get()
    return None if found is None else row(*found)
