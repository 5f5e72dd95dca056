"""What checkpoints need to know about the queries and their files. The answers come from the driver's disk."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from ...state.rpc.messages import BatchTimes
from ...storage.checkpoints.manifest import ChannelRecord, Manifest, OutputRecord
from ...storage.ids import BatchId, CheckpointId


class Progress(Protocol):
    """The queries, by their names."""

    def begun(self, query: str) -> BatchId:
        """The newest batch that Spark has begun; -1 if none."""
        ...

    def current_batch(self, query: str) -> BatchId | None:
        """The newest committed batch of a query that has ended; None while it runs."""
        ...

    def is_committed(self, query: str, batch: BatchId) -> bool:
        """Whether a batch has committed."""
        ...

    def times(self, query_id: str, batch: BatchId) -> BatchTimes:
        """When a planned batch of the query with this Spark id is."""
        ...

    def hold(self, query: str, batch: BatchId) -> AbstractContextManager[Mapping[str, Path]]:
        """Keep the files that restore the query's own progress right after a batch, by their names."""
        ...

    def close_epoch(self, query: str, checkpoint: CheckpointId, cut: BatchId) -> None:
        """Close off the query's output up to a cut. The calls come in the order of the cuts."""
        ...

    def pre_commit(self, query: str, checkpoint: CheckpointId) -> tuple[OutputRecord, ...]:
        """Return what a checkpoint's manifest says of the query's transactional sinks."""
        ...

    def channels(self, manifest: Manifest) -> tuple[ChannelRecord, ...]:
        """Return what was between the queries at a checkpoint that is about to complete. It reads nothing again."""
        ...

    def commit(self, query: str, checkpoint: CheckpointId) -> None:
        """Begin to publish what a completed checkpoint has; ``Published`` reports the end."""
        ...
