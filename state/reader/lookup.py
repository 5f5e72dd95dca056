"""Decodes the state of one key in one state variable, outside of any task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Row

from ...storage.checkpoints.manifest import StateKind, StateRecord
from ..format import keyspace
from ..format.packing import Packing
from ..format.schema import from_json
from ..format.values import StateName
from ..processors.list_state import KeyedListState
from ..processors.map_state import KeyedMapState
from ..processors.value_state import KeyedValueState
from ..processors.variable import CurrentKey

StateValue = Row | list[Row] | dict[tuple[Any, ...], Row]
"""The content of a value state, a list state or a map state."""


def lookup_state(
    record: StateRecord, name: StateName, key: bytes, entries: Mapping[bytes, bytes], now_ms: int
) -> StateValue | None:
    """Return the state of a key: a row, a list of rows, or a dict of rows by a map's keys; None if there is none.

    Args:
        record: the state variable.
        name: its name, for errors.
        key: the key's canonical bytes, see ``keys``.
        entries: what the key's shard has of it after one batch: the value or the header, with all parts.
        now_ms: the current time, in milliseconds since 1970; what has expired by then is ignored.

    Raises:
        StateTypeError: the stored bytes do not fit the record.
    """
    held = entries.get(keyspace.value_prefix(name.state) + key)
    return None if held is None else _decode(record, name, held, _OneKey(name.operator, key, entries, now_ms))


class _OneKey(CurrentKey):
    """A current key whose state is only read."""

    def __init__(self, operator: str, key: bytes, entries: Mapping[bytes, bytes], now_ms: int) -> None:
        super().__init__(operator)
        self.now = now_ms
        self._only = key
        self._entries = entries

    @property
    def key(self) -> bytes:
        return self._only

    def fetch(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._entries.get(key) for key in keys]


def _decode(record: StateRecord, name: StateName, held: bytes, current: CurrentKey) -> StateValue | None:
    versions = [from_json(version) for version in record.versions]
    packing, prefix = Packing(versions, name), keyspace.value_prefix(name.state)
    row = Row(*versions[-1].names)
    if record.kind is StateKind.LIST:
        elements = KeyedListState(name, prefix, packing, None, current)
        elements.enter(held)
        return [row(*element) for element in elements.get()] or None
    if record.kind is StateKind.MAP:
        assert record.map_key is not None, "the record of a map says what its keys are"
        keys = Packing([from_json(record.map_key)], name)
        entries = KeyedMapState(name, prefix, keys, packing, None, current)
        entries.enter(held)
        return {key: row(*value) for key, value in entries.iterator()} or None
    value = KeyedValueState(name, prefix, packing, None, current)
    value.enter(held)
    found = value.get()
    return None if found is None else row(*found)
