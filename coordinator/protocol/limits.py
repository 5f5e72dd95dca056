"""What a user allows the checkpoint protocol, in plain numbers."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class ProtocolLimits:
    """The numbers that the protocol's decisions depend on. Durations are in seconds."""

    interval: float | None = None
    """From one periodic checkpoint to the next; None if there are no periodic checkpoints."""
    interval_during_backlog: float | None = None
    """The same while the pipeline is behind its sources, and no shorter; None: ``interval``."""
    min_pause: float = 0.0
    """The least time from the completion of a checkpoint to the next periodic one; no longer than the interval."""
    initial_delay: float | None = None
    """From the start to the first periodic checkpoint; None: at random from min_pause to interval."""
    timeout: float
    """How long a checkpoint may take."""
    savepoint_timeout: float
    """How long a savepoint may take."""
    max_concurrent: int
    """How many checkpoints may be pending at once."""
    max_queued: int
    """How many requests may wait."""
    tolerable_failures: int
    """How many checkpoints may fail in a row."""
    retained: int
    """How many of the newest completed checkpoints are kept."""
    max_unpublished: int
    """How many completed checkpoints may wait for the targets of sinks to take their output."""
    standbys: int = 0
    """How many standbys each shard has."""
    history: int
    """How many ended checkpoints the statistics show one by one."""

    @property
    def longest_interval(self) -> float | None:
        """The longest time from one periodic checkpoint to the next; None if there are no periodic checkpoints."""
        return self.interval if self.interval_during_backlog is None else self.interval_during_backlog
