"""A barrier, which separates the batches before a checkpoint from those after it."""

from __future__ import annotations

import attrs

from ..storage.ids import BatchId, CheckpointId


@attrs.frozen(order=True)
class Barrier:
    """The marker of one checkpoint in one query's sequence of batches.

    It stands between the batches ``cut`` and ``cut + 1``, ahead of the first record of the latter.
    """

    checkpoint: CheckpointId
    cut: BatchId
    """The last batch whose effects belong to the checkpoint; -1 if none."""

    def is_ahead_of(self, batch: BatchId) -> bool:
        """Return whether a task of ``batch`` must wait for this barrier's snapshot before it touches state."""
        return self.cut < batch
