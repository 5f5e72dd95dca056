"""Lists and maps are laid out as operators lay them out, element after element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructType

from chandy.state.format import keyspace
from chandy.state.format.packing import Packing
from chandy.state.format.values import StateName
from chandy.state.processors.list_state import KeyedListState
from chandy.state.processors.map_state import KeyedMapState
from chandy.state.processors.variable import CurrentKey
from chandy.state.writer.layout import Layout, list_layout, list_parts, map_layout, map_parts, part_keys

NAME = StateName("op", "s")
PACKING = Packing([StructType().add("t", StringType())], NAME)
KEY = b"key"
TTL = 1000


class Shard(CurrentKey):
    """The current key, over what it has put."""

    def __init__(self) -> None:
        super().__init__("op")
        self.held: dict[bytes, bytes] = {}
        self.index = 0

    @property
    def key(self) -> bytes:
        return KEY

    def put(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.held.pop(key, None)
        else:
            self.held[key] = value

    def fetch(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.held.get(key) for key in keys]


def stored(layout: Layout) -> dict[bytes, bytes]:
    return dict(zip(part_keys("s", KEY, layout.parts), layout.parts.values(), strict=True))


@pytest.mark.parametrize("ttl", [None, TTL])
@pytest.mark.parametrize("size", [1, 3, 200, 2000])
def test_a_list_is_laid_out_as_by_appending(size: int, ttl: int | None) -> None:
    shard = Shard()
    state: Any = KeyedListState(NAME, keyspace.value_prefix("s"), PACKING, ttl, shard)
    state.enter(None)
    items = []
    for number in range(size):
        shard.now = number
        text = (f"{number}" * 20,)
        state.appendValue(text)
        items.append(PACKING.pack_row(text, None if ttl is None else number + ttl))
    header = state.leave()
    layout = list_layout(items)
    assert (layout.header, stored(layout)) == (header, shard.held)
    assert list(list_parts(layout.header)) == list(layout.parts)


@pytest.mark.parametrize("ttl", [None, TTL])
@pytest.mark.parametrize("size", [1, 3, 200, 2000])
def test_a_map_is_laid_out_as_by_updating(size: int, ttl: int | None) -> None:
    shard = Shard()
    state: Any = KeyedMapState(NAME, keyspace.value_prefix("s"), PACKING, PACKING, ttl, shard)
    state.enter(None)
    entries = {}
    for number in range(size):
        shard.now = number
        key, value = (f"{number}",), (f"{number}" * 20,)
        state.updateValue(key, value)
        entries[PACKING.pack_row(key)] = PACKING.pack_row(value, None if ttl is None else number + ttl)
    header = state.leave()
    layout = map_layout(entries)
    assert (layout.header, stored(layout)) == (header, shard.held)
    assert set(map_parts(layout.header)) >= set(layout.parts)
