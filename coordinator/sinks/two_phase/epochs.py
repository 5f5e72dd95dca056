"""Which staged batches belong to which epoch of a query, and which epochs are still to be published.

A checkpoint's cut closes an epoch: all batches after the cut before it. A checkpoint that completes publishes every
epoch up to its own, also those of checkpoints that have failed meanwhile, whose batches it contains. So epochs are
never put together again or taken apart, and a target needs to know no more than the newest id that it has.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

import attrs

from ....storage.checkpoints.manifest import EpochRecord, OutputRecord
from ....storage.ids import BatchId, CheckpointId
from .contract import Staged


@attrs.frozen
class ClosedEpoch:
    """The batches between two cuts."""

    id: CheckpointId
    """The checkpoint that closed it."""
    last: BatchId
    """Its last batch."""
    staged: tuple[Staged, ...]
    """What was written of its batches, in their order."""

    @property
    def rows(self) -> int:
        """The number of rows of all batches."""
        return sum(one.rows for one in self.staged)


@attrs.define
class EpochLog:
    """The epochs of one query, which all of its sinks publish."""

    sinks: tuple[str, ...]
    """The uids of the sinks."""
    _open: dict[BatchId, tuple[Staged, ...]] = attrs.field(factory=dict, init=False)
    """What is staged of each batch that no cut has closed off."""
    _resumed: set[BatchId] = attrs.field(factory=set, init=False)
    """The open batches that an earlier run has written. Its cuts may have closed them off."""
    _closed: list[ClosedEpoch] = attrs.field(factory=list, init=False)
    """Epochs that some sink has not published, oldest first."""
    _published: dict[str, CheckpointId | None] = attrs.field(factory=dict, init=False)
    """The newest epoch that each sink is known to have published."""

    def stage(self, batch: BatchId, staged: Sequence[Staged]) -> tuple[Staged, ...]:
        """Record what was written of a batch; return what this replaces, if the batch ran before."""
        replaced = self._open.get(batch, ())
        self._open[batch] = tuple(staged)
        return replaced

    def resume(self, staged: Mapping[BatchId, Sequence[Staged]]) -> None:
        """Record what an earlier run has written, by batch."""
        self._open.update((batch, tuple(found)) for batch, found in staged.items())
        self._resumed.update(staged)

    def close(self, checkpoint: CheckpointId, cut: BatchId) -> None:
        """Close the epoch of a checkpoint. One without rows and notes leaves nothing to publish."""
        batches = sorted(batch for batch in self._open if batch <= cut)
        staged = tuple(one for batch in batches for one in self._open.pop(batch))
        if any(one.rows or one.note for one in staged):
            self._closed.append(ClosedEpoch(checkpoint, cut, staged))

    def unpublished(self, sink: str, checkpoint: CheckpointId) -> list[ClosedEpoch]:
        """Return the epochs up to a checkpoint's that a sink is not known to have published, oldest first."""
        published = self._published.get(sink)
        return [
            epoch
            for epoch in self._closed
            if epoch.id <= checkpoint and (published is None or epoch.id > published)
        ]

    def newest_published(self, sink: str) -> CheckpointId | None:
        """Return the newest epoch that a sink is known to have published; None: none."""
        return self._published.get(sink)

    def published(self, sink: str, epoch: CheckpointId | None) -> None:
        """Record the newest epoch that a sink has published."""
        self._published[sink] = epoch
        self._closed = [
            one
            for one in self._closed
            if any((done := self._published.get(uid)) is None or one.id > done for uid in self.sinks)
        ]

    def is_published(self, checkpoint: CheckpointId) -> bool:
        """Return whether all sinks have published everything up to a checkpoint."""
        return not any(epoch.id <= checkpoint for epoch in self._closed)

    def go_back(self, checkpoint: CheckpointId | None) -> list[Staged]:
        """Forget what comes after a checkpoint. None: forget everything.

        Returns:
            What was staged of it and never closed off. What was may be in a manifest of which nobody knows whether it
            was written, and then it is the latest checkpoint.
        """
        own = self._open.keys() - self._resumed
        forgotten = [staged for batch in sorted(own) for staged in self._open[batch]]
        self._closed = [one for one in self._closed if checkpoint is not None and one.id <= checkpoint]
        self._open.clear()
        self._resumed.clear()
        return forgotten


# --- where a life begins ------------------------------------------------------------------------------------


@attrs.frozen
class EpochsToPublish:
    """The target has everything up to where these epochs begin."""

    epochs: tuple[EpochRecord, ...]


@attrs.frozen
class Ahead:
    """The target has what the checkpoint does not have."""

    position: CheckpointId
    common: CheckpointId | None = None
    """The newest epoch that both surely have; None: none."""


@attrs.frozen
class LostOutput:
    """The target lacks what it had when the checkpoint was taken."""

    expected: CheckpointId
    position: CheckpointId | None
    epochs: tuple[EpochRecord, ...]
    """What the checkpoint can still publish."""


def where_to_begin(
    record: OutputRecord | None,
    checkpoint: CheckpointId | None,
    position: CheckpointId | None,
    recognised: Collection[int] = (),
) -> EpochsToPublish | Ahead | LostOutput:
    """Compare a checkpoint with what a target has.

    Epochs that the checkpoint names as not published may have been published later. Those that the target recognises,
    from the first on, are what both have: somebody may have read them.

    Args:
        record: what the checkpoint has of the sink; None if it does not have the sink.
        checkpoint: id of the checkpoint; None if the query begins without one.
        position: the newest epoch that the target has; None: none.
        recognised: ids of the record's epochs that the target has as they are there, or could bring back.
    """
    common = _common(record, recognised) if record else checkpoint
    if position is not None and (checkpoint is None or position > checkpoint):
        return Ahead(position, common)
    if record is None:
        return EpochsToPublish(())
    left = tuple(epoch for epoch in record.epochs if position is None or epoch.id > position)
    if common is not None and (position is None or position < common):
        return LostOutput(common, position, left)
    own = {record.published, *(epoch.id for epoch in record.epochs)}
    if position is not None and position not in own:
        # It was published from a savepoint whose rows later went another way, and these would come again.
        return Ahead(position, common)
    return EpochsToPublish(left)


def _common(record: OutputRecord, recognised: Collection[int]) -> CheckpointId | None:
    same = itertools.takewhile(lambda epoch: epoch.id in recognised, record.epochs)
    return max((epoch.id for epoch in same), default=record.published)
