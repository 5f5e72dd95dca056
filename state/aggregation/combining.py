"""Decides where the rows of a batch are combined, by what the batch before was like. Pure."""

from __future__ import annotations

import enum
from typing import Final, Literal

import attrs

Combining = Literal["auto", "sql", "python", "none"]
"""Where the rows of one key are combined before they go to its task; "auto": as ``next_pre_aggregation`` says."""

SMALL: Final = 8_192
"""The number of rows below which combining costs more than it saves: it needs a further round of Python."""
LARGE: Final = 262_144
"""The number of rows below which SQL is not faster, because the plan of each batch costs more than its rows save. Of
``aggregate``'s speed, it had 0.9 to 1.0 with batches of 100,000 rows, and 2.4 with two million, 5,000 of each key."""
MANY: Final = 10.0
"""Rows for each one that is left by combining, from which SQL combines them. Python sends the rows that are left in
packs, SQL one by one: with three rows of a key it is not faster."""
FEW: Final = 5.0
"""Below this, Python combines them again."""


class PreAggregation(enum.Enum):
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


def next_pre_aggregation(place: PreAggregation | None, seen: Combined, *, sql: bool) -> PreAggregation:
    """Return where the rows of the next batch are combined.

    Args:
        place: where those of the batch before were; None if there was none.
        seen: what that did.
        sql: whether SQL can combine them.
    """
    if place is None:
        return PreAggregation.PYTHON
    if not seen.rows:
        return place
    # Twice as many rows must come to change the place as to stay, so that batches of one size stay at one place.
    if seen.rows < (2 * SMALL if place is PreAggregation.NOWHERE else SMALL):
        return PreAggregation.NOWHERE
    rows, repetition = (LARGE, FEW) if place is PreAggregation.SQL else (2 * LARGE, MANY)
    if sql and seen.rows >= rows and seen.repetition >= repetition:
        return PreAggregation.SQL
    return PreAggregation.PYTHON
