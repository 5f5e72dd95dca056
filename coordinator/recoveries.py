"""How long recoveries took, and of what they consisted."""

from __future__ import annotations

import attrs


@attrs.define
class Recovery:
    """One start of the pipeline's queries from a checkpoint, or of one query in place, and what its time went into."""

    cause: str
    checkpoint: int | None
    """The checkpoint that was restored; None: in place, or from the beginning."""
    in_place: bool
    begun_at: float
    """Seconds since 1970."""
    stopping: float = 0.0
    """Seconds to stop what was still running."""
    restoring: float = 0.0
    """Seconds to bring the queries' progress back and seed their directories."""
    starting: float = 0.0
    """Seconds for Spark to start the queries."""
    first_batch: float | None = None
    """Seconds from there to the first commit: Spark plans, hosts restore shards, the batch runs. None: not yet."""

    @property
    def total(self) -> float | None:
        """Seconds from the beginning to the first commit; None: not yet."""
        parts = self.stopping + self.restoring + self.starting
        return None if self.first_batch is None else parts + self.first_batch
