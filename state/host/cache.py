"""The hot cache of a shard: recently read or written values, in two generations of plain dicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Final

Value = bytes | None
"""The value of a key. None: the key is known not to exist."""

MISSING: Final = bytes(bytearray(b"\x00missing"))
"""Stands for an unknown value and is recognised by identity. It is bytes because searching a list of bytes for bytes
takes half of the time."""

ENTRY: Final = 128
"""Bytes that an entry takes in addition to its key and value: two ``bytes`` objects (33 each, rounded up) and its part
of a dict that is between a third and two thirds full. Measured with tracemalloc: 118."""


def weight(entries: Mapping[bytes, Value]) -> int:
    """Return the bytes of memory that entries take."""
    return ENTRY * len(entries) + _total(entries) + _total(filter(None, entries.values()))


def lookup(keys: Sequence[bytes], levels: Iterable[Mapping[bytes, Value]]) -> list[Value]:
    """Return for each key the value of the first level that has it, or ``MISSING``.

    No Python code runs per key: with everything in one level it takes some 40 ns each.
    """
    found: Iterable[Value] = repeat(MISSING)
    for level in reversed([level for level in levels if level]):
        # The lookup in the level below is the default of the lookup in this one.
        found = map(level.get, keys, found)
    return list(found) if not isinstance(found, repeat) else [MISSING] * len(keys)


class HotCache:
    """New entries go into ``recent``. A rotation makes it ``older`` and drops the previous ``older``.

    A reader that finds an entry in ``older`` puts it again, so entries in use survive rotations, at no cost for hits in
    ``recent``. Entries are never removed from a dict, only dicts from the cache: a reader may keep references to both
    (first ``recent``, then ``older``). Changing the cache needs the owner's lock.
    """

    def __init__(self) -> None:
        self.recent: dict[bytes, Value] = {}
        self.older: dict[bytes, Value] = {}
        self._recent_size = 0
        self._older_size = 0

    @property
    def size(self) -> int:
        """Bytes of memory in use."""
        return self._recent_size + self._older_size

    def put(self, entries: Mapping[bytes, Value]) -> None:
        """Add entries, replacing those of the same keys."""
        recent = self.recent
        # In a warm cache these are nearly all keys, so building a set or a dict of them would be expensive.
        known = [key for key in entries if key in recent]
        replaced = ENTRY * len(known) + _total(known) + _total(filter(None, map(recent.__getitem__, known)))
        self._recent_size += weight(entries) - replaced
        recent.update(entries)

    def rotate(self) -> None:
        """Drop the older generation. The recent one takes its place."""
        self.older, self._older_size = self.recent, self._recent_size
        self.recent, self._recent_size = {}, 0

    def clear(self) -> None:
        """Remove everything."""
        self.rotate()
        self.rotate()


def _total(values: Iterable[bytes | None]) -> int:
    return sum(map(len, values))  # type: ignore[arg-type]
