"""What the checkpoint protocol wants done: values that the state machine returns and the executor carries out."""

from __future__ import annotations

import attrs

from ...state.rpc.orders import Order
from ...state.shards import RestoreSource, ShardId
from ...storage.checkpoints.manifest import Handle, Manifest
from ...storage.ids import BatchId, CheckpointId
from .decisions import CheckpointsFailed, Decision, HostLost
from .errors import CheckpointError
from .requests import Request
from .statistics import CheckpointStatistics


@attrs.frozen
class ChooseCut:
    """Look up each query's newest batch, in this order, and report each as ``CutChosen``; then ``PlanningDone``."""

    checkpoint: CheckpointId
    queries: tuple[str, ...]
    root: str
    is_savepoint: bool


@attrs.frozen
class Send:
    """Send an order to a state host."""

    host: str
    order: Order


@attrs.frozen
class StoreProgress:
    """Store the files of a query's progress at the cut, then report ``ProgressStored``."""

    checkpoint: CheckpointId
    query: str
    cut: BatchId
    root: str
    base: Handle | None


@attrs.frozen
class CopyShards:
    """Copy the files of shards that no batch has touched since the restore, then report ``ShardsCopied``."""

    checkpoint: CheckpointId
    query: str
    sources: tuple[tuple[ShardId, RestoreSource], ...]
    root: str


@attrs.frozen
class Finalize:
    """Write the manifest of a checkpoint that all have acknowledged; report ``Finalized`` or ``NotFinalized``."""

    checkpoint: CheckpointId
    root: str


@attrs.frozen
class ReadBack:
    """Read every byte of what a query was restored from and nobody has read, then report ``SourcesReadBack``."""

    query_id: str
    sources: tuple[RestoreSource, ...]


@attrs.frozen
class Publish:
    """Have the sinks of queries publish what a completed checkpoint has; report ``Published`` for each query."""

    checkpoint: CheckpointId
    queries: tuple[str, ...]


@attrs.frozen
class Resolve:
    """Give the request its checkpoint."""

    request: Request
    manifest: Manifest
    root: str


@attrs.frozen
class Reject:
    """Fail the request."""

    request: Request
    error: CheckpointError = attrs.field(eq=str)


@attrs.frozen
class Discard:
    """Delete checkpoints that retention has dropped, then report ``Discarded``.

    What they share with others is no part of it: while it is carried out, more may be dropped.
    """

    dropped: tuple[Manifest, ...]


@attrs.frozen
class DiscardAborted:
    """Delete what was written only for a checkpoint that will never complete."""

    checkpoint: CheckpointId
    root: str
    is_savepoint: bool


@attrs.frozen
class Decided:
    """Carry out what was decided about something that the protocol has noticed by itself."""

    noticed: HostLost | CheckpointsFailed
    decision: Decision


@attrs.frozen
class ReplaceHost:
    """Say that a host is lost, that others are about to take its shards over, and that no query restarts."""

    why: str
    promoted: tuple[ShardId, ...]
    """The shards whose standbys take their place."""
    reopened: tuple[ShardId, ...]
    """The shards that another host on the machine is to open from the lost one's changelogs."""


@attrs.frozen
class StandbysInSync:
    """Say that all shards have standbys in sync: the loss of a host would take no state along."""

    shards: int


@attrs.frozen
class ReportStatistics:
    """Tell what a checkpoint that has ended took."""

    statistics: CheckpointStatistics


@attrs.frozen
class ReportStatisticsFailure:
    """Log that a checkpoint could not be counted. It goes on as if it had been."""

    error: Exception = attrs.field(eq=str)


Instruction = (
    ChooseCut
    | Send
    | StoreProgress
    | CopyShards
    | Finalize
    | ReadBack
    | Publish
    | Resolve
    | Reject
    | Discard
    | DiscardAborted
    | Decided
    | ReplaceHost
    | StandbysInSync
    | ReportStatistics
    | ReportStatisticsFailure
)
