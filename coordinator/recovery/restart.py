"""Restart strategies: whether a pipeline that failed starts again, and after how long.

The terms and the exponential schedule are those of Flink's restart strategies (``fixed-delay`` and
``exponential-delay``). As in the latter, a failure that comes while a restart is waiting belongs to the
failure that it waits for: a lost host fails several queries, and that is one failure of the pipeline.
"""

from __future__ import annotations

import abc
from collections.abc import Callable

import attrs

from .. import fields
from ..durations import Duration, seconds


class RestartStrategy(abc.ABC):
    """What a pipeline does when it fails: a value, checked when it is made."""

    __slots__ = ()

    @abc.abstractmethod
    def backoff(self, attempt: int, random: Callable[[], float]) -> float | None:
        """Seconds before a restart, or None to give up.

        Args:
            attempt: restarts before this one since the pipeline was last stable.
            random: gives numbers from 0 to below 1, as ``random.random`` does.
        """

    def is_stable(self, period: float) -> bool:
        """Whether a pipeline that has run for ``period`` seconds counts its restarts anew."""
        return False

    def tracker(self) -> RestartTracker:
        """A tracker that has seen no failure."""
        return RestartTracker(self)


@attrs.define
class RestartTracker:
    """Counts the failures of one pipeline by a strategy. Times are seconds on any one clock."""

    strategy: RestartStrategy
    attempt: int = 0
    """Restarts since the pipeline was last stable."""
    restart_at: float | None = None
    """When the restart that is waiting begins; None if none waits."""
    running_since: float | None = None
    """When the pipeline was last back; None if it has never been, or has failed since."""

    def failed(self, now: float, random: Callable[[], float]) -> float | None:
        """Take a failure.

        Args:
            now: the time.
            random: gives numbers from 0 to below 1, as ``random.random`` does.

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
        """Take word that the pipeline runs again.

        It is stable some time from here, not from the restart: an hour of restoring is no hour of running.
        """
        self.restart_at = None
        self.running_since = now


@attrs.frozen
class NoRestart(RestartStrategy):
    """Give up at the first failure."""

    def backoff(self, attempt: int, random: Callable[[], float]) -> float | None:
        """None: give up."""
        return None


@attrs.frozen
class FixedDelay(RestartStrategy):
    """Restart some times, each after the same delay. The count never begins anew."""

    delay: Duration = attrs.field(default="1 s", validator=fields.duration)
    """From the failure to the restart."""
    attempts: int = attrs.field(default=1, validator=fields.whole(at_least=0))
    """Restarts before giving up."""

    def backoff(self, attempt: int, random: Callable[[], float]) -> float | None:
        """The delay, while attempts are left."""
        return seconds(self.delay) if attempt < self.attempts else None


@attrs.frozen
class ExponentialBackoff(RestartStrategy):
    """Restart after delays that grow with every attempt, and begin anew once the pipeline is stable."""

    initial: Duration = attrs.field(default="1 s", validator=fields.positive_duration)
    """The first delay, and the least."""
    maximum: Duration = attrs.field(default="1 min", validator=fields.positive_duration)
    """The longest delay; no shorter than the first."""
    multiplier: float = attrs.field(default=2.0, validator=fields.number(1, 1000))
    """By how much each delay is longer than the one before."""
    jitter: float = attrs.field(default=0.1, validator=fields.number(0, 1))
    """The share of a delay that chance adds or takes, so that many pipelines do not restart at once."""
    reset_after: Duration = attrs.field(default="1 h", validator=fields.positive_duration)
    """How long a pipeline must run to be stable (Flink's ``reset-backoff-threshold``)."""
    attempts: int | None = attrs.field(default=10, validator=fields.optional(fields.whole(at_least=0)))
    """Restarts before giving up, counted since the pipeline was last stable; None: never give up."""

    def __attrs_post_init__(self) -> None:
        if seconds(self.maximum) < seconds(self.initial):
            fields.refuse(self, "maximum", self.maximum, f"no less than initial ({self.initial})")

    def backoff(self, attempt: int, random: Callable[[], float]) -> float | None:
        """``initial * multiplier ** attempt`` give or take the jitter, within initial and maximum."""
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
        """Whether the pipeline has run for ``reset_after``."""
        return period >= seconds(self.reset_after)
