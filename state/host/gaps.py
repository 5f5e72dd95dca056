"""Where RocksDB is known to hold no key, so that a scan need not look at what was deleted there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_KEPT: Final = 16


class Gaps:
    """Gaps by the key at which scans begin. Changing them, and reading them for a scan, needs the owner's lock.

    Timers that have fired leave marks of deletion at the very place where each scan begins, and RocksDB steps
    over all of them until it has compacted them away. A scan that has done so once makes it known.
    """

    def __init__(self) -> None:
        self.version = 0
        """Grows with every write."""
        self._stops: dict[bytes, bytes] = {}

    def behind(self, start: bytes) -> bytes:
        """Return a key up to which there is none from ``start`` on; ``start`` itself if nothing is known."""
        return self._stops.get(start, start)

    def learn(self, start: bytes, stop: bytes, version: int) -> None:
        """Take note that there was no key from ``start`` to before ``stop``, seen when ``version`` was this."""
        if version == self.version and stop > start:
            if len(self._stops) >= _KEPT:
                self._stops.clear()
            self._stops[start] = stop

    def fill(self, keys: Iterable[bytes]) -> None:
        """Take note that keys were written. To be called when all are, before anybody relies on it."""
        self.version += 1
        for key in keys:
            for start, stop in self._stops.items():
                if start <= key < stop:
                    self._stops[start] = key
