"""Statistics of checkpoints: one record each, counts, and a summary of those that completed."""

from __future__ import annotations

import copy
import enum
import math
from collections import deque
from collections.abc import Iterable, Sequence, Sized
from datetime import datetime
from typing import Self

import attrs

from ...storage.checkpoints.manifest import CheckpointKind
from ...storage.html import table
from ...storage.ids import CheckpointId
from ...storage.times import rounded, shown, utc
from .reasons import Reason
from .totals import PhaseSeconds, Totals

SAMPLES = 10_000
"""How many of the last completed checkpoints a summary covers."""
SHARD_RECORDS = 20_000
"""How many shards' records are kept in all, at some 300 bytes each. The latest checkpoints keep theirs in any case."""


class Status(enum.StrEnum):
    """The status of a checkpoint."""

    IN_PROGRESS = "in progress"
    COMPLETED = "completed"
    FAILED = "failed"


def _how_many(values: Sized) -> str:
    """Show thousands of records by their number: each of them can be looked at by itself."""
    return f"<{len(values)}>"


@attrs.frozen
class ShardStatistics:
    """A shard's part in a checkpoint.

    There is no time of alignment, as Flink has it: between batches nothing is in flight.
    """

    uid: str
    """The operator's uid."""
    shard: int
    trigger: float = attrs.field(repr=shown)
    """When the checkpoint was triggered, seconds since 1970."""
    start_delay: float = attrs.field(repr=rounded)
    """Seconds from there to the start of the synchronous part."""
    sync: float = attrs.field(repr=rounded)
    """Seconds of the synchronous part: flush and hard links."""
    async_: float = attrs.field(repr=rounded)
    """Seconds of the asynchronous part: the upload."""
    ack: float = attrs.field(repr=shown)
    """When the acknowledgement came, seconds since 1970."""
    bytes: int
    """Bytes of the whole snapshot."""
    new_bytes: int
    """Bytes that were written for this checkpoint."""
    entries: int
    """About how many entries its RocksDB has: at least one for each value, list element and map entry of a key, and one
    for each that expires or has a timer. What was written again counts twice until RocksDB has compacted it."""

    @property
    def duration(self) -> float:
        """Seconds from the trigger to the acknowledgement."""
        return self.ack - self.trigger


@attrs.frozen
class CheckpointStatistics:
    """One checkpoint."""

    id: int
    kind: CheckpointKind = attrs.field(repr=str)
    triggered_at: float = attrs.field(repr=shown)
    """Seconds since 1970."""
    status: Status = attrs.field(default=Status.IN_PROGRESS, repr=str)
    completed_at: float | None = attrs.field(default=None, repr=shown)
    """When it completed or failed; None while it is in progress."""
    size: int = 0
    """Bytes that a restore of everything reads."""
    new_bytes: int = 0
    """Bytes that it wrote, as opposed to those it shares with earlier ones."""
    shards: tuple[ShardStatistics, ...] = attrs.field(default=(), repr=_how_many)
    """Shards that a state host has snapshotted for it; no longer known of a checkpoint from long ago where there are
    thousands of shards, see ``SHARD_RECORDS``."""
    reason: Reason | None = attrs.field(default=None, repr=str)
    """Why it failed; None if it has not."""
    phases: PhaseSeconds = attrs.field(factory=PhaseSeconds)
    """How long it was in each phase; zeros while it is in progress."""

    @property
    def triggered_time(self) -> datetime:
        """``triggered_at`` as a time in UTC."""
        return utc(self.triggered_at)

    @property
    def completed_time(self) -> datetime | None:
        """``completed_at`` as a time in UTC."""
        return None if self.completed_at is None else utc(self.completed_at)

    @property
    def by_operator(self) -> dict[str, list[ShardStatistics]]:
        """``shards`` by the uid of their operator, in the order of the uids."""
        found: dict[str, list[ShardStatistics]] = {}
        for shard in sorted(self.shards, key=lambda one: one.uid):
            found.setdefault(shard.uid, []).append(shard)
        return found

    @property
    def duration(self) -> float | None:
        """Seconds from the trigger to its end; None while it is in progress."""
        return None if self.completed_at is None else self.completed_at - self.triggered_at


@attrs.frozen
class Counts:
    """How many checkpoints there were. Always ``triggered == in_progress + completed + failed``."""

    triggered: int = 0
    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    restored: int = 0
    """How often a checkpoint was restored; these count nowhere else."""


@attrs.frozen
class Summary:
    """How a figure is distributed. ``p90`` is the least of the values that 90 % of them do not exceed."""

    min: float = attrs.field(repr=rounded)
    avg: float = attrs.field(repr=rounded)
    max: float = attrs.field(repr=rounded)
    p50: float = attrs.field(repr=rounded)
    p90: float = attrs.field(repr=rounded)
    p95: float = attrs.field(repr=rounded)
    p99: float = attrs.field(repr=rounded)
    p999: float = attrs.field(repr=rounded)

    @classmethod
    def of(cls, values: Iterable[float]) -> Self | None:
        """The summary of some values; None if there are none."""
        ranked = sorted(values)
        if not ranked:
            return None
        average = math.fsum(ranked) / len(ranked)
        # Rounding may put the average of equal values a hair outside them.
        average = min(max(average, ranked[0]), ranked[-1])
        percentiles = (_percentile(ranked, permille) for permille in (500, 900, 950, 990, 999))
        return cls(ranked[0], average, ranked[-1], *percentiles)


def _percentile(ranked: Sequence[float], permille: int) -> float:
    # The nearest-rank method, in whole numbers: the rank is ceil(n * permille / 1000), counted from 1.
    return ranked[-(-len(ranked) * permille // 1000) - 1]


@attrs.frozen
class Statistics:
    """All statistics of a coordinator at one moment; ``attrs.asdict`` makes it plain."""

    counts: Counts
    duration: Summary | None
    """Seconds; of completed checkpoints only, as are the next two. None if none has completed."""
    size: Summary | None
    """Bytes."""
    new_bytes: Summary | None
    """Bytes."""
    latest_completed: CheckpointStatistics | None
    latest_failed: CheckpointStatistics | None
    restored: int | None
    """Id of the checkpoint that was restored last; None if none was."""
    checkpoints: tuple[CheckpointStatistics, ...] = attrs.field(repr=_how_many)
    """The checkpoints in progress and the last ones that ended, newest first."""

    def checkpoint(self, id: int) -> CheckpointStatistics | None:
        """Return one of ``checkpoints``; None if it is not among them."""
        return next((one for one in self.checkpoints if one.id == id), None)

    def _repr_html_(self) -> str:
        counts = ", ".join(
            f"{number} {name.replace('_', ' ')}" for name, number in attrs.asdict(self.counts).items()
        )
        columns = ("id", "kind", "status", "triggered", "seconds", "bytes", "new bytes", "reason")
        rows = [
            (
                one.id,
                one.kind,
                one.status,
                shown(one.triggered_at),
                None if one.duration is None else rounded(one.duration),
                f"{one.size:,}",
                f"{one.new_bytes:,}",
                one.reason,
            )
            for one in self.checkpoints
        ]
        return table(f"Checkpoints: {counts}", columns, rows)


@attrs.frozen
class _Sample:
    """What summaries need of a completed checkpoint."""

    duration: float
    size: int
    new_bytes: int


@attrs.define
class History:
    """Counts all checkpoints, and remembers the last ones that ended.

    A report about a checkpoint that is not in progress changes nothing: it came too late.
    """

    limit: int = 32
    """How many that ended are remembered one by one."""
    shard_limit: int = SHARD_RECORDS
    """How many shards' records are kept of these, newest first; the last one always keeps its own."""
    counts: Counts = attrs.field(factory=Counts, init=False)
    _in_progress: dict[CheckpointId, CheckpointStatistics] = attrs.field(factory=dict, init=False)
    _ended: list[CheckpointStatistics] = attrs.field(factory=list, init=False)
    _latest: dict[Status, CheckpointStatistics] = attrs.field(factory=dict, init=False)
    """The checkpoint with the highest id by outcome, however many others have ended since."""
    _restored: int | None = attrs.field(default=None, init=False)
    totals: Totals = attrs.field(factory=Totals, init=False)
    """Sums over all that have ended."""
    _samples: deque[_Sample] = attrs.field(init=False, factory=lambda: deque(maxlen=SAMPLES))

    def started(self, checkpoint: CheckpointId, kind: CheckpointKind, now: float) -> None:
        """Record that a checkpoint was triggered."""
        self._in_progress[checkpoint] = CheckpointStatistics(checkpoint, kind, now)
        self._count(triggered=1, in_progress=1)

    def completed(
        self,
        checkpoint: CheckpointId,
        now: float,
        *,
        size: int,
        new_bytes: int,
        phases: PhaseSeconds,
        shards: Iterable[ShardStatistics] = (),
    ) -> CheckpointStatistics | None:
        """Record that a checkpoint has completed, and return what is known of it; None if it was not in progress.

        Args:
            checkpoint: its id.
            now: seconds since 1970.
            size: bytes that a restore of everything reads.
            new_bytes: bytes that it wrote.
            phases: how long it was in each phase.
            shards: the shards that state hosts have snapshotted for it.
        """
        if (begun := self._in_progress.pop(checkpoint, None)) is None:
            return None
        ended = attrs.evolve(
            begun,
            status=Status.COMPLETED,
            completed_at=now,
            size=size,
            new_bytes=new_bytes,
            shards=tuple(shards),
            phases=phases,
        )
        self._count(in_progress=-1, completed=1)
        self.totals.completed(ended.kind, now - ended.triggered_at, phases, new_bytes)
        self._samples.append(_Sample(now - ended.triggered_at, size, new_bytes))
        self._remember(ended)
        return ended

    def failed(
        self,
        checkpoint: CheckpointId,
        now: float,
        reason: Reason,
        *,
        phases: PhaseSeconds,
        shards: Iterable[ShardStatistics] = (),
    ) -> CheckpointStatistics | None:
        """Record that a checkpoint has failed, and return what is known of it; None if it was not in progress.

        Args:
            checkpoint: its id.
            now: seconds since 1970.
            reason: why.
            phases: how long it was in each phase.
            shards: the shards that had acknowledged.
        """
        if (begun := self._in_progress.pop(checkpoint, None)) is None:
            return None
        parts = tuple(shards)
        ended = attrs.evolve(
            begun,
            status=Status.FAILED,
            completed_at=now,
            size=sum(shard.bytes for shard in parts),
            new_bytes=sum(shard.new_bytes for shard in parts),
            shards=parts,
            reason=reason,
            phases=phases,
        )
        self._count(in_progress=-1, failed=1)
        self.totals.failed(ended.kind, reason.value)
        self._remember(ended)
        return ended

    def restored(self, checkpoint: CheckpointId) -> None:
        """Record that the pipeline was restored from a checkpoint."""
        self._restored = checkpoint
        self._count(restored=1)

    @property
    def latest_completed(self) -> CheckpointStatistics | None:
        """The completed checkpoint with the highest id; None if none has completed."""
        return self._latest.get(Status.COMPLETED)

    def copy(self) -> History:
        """Return the history as it is now, which nothing changes any more: much faster than ``snapshot``."""
        made = copy.copy(self)
        made._in_progress = dict(self._in_progress)
        made._latest = dict(self._latest)
        made._samples = self._samples.copy()
        made.totals = self.totals.copy()
        return made

    def snapshot(self) -> Statistics:
        """Return the statistics as they are now."""
        known = (*self._in_progress.values(), *self._ended)
        return Statistics(
            counts=self.counts,
            duration=Summary.of(one.duration for one in self._samples),
            size=Summary.of(one.size for one in self._samples),
            new_bytes=Summary.of(one.new_bytes for one in self._samples),
            latest_completed=self.latest_completed,
            latest_failed=self._latest.get(Status.FAILED),
            restored=self._restored,
            checkpoints=tuple(sorted(known, key=lambda one: one.id, reverse=True)),
        )

    def _count(self, **more: int) -> None:
        now = attrs.asdict(self.counts)
        self.counts = Counts(**{name: number + more.get(name, 0) for name, number in now.items()})

    def _remember(self, ended: CheckpointStatistics) -> None:
        self._ended = _within([*self._ended, ended][-self.limit :], self.shard_limit)
        latest = self._latest.get(ended.status)
        if latest is None or latest.id < ended.id:
            self._latest[ended.status] = ended


def _within(ended: Sequence[CheckpointStatistics], shard_limit: int) -> list[CheckpointStatistics]:
    """Return the checkpoints, the earlier ones without their shards as soon as there are too many in all."""
    found: list[CheckpointStatistics] = []
    records = 0
    for one in reversed(ended):
        records += len(one.shards)
        found.append(attrs.evolve(one, shards=()) if found and records > shard_limit else one)
    return found[::-1]
