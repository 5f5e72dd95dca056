"""A barrier, which separates the batches before a checkpoint from those after it."""

from __future__ import annotations

import attrs


@attrs.frozen(order=True)
class Barrier:
    """The marker of one checkpoint in one query's sequence of batches.

    It stands between the batches ``cut`` and ``cut + 1``, ahead of the first record of the latter.
    """

    checkpoint: int
    cut: int
    """The last batch whose effects belong to the checkpoint; -1 if none."""

    def is_ahead_of(self, batch: int) -> bool:
        """Return whether a task of ``batch`` must wait for this barrier's snapshot before it touches state."""
        return self.cut < batch
