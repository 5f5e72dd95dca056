"""How many checkpoints have failed in a row, and whether that is too many."""

from __future__ import annotations

import attrs

from .reasons import Reason


@attrs.define
class FailureCounter:
    """Counts failures since the last completed checkpoint.

    The reason decides whether a failure counts (``Reason.counted``). A checkpoint counts once, however often
    and for however many reasons it is reported, and not at all once a newer one has completed.
    """

    tolerable: int
    """How many failures in a row the pipeline lives through."""
    count: int = attrs.field(default=0, init=False)
    _latest: int = attrs.field(default=-1, init=False)
    """Id of the latest completed checkpoint."""
    _counted: set[int] = attrs.field(factory=set, init=False)
    """Checkpoints after it that have been counted."""

    def failed(self, checkpoint: int | None, reason: Reason) -> bool:
        """Take a failure.

        Args:
            checkpoint: its id; None: it failed before it had one, and every such report counts.
            reason: why it failed.

        Returns:
            Whether the pipeline must fail. It is said once: the count then begins anew.
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

    def completed(self, checkpoint: int) -> None:
        """A checkpoint has completed: the count begins anew, unless a newer one had completed already."""
        if checkpoint > self._latest:
            self._latest = checkpoint
            self.count = 0
            self._counted = {one for one in self._counted if one > checkpoint}
