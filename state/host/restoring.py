"""The progress of restores: in the log for one shard, for the coordinator as statistics of a claim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ...storage import runtime
from ...storage.checkpoints.restore import RestoreReport
from ...storage.logs import logger
from ..rpc.messages import ShardsRestored

_log = logger(__name__)
_EVERY_SECONDS: Final = 10.0


class RestoreLog:
    """Logs the progress of one restore now and then. A short restore logs nothing. For use from many threads.

    Args:
        shard: the name of the shard.
        total: bytes to restore.
        clock: monotonic seconds.
    """

    def __init__(self, shard: str, total: int, clock: Callable[[], float] = runtime.monotonic) -> None:
        self._shard = shard
        self._total = total
        self._clock = clock
        self._lock = runtime.lock()
        self._done = 0
        self._next = clock() + _EVERY_SECONDS

    def __call__(self, size: int) -> None:
        """Record that this many more bytes are restored."""
        with self._lock:
            self._done += size
            now = self._clock()
            if now < self._next:
                return
            self._next = now + _EVERY_SECONDS
            percent = 100 * self._done // max(1, self._total)
            _log.info("restoring", shard=self._shard, bytes=self._done, of=self._total, percent=percent)


class RestoreTally:
    """Sums what the shards of one claim took. For use from many threads.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = runtime.monotonic) -> None:
        self._left = 0
        self._clock = clock
        self._begun = clock()
        self._wanted: float | None = None
        self._lock = runtime.lock()
        self._files = self._opening = 0.0
        self._found = self._downloaded = 0
        self._read: list[int] = []

    def granted(self, shards: int) -> None:
        """Record how many shards were granted. Call it before the first of them ends."""
        with self._lock:
            self._left = shards

    def wanted(self) -> None:
        """Record that a task waits for these shards."""
        with self._lock:
            if self._wanted is None:
                self._wanted = self._clock()

    def files(self, shard: int, seconds: float, report: RestoreReport) -> None:
        """Record that a shard's files are on the disk."""
        with self._lock:
            if not report.unread_bytes:
                self._read.append(shard)
            self._files += seconds
            self._found += report.cached_bytes
            self._downloaded += report.downloaded_bytes

    def opened(self, seconds: float) -> None:
        """Record that a shard's RocksDB is open."""
        with self._lock:
            self._opening += seconds

    def end(self, host: str, query_id: str, uid: str) -> ShardsRestored | None:
        """Record that a shard is open or was given up; return the statistics if it was the last one."""
        with self._lock:
            self._left -= 1
            if self._left:
                return None
            now, busy = self._clock(), self._files + self._opening
            ahead = files = opening = 0.0
            if busy:
                wanted = now if self._wanted is None else self._wanted
                files = (now - wanted) * self._files / busy
                ahead, opening = wanted - self._begun, now - wanted - files
            return ShardsRestored(
                host,
                query_id,
                uid,
                ahead,
                files,
                opening,
                self._found,
                self._downloaded,
                tuple(sorted(self._read)),
            )
