"""Says in the log what is being waited for: not at once, and ever more seldom."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import attrs

from . import runtime
from .logs import carried

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

FIRST: Final = 5.0
"""Seconds after which a wait is worth a line."""
_LONGEST: Final = 60.0
"""Seconds between two lines at most."""


@attrs.define
class Reminder:
    """Decides when a wait is to be told: after some seconds, after twice as many, and so on up to one minute."""

    first: float = FIRST
    _next: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._next = self.first

    def is_due(self, waited: float) -> bool:
        """Return whether to tell it now, after so many seconds; the next time is later."""
        if waited < self._next:
            return False
        self._next = waited + min(max(waited, self.first), _LONGEST)
        return True

    def left(self, waited: float) -> float:
        """Return how many seconds are left until the next time."""
        return max(0.0, self._next - waited)


@contextmanager
def told_if_slow(log: BoundLogger, what: str, *, first: float = FIRST, **facts: object) -> Iterator[None]:
    """Say what the work inside of the ``with`` is if it takes long.

    Args:
        log: where to say it.
        what: the work, to be read after "waiting for".
        first: seconds until the first line.
        facts: what else is to be said.
    """
    over = runtime.flag()

    def tell() -> None:
        began, reminder = runtime.monotonic(), Reminder(first)
        while not over.wait(reminder.left(runtime.monotonic() - began)):
            if reminder.is_due(waited := runtime.monotonic() - began):
                log.info(f"waiting for {what}", seconds=round(waited), **facts)

    thread = runtime.thread(target=carried(tell), name="chandy-long-wait")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
