"""Ends what a task waits for from a host that does not answer any more.

A machine that loses its power, freezes or is cut off closes no connection, and an answer may rightly take long. So a
host that somebody waits for is asked again and again whether it lives.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from ...storage import runtime
from ...storage.logs import logger

_log = logger(__name__)
_PAUSE: Final = 2.0


class Liveness:
    """Asks hosts while somebody waits for them. Its thread ends when nobody does.

    Args:
        lives: asks the host at an address; False: it does not answer.
        pause: seconds between two questions.
    """

    def __init__(self, lives: Callable[[str], bool], pause: float = _PAUSE) -> None:
        self._lives = lives
        self._pause = pause
        self._lock = runtime.lock()
        self._waiting: dict[object, tuple[str, Callable[[], None]]] = {}
        self._thread: runtime.Thread | None = None

    @contextlib.contextmanager
    def watching(self, address: str, cancel: Callable[[], None]) -> Iterator[None]:
        """Call ``cancel``, on another thread, if a host stops to answer during the ``with``."""
        token = object()
        with self._lock:
            self._waiting[token] = address, cancel
            if self._thread is None:
                self._thread = runtime.thread(target=self._watch, name="chandy-liveness")
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                del self._waiting[token]

    def _watch(self) -> None:
        while True:
            runtime.sleep(self._pause)
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                addresses = {address for address, _ in self._waiting.values()}
            silent = {address for address in addresses if not self._lives(address)}
            with self._lock:
                cancels = [cancel for address, cancel in self._waiting.values() if address in silent]
            for cancel in cancels:
                _log.warning("a state host does not answer", addresses=sorted(silent))
                cancel()
