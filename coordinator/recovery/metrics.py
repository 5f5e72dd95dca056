"""How long recoveries took, and of what they consisted."""

from __future__ import annotations

import attrs

from ...state.rpc.messages import ShardsRestored


@attrs.define
class RecoveryMetrics:
    """One start of the pipeline's queries from a checkpoint, or of one query in place, and what its time went into."""

    cause: str
    checkpoint: int | None
    """The checkpoint that state was restored from; None: none was, or it began empty."""
    in_place: bool
    """Whether queries went on where they stood, with the batch that was next; else they went on from the checkpoint."""
    begun_at: float
    """Seconds since 1970; the parts follow from there."""
    waiting: float = 0.0
    """Seconds before that, from the moment when the failure was noticed: the delay of the restart strategy, and
    attempts that failed. 0 for a start."""
    stopping: float = 0.0
    """Seconds to stop what was still running."""
    restoring: float = 0.0
    """Seconds to bring the queries' progress back and seed their directories."""
    starting: float = 0.0
    """Seconds for Spark to start the queries."""
    first_batch: float | None = None
    """Seconds from there to the first commit: Spark plans, hosts restore shards, the batch runs. None: not yet."""
    ahead: float = 0.0
    """Seconds in which shards were restored while no task waited for them: beside the other parts, not one of them."""
    files: float = 0.0
    """Seconds of the first batch in which files of the state were found or downloaded, and verified."""
    opening: float = 0.0
    """Seconds of the first batch in which RocksDB was opened. Shards are restored side by side: this is the longest
    that any task had to wait for its shards, and so is ``files``."""
    found_bytes: int = 0
    """Of the state's files, what was on the machines already."""
    downloaded_bytes: int = 0
    """Of the state's files, what came from the store."""

    @property
    def noticed_at(self) -> float:
        """When the failure was noticed, in seconds since 1970."""
        return self.begun_at - self.waiting

    def restored(self, shards: ShardsRestored) -> None:
        """Take word of shards that were restored in the first batch."""
        if shards.files + shards.opening > self.files + self.opening:
            self.files, self.opening = shards.files, shards.opening
        self.ahead = max(self.ahead, shards.ahead)
        self.found_bytes += shards.found_bytes
        self.downloaded_bytes += shards.downloaded_bytes

    @property
    def total(self) -> float | None:
        """Seconds from the beginning, or from the notice of the failure, to the first commit; None: not yet."""
        parts = self.waiting + self.stopping + self.restoring + self.starting
        return None if self.first_batch is None else parts + self.first_batch
