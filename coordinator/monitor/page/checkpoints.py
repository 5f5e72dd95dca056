"""Checkpoints, as values: the history, in which equal ones are one line, and one checkpoint down to its shards."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Final

import attrs
from rich.filesize import decimal

from ...protocol.statistics import CheckpointStatistics, ShardStatistics, Status, Summary
from .bars import Bar, bar, scale
from .texts import seconds

SLOWEST: Final = 20
"""How many shards of a checkpoint's operator are shown with their phases: the slowest."""
SIGNS: Final = {Status.COMPLETED: "✓", Status.FAILED: "✗", Status.IN_PROGRESS: "…"}
"""What tells the outcome of a checkpoint without colour."""
_FOLDED: Final = 3
"""So many equal checkpoints one after the other are one line, or more of them."""


@attrs.frozen
class CheckpointRow:
    """A checkpoint of the history."""

    id: int
    sign: str
    status: str
    kind: str
    triggered: float
    duration: str
    bar: Bar
    """Its phases; of one that has failed, all of it."""
    size: str
    new_bytes: str
    reason: str


@attrs.frozen
class FoldedRow:
    """Completed checkpoints of one kind, one after the other."""

    rows: tuple[CheckpointRow, ...]
    """Newest first."""
    took: str
    size: str
    """Of the newest."""
    new_bytes: str
    """Of all together."""

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.rows)


@attrs.frozen
class ShardRow:
    """A shard's part in a checkpoint."""

    shard: int
    total: str
    bar: Bar
    size: str
    new_bytes: str


@attrs.frozen
class OperatorPhases:
    """An operator's part in a checkpoint."""

    uid: str
    shards: int
    size: str
    new_bytes: str
    slowest: tuple[ShardRow, ...]


@attrs.frozen(kw_only=True)
class CheckpointPage:
    """One checkpoint, down to its slowest shards."""

    pipeline: str
    row: CheckpointRow
    operators: tuple[OperatorPhases, ...]


def checkpoint(pipeline: str, known: CheckpointStatistics) -> CheckpointPage:
    """Return what is to be said of a checkpoint."""
    return CheckpointPage(
        pipeline=pipeline,
        row=_row(known, known.duration or 0.0),
        operators=tuple(_phases(uid, shards) for uid, shards in known.by_operator.items()),
    )


def folded(known: Sequence[CheckpointStatistics]) -> tuple[CheckpointRow | FoldedRow, ...]:
    """Return checkpoints, newest first, with equal ones in one line: completed, and of the same kind."""
    top = scale(one.duration or 0.0 for one in known)
    found: list[CheckpointRow | FoldedRow] = []
    for (status, _), some in itertools.groupby(known, key=lambda one: (one.status, one.kind)):
        equal = list(some)
        rows = tuple(_row(one, top) for one in equal)
        if status is Status.COMPLETED and len(equal) >= _FOLDED:
            found.append(_folded(rows, equal))
        else:
            found += rows
    return tuple(found)


def drawn_in(rows: Iterable[CheckpointRow | FoldedRow]) -> tuple[str, ...]:
    """Return the names of all that is drawn of checkpoints, each once."""
    each = itertools.chain.from_iterable(row.rows if isinstance(row, FoldedRow) else (row,) for row in rows)
    return tuple(dict.fromkeys(part.name for row in each for part in row.bar.parts))


def _folded(rows: tuple[CheckpointRow, ...], known: Sequence[CheckpointStatistics]) -> FoldedRow:
    took = Summary.of(one.duration or 0.0 for one in known)
    assert took is not None, "there are several"
    return FoldedRow(
        rows,
        took=f"{seconds(took.p50)}, at most {seconds(took.max)}",
        size=decimal(known[0].size),
        new_bytes=decimal(sum(one.new_bytes for one in known)),
    )


def _row(one: CheckpointStatistics, top: float) -> CheckpointRow:
    is_complete = one.status is Status.COMPLETED
    return CheckpointRow(
        id=one.id,
        sign=SIGNS[one.status],
        status=one.status.value,
        kind=one.kind.value,
        triggered=one.triggered_at,
        duration="" if one.duration is None else seconds(one.duration),
        bar=bar(_drawn(one), top),
        size=decimal(one.size) if is_complete else "",
        new_bytes=decimal(one.new_bytes) if is_complete else "",
        reason=one.reason.value if one.reason else "",
    )


def _drawn(known: CheckpointStatistics) -> Iterable[tuple[str, float]]:
    if known.status is not Status.COMPLETED:
        return [(known.status.value, known.duration or 0.0)]
    phases = attrs.asdict(known.phases)
    # A manifest does not have the phases of its checkpoint.
    return phases.items() if any(phases.values()) else [("all phases", known.duration or 0.0)]


def _phases(uid: str, shards: list[ShardStatistics]) -> OperatorPhases:
    slowest = sorted(shards, key=lambda one: (-_taken(one), one.shard))[:SLOWEST]
    top = scale(map(_taken, slowest))
    return OperatorPhases(
        uid=uid,
        shards=len(shards),
        size=decimal(sum(one.bytes for one in shards)),
        new_bytes=decimal(sum(one.new_bytes for one in shards)),
        slowest=tuple(_shard(one, top) for one in slowest),
    )


def _shard(one: ShardStatistics, top: float) -> ShardRow:
    parts = [("start delay", one.start_delay), ("sync", one.sync), ("async", one.async_)]
    return ShardRow(
        one.shard, seconds(_taken(one)), bar(parts, top), decimal(one.bytes), decimal(one.new_bytes)
    )


def _taken(shard: ShardStatistics) -> float:
    return shard.start_delay + shard.sync + shard.async_
