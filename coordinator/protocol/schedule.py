"""The timer of periodic checkpoints, as a value: when the next one is due."""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs

from ...storage.manifest import CheckpointKind
from .reasons import Reason


@attrs.define
class Schedule:
    """When periodic checkpoints are due. Times and lengths are seconds, on one clock.

    It ticks at a fixed rate. Ticks that were missed, because the machine slept, are skipped and not made up
    for. It never goes back: a tick is never due before an earlier tick, though the clock may be set back.
    """

    interval: float | None
    """From one tick to the next; None: there are no periodic checkpoints."""
    min_pause: float = 0.0
    """The least that the first delay can be by chance; no longer than the interval."""
    initial_delay: float | None = None
    """From the start to the first tick; None: by chance from min_pause to interval, lest pipelines align."""
    next_at: float | None = attrs.field(default=None, init=False)
    """When the next tick is due; None: it is stopped."""
    ticked_at: float = attrs.field(default=-math.inf, init=False)
    """The time of the last tick."""

    def start(self, now: float, random: Callable[[], float]) -> None:
        """Begin to tick, or begin anew.

        Args:
            now: the time.
            random: gives numbers from 0 to below 1, as ``random.random`` does.
        """
        if self.interval is None:
            return
        delay = self.initial_delay
        if delay is None:
            delay = self.min_pause + (self.interval - self.min_pause) * random()
        self.next_at = max(now + delay, self.ticked_at)

    def stop(self) -> None:
        """Tick no more."""
        self.next_at = None

    def due(self, now: float) -> bool:
        """Whether it is time for a tick."""
        return self.next_at is not None and now >= self.next_at

    def ticked(self, now: float) -> None:
        """The tick that was due has been taken; the next comes a whole number of intervals later."""
        if self.interval is None or self.next_at is None:
            return
        self.ticked_at = now
        missed = math.floor((now - self.next_at) / self.interval)
        self.next_at += (missed + 1) * self.interval
        if self.next_at <= now:
            # The product was rounded down, onto the tick itself.
            self.next_at += self.interval

    def postpone(self, until: float) -> None:
        """The tick came too early and was refused: tick once it no longer is, and go on from there."""
        if self.next_at is not None:
            self.next_at = max(until, self.ticked_at)

    def refusal(self, kind: CheckpointKind) -> Reason | None:
        """Why a request of this kind is refused; None if it is not: the schedule has no say in a user's."""
        stopped = self.next_at is None and kind is CheckpointKind.PERIODIC
        return Reason.PERIODIC_SCHEDULER_SHUTDOWN if stopped else None
