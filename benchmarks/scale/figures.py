"""The figures of the benchmark: the costs of a checkpoint, and how they become rows and ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import attrs

from ..report import spread

Figures = Mapping[int, Mapping[str, Sequence[float]]]
"""The values of each figure, one for each checkpoint, by the number of shards and the name of the figure."""

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
    """The costs of one checkpoint over the real RPC, in seconds unless stated otherwise."""

    checkpoint: int
    messages: int
    acks: int
    """Number of shards whose ACK was accepted, by the coordinator's own statistics."""
    cut: float
    """From the request until the cut is chosen."""
    orders: float
    """From the choice of the cut until the last host has its order."""
    acks_handled: float
    """From the time when all hosts begin to send their ACKs until the last one is handled."""
    acks_cpu: float
    """Processor time of the coordinator's process in that period."""
    trigger_cpu: float
    """Processor time from the request until all hosts have their orders."""
    completing: float
    """From the last ACK until the future is resolved: the manifest is durable and confirmed."""
    manifest_bytes: int
    manifest_shards: int
    """Number of shards with a handle in the manifest that is read back from the store."""
    encode: float
    write: float
    read: float
    decode: float
    discard: float | None
    """The deletion of the checkpoint that retention drops, with its objects. None if nothing was dropped."""
    statistics: float
    """One call of ``statistics()``."""
    resident_mb: float
    """The greatest resident size of the coordinator's process so far."""

    @property
    def figures(self) -> dict[str, float]:
        """The reported figures, by name."""
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
    """Return one row for each figure at each size."""
    return [
        {"figure": name, "shards": shards, **spread(own[name]), "checkpoints": len(own[name])}
        for name in _names(figures)
        for shards, own in figures.items()
        if name in own
    ]


def growth(figures: Figures) -> dict[str, float]:
    """Return the factor by which each figure's median grows from one size to the next: 10 for tenfold shards is linear.

    The medians are over all turns, because checkpoints of two sizes cannot be paired and memory is measured once.
    ``GROWN`` is left out: it should be zero at every size.
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
