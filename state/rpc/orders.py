"""The orders of the coordinator to a state host: plain values, sent as JSON on one stream.

A state host knows nothing about barriers. It does what it is told.
"""

from __future__ import annotations

import attrs

from ...storage.ids import BatchId, CheckpointId
from ..shards import CopyId, RestoreSource, ShardId, Term


@attrs.frozen
class SnapshotOrder:
    """Snapshot the state of these shards after batch ``cut``, which has committed.

    An order may come with the answer for a batch, by itself, or both. It is carried out once.
    """

    checkpoint: CheckpointId
    query: str
    query_id: str
    cut: BatchId
    shards: tuple[ShardId, ...]
    """The shards to snapshot, all on this host. Never empty."""
    root: str
    """URI of the store to write to: the pipeline's own or the savepoint's."""
    base: CheckpointId | None
    """The completed checkpoint whose files need not be uploaded again. None: upload all."""
    triggered_at: float
    """Seconds since 1970, the driver's clock."""
    seconds_left: float
    """How long the checkpoint has left when the order is given. Store requests are not retried beyond it. It is a
    duration because the clocks of two machines differ."""
    is_savepoint: bool = False
    """Whether the order is for a savepoint, which is self-contained and has a store of its own."""
    follow: tuple[ShardId, ...] = ()
    """Shards that are about to move: keep the batches that follow the snapshot, until another host has them."""


@attrs.frozen
class CompleteOrder:
    """A checkpoint has completed."""

    checkpoint: CheckpointId


@attrs.frozen
class AbortOrder:
    """A checkpoint was aborted: delete its snapshots."""

    checkpoint: CheckpointId
    latest: CheckpointId | None
    """The latest completed checkpoint."""


@attrs.frozen
class ReleaseOrder:
    """The query with this Spark id will not run again: close and delete its shards."""

    query_id: str


@attrs.frozen
class OpenAhead:
    """Another host's shard is about to move here: restore it from a checkpoint, and follow its owner."""

    copy_id: CopyId
    query_id: str
    shard: ShardId
    source: RestoreSource
    owner: str
    """Arrow Flight location of the host that has the shard."""
    owner_term: Term
    """The term of that host."""
    standby_at: str | None = None
    """Where that host reaches this one, as whose standby the shard stays here. None: the shard moves here."""


@attrs.frozen
class TakeOver:
    """Take the rest of a shard over from its owner, which is between two batches."""

    copy_id: CopyId
    cut: BatchId
    """The batch after which the shard moves. It has committed, and the next one waits."""
    term: Term
    """The term in which the shard would be served here."""


@attrs.frozen
class Promote:
    """The owner of a shard is gone: its standby here is to be the shard from now on."""

    copy_id: CopyId
    cut: BatchId
    """The newest batch that is known to have committed. What is staged after it stays staged."""
    term: Term
    """The term in which the shard would be served here."""


@attrs.frozen
class Reopen:
    """A state host of this machine is lost: open its shard from a checkpoint and its changelog, and be the owner."""

    copy_id: CopyId
    query_id: str
    shard: ShardId
    source: RestoreSource | None
    """The checkpoint; None: the shard was empty."""
    after: BatchId
    """The last batch in it."""
    lost: str
    """Id of the lost host."""
    cut: BatchId
    """The newest batch that is known to have committed. What is staged after it stays staged."""
    begun: BatchId
    """The newest batch that has begun."""
    term: Term
    """The term in which the shard would be served here."""


@attrs.frozen
class EndStandby:
    """A standby, or what would open a lost shard, has ended: its owner sends it nothing, and its host deletes it."""

    query_id: str
    shard: ShardId
    copy_id: CopyId


@attrs.frozen
class ConfirmOwner:
    """A move is over, or was given up: who has set the shard aside keeps it in this term, or deletes it."""

    query_id: str
    shard: ShardId
    owner: str
    """Id of the host that has the shard now."""
    term: Term


@attrs.frozen
class StopHost:
    """The coordinator stops, or goes on without this host: end the process."""

    is_replaced: bool = False
    """Whether another host of the machine may open its shards from its changelogs: leave them there."""


@attrs.frozen
class Heartbeat:
    """The coordinator is alive."""


Order = (
    SnapshotOrder
    | CompleteOrder
    | AbortOrder
    | ReleaseOrder
    | OpenAhead
    | TakeOver
    | Promote
    | Reopen
    | EndStandby
    | ConfirmOwner
    | StopHost
    | Heartbeat
)
