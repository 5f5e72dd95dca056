"""Ranges in which RocksDB has no key, so that a scan can skip the deleted keys there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_KEPT: Final = 16


class Gaps:
    """Gaps by the key at which scans begin. Changing them, or reading them for a scan, needs the owner's lock.

    Timers that have fired leave tombstones exactly where each scan begins, and RocksDB steps over all of them until it
    has compacted them away. A scan that has done so once records the gap.
    """

    def __init__(self) -> None:
        self.version = 0
        """Grows with every write to RocksDB."""
        self._stops: dict[bytes, bytes] = {}

    def behind(self, start: bytes) -> bytes:
        """Return the key at which a scan from ``start`` may begin; ``start`` itself if no gap is known."""
        return self._stops.get(start, start)

    def learn(self, start: bytes, stop: bytes, version: int) -> None:
        """Record that a scan, begun at this ``version``, found no key from ``start`` up to ``stop``."""
        if version == self.version and stop > start:
            if len(self._stops) >= _KEPT:
                self._stops.clear()
            self._stops[start] = stop

    def fill(self, keys: Iterable[bytes]) -> None:
        """Record that keys were written. Call it after the write, before readers rely on RocksDB having them."""
        self.version += 1
        for key in keys:
            for start, stop in self._stops.items():
                if start <= key < stop:
                    self._stops[start] = key
