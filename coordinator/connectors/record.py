"""A target's record of a writer: the check before each commit, and which table or topic it counts for."""

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


@attrs.frozen
class TargetIds:
    """Tells a table or a topic from others that have or had its name, by the ids that its server gives to them."""

    positions: str = attrs.field(validator=attrs.validators.matches_re(r"\w+"))
    """Id of the table or topic that keeps positions."""
    target: str = attrs.field(validator=attrs.validators.matches_re(r"\w+"))
    """Id of the table or topic of the rows."""

    def __str__(self) -> str:
        return f"{self.positions}/{self.target}"

    def is_of(self, recorded: str | None) -> bool:
        """Return whether what was recorded with an identity counts for this target.

        A server that was restored from a copy has given new ids to both.

        Args:
            recorded: the identity as text; None if something was recorded without one, which counts for any target.
        """
        if recorded is None:
            return True
        positions, _, target = recorded.partition("/")
        return positions != self.positions or target == self.target
