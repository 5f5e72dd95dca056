"""The check of a target's record before each commit, alike for all targets whose record is read first."""

from __future__ import annotations

import attrs

from ..sinks.two_phase.contract import Fence, Position
from ..sinks.two_phase.errors import TargetUnavailableError


def check_record(found: Position | None, own: Position, fence: Fence, target: str) -> None:
    """Check that a target's record still is what this life has left there.

    Args:
        found: the record now; None if there is no record.
        own: the record that this life wrote or found last.
        fence: who publishes.
        target: what it is, for messages.

    Raises:
        FencedError, OutputTakenError: somebody else publishes now.
        TargetUnavailableError: the record is another one of this life, or an older one. The next recovery sees it.
    """
    if found == own:
        return
    if found is not None:
        # What was taken over once is not taken back by a commit.
        found.taken_by(attrs.evolve(fence, may_take_over=False))
    raise TargetUnavailableError(target, f"it has the record {found} now, not {own}", is_understood=True)
