"""The offsets of a stream of changes, and what a batch between two of them has to read. Pure decisions.

An offset is the id of a checkpoint: what has been read makes its state. The first checkpoint may be read in several
batches, a number of shards in each, so that a reader that is stopped in the middle goes on there. All later batches
bring the reader from one checkpoint to another, as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import attrs

from ...storage.ids import CheckpointId


@attrs.frozen
class FeedOffset:
    """How far a stream has been read."""

    at: CheckpointId | None = None
    """The checkpoint whose state has been read; None before the first one is read as a whole."""
    to: CheckpointId | None = None
    """The first checkpoint, of which only a part has been read; None: there is none such."""
    shards: int = 0
    """How many shards of it have been read."""
    completed_at: float | None = None
    """When the checkpoint was completed: another one may get its id, if the storage is emptied or put back."""

    @property
    def needed(self) -> CheckpointId | None:
        """The checkpoint that must still be there; None before anything was read."""
        return self.to if self.at is None else self.at

    @classmethod
    def of(cls, offset: Mapping[str, Any]) -> Self:
        """Return the offset that ``to_json`` has returned."""
        return cls(**offset)

    def to_json(self) -> dict[str, Any]:
        """Return the offset as Spark writes it down."""
        return attrs.asdict(self)


def in_place(completed_at: float | None, now: float | None, there: Sequence[int]) -> str | None:
    """Return what is in place of a checkpoint that a stream has read; None if the checkpoint is still there.

    Args:
        completed_at: when the checkpoint was completed.
        now: when the one was completed that has its id now; None if there is none.
        there: the ids of all checkpoints.
    """
    if now is None:
        return f"checkpoints {', '.join(map(str, there))}" if there else "no checkpoint"
    return (
        None
        if now == completed_at
        else "another checkpoint with this id: the storage was emptied or put back"
    )


@attrs.frozen
class Span:
    """What one batch reads."""

    old: CheckpointId | None
    """The older checkpoint; None: there is none."""
    new: CheckpointId
    """The newer one."""
    first: int = 0
    """The first shard to read, if there is no older checkpoint."""
    stop: int | None = None
    """The shard after the last one; None: all further ones."""


def span_of(start: FeedOffset, end: FeedOffset) -> Span | None:
    """Return what a batch between two offsets reads; None: nothing.

    Raises:
        ValueError: no stream goes from the one to the other.
    """
    if start == end:
        return None
    target = end.at if end.to is None else end.to
    if target is None or (start.to is not None and start.to != target) or (start.at and end.to):
        raise ValueError(f"no stream goes from {start} to {end}")
    stop = None if end.to is None else end.shards
    return Span(start.at, target, start.shards if start.to else 0, stop)


def next_offset(
    start: FeedOffset, target: CheckpointId, completed_at: float, shards: int, at_once: int | None
) -> FeedOffset:
    """Return how far the next batch reads.

    Args:
        start: how far the stream has been read.
        target: the checkpoint to read: ``start.to`` if there is one, else a newer one than ``start.at``.
        completed_at: when it was completed.
        shards: how many shards the operator has in it.
        at_once: how many shards of the first checkpoint a batch reads at most; None: all.
    """
    read = shards if start.at is not None or at_once is None else start.shards + at_once
    if read >= shards:
        return FeedOffset(target, completed_at=completed_at)
    return FeedOffset(None, target, read, completed_at)
