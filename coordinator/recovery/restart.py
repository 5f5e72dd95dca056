"""Restart strategies. The terms and the exponential schedule are those of Flink's (``fixed-delay`` and
``exponential-delay``)."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from .. import fields
from ..durations import Duration, seconds
from ..protocol.restart_tracker import RestartStrategy


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
