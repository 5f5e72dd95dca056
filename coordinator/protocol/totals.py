"""Sums over all checkpoints that have ended in a coordinator's life, for counters that only ever rise."""

from __future__ import annotations

import bisect
from collections import Counter
from typing import Final

import attrs

from ...storage.checkpoints.manifest import CheckpointKind

SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""The upper bounds of the classes of durations; what takes longer is in a class after the last."""


@attrs.define
class Totals:
    """How many checkpoints have ended how, how long those that completed took, and what they wrote."""

    ended: Counter[tuple[CheckpointKind, str]] = attrs.field(factory=Counter)
    """By kind, and by why they failed: empty for those that completed."""
    durations: list[int] = attrs.field(factory=lambda: [0] * (len(SECONDS) + 1))
    """How many took as long as each class says."""
    seconds: float = 0.0
    """How long all that completed took together."""
    new_bytes: int = 0
    """Bytes that they wrote."""

    def completed(self, kind: CheckpointKind, seconds: float, new_bytes: int) -> None:
        """Add a checkpoint that has completed."""
        self.ended[kind, ""] += 1
        self.durations[bisect.bisect_left(SECONDS, seconds)] += 1
        self.seconds += seconds
        self.new_bytes += new_bytes

    def failed(self, kind: CheckpointKind, reason: str) -> None:
        """Add a checkpoint that has failed."""
        self.ended[kind, reason] += 1

    def copy(self) -> Totals:
        """Return the sums as they are now."""
        return Totals(Counter(self.ended), list(self.durations), self.seconds, self.new_bytes)
