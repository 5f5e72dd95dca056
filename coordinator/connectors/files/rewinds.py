"""What was taken back of one writer's output, and so what can be gone back to, or brought back."""

from __future__ import annotations

from collections.abc import Collection

import attrs


@attrs.frozen
class TakenBack:
    """Epochs that were published, and then taken back."""

    after: int | None
    """The epoch that stayed; None: none did."""
    upto: int

    def has(self, epoch: int) -> bool:
        """Whether an epoch of this number was taken back."""
        return (self.after is None or self.after < epoch) and epoch <= self.upto


@attrs.frozen
class Rewinds:
    """All that was taken back of one writer's output."""

    times: int = 0
    """How often. It goes into the names of files, so that none has the name of one that was taken back."""
    ranges: tuple[TakenBack, ...] = ()
    """Oldest first. The same numbers may have been given again since, in another store."""

    def can_go_back(self, epoch: int | None, has: Collection[int]) -> bool:
        """Return whether what was published up to an epoch still is there, and is what a checkpoint knows by it.

        Args:
            epoch: what to go back to; None: to before everything.
            has: the epochs of which the log has files.
        """
        return epoch is None or epoch in has or not any(taken.has(epoch) for taken in self.ranges)

    def rewound(self, epoch: int | None, published: int) -> Rewinds:
        """Return this with all taken back that was published after an epoch."""
        return Rewinds(self.times + 1, (*self.ranges, TakenBack(epoch, published)))

    def is_last(self, position: int | None) -> bool:
        """Return whether nothing was published since something was last taken back, given the newest epoch now."""
        return bool(self.ranges) and self.ranges[-1].after == position

    def restored_to(self, position: int | None, epoch: int, has: Collection[int]) -> Rewinds | None:
        """Return this without what is brought back, up to an epoch; None if that was not last taken back.

        Args:
            position: the newest epoch that is published.
            epoch: the newest that shall be.
            has: the epochs of which there still are files that were taken back.
        """
        if not self.is_last(position):
            return None
        *older, last = self.ranges
        below = Rewinds(self.times, tuple(older))
        if epoch > last.upto:
            return below.restored_to(last.upto, epoch, has)
        if not below.can_go_back(epoch, has):
            return None
        left = (TakenBack(epoch, last.upto),) if epoch < last.upto else ()
        return Rewinds(self.times, (*older, *left))
