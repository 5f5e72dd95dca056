"""Layers of committed changes that RocksDB does not have yet. One still grows, the others wait to be written."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import attrs

from ...storage.ids import NO_BATCH, BatchId
from .cache import Value, weight

ORDERED: Final = b"\x02"
"""First byte of the keys that are scanned. Layers keep them in order."""
_BEHIND: Final = b"\x03"


def ordered_keys(entries: Mapping[bytes, Value]) -> list[bytes]:
    """Return the keys that begin with ``ORDERED``."""
    # Nearly always even the smallest key is greater: values and collections begin with higher bytes.
    if not entries or min(entries) >= _BEHIND:
        return []
    return [key for key in entries if key[:1] == ORDERED]


def is_ordered(start: bytes, stop: bytes) -> bool:
    """Return whether all keys from ``start`` up to, not including, ``stop`` begin with ``ORDERED``."""
    return start >= ORDERED and stop <= _BEHIND


class Purpose(Protocol):
    """What a layer was frozen for."""

    @property
    def cancelled(self) -> bool:
        """Whether it is not needed any more."""
        ...


@attrs.define(eq=False)
class Layer:
    """Changes by key, None deletes; the last change of a key is kept."""

    entries: dict[bytes, Value] = attrs.field(factory=dict)
    batch: BatchId = NO_BATCH
    """The last batch in it."""
    size: int = 0
    """Bytes of memory in use, at most: changes of a key that had changed before are counted again."""
    purpose: Purpose | None = None
    """What needs the state after this layer and before the next. None: nothing does."""
    _ordered: list[bytes] = attrs.field(factory=list)
    _sorted: bool = True

    def add(self, entries: dict[bytes, Value], ordered: Sequence[bytes], batch: BatchId) -> None:
        """Add the changes of a batch. ``ordered`` are the keys that begin with ``ORDERED``.

        The layer keeps ``entries``, which nobody may change afterwards.
        """
        if ordered:
            self._ordered += [key for key in ordered if key not in self.entries]
            self._sorted = False
        self.size += weight(entries)
        if self.entries:
            self.entries.update(entries)
        else:
            self.entries = entries
        self.batch = batch

    def measure(self) -> None:
        """Make ``size`` exact."""
        self.size = weight(self.entries)

    def put(self) -> list[bytes]:
        """Return the keys that begin with ``ORDERED`` and are not deleted."""
        return [key for key in self._ordered if self.entries[key] is not None]

    def between(self, start: bytes, stop: bytes) -> list[bytes]:
        """Return the changed keys from ``start`` up to, not including, ``stop``, in order.

        Keys that begin with ``ORDERED`` are found quickly, others by looking at all keys.
        """
        if not is_ordered(start, stop):
            return sorted(key for key in self.entries if start <= key < stop)
        if not self._sorted:
            self._ordered.sort()
            self._sorted = True
        return self._ordered[bisect_left(self._ordered, start) : bisect_left(self._ordered, stop)]


class Layers:
    """The layers of a shard. Changing them needs the owner's lock. A reader keeps a reference to ``stack``."""

    def __init__(self) -> None:
        self.stack: tuple[Layer, ...] = (Layer(),)
        """Newest first, never empty. Only the first one grows, and none ever shrinks."""

    @property
    def size(self) -> int:
        """An upper bound of the bytes of memory in use."""
        return sum(layer.size for layer in self.stack)

    def measure(self) -> None:
        """Make ``size`` exact."""
        self.stack[0].measure()

    def add(self, entries: dict[bytes, Value], ordered: Sequence[bytes], batch: BatchId) -> None:
        """Add the changes of a batch."""
        self.stack[0].add(entries, ordered, batch)

    def freeze(self, purpose: Purpose | None) -> None:
        """Freeze the layer that grows and begin another."""
        self.stack[0].purpose = purpose
        self.stack = (Layer(), *self.stack)

    def next(self) -> list[Layer]:
        """Return the layers to write next, oldest first: the frozen ones up to the first that has a purpose.

        They can be written as one, because nothing needs the states between them any more.
        """
        found: list[Layer] = []
        for layer in reversed(self.stack[1:]):
            found.append(layer)
            if layer.purpose is not None and not layer.purpose.cancelled:
                break
        return found

    def drop(self, count: int) -> None:
        """Remove the ``count`` oldest layers, which are written."""
        self.stack = self.stack[: len(self.stack) - count]

    def clear(self) -> None:
        """Remove everything."""
        self.stack = (Layer(),)
