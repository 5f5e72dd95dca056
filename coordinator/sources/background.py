"""Tells somebody of the newest value on a thread of its own, so that nobody waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from ...storage.logs import carried

T = TypeVar("T")


class Newest(Generic[T]):
    """Calls a function with the newest value that it was given; those in between are left out.

    The thread begins with the first value. Nobody waits for it but ``close``.
    """

    def __init__(self, name: str, tell: Callable[[T], None]) -> None:
        """Make it.

        Args:
            name: of the thread.
            tell: is given the values, one at a time. It must not raise, and should end soon once ``is_closing``.
        """
        self._name = name
        self._tell = tell
        self._changed = threading.Condition()
        self._next: list[T] = []
        self._is_busy = False
        self._thread: threading.Thread | None = None
        self.is_closing = False

    def give(self, value: T) -> None:
        """Tell of a value some time soon, instead of one that has not been told yet."""
        with self._changed:
            self._next = [value]
            if self._thread is None:
                self._thread = threading.Thread(target=carried(self._run), name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    @property
    def is_idle(self) -> bool:
        """Whether all values that count have been told."""
        return not self._next and not self._is_busy

    def close(self, seconds: float) -> None:
        """Publish the latest value within ``seconds``, then stop."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_idle, seconds)
            self.is_closing = True
            self._next = []
            self._changed.notify_all()

    def _run(self) -> None:
        while values := self._take():
            try:
                self._tell(values[0])
            finally:
                with self._changed:
                    self._is_busy = False
                    self._changed.notify_all()

    def _take(self) -> list[T]:
        with self._changed:
            self._changed.wait_for(lambda: self._next or self.is_closing)
            values, self._next = self._next, []
            self._is_busy = bool(values)
            return values
