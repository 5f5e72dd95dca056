"""The clock of leases and looks: how much time has gone by for others, also while this machine was suspended."""

from __future__ import annotations

from collections.abc import Callable

from . import runtime


class ElapsedClock:
    """Seconds from any moment, never going back. Between two readings it moves as far as the faster of two clocks.

    The one goes on while the machine is suspended, and nobody can set it. The other one is the time of day: after a
    virtual machine was paused and resumed, it alone shows the gap, once it has been set. If it is set forward for
    another reason, a look or a renewal comes earlier than it need.

    Args:
        steady: seconds, never going back.
        wall: seconds since 1970, which may be set to any value.
    """

    def __init__(
        self, steady: Callable[[], float] = runtime.since_boot, wall: Callable[[], float] = runtime.time
    ) -> None:
        self._steady, self._wall = steady, wall
        self._lock = runtime.lock()
        self._read = steady(), wall()
        self._elapsed = self._read[0]

    def __call__(self) -> float:
        """Return the time."""
        with self._lock:
            before, self._read = self._read, (self._steady(), self._wall())
            self._elapsed += max(0.0, *(now - then for now, then in zip(self._read, before, strict=True)))
            return self._elapsed


def elapsed() -> float:
    """Return the time by the clock of this process."""
    return runtime.own(ElapsedClock)()
