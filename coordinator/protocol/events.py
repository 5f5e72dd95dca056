"""What can happen to the checkpoint protocol: values that ``PipelineStateMachine.handle`` takes.

An event carries all that the protocol needs of the world, random numbers too; the time comes with it. So the same
events at the same times always lead to the same instructions and the same state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias, TypeVar

import attrs

from ...state.rpc.messages import Ack, AskBatch, BatchAnswer, HostHello, Message
from ...state.shards import RestoreSource, ResumePoint, ShardId
from ...storage.checkpoints.manifest import CheckpointKind, Handle, Manifest, OperatorRecord, QueryRecord
from ...storage.ids import BatchId, CheckpointId
from .acts import Act, ActKind
from .pending import AckResult
from .reasons import Reason
from .requests import Request
from .user_requests import UserRequest

Answer = TypeVar("Answer")
Event: TypeAlias = Message
"""Something that has happened. Its type parameter is what its sender is told: None for most events. The message of a
state host is an event, unless the host is told something else than the state machine answers."""


# --- queries and hosts --------------------------------------------------------------------------------------


@attrs.frozen
class QueryAdded(Event[None]):
    """A query is about to start after ``batch``, for the first time or again from a checkpoint."""

    name: str
    query_id: str
    """Spark's id of the run; a query that went back to a checkpoint has a new one."""
    batch: BatchId
    operators: tuple[OperatorRecord, ...]
    sources: Mapping[ShardId, RestoreSource]
    """Where the state of its shards comes from; a shard that is not here starts empty."""
    restored: tuple[OperatorRecord, ...] = ()
    """Its operators as they were after ``batch``, without those that did not exist then."""
    reads: tuple[str, ...] = ()
    """The queries whose output it reads."""
    resume_point: ResumePoint | None = None
    """What its changelogs add to the sources; None: nothing."""
    progress: RestoreSource | None = None
    """Its own files in the restored checkpoint, if the restore has not read all of them."""


@attrs.frozen
class QueryRemoved(Event[None]):
    """A query could not be started after all."""

    query: str


@attrs.frozen
class QueryStopped(Event[None]):
    """A query has stopped after ``batch``: no later batch that was planned will commit now."""

    query: str
    batch: BatchId


@attrs.frozen
class HostJoined(Event[None]):
    """A state host has connected."""

    hello: HostHello


@attrs.frozen
class HostLeft(Event[None]):
    """A state host is gone."""

    hello: HostHello
    """What it reported when it joined."""
    is_silent: bool = False
    """Whether it was given up because it does not answer. If not, its connection has ended, as with a process."""


@attrs.frozen
class DrainRequested(Event[UserRequest]):
    """A user wants a machine to have no shards from now on, as long as it may have state hosts. The answer is the
    request."""

    machine: str
    seconds: float = math.inf
    """How long it may take."""


@attrs.frozen
class ActRequested(Event[Act]):
    """A user asks for something that a thread of its own carries out. The answer has the request."""

    kind: ActKind
    name: str
    """Of the replica that it is about; of the pipeline if it is about none."""


@attrs.frozen
class ActEnded(Event[None]):
    """What a user has asked for is carried out no longer."""

    number: int
    """Of the act."""
    error: BaseException | None
    """What has ended it; None: it is done."""


@attrs.frozen
class ExecutorsLeaving(Event[None]):
    """Spark decommissions executors: their state hosts are to have no shards from now on."""

    executors: frozenset[str]
    """Spark's ids of them."""


@attrs.frozen
class ExecutorsGone(Event[None]):
    """Executors are gone: no state host starts beside them any more."""

    executors: frozenset[str]
    """Spark's ids of them."""


# --- requests and time --------------------------------------------------------------------------------------


@attrs.frozen
class CheckpointRequested(Event[Request]):
    """A user has asked for a checkpoint. The answer is the request, whose outcome an instruction will name."""

    kind: CheckpointKind
    target: str | None = None
    """URI to write it to; None: the pipeline's own store."""
    is_final: bool = False
    """Whether a stop waits for it."""


@attrs.frozen
class ScheduleStarted(Event[None]):
    """Periodic checkpoints may start. Nothing changes if they have started already."""

    chance: float
    """A random number from 0 to below 1, which decides the first delay."""


@attrs.frozen
class BacklogChanged(Event[None]):
    """The pipeline has fallen behind its sources, or has caught up with them."""

    is_behind: bool


@attrs.frozen
class Tick(Event[None]):
    """Time has passed."""


# --- planning and batches -----------------------------------------------------------------------------------


@attrs.frozen
class CutChosen(Event[None]):
    """The newest batch of a query was looked up for a checkpoint that is being planned."""

    checkpoint: CheckpointId
    query: str
    planned: BatchId
    """The newest batch that Spark has planned."""
    current_batch: BatchId | None = None
    """The newest committed batch of a query that has stopped; None while it runs."""


@attrs.frozen
class PlanningDone(Event[None]):
    """Every query of a checkpoint has its cut."""

    checkpoint: CheckpointId


@attrs.frozen
class BatchAsked(Event[BatchAnswer | None]):
    """A state host asks which barriers are ahead of a batch. None: a shard is being handed over; ask again then."""

    ask: AskBatch


@attrs.frozen
class ShardsRead(Event[None]):
    """The sources of shards were read in the store, byte for byte, and are as they were written."""

    query_id: str
    shards: tuple[ShardId, ...]


@attrs.frozen
class SourcesReadBack(Event[None]):
    """The driver has read what nobody had read of what a query was restored from."""

    query_id: str
    whole: bool
    """Whether every byte is as it was written; False: it is damaged, or could not be read."""


@attrs.frozen
class BatchCommitted(Event[None]):
    """A batch of a query has committed."""

    query: str
    batch: BatchId


# --- participants -------------------------------------------------------------------------------------------


@attrs.frozen
class Acked(Event[tuple[AckResult, ...]]):
    """The snapshots of shards are durable. The answer has the result for each shard."""

    ack: Ack


@attrs.frozen
class ProgressStored(Event[None]):
    """A query's progress at the cut is durable."""

    checkpoint: CheckpointId
    progress: QueryRecord
    new_bytes: int


@attrs.frozen
class ShardsCopied(Event[None]):
    """Shards that no batch had touched are durable in the checkpoint's own store."""

    checkpoint: CheckpointId
    query: str
    handles: Mapping[ShardId, Handle]
    new_bytes: int


@attrs.frozen
class InstructionFailed(Event[None]):
    """The driver could not carry out an instruction for a checkpoint. It is too late once all have acknowledged."""

    checkpoint: CheckpointId
    reason: Reason
    detail: str


# --- outcomes -----------------------------------------------------------------------------------------------


@attrs.frozen
class Finalized(Event[None]):
    """The manifest of a checkpoint is durable."""

    manifest: Manifest


@attrs.frozen
class Published(Event[None]):
    """The sinks of a query have published everything up to a completed checkpoint."""

    checkpoint: CheckpointId
    query: str


@attrs.frozen
class NotFinalized(Event[None]):
    """The manifest of a checkpoint was not written, or nobody can tell."""

    manifest: Manifest
    reason: Reason
    detail: str
    is_known: bool = True
    """Whether it is sure that the manifest was not written."""


@attrs.frozen
class Discarded(Event[None]):
    """Checkpoints that retention dropped have been deleted, or could not be."""

    checkpoints: tuple[CheckpointId, ...]
    """The ids of all that one instruction names."""
    remaining: tuple[Manifest, ...]
    """The checkpoints among them that are still there: a reader needs them, or the store did not delete them."""


# --- life cycle ---------------------------------------------------------------------------------------------


@attrs.frozen
class PipelineRestored(Event[None]):
    """The pipeline is restored: its queries are those of a checkpoint now."""

    checkpoint: CheckpointId | None
    """Id of the checkpoint; None if the pipeline starts from the beginning."""


@attrs.frozen
class Released(Event[None]):
    """Runs of queries are over for good."""

    query_ids: tuple[str, ...]
