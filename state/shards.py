"""A shard, and where its state comes from: values that all parts of Chandy share."""

from __future__ import annotations

from typing import Final, NewType

import attrs

from ..storage.checkpoints.manifest import Handle
from ..storage.ids import BatchId, CheckpointId

Term = NewType("Term", int)
"""Numbers the owners of a shard. Every other owner gets a higher one, which fences the ones before."""
FIRST_TERM: Final = Term(1)
"""The term of a shard that has had one owner."""
NO_TERM: Final = Term(0)
"""The term of a shard that has no owner."""
CopyId = NewType("CopyId", int)
"""Names a copy of a shard that follows its owner: to move, or to stand by. No two copies of a pipeline share one."""


@attrs.frozen(order=True)
class ShardId:
    """One shard of one operator."""

    uid: str
    shard: int


@attrs.frozen
class RestoreSource:
    """What a shard's state is restored from."""

    root: str
    """URI of the store that the handle is relative to."""
    checkpoint: CheckpointId
    """Id of the checkpoint, which can be the base of the next; -1 for a savepoint, which cannot."""
    batch: BatchId
    """The last batch that the state contains."""
    handle: Handle


@attrs.frozen
class NotResumable:
    """A run of a query that the next one does not resume: it goes back to the checkpoint instead."""

    why: str
    """Without its subject, the query or its shard."""


@attrs.frozen
class ResumePoint:
    """Where a query resumes after its processes were killed. The changelogs of its shards lead there."""

    query_id: str
    """Spark's id of the query that was killed, by which its changelogs are found."""
    after: BatchId
    """The last batch in the checkpoint that its state started from; -1 if there was none."""
    batch: BatchId
    """The last batch that had committed. The query resumes with the next."""

    @property
    def needs_changelogs(self) -> bool:
        """Whether batches had committed since the checkpoint."""
        return self.batch > self.after
