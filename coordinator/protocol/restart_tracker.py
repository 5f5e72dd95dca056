"""Whether a failed pipeline restarts, and after which delay, by a strategy.

As in Flink's ``exponential-delay``, failures during the delay before a restart count as one with the failure that
caused it: a lost host fails several queries, but that is one failure of the pipeline.
"""

from __future__ import annotations

import abc
from collections.abc import Callable

import attrs


class RestartStrategy(abc.ABC):
    """What a pipeline does when it fails: an immutable value, checked when it is created."""

    __slots__ = ()

    @abc.abstractmethod
    def backoff(self, attempt: int, random: Callable[[], float]) -> float | None:
        """Return the seconds to wait before a restart; None: give up.

        Args:
            attempt: number of earlier restarts since the pipeline was last stable.
            random: returns a number of at least 0 and below 1, like ``random.random``.
        """

    def is_stable(self, period: float) -> bool:
        """Return whether restarts are counted from 0 again once a pipeline has run for ``period`` seconds."""
        return False

    def tracker(self) -> RestartTracker:
        """Return a tracker that has counted no failure."""
        return RestartTracker(self)


@attrs.define
class RestartTracker:
    """Counts the failures of one pipeline for a strategy. Times are seconds of one clock, whichever it is."""

    strategy: RestartStrategy
    attempt: int = 0
    """Number of restarts since the pipeline was last stable."""
    restart_at: float | None = None
    """When the next restart begins; None if none is waiting."""
    running_since: float | None = None
    """When the pipeline last recovered; None if it never has, or has failed since."""

    def failed(self, now: float, random: Callable[[], float]) -> float | None:
        """Record a failure.

        Args:
            now: the time.
            random: returns a number of at least 0 and below 1, like ``random.random``.

        Returns:
            Seconds to wait before the restart; None: give up.
        """
        if self.restart_at is not None and now < self.restart_at:
            return self.restart_at - now
        if self.running_since is not None and self.strategy.is_stable(now - self.running_since):
            self.attempt = 0
        self.restart_at = self.running_since = None
        delay = self.strategy.backoff(self.attempt, random)
        if delay is not None:
            self.attempt += 1
            self.restart_at = now + delay
        return delay

    def recovered(self, now: float) -> None:
        """Record that the pipeline runs again.

        The time until it is stable counts from here, not from the restart: restoring for an hour is not running for
        an hour.
        """
        self.restart_at = None
        self.running_since = now
