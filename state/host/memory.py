"""The memory budget that all shards of a state host share: RocksDB, hot caches, unwritten changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from ...storage import runtime
from .database import Databases
from .rocksdb import RocksDatabases

_DATABASE_SHARE: Final = 0.5
"""The databases' part of the budget."""
_HOT_SHARE: Final = 0.25
_UNWRITTEN_SHARE: Final = 0.25


class Holder(Protocol):
    """What uses memory of the budget: the state of one shard."""

    @property
    def hot(self) -> int:
        """Bytes of the hot cache."""
        ...

    @property
    def unwritten(self) -> int:
        """An upper bound of the bytes of committed changes that RocksDB does not have yet."""
        ...

    def measure(self) -> None:
        """Make ``unwritten`` exact."""
        ...

    def rotate(self) -> None:
        """Drop the older half of the hot cache."""
        ...

    def spill(self) -> None:
        """Write all committed changes to RocksDB. It raises nothing: a failure shows in the next use of the shard."""
        ...


class Memory:
    """The budget. A shard that has added to its memory calls ``balance``.

    The databases keep to their part. Hot caches and unwritten changes are Python objects and are counted as such
    (``cache.weight``). Staged changes are not counted, so usage exceeds the budget by at most the batches that are
    being served, and by two of a standby.

    Args:
        budget: bytes.
        databases: makes the databases of the shards, given their part of it.
    """

    def __init__(self, budget: int, databases: Callable[[int], Databases] = RocksDatabases) -> None:
        self.budget = budget
        self.databases = databases(int(budget * _DATABASE_SHARE))
        self._hot_limit = int(budget * _HOT_SHARE)
        self._unwritten_limit = int(budget * _UNWRITTEN_SHARE)
        self._lock = runtime.lock()
        self._balancing = runtime.lock()
        self._holders: tuple[Holder, ...] = ()
        self._turn = 0

    @property
    def used(self) -> int:
        """Bytes in use: databases, hot caches, unwritten changes."""
        return self.databases.used + self.hot + self.unwritten

    @property
    def hot(self) -> int:
        """Bytes in hot caches."""
        return sum(holder.hot for holder in self._holders)

    @property
    def unwritten(self) -> int:
        """An upper bound of the bytes of committed changes that RocksDB does not have yet."""
        return sum(holder.unwritten for holder in self._holders)

    def add(self, holder: Holder) -> None:
        """Count a shard's memory from now on."""
        with self._lock:
            self._holders = (*self._holders, holder)

    def remove(self, holder: Holder) -> None:
        """Stop counting a shard's memory."""
        with self._lock:
            self._holders = tuple(other for other in self._holders if other is not holder)

    def balance(self) -> None:
        """Bring hot caches and unwritten changes back to their parts of the budget.

        Hot caches rotate in turn, so that each has time to keep what is in use. The shards with the most unwritten
        changes are written first, which may take a while. Call it without holding any shard's lock.
        """
        if self.hot > self._hot_limit or self.unwritten > self._unwritten_limit:
            with self._balancing:
                self._spill()
                self._rotate()

    def _rotate(self) -> None:
        holders = self._holders
        # Two rotations empty every cache.
        for _ in range(2 * len(holders)):
            if self.hot <= self._hot_limit:
                return
            self._turn = (self._turn + 1) % len(holders)
            holders[self._turn].rotate()

    def _spill(self) -> None:
        if self.unwritten <= self._unwritten_limit:
            return
        # For speed, a key that changes again is counted again. So measure exactly now, and write down to half of the
        # limit, so that this is not needed at every batch.
        for holder in self._holders:
            holder.measure()
        for holder in sorted(self._holders, key=lambda holder: holder.unwritten, reverse=True):
            if self.unwritten <= self._unwritten_limit / 2:
                return
            holder.spill()
            # Written changes have moved to the hot cache.
            self._rotate()
