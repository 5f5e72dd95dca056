"""What a query promises about its output when it goes back to a checkpoint; state is exactly once always."""

from __future__ import annotations

import enum

import attrs


class Level(enum.StrEnum):
    """How often a row's effect can be seen in the output after a restore."""

    EXACTLY_ONCE = "exactly once"
    IF_IDEMPOTENT = "exactly once if commit is idempotent"
    """The same call may come again, and it is for the user's own code to do nothing then."""
    AT_LEAST_ONCE = "at least once"


@attrs.frozen
class Guarantee:
    """The promise about a query's output, and the reason for it."""

    level: Level
    because: str

    def __str__(self) -> str:
        return f"{self.level}: {self.because}"
