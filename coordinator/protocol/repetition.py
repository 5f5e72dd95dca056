"""How often in a row a query has failed the same way, so that trying once more is of no use."""

from __future__ import annotations

from typing import Final

import attrs

SAME: Final = 3
"""Failures of the same kind in a row that end the pipeline."""


@attrs.frozen
class FailurePoint:
    """Where and how a query has failed."""

    batch: int
    """The newest batch that had been planned."""
    how: str
    """The error's text without what differs from one attempt to the next."""
    in_user_code: bool
    """Whether Python code raised in the batch: then other state would not help, for it is what it must be."""


@attrs.frozen
class Repetition:
    """How often in a row a query has failed at one point."""

    point: FailurePoint
    times: int = 1

    def then(self, point: FailurePoint) -> Repetition:
        """Return what it is after the next failure."""
        return Repetition(point, self.times + 1 if point == self.point else 1)
