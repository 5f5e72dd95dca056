"""What a user allows the checkpoint protocol, in plain numbers."""

from __future__ import annotations

from typing import Final

import attrs

MAX_UNPUBLISHED: Final = 10
"""Completed checkpoints that wait for a target before their query pauses. Nobody sees the output meanwhile, so a pause
costs a reader nothing, and it bounds what the store keeps for a target that is away for hours."""
HISTORY: Final = 32
"""Ended checkpoints that statistics list: as many as one looks at. Events and the journal tell of all."""


@attrs.frozen(kw_only=True)
class ProtocolLimits:
    """The numbers that the protocol's decisions depend on. Durations are in seconds."""

    interval: float | None = None
    """From one periodic checkpoint to the next; None if there are no periodic checkpoints."""
    interval_during_backlog: float | None = None
    """The same while the pipeline is behind its sources, and no shorter; None: ``interval``."""
    initial_delay: float | None = None
    """From the start to the first periodic checkpoint; None: at random within the interval."""
    timeout: float
    """How long a checkpoint may take."""
    savepoint_timeout: float
    """How long a savepoint may take."""
    max_concurrent: int
    """How many checkpoints may be pending at once."""
    max_queued: int = 1000
    """How many requests may wait: far more than a program has threads that wait for them."""
    tolerable_failures: int
    """How many checkpoints may fail in a row."""
    retained: int
    """How many of the newest completed checkpoints are kept."""
    max_unpublished: int = MAX_UNPUBLISHED
    """How many completed checkpoints may wait for the targets of sinks to take their output."""
    standbys: int = 0
    """How many standbys each shard has."""
    history: int = HISTORY
    """How many ended checkpoints the statistics show one by one."""

    @property
    def longest_interval(self) -> float | None:
        """The longest time from one periodic checkpoint to the next; None if there are no periodic checkpoints."""
        return self.interval if self.interval_during_backlog is None else self.interval_during_backlog
