"""Tells in the log how far the restore of a shard is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from ...storage.logs import logger

_log = logger(__name__)
_EVERY_SECONDS: Final = 10.0


class RestoreLog:
    """Takes the progress of one restore, from any of its threads; one that is soon over says nothing.

    Args:
        shard: what is restored, for people.
        total: its bytes.
        clock: monotonic seconds.
    """

    def __init__(self, shard: str, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._shard = shard
        self._total = total
        self._clock = clock
        self._lock = threading.Lock()
        self._done = 0
        self._next = clock() + _EVERY_SECONDS

    def __call__(self, size: int) -> None:
        """Take word that so many further bytes are restored."""
        with self._lock:
            self._done += size
            now = self._clock()
            if now < self._next:
                return
            self._next = now + _EVERY_SECONDS
            percent = 100 * self._done // max(1, self._total)
            _log.info("restoring", shard=self._shard, bytes=self._done, of=self._total, percent=percent)
