"""The figures of the benchmark: what is noted of a checkpoint, and how that becomes rows and ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import attrs

from ..report import spread

Figures = Mapping[int, Mapping[str, Sequence[float]]]
"""By the number of shards and the name of a figure, its values, one a checkpoint."""

ROUND_TRIP: Final = "barrier to last ACK handled (s)"
ACKS_CPU: Final = "coordinator's processor time for all ACKs (s)"
ACKS_CPU_SINGLE: Final = "coordinator's processor time for all ACKs, a message for each (s)"
MANIFEST_OUT: Final = "manifest encoded and written (s)"
MANIFEST_IN: Final = "manifest read and decoded (s)"
DISCARD: Final = "old checkpoint deleted (s)"
HELD: Final = "memory held by the protocol (MB)"
GROWN: Final = "memory that the last five checkpoints added (MB)"


@attrs.frozen
class Costs:
    """One checkpoint over the real link. Seconds, unless said."""

    checkpoint: int
    messages: int
    acks: int
    """Shards whose ACK was accepted, by the coordinator's own statistics."""
    cut: float
    """From the request until the cut is chosen."""
    orders: float
    """From there until the last host has its order."""
    acks_handled: float
    """From the moment when all hosts begin to send their ACKs until the last is handled."""
    acks_cpu: float
    """Processor time of the coordinator's process in that stretch."""
    trigger_cpu: float
    """The same from the request until all hosts have their orders."""
    completing: float
    """From the last ACK until the future is resolved: the manifest is durable and confirmed."""
    manifest_bytes: int
    manifest_shards: int
    """Shards with a handle in the manifest as read back from the store."""
    encode: float
    write: float
    read: float
    decode: float
    discard: float | None
    """Deleting the checkpoint that retention dropped, its objects included; None: none was."""
    statistics: float
    """One call."""
    resident_mb: float
    """The greatest resident size of the coordinator's process so far."""

    @property
    def figures(self) -> dict[str, float]:
        """What is reported of it, by name."""
        found = {
            ROUND_TRIP: self.cut + self.orders + self.acks_handled,
            "part: choosing the cut (s)": self.cut,
            "part: orders out (s)": self.orders,
            "part: ACKs handled (s)": self.acks_handled,
            ACKS_CPU: self.acks_cpu,
            "processor time from trigger to orders out (s)": self.trigger_cpu,
            "last ACK to completed (s)": self.completing,
            "manifest (MB)": self.manifest_bytes / 1e6,
            MANIFEST_OUT: self.encode + self.write,
            MANIFEST_IN: self.read + self.decode,
            "statistics() (s)": self.statistics,
            "peak resident size of the process (MB)": self.resident_mb,
        }
        return found if self.discard is None else {**found, DISCARD: self.discard}


def rows(figures: Figures) -> list[dict[str, Any]]:
    """Return a row for each figure at each size."""
    return [
        {"figure": name, "shards": shards, **spread(own[name]), "checkpoints": len(own[name])}
        for name in _names(figures)
        for shards, own in figures.items()
        if name in own
    ]


def growth(figures: Figures) -> dict[str, float]:
    """Return by which factor each figure's median grows from one size to the next: 10 for tenfold shards is linear.

    Medians of all turns, since no checkpoint of one size belongs to one of another, and memory is looked at once.
    What should not be there at all (``GROWN``) does not grow.
    """
    ratios: dict[str, float] = {}
    sizes = sorted(figures)
    for name in (one for one in _names(figures) if one != GROWN):
        for small, large in pairwise(sizes):
            if name in figures[small] and name in figures[large]:
                below, above = (spread(figures[size][name])["median"] for size in (small, large))
                if below > 0:
                    ratios[f"{name}: {large:,} / {small:,} shards"] = above / below
    return ratios


def _names(figures: Figures) -> list[str]:
    return list(dict.fromkeys(name for own in figures.values() for name in own))
