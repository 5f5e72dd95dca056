"""The gate of a query: every batch passes it, and learns which barriers stand ahead of it."""

from __future__ import annotations

import attrs

from ..storage.ids import NO_BATCH, BatchId, CheckpointId
from .barrier import Barrier


@attrs.define
class Gate:
    """The barriers of one query, and the batches that have passed.

    A barrier is placed after every batch that has passed, and every batch that passes later learns of it. Both are
    decided here, one after the other, so all shards see a barrier between the same two batches.
    """

    passed: BatchId = NO_BATCH
    """The newest batch that has passed; until one has, the batch at which the query was restored."""
    _barriers: list[Barrier] = attrs.field(factory=list)
    _answers: dict[BatchId, tuple[Barrier, ...]] = attrs.field(factory=dict)

    @property
    def barriers(self) -> tuple[Barrier, ...]:
        """The barriers that stand, in the order in which they were placed."""
        return tuple(self._barriers)

    def place(self, checkpoint: CheckpointId, planned: BatchId) -> Barrier:
        """Place a checkpoint's barrier after the newest batch.

        Args:
            checkpoint: id of the checkpoint.
            planned: the newest batch that Spark is known to have planned; it may not have reached the gate yet.
        """
        barrier = Barrier(checkpoint, max(self.passed, planned))
        self._barriers.append(barrier)
        return barrier

    def place_at(self, checkpoint: CheckpointId, cut: BatchId) -> Barrier:
        """Place a barrier after batch ``cut`` of a stopped query, whose later batch has not committed."""
        barrier = Barrier(checkpoint, cut)
        self._barriers.append(barrier)
        return barrier

    def passes(self, batch: BatchId) -> tuple[Barrier, ...]:
        """Let a batch pass; return the barriers ahead of it, the same ones for every attempt of the batch."""
        if batch not in self._answers:
            self.passed = max(self.passed, batch)
            # An earlier batch cannot come again once its successor has passed: Spark has committed it.
            self._answers = {b: answer for b, answer in self._answers.items() if b >= batch - 1}
            self._answers[batch] = tuple(b for b in self._barriers if b.is_ahead_of(batch))
        return self._answers[batch]

    def lift(self, checkpoint: CheckpointId) -> None:
        """Remove a checkpoint's barrier, once the checkpoint has completed or was aborted."""
        self._barriers = [barrier for barrier in self._barriers if barrier.checkpoint != checkpoint]
