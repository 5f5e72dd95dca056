"""What runs have met: kinds of events, troubles of stores, and pairs of them that came soon after each other."""

from __future__ import annotations

from collections import Counter
from typing import Final

import attrs

from .events import EVERYTHING, pairs_of

NEAR: Final = 5
"""Two events are a pair if at most so many events are from the one to the other."""

SHOWN: Final = 10
"""Pairs that have not come together are shown up to so many."""


@attrs.define
class Coverage:
    """Counts over many runs."""

    runs: int = 0
    steps: int = 0
    seconds: float = 0.0
    """Of simulated time."""
    completed: int = 0
    """Checkpoints."""
    drivers: int = 0
    events: Counter[str] = attrs.field(factory=Counter)
    troubles: Counter[str] = attrs.field(factory=Counter)
    decided: Counter[str] = attrs.field(factory=Counter)
    """What drivers have decided."""
    pairs: Counter[tuple[str, str]] = attrs.field(factory=Counter)

    def add(self, events: list[str], troubles: Counter[str]) -> None:
        """Add what a run has met.

        Args:
            events: in their order, each its kind and of what.
            troubles: of its stores, how often each.
        """
        kinds = [" ".join(event.split()[:3]) for event in events]
        self.events.update(kinds)
        self.troubles.update(troubles)
        for place, kind in enumerate(kinds):
            for other in kinds[max(0, place - NEAR) : place]:
                self.pairs[min(kind, other), max(kind, other)] += 1

    @property
    def unseen(self) -> list[tuple[str, str]]:
        """The pairs of kinds that have not come together."""
        return [pair for pair in pairs_of(EVERYTHING) if pair not in self.pairs]

    def __str__(self) -> str:
        def counted(some: Counter[str]) -> str:
            return ", ".join(f"{name} {number:,}" for name, number in some.most_common())

        unseen = ", ".join(f"{one} + {other}" for one, other in self.unseen[:SHOWN]) or "none"
        if (more := len(self.unseen) - SHOWN) > 0:
            unseen += f" and {more} more"
        return (
            f"{self.runs:,} runs, {self.steps:,} steps, {self.seconds / 3600:.1f} h of simulated time, "
            f"{self.completed:,} checkpoints, {self.drivers:,} drivers\n"
            f"events: {counted(self.events)}\n"
            f"troubles of stores: {counted(self.troubles)}\n"
            f"decisions of drivers: {counted(self.decided)}\n"
            f"pairs of events that have not come together: {unseen}"
        )
