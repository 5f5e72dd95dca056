"""How many checkpoints have failed in a row, and whether that is too many."""

from __future__ import annotations

import attrs

from ...storage.ids import CheckpointId
from .reasons import Reason


@attrs.define
class FailureCounter:
    """Counts failures since the last completed checkpoint.

    The reason decides whether a failure counts (``Reason.counted``). A checkpoint counts once, however often it is
    reported and for whatever reasons. It does not count once a newer one has completed.
    """

    tolerable: int
    """How many failures in a row do not fail the pipeline."""
    count: int = attrs.field(default=0, init=False)
    _latest: int = attrs.field(default=-1, init=False)
    """Id of the latest completed checkpoint."""
    _counted: set[CheckpointId] = attrs.field(factory=set, init=False)
    """Checkpoints after it that have been counted."""

    def failed(self, checkpoint: CheckpointId | None, reason: Reason) -> bool:
        """Record a failure.

        Args:
            checkpoint: its id; None if the request failed before it got one. Every such failure counts.
            reason: why it failed.

        Returns:
            Whether the pipeline must fail. The count then starts again.
        """
        if not reason.counted:
            return False
        if checkpoint is not None:
            if checkpoint <= self._latest or checkpoint in self._counted:
                return False
            self._counted.add(checkpoint)
        self.count += 1
        if self.count <= self.tolerable:
            return False
        self.count = 0
        return True

    def completed(self, checkpoint: CheckpointId) -> None:
        """Record that a checkpoint has completed. The count starts again, unless a newer one has completed already."""
        if checkpoint > self._latest:
            self._latest = checkpoint
            self.count = 0
            self._counted = {one for one in self._counted if one > checkpoint}
