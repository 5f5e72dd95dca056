"""What task, state host and coordinator say to each other: plain values, sent as JSON.

A state host knows nothing of barriers. It is given orders; whoever gives them implements ``Control``.
"""

from __future__ import annotations

from typing import Protocol

import attrs

from ...storage.manifest import Handle


@attrs.frozen(order=True)
class ShardId:
    """One shard of one operator."""

    uid: str
    shard: int


@attrs.frozen
class Endpoint:
    """Where the coordinator listens, and what a state host must be told to reach it. Travels with every task."""

    address: str
    """Arrow Flight location of the coordinator, e.g. ``grpc://127.0.0.1:40001``."""
    token: str
    """Random secret of this coordinator life; task, host and coordinator present it to each other."""
    pipeline: str
    memory: int
    """Bytes of memory that one state host may use for state: RocksDB's caches and write buffers, values that
    were used lately, and changes that wait for a checkpoint."""
    cache: str
    """Directory on each machine where files of snapshots are kept by their SHA-256; may not exist yet."""
    runtime: str
    """Directory on each machine where tasks and state hosts meet; may not exist yet."""
    changelogs: str | None = None
    """Directory where state hosts keep the changelogs of their shards; may not exist yet. None: they keep none."""


# --- task -> state host -------------------------------------------------------------------------------------


@attrs.frozen
class BeginTask:
    """A task is about to run an operator over some shards in a batch."""

    query_id: str
    """Spark's id of the query: a query that went back to a checkpoint has a new one."""
    batch: int
    uid: str
    shards: tuple[int, ...]


@attrs.frozen
class OpenShards:
    """Tasks are about to begin with these shards of an operator: open them ahead."""

    query_id: str
    uid: str
    shards: tuple[int, ...]


@attrs.frozen
class BatchTimes:
    """When a batch is. The same for every attempt at it, for Spark logs it before the batch runs."""

    timestamp_ms: int = 0
    """Processing time: when Spark planned the batch, in milliseconds since 1970."""
    watermark_ms: int = 0
    """Event time: no row up to here is expected any more; timers up to here are due. 0: there is no watermark yet."""
    late_ms: int = 0
    """Rows of event time up to here are late: the watermark of the batch before."""


@attrs.frozen
class Begun:
    """The shards are ready for the batch, apart from those that another host owns."""

    elsewhere: dict[int, str] = attrs.field(factory=dict)
    """Address of the owner by shard; the task begins these there."""
    times: BatchTimes = BatchTimes()
    fresh: tuple[int, ...] = ()
    """Shards that no batch has been applied to, in all their history."""


@attrs.frozen
class TaskFailure:
    """A processor raised: told to the coordinator so that the user sees the traceback once."""

    query_id: str
    batch: int
    uid: str
    key: str
    """The key as text."""
    traceback: str


@attrs.frozen
class ReadValues:
    """What do these keys of an operator have, as of a batch that has committed? Asked while the query runs."""

    query_id: str
    uid: str
    keys: tuple[str, ...]
    """In hexadecimal."""
    committed: int
    """The last batch of which it is known that it has committed."""


@attrs.frozen
class AskAccount:
    """What have the tasks of an operator spent their time on? Answered with ``OperatorMetrics``."""

    query_id: str
    uid: str


@attrs.frozen
class Values:
    """What a host's shards have."""

    values: tuple[str | None, ...]
    """For each key that was asked, in hexadecimal; None if none of the operator's shards here has it."""


# --- coordinator -> state host ------------------------------------------------------------------------------


@attrs.frozen
class SnapshotOrder:
    """Snapshot these shards of a query as they are after batch ``cut``, which has committed.

    It comes with the answer to "begin batch" or by itself, whichever is first; the second is ignored.
    """

    checkpoint: int
    query: str
    query_id: str
    cut: int
    shards: tuple[ShardId, ...]
    """The shards of this host that must acknowledge; never empty."""
    root: str
    """URI of the store to write into: the pipeline's own, or the savepoint's."""
    base: int | None
    """The completed checkpoint whose files need not be uploaded again; None: upload all."""
    triggered_at: float
    """Seconds since 1970, the driver's clock."""
    seconds_left: float
    """How long the checkpoint has left when the order is given: what the store cannot do by then is given up. A
    duration, for the clocks of two machines differ."""
    is_savepoint: bool = False
    """Whether it is for a savepoint, which is self-contained and in a store of its own."""


@attrs.frozen
class CompleteOrder:
    """A checkpoint has completed."""

    checkpoint: int


@attrs.frozen
class AbortOrder:
    """A checkpoint was aborted: forget its snapshots."""

    checkpoint: int
    latest: int | None
    """The latest completed checkpoint."""


@attrs.frozen
class ReleaseOrder:
    """The query with this Spark id is over for good: close and delete its shards."""

    query_id: str


@attrs.frozen
class StopOrder:
    """The coordinator is stopping: end the process."""


@attrs.frozen
class Heartbeat:
    """Nothing to do; the coordinator lives."""


Order = SnapshotOrder | CompleteOrder | AbortOrder | ReleaseOrder | StopOrder | Heartbeat

# --- state host -> coordinator ------------------------------------------------------------------------------


@attrs.frozen
class HostHello:
    """A state host has started on an executor."""

    host: str
    """Random id of this process's life."""
    address: str
    """Arrow Flight location where tasks reach it."""
    machine: str
    executor: str
    """What tells this executor from others: its machine and the real path of its root directory."""
    pid: int


@attrs.frozen
class AskBatch:
    """What stands ahead of this batch? Asked once a batch and query."""

    host: str
    query_id: str
    batch: int


@attrs.frozen
class BatchAnswer:
    """The orders ahead of a batch. For one host and batch the answer never changes."""

    orders: tuple[SnapshotOrder, ...] = ()
    times: BatchTimes = BatchTimes()


@attrs.frozen
class ClaimShards:
    """A host wants to own shards that it does not have."""

    host: str
    query_id: str
    uid: str
    shards: tuple[int, ...]


@attrs.frozen
class RestoreSource:
    """Where a shard's state is to come from."""

    root: str
    """URI of the store that the handle is relative to."""
    checkpoint: int
    """Id of the checkpoint, which can be the base of an increment; -1 for a savepoint, which cannot."""
    batch: int
    """The last batch that the state contains."""
    handle: Handle


@attrs.frozen
class ResumePoint:
    """Where a query stood whose processes were killed, and that the changelogs of its shards lead to."""

    query_id: str
    """Spark's id of the query then, by which its changelogs are found."""
    after: int
    """The last batch that the checkpoint contains that its state grew from; -1 if there was none."""
    batch: int
    """The last batch that had committed: the query goes on with the next."""

    @property
    def needs_changelogs(self) -> bool:
        """Whether batches had committed since the checkpoint."""
        return self.batch > self.after


@attrs.frozen
class ClaimAnswer:
    """Which shards the host owns now."""

    granted: dict[int, RestoreSource | None] = attrs.field(factory=dict)
    """By shard where its state comes from; None: it starts empty."""
    elsewhere: dict[int, str] = attrs.field(factory=dict)
    """By shard the address of the host that owns it."""
    resume_point: ResumePoint | None = None
    """What the changelogs of shards that are granted lead to, on top of where their state comes from; None: nothing."""


@attrs.frozen
class ShardsRestored:
    """The shards that a host claimed together are open."""

    host: str
    query_id: str
    ahead: float
    """Seconds from the claim during which no task waited for them."""
    files: float
    """Seconds that a task waited until they were open: what went into finding, downloading and verifying files."""
    opening: float
    """And what went into opening RocksDB. Shards are restored side by side: their time is shared out as theirs is."""
    found_bytes: int
    """Of files that the machine had already."""
    downloaded_bytes: int
    """Of files that came from the store."""
    failure: str | None = None
    """Why one of them is not open after all; None: all are."""


@attrs.frozen
class ShardSnapshot:
    """One shard's part of a checkpoint, durable."""

    shard: ShardId
    handle: Handle
    new_bytes: int
    """Bytes of it that were written for this checkpoint."""
    start_delay: float
    """Seconds from the trigger to the start of the synchronous part (two clocks: driver and host)."""
    sync_seconds: float
    async_seconds: float


@attrs.frozen
class Ack:
    """All shards that an order named are durable."""

    host: str
    checkpoint: int
    query_id: str
    snapshots: tuple[ShardSnapshot, ...]


@attrs.frozen
class Decline:
    """A host cannot carry out a snapshot order."""

    host: str
    checkpoint: int
    query_id: str
    error: str


class Control(Protocol):
    """What a state host needs from above. Errors it raises travel to the host as text."""

    def ask(self, ask: AskBatch) -> BatchAnswer:
        """Answer "begin batch"; refuses a query id that is not the query's current one."""
        ...

    def claim(self, claim: ClaimShards) -> ClaimAnswer:
        """Make the host the owner of shards that nobody owns."""
        ...

    def restored(self, restored: ShardsRestored) -> None:
        """Take word of how shards were restored."""
        ...

    def ack(self, ack: Ack) -> None:
        """Take an acknowledgement."""
        ...

    def decline(self, decline: Decline) -> None:
        """Take a refusal."""
        ...

    def report(self, failure: TaskFailure) -> None:
        """Take word of a processor that raised."""
        ...
