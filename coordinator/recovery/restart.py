"""Restart strategies: whether a failed pipeline restarts, and after which delay.

The terms and the exponential schedule are those of Flink's restart strategies (``fixed-delay`` and
``exponential-delay``). As in the latter, failures during the delay before a restart count as one with the failure
that caused it: a lost host fails several queries, but that is one failure of the pipeline.
"""

from __future__ import annotations

import abc
from collections.abc import Callable

import attrs

from .. import fields
from ..durations import Duration, seconds


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


@attrs.frozen
class NoRestart(RestartStrategy):
    """Give up at the first failure."""

    def backoff(self, attempt: int, random: Callable[[], float]) -> float | None:
        """Return None: give up."""
        return None


@attrs.frozen
class FixedDelay(RestartStrategy):
    """Restart a fixed number of times, each after the same delay. The count is never reset."""

    delay: Duration = attrs.field(default="1 s", validator=fields.duration)
    """Time from a failure to the restart."""
    attempts: int = attrs.field(default=1, validator=fields.whole(at_least=0))
    """Number of restarts. One more failure ends the pipeline."""

    def backoff(self, attempt: int, random: Callable[[], float]) -> float | None:
        """Return the delay while attempts are left."""
        return seconds(self.delay) if attempt < self.attempts else None


@attrs.frozen
class ExponentialBackoff(RestartStrategy):
    """Restart after a delay that grows with every attempt, and is reset once the pipeline is stable."""

    initial: Duration = attrs.field(default="1 s", validator=fields.positive_duration)
    """First delay, and the shortest."""
    maximum: Duration = attrs.field(default="1 min", validator=fields.positive_duration)
    """Longest delay; at least ``initial``."""
    multiplier: float = attrs.field(default=2.0, validator=fields.number(1, 1000))
    """Factor by which each delay is longer than the one before."""
    jitter: float = attrs.field(default=0.1, validator=fields.number(0, 1))
    """Share of a delay that is randomly added or subtracted, so that many pipelines do not restart at once."""
    reset_after: Duration = attrs.field(default="1 h", validator=fields.positive_duration)
    """Time that a pipeline must run to be stable: then restarts are counted from 0 again, and the delay is ``initial``.

    It is ``reset-backoff-threshold`` in Flink.
    """
    attempts: int | None = attrs.field(default=10, validator=fields.optional(fields.whole(at_least=0)))
    """Number of restarts since the pipeline was last stable. One more failure ends it; None: never give up."""

    def __attrs_post_init__(self) -> None:
        if seconds(self.maximum) < seconds(self.initial):
            fields.refuse(self, "maximum", self.maximum, f"at least initial ({self.initial})")

    def backoff(self, attempt: int, random: Callable[[], float]) -> float | None:
        """Return ``initial * multiplier ** attempt``, plus or minus the jitter, between ``initial`` and ``maximum``."""
        if self.attempts is not None and attempt >= self.attempts:
            return None
        least, most = seconds(self.initial), seconds(self.maximum)
        try:
            delay = min(most, least * self.multiplier**attempt)
        except OverflowError:
            delay = most
        delay *= 1 + self.jitter * (2 * random() - 1)
        return max(least, min(delay, most))

    def is_stable(self, period: float) -> bool:
        """Return whether the pipeline has run for ``reset_after``."""
        return period >= seconds(self.reset_after)
