"""How a pipeline has done in the last hour and day: a value of bounded size, however long a driver lives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Self

import attrs

from ..protocol.statistics import CheckpointStatistics, Status
from ..protocol.totals import PhaseSeconds

HOUR: Final = (60, 60)
"""Seconds of a span of the last hour, and how many spans there are."""
DAY: Final = (900, 96)


def _sum(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else one + other


def _largest(one: float | None, other: float | None) -> Any:
    return one if other is None else other if one is None else max(one, other)


@attrs.frozen(kw_only=True)
class Measured:
    """What batches and checkpoints of a pipeline were measured in a span of time. Two add up, in any order."""

    batches: int = 0
    rows_in: int = 0
    """Rows that came from sources."""
    rows_out: int | None = None
    """Rows that went to sinks; None if no sink says."""
    batch_seconds: float = 0.0
    """What the batches took together."""
    behind: float | None = None
    """The largest distance to a source's end, in offsets; None if no source says."""
    checkpoints: int = 0
    """Those that completed; what follows is of these."""
    checkpoint_seconds: float = 0.0
    """What they took together."""
    phases: PhaseSeconds = attrs.field(factory=PhaseSeconds)
    """How long they were in each phase together."""
    size: int | None = None
    """Bytes that a restore of the largest reads; None if none completed."""
    new_bytes: int = 0
    """Bytes that they wrote together."""

    @classmethod
    def batch(cls, progress: Mapping[str, Any], behind: float | None) -> Self:
        """Return the measures of a batch, whose progress is as Spark's JSON has it."""
        out = progress.get("sink", {}).get("numOutputRows", -1)
        return cls(
            batches=1,
            rows_in=progress["numInputRows"],
            # Spark has -1 where a sink does not say.
            rows_out=out if out >= 0 else None,
            batch_seconds=progress["durationMs"].get("triggerExecution", 0) / 1000,
            behind=behind,
        )

    @classmethod
    def checkpoint(cls, known: CheckpointStatistics) -> Self:
        """Return the measures of a checkpoint that has ended: none of one that has failed."""
        if known.status is not Status.COMPLETED:
            return cls()
        return cls(
            checkpoints=1,
            checkpoint_seconds=known.duration or 0.0,
            phases=known.phases,
            size=known.size,
            new_bytes=known.new_bytes,
        )

    def __add__(self, other: Measured) -> Measured:
        return Measured(
            batches=self.batches + other.batches,
            rows_in=self.rows_in + other.rows_in,
            rows_out=_sum(self.rows_out, other.rows_out),
            batch_seconds=self.batch_seconds + other.batch_seconds,
            behind=_largest(self.behind, other.behind),
            checkpoints=self.checkpoints + other.checkpoints,
            checkpoint_seconds=self.checkpoint_seconds + other.checkpoint_seconds,
            phases=self.phases + other.phases,
            size=_largest(self.size, other.size),
            new_bytes=self.new_bytes + other.new_bytes,
        )


@attrs.frozen
class Series:
    """The measures of the latest spans of equal length."""

    seconds: int
    """Length of a span."""
    count: int
    """How many spans are kept: the latest."""
    spans: Mapping[int, Measured] = attrs.field(factory=dict)
    """By number: span 0 begins with 1970. Those in which nothing was measured are missing."""

    def plus(self, at: float, measured: Measured) -> Series:
        """Return the series with what was measured at a time, in seconds since 1970."""
        return self._with({int(at // self.seconds): measured})

    def merged(self, other: Series) -> Series:
        """Return what both have: another driver's, whose spans are as long."""
        return self._with(other.spans)

    def _with(self, more: Mapping[int, Measured]) -> Series:
        newest = max([*self.spans, *more], default=0)
        found = dict(self.spans)
        for span, measured in more.items():
            found[span] = found[span] + measured if span in found else measured
        kept = {span: one for span, one in found.items() if newest - self.count < span}
        return attrs.evolve(self, spans=kept)

    def until(self, now: float) -> tuple[Measured | None, ...]:
        """Return the measures of all spans up to the present one, oldest first; None where nothing was measured."""
        last = int(now // self.seconds)
        return tuple(self.spans.get(span) for span in range(last - self.count + 1, last + 1))

    def begins(self, now: float) -> float:
        """Return when the first of the spans begins that ``until`` returns."""
        return float((now // self.seconds - self.count + 1) * self.seconds)


@attrs.frozen
class Trends:
    """The same measures over the last hour and, in longer spans, over the last day."""

    hour: Series = attrs.field(factory=lambda: Series(*HOUR))
    day: Series = attrs.field(factory=lambda: Series(*DAY))

    def plus(self, at: float, measured: Measured) -> Trends:
        """Return them with what was measured at a time, in seconds since 1970."""
        return Trends(self.hour.plus(at, measured), self.day.plus(at, measured))

    def merged(self, other: Trends) -> Trends:
        """Return what both have, such as those of this driver and of an earlier one."""
        return Trends(self.hour.merged(other.hour), self.day.merged(other.day))

    def lines(self) -> Iterator[StoredSpan]:
        """Return all that is known, as it is stored."""
        for series in (self.hour, self.day):
            for number, measured in sorted(series.spans.items()):
                yield StoredSpan(seconds=series.seconds, number=number, measured=measured)

    @classmethod
    def of(cls, lines: Iterable[StoredSpan]) -> Trends:
        """Return the trends that were stored. Spans of a length that this version does not have are left out."""
        made = cls()
        known = {series.seconds: dict[int, Measured]() for series in (made.hour, made.day)}
        for one in lines:
            if one.seconds in known:
                known[one.seconds][one.number] = one.measured
        hour, day = (Series(one.seconds, one.count, known[one.seconds]) for one in (made.hour, made.day))
        return cls(hour, day)


@attrs.frozen(kw_only=True)
class StoredSpan:
    """One span of a series as it is stored."""

    seconds: int
    number: int
    measured: Measured
