"""The messages between task, state host and coordinator: plain values, sent as JSON.

A state host knows nothing about barriers. It follows orders, and sends every ``Message`` to the coordinator that gives
them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Generic, Protocol, TypeVar, get_args

import attrs

from ...storage.checkpoints.manifest import Handle, StateKind
from ...storage.errors import FailureCode
from ...storage.ids import BatchId, CheckpointId
from ..shards import FIRST_TERM, NO_TERM, CopyId, RestoreSource, ResumePoint, ShardId, Term
from .addresses import PortRange
from .orders import SnapshotOrder
from .tls import Identity


@attrs.frozen
class Endpoint:
    """What a task or a state host needs to reach the coordinator, and a host to start. Sent with every task."""

    address: str
    """Arrow Flight location of the coordinator, e.g. ``grpc://127.0.0.1:40001``."""
    token: str
    """Random secret of this coordinator process. Every call between task, host and coordinator presents it."""
    pipeline: str
    memory: int
    """Bytes of memory that one state host may use for state: RocksDB's caches and write buffers, recently used
    values, and changes that RocksDB does not have yet."""
    cache: str
    """Directory on each machine that caches files of snapshots by their SHA-256. It may not exist yet."""
    runtime: str
    """Directory on each machine where tasks find their state host. It may not exist yet."""
    changelogs: str | None = None
    """Directory where state hosts keep the changelogs of their shards, as long as the driver admits their runs. It may
    not exist yet. None: the driver is on another machine than some of them, or there are no changelogs."""
    host_changelogs: str | None = None
    """Directory on each machine where state hosts keep changelogs for each other. It may not exist yet. None: they keep
    none."""
    identity: Identity | None = None
    """What processes on other machines prove themselves with. None: all processes are on the coordinator's machine."""
    ports: PortRange | None = None
    """Where a state host may listen for processes on other machines. None: on any port."""
    versions: dict[str, str] = attrs.field(factory=dict)
    """The driver's versions, by package, of what must be the same on every executor; empty if there is one machine."""
    patience: float = 0.0
    """Seconds that a task waits for another owner of its shards when one is gone. 0: shards have no standbys."""


Reply = TypeVar("Reply")


class Message(Generic[Reply]):
    """What a state host sends its coordinator. ``Reply`` is the class of the answer; None for most messages."""

    __slots__ = ()


def reply_of(message: type[Message[Reply]]) -> type[Reply]:
    """Return the class of the answer to a class of messages."""
    (reply,) = get_args(message.__orig_bases__[0])  # type: ignore[attr-defined]
    found: type[Reply] = reply
    return found


# --- task -> state host -------------------------------------------------------------------------------------


@attrs.frozen
class BeginTask:
    """A task is about to run an operator over some shards in a batch."""

    query_id: str
    """Spark's id of the query. A query that went back to a checkpoint has a new one."""
    batch: BatchId
    uid: str
    shards: tuple[int, ...]
    terms: dict[int, Term] = attrs.field(factory=dict)
    """The terms in which they began; a shard that is not here is in its first. A host refuses any other."""


@attrs.frozen
class OpenShards:
    """Open these shards of an operator now, because tasks will need them soon."""

    query_id: str
    uid: str
    shards: tuple[int, ...]


@attrs.frozen
class BatchTimes:
    """When a batch is, and what it reads. Every attempt has the same: Spark logs it before the batch runs."""

    timestamp_ms: int = 0
    """Processing time: when Spark planned the batch, in milliseconds since 1970."""
    watermark_ms: int = 0
    """Event time: no row up to here is expected any more, and timers up to here are due. 0: no watermark yet."""
    late_ms: int = 0
    """Rows of event time up to here are late: the watermark of the batch before."""
    offsets: str = ""
    """From where to where its sources are read, as ``offset_log.read_between`` has it; empty if that is not known."""

    def lagging(self, by_ms: int) -> BatchTimes:
        """Return the times for an operator to which rows may come that are later than the query's watermark.

        As in Spark, no watermark is before 1970 for that.
        """
        if not by_ms:
            return self
        watermark, late = (max(0, ms - by_ms) for ms in (self.watermark_ms, self.late_ms))
        return attrs.evolve(self, watermark_ms=watermark, late_ms=late)


@attrs.frozen
class Begun:
    """The shards are ready for the batch, except those that another host owns."""

    elsewhere: dict[int, str] = attrs.field(factory=dict)
    """Address of the owner by shard. The task begins these shards there."""
    times: BatchTimes = BatchTimes()
    fresh: tuple[int, ...] = ()
    """Shards that no batch has ever been applied to."""
    terms: dict[int, Term] = attrs.field(factory=dict)
    """The terms of shards that are not in their first."""


@attrs.frozen
class TaskFailure(Message[None]):
    """A processor raised. The coordinator is told so that the user sees the traceback once."""

    query_id: str
    batch: BatchId
    uid: str
    key: str
    """The key as text, or the method that was called; empty if neither is known."""
    summary: str
    """The exception and where it was raised, in one line."""
    traceback: str


@attrs.frozen
class ReadValues:
    """A request for the values of an operator's keys after a committed batch, while the query runs."""

    query_id: str
    uid: str
    keys: tuple[str, ...]
    """In hexadecimal. Those of lists and maps are the keys of their headers."""
    committed: BatchId
    """The last batch that is known to have committed."""
    kind: StateKind = StateKind.VALUE
    """Of the state that the keys are of."""


@attrs.frozen
class AskMetrics:
    """A request for the ``OperatorMetrics`` of an operator."""

    query_id: str
    uid: str


@attrs.frozen
class AskBatches:
    """A request for the ``RecentMetrics`` of an operator."""

    query_id: str
    uid: str


@attrs.frozen
class Values:
    """The values that a host's shards have, each shard's as of one batch."""

    entries: dict[str, str]
    """By key, both in hexadecimal. Lists and maps come with all their parts. A key is missing if no shard here has
    it."""


# --- state host -> coordinator ------------------------------------------------------------------------------


@attrs.frozen
class HostHello:
    """A state host has started on an executor."""

    host: str
    """Random id of this process."""
    address: str
    """Arrow Flight location where tasks of its place reach it: a Unix socket."""
    machine: str
    """What people call its machine: see ``machine_name``."""
    executor: str
    """What identifies the executor: see ``executor_identity``."""
    pid: int
    pid_of: str = ""
    """Where the process id means this process: see ``machine_id``."""
    place: str = ""
    """What it shares with all processes that can use its Unix socket."""
    network: str | None = None
    """Arrow Flight location where all others reach it; None if there are no others."""
    spark_executor: str | None = None
    """Spark's id of the executor; None if nobody knows, as in local mode."""
    changelogs: str | None = None
    """What all hosts have in common that can read each other's changelogs; None: it keeps none for others."""

    def address_from(self, place: str) -> str:
        """Return where a process at a place reaches this host."""
        return self.address if self.network is None or place == self.place else self.network


@attrs.frozen
class AskHost:
    """A question to a state host: which one it is."""


@attrs.frozen
class HostName:
    """The id of a state host."""

    host: str


@attrs.frozen
class DiskSpace:
    """The file system that a state host keeps its files on."""

    free: int
    """Bytes that the host can still write."""
    size: int
    """Bytes in all."""


@attrs.frozen
class HostPulse(Message[None]):
    """A state host lives: its threads run and its disk answers."""

    host: str
    disk: DiskSpace | None
    """None if the disk does not say."""


@attrs.frozen
class BatchAnswer:
    """The orders ahead of a batch. The answer for a host and batch never changes."""

    orders: tuple[SnapshotOrder, ...] = ()
    times: BatchTimes = BatchTimes()


@attrs.frozen
class AskBatch(Message[BatchAnswer]):
    """A request for the orders ahead of a batch. A host sends one per batch and query."""

    host: str
    query_id: str
    batch: BatchId


@attrs.frozen
class ClaimAnswer:
    """Which shards the host owns now."""

    granted: dict[int, RestoreSource | None] = attrs.field(factory=dict)
    """By shard what its state is restored from; None if it starts empty."""
    elsewhere: dict[int, str] = attrs.field(factory=dict)
    """By shard the address of the host that owns it."""
    resume_point: ResumePoint | None = None
    """What the changelogs of the granted shards lead to from there. None: changelogs are not used."""
    kept: tuple[int, ...] = ()
    """The shards that the host has set aside, and serves as they are."""
    terms: dict[int, Term] = attrs.field(factory=dict)
    """The terms of granted shards that are not in their first."""


@attrs.frozen
class ClaimShards(Message[ClaimAnswer]):
    """A host wants to own shards that it does not have."""

    host: str
    query_id: str
    uid: str
    shards: tuple[int, ...]
    aside: dict[int, Term] = attrs.field(factory=dict)
    """The shards that it has set aside in a move, and the term in which it could serve each as it is."""


@attrs.frozen
class ShardNotOpened(Message[None]):
    """A host could not open a shard that it had claimed, and gives it up."""

    host: str
    query_id: str
    shard: ShardId
    why: str
    code: FailureCode | None = None
    """What it means for the pipeline; None: nothing that is known."""


@attrs.frozen
class ShardsRestored(Message[None]):
    """The shards that a host claimed together are open, or were given up."""

    host: str
    query_id: str
    uid: str
    ahead: float
    """Seconds from the claim until a task waited for one of them."""
    files: float
    """Seconds that a task then waited for files to be found, downloaded and verified."""
    opening: float
    """Seconds that it waited for RocksDB to open. The wait is divided in proportion to the time of both parts."""
    found_bytes: int
    """Size of the files that the machine had already."""
    downloaded_bytes: int
    """Size of the files that came from the store."""
    read: tuple[int, ...] = ()
    """The shards that were restored from bytes that were all read, and verified, in the store."""


@attrs.frozen
class ShardSnapshot:
    """One shard's durable part of a checkpoint."""

    shard: ShardId
    handle: Handle
    new_bytes: int
    """Bytes that were written for this checkpoint."""
    start_delay: float
    """Seconds from the trigger to the start of the synchronous part, by the clocks of driver and host."""
    sync_seconds: float
    async_seconds: float
    term: Term = FIRST_TERM
    """The term in which its host had the shard."""
    entries: int = attrs.field(kw_only=True)
    """About how many entries its RocksDB has."""


@attrs.frozen
class Ack(Message[None]):
    """The snapshots of all shards that an order named are durable."""

    host: str
    checkpoint: CheckpointId
    query_id: str
    snapshots: tuple[ShardSnapshot, ...]


@attrs.frozen
class Decline(Message[None]):
    """A host cannot carry out a snapshot order."""

    host: str
    checkpoint: CheckpointId
    query_id: str
    error: str


class CopyStep(StrEnum):
    """How far the host that a shard moves to has come."""

    OPENED = "opened"
    """It follows the owner. A standby is in sync."""
    TAKEN = "taken"
    """It has all that the owner had."""
    FAILED = "failed"


@attrs.frozen
class CopyReport(Message[None]):
    """The host that a shard moves to, or that is to have its standby, says how far it is."""

    host: str
    copy_id: CopyId
    step: CopyStep
    term: Term = NO_TERM
    """The term of the order to take over."""
    why: str = ""
    """Why it failed."""


@attrs.frozen
class DropStandby(Message[None]):
    """The owner of a shard asks for consent to go on without its standby, which has missed something."""

    host: str
    query_id: str
    shard: ShardId
    term: Term
    """The term of the owner."""
    copy_id: CopyId


# --- state host -> state host -------------------------------------------------------------------------------


@attrs.frozen
class ShardStandby:
    """A copy of a shard on another machine, which has all that its owner has."""

    copy_id: CopyId
    """It is the standby of one owner in one term."""
    address: str
    """Arrow Flight location of its host."""


@attrs.frozen
class HandOver:
    """A request for the batches of a shard that is about to move, or to get a standby."""

    query_id: str
    shard: ShardId
    term: Term
    """The term of the owner, which refuses any other."""
    after: BatchId
    """The last batch that is known already."""
    cut: BatchId | None = None
    """The batch after which the owner serves the shard no more; None if it goes on."""
    standby: ShardStandby | None = None
    """The host that gets, from now on, what tasks stage on the shard; None if no host does."""


@attrs.frozen
class Forwarded:
    """What a standby needs to know of what a task has staged on its shard."""

    copy_id: CopyId
    position: BatchId
    """The last batch that was part of the owner's state."""


@attrs.frozen
class Forward:
    """What an attempt at a batch has staged on shards, for their standbys on one host. The changes come as rows."""

    query_id: str
    uid: str
    batch: BatchId
    shards: dict[int, Forwarded]
    rows: int
    """How many come. If its sender is killed, a stream ends early, and that looks like its end."""


class Control(Protocol):
    """What a state host needs from the coordinator."""

    def send(self, message: Message[Reply]) -> Reply:
        """Send a message, and return the answer to it.

        Raises:
            ChandyError: what the coordinator raised, for instance because the run of a query is over.
        """
        ...
