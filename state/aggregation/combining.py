"""Decides where the rows of a batch are combined, by what the batch before was like. Pure."""

from __future__ import annotations

import enum
from typing import Final, Literal

import attrs

Combining = Literal["auto", "sql", "python", "none"]
"""Where the rows of one key are combined before they are sent to the key's task; "auto": as ``next_place`` says."""

SMALL: Final = 8_192
"""The number of rows below which combining costs more than it saves: it needs a further stage of tasks."""
MANY: Final = 10.0
"""Rows for each one that is left by combining, from which SQL combines them: Spark's hash aggregation is faster than a
row's way to Python, but it has a shuffle of its own."""
FEW: Final = 5.0
"""Below this, Python combines them again."""


class Place(enum.Enum):
    """Where the rows of one key are combined before they are sent to the key's task."""

    SQL = "sql"
    """In the JVM, by Spark's hash aggregation."""
    PYTHON = "python"
    """In a stage of Python tasks."""
    NOWHERE = "none"
    """They are not: each row is sent."""


@attrs.frozen
class Combined:
    """What combining has done to the rows of a batch."""

    rows: int
    """Rows before, of all tasks."""
    sent: int
    """Rows after."""

    @property
    def repetition(self) -> float:
        """How many rows became one."""
        return self.rows / max(1, self.sent)


def next_place(place: Place | None, seen: Combined, *, sql: bool) -> Place:
    """Return where the rows of the next batch are combined.

    Args:
        place: where those of the batch before were; None: there was none.
        seen: what that did.
        sql: whether SQL can combine them.
    """
    if place is None:
        return Place.PYTHON
    if not seen.rows:
        return place
    # Twice as many rows must come to leave a place as to enter it, so that batches of one size stay at one place.
    if seen.rows < (2 * SMALL if place is Place.NOWHERE else SMALL):
        return Place.NOWHERE
    if sql and seen.repetition >= (FEW if place is Place.SQL else MANY):
        return Place.SQL
    return Place.PYTHON
