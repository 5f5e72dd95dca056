"""The timer of periodic checkpoints, as a value: when the next one is due."""

from __future__ import annotations

import math

import attrs


@attrs.define
class Schedule:
    """When periodic checkpoints are due. Times and durations are seconds, on one clock.

    It ticks at a fixed rate. Ticks that were missed because the machine slept are skipped. A tick is never due before
    an earlier tick, even if the clock is set back.
    """

    interval: float | None
    """From one tick to the next; None if there are no periodic checkpoints."""
    interval_during_backlog: float | None = attrs.field(default=None, kw_only=True)
    """From one tick to the next while the pipeline is behind its sources; None: the same as otherwise."""
    initial_delay: float | None = None
    """From the start to the first tick; None: at random within the interval, so that pipelines do not align."""
    next_at: float | None = attrs.field(default=None, init=False)
    """When the next tick is due; None if the schedule is stopped."""
    ticked_at: float = attrs.field(default=-math.inf, init=False)
    """The time of the last tick."""
    is_behind: bool = attrs.field(default=False, init=False)
    """Whether the pipeline is behind its sources."""

    def start(self, now: float, chance: float) -> None:
        """Start or restart.

        Args:
            now: the time.
            chance: a random number from 0 to below 1, which decides the first delay unless that is configured.
        """
        if self.interval is None:
            return
        delay = self.initial_delay
        if delay is None:
            delay = self.interval * chance
        self.next_at = max(now + delay, self.ticked_at)

    def stop(self) -> None:
        """Stop."""
        self.next_at = None

    def due(self, now: float) -> bool:
        """Whether it is time for a tick."""
        return self.next_at is not None and now >= self.next_at

    def ticked(self, now: float) -> None:
        """Record that the tick that was due has been taken. The next comes a whole number of intervals later."""
        interval = self.current
        if interval is None or self.next_at is None:
            return
        self.ticked_at = now
        missed = math.floor((now - self.next_at) / interval)
        self.next_at += (missed + 1) * interval
        if self.next_at <= now:
            # The product was rounded down, onto the tick itself.
            self.next_at += interval

    def falls_behind(self, is_behind: bool) -> None:
        """Go on with the interval for a pipeline that is behind its sources, or with the one for all other times.

        The next tick comes that much later or sooner. Once the pipeline has caught up, it is often due at once.
        """
        before, self.is_behind = self.current, is_behind
        now = self.current
        if self.next_at is not None and before is not None and now is not None:
            self.next_at = max(self.next_at + (now - before), self.ticked_at)

    @property
    def current(self) -> float | None:
        """The interval that holds now; None if there are no periodic checkpoints."""
        if self.is_behind and self.interval_during_backlog is not None:
            return self.interval_during_backlog
        return self.interval
