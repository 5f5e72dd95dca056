"""Sums over all checkpoints that have ended in a coordinator's life, for counters that only ever rise."""

from __future__ import annotations

import bisect
from collections import Counter
from typing import Final

import attrs

from ...storage.checkpoints.manifest import CheckpointKind
from ...storage.times import rounded

SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""The upper bounds of the classes of durations; what takes longer is in a class after the last."""


@attrs.frozen
class PhaseSeconds:
    """How long a checkpoint was in each of its phases, or several were together: seconds, 0 for one not reached."""

    planning: float = attrs.field(default=0.0, repr=rounded)
    """To choose the cut."""
    collecting: float = attrs.field(default=0.0, repr=rounded)
    """Until all have acknowledged: queries come to the cut, shards are flushed and uploaded."""
    finalizing: float = attrs.field(default=0.0, repr=rounded)
    """To write the manifest."""

    def __add__(self, other: PhaseSeconds) -> PhaseSeconds:
        return PhaseSeconds(
            self.planning + other.planning,
            self.collecting + other.collecting,
            self.finalizing + other.finalizing,
        )


@attrs.define
class Totals:
    """How many checkpoints have ended how, how long those that completed took, and what they wrote."""

    ended: Counter[tuple[CheckpointKind, str]] = attrs.field(factory=Counter)
    """By kind, and by why they failed: empty for those that completed."""
    durations: list[int] = attrs.field(factory=lambda: [0] * (len(SECONDS) + 1))
    """How many took as long as each class says."""
    seconds: float = 0.0
    """How long all that completed took together."""
    phases: PhaseSeconds = attrs.field(factory=PhaseSeconds)
    """How long they were in each phase together."""
    new_bytes: int = 0
    """Bytes that they wrote."""

    def completed(self, kind: CheckpointKind, seconds: float, phases: PhaseSeconds, new_bytes: int) -> None:
        """Add a checkpoint that has completed."""
        self.ended[kind, ""] += 1
        self.durations[bisect.bisect_left(SECONDS, seconds)] += 1
        self.seconds += seconds
        self.phases += phases
        self.new_bytes += new_bytes

    def failed(self, kind: CheckpointKind, reason: str) -> None:
        """Add a checkpoint that has failed."""
        self.ended[kind, reason] += 1

    def copy(self) -> Totals:
        """Return the sums as they are now."""
        return Totals(Counter(self.ended), list(self.durations), self.seconds, self.phases, self.new_bytes)
