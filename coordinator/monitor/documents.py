"""What the HTTP API tells of a pipeline, as values: made of facts and statistics alone."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import attrs
from pyspark.sql import Row

from ...state.rpc.messages import DiskSpace
from ...state.rpc.metrics import OperatorMetrics
from ...storage.checkpoints.manifest import ChannelRecord, CheckpointKind
from ..checkpoint import Checkpoint
from ..protocol.life import LifePhase
from ..protocol.reasons import Reason
from ..protocol.statistics import (
    CheckpointStatistics,
    Counts,
    ShardStatistics,
    Statistics,
    Status,
    Summary,
)
from ..protocol.totals import PhaseSeconds
from ..recovery.metrics import RecoveryMetrics
from ..replica_status import ReplicaStatus
from ..verdict import ShadowVerdict
from ..version import __version__
from .facts import Facts, QueryFacts, Unpublished
from .health import troubles
from .state_sizes import OperatorSize

D = TypeVar("D")


def _like(document: type[D], value: object, **own: object) -> D:
    """Make a document whose fields are among the attributes of a value, besides some of its own."""
    # mypy does not know that the class is one of attrs'.
    names = {field.name for field in attrs.fields(document)} - own.keys()  # type: ignore[arg-type]
    return document(**own, **{name: getattr(value, name) for name in names})


@attrs.frozen(kw_only=True)
class Overview:
    """A pipeline at one moment. All times of documents are seconds since 1970, all durations seconds."""

    pipeline: str
    version: str
    """Of Chandy."""
    life: LifePhase | None
    """What it does under this driver; None: the storage alone was looked at."""
    because: str
    """Why it goes back, ends or has ended, in one line; empty if no error is the reason."""
    is_ready: bool
    troubles: tuple[str, ...]
    """Why it is not ready."""
    now: float
    began: float
    """When the driver took the pipeline over."""
    generation: int
    interval: float | None
    checkpoints_in_progress: int
    checkpoints_queued: int
    last_completed_at: float | None
    queries: Mapping[str, QueryFacts]
    operators: Mapping[str, OperatorSize]
    """By uid."""
    work: Mapping[str, OperatorMetrics]
    """What each operator has done since this driver leads, by uid."""
    channels: tuple[ChannelRecord, ...]
    """What was between its queries at the checkpoint that ``operators`` is of."""
    hosts: Mapping[str, int]
    """State hosts by machine."""
    disks: Mapping[str, DiskSpace]
    """Where they keep their files, by machine."""
    shards: Mapping[str, int]
    """Shards by the machine that has them."""
    shards_unassigned: int
    shards_moving: int
    shards_with_standby: int
    unpublished: Mapping[str, Unpublished]
    replicas: Mapping[str, ReplicaStatus]
    shadows: Mapping[str, ShadowVerdict]
    """What those have found that run its batches beside it, by name."""
    recoveries: Mapping[str, int]

    @classmethod
    def of(cls, pipeline: str, facts: Facts) -> Overview:
        """Describe a pipeline of which facts are known."""
        found = tuple(troubles(facts))
        own = {"pipeline": pipeline, "version": __version__, "is_ready": not found, "troubles": found}
        return _like(cls, facts, **own)


@attrs.frozen(kw_only=True)
class BriefCheckpoint:
    """A checkpoint without its shards."""

    id: int
    kind: CheckpointKind
    status: Status
    triggered_at: float
    completed_at: float | None
    """When it completed or failed."""
    duration: float | None
    size: int
    new_bytes: int
    reason: Reason | None
    """Why it failed."""
    phases: PhaseSeconds
    """How long it was in each phase; zeros while it is in progress."""

    @classmethod
    def of(cls, known: CheckpointStatistics) -> BriefCheckpoint:
        """Describe a checkpoint."""
        return _like(cls, known)


@attrs.frozen(kw_only=True)
class DriverCheckpoints:
    """The checkpoints of this life of a driver."""

    counts: Counts
    restored: int | None
    """The checkpoint that was restored last."""
    duration: Summary | None
    """Of the completed ones; so are the next two, in bytes."""
    size: Summary | None
    new_bytes: Summary | None
    latest_completed: BriefCheckpoint | None
    latest_failed: BriefCheckpoint | None
    history: tuple[BriefCheckpoint, ...]
    """Newest first."""

    @classmethod
    def of(cls, known: Statistics) -> DriverCheckpoints:
        """Describe the checkpoints."""

        def brief(one: CheckpointStatistics | None) -> BriefCheckpoint | None:
            return None if one is None else BriefCheckpoint.of(one)

        return _like(
            cls,
            known,
            latest_completed=brief(known.latest_completed),
            latest_failed=brief(known.latest_failed),
            history=tuple(map(BriefCheckpoint.of, known.checkpoints)),
        )


@attrs.frozen(kw_only=True)
class OperatorPart:
    """An operator's part in a checkpoint: its shards, the slowest of them, and the bytes of all."""

    start_delay: float
    sync: float
    async_: float
    size: int
    new_bytes: int
    shards: tuple[ShardStatistics, ...]

    @classmethod
    def of(cls, shards: Sequence[ShardStatistics]) -> OperatorPart:
        """Add up shards, at least one."""
        return cls(
            start_delay=max(one.start_delay for one in shards),
            sync=max(one.sync for one in shards),
            async_=max(one.async_ for one in shards),
            size=sum(one.bytes for one in shards),
            new_bytes=sum(one.new_bytes for one in shards),
            shards=tuple(sorted(shards, key=lambda one: one.shard)),
        )


@attrs.frozen(kw_only=True)
class CheckpointDetails:
    """A checkpoint with the parts of its operators, as far as the driver still knows them."""

    checkpoint: BriefCheckpoint
    operators: Mapping[str, OperatorPart]
    """By uid."""

    @classmethod
    def of(cls, known: CheckpointStatistics) -> CheckpointDetails:
        """Describe a checkpoint."""
        parts = {uid: OperatorPart.of(shards) for uid, shards in known.by_operator.items()}
        return cls(checkpoint=BriefCheckpoint.of(known), operators=parts)


@attrs.frozen(kw_only=True)
class Recovery:
    """One start or restart. ``total`` is from the detection of the failure to the first commit."""

    kind: str
    cause: str
    checkpoint: int | None
    begun_at: float
    waiting: float
    stopping: float
    restoring: float
    starting: float
    first_batch: float | None
    total: float | None
    found_bytes: int
    downloaded_bytes: int

    @classmethod
    def of(cls, known: RecoveryMetrics) -> Recovery:
        """Describe a recovery."""
        return _like(cls, known)


@attrs.frozen(kw_only=True)
class Taken:
    """A checkpoint or savepoint that was asked for, and has completed."""

    id: int
    kind: CheckpointKind
    uri: str
    duration: float
    size: int
    batches: Mapping[str, int]
    """The last batch of each query in it."""

    @classmethod
    def of(cls, taken: Checkpoint) -> Taken:
        """Describe a completed checkpoint."""
        return _like(cls, taken)


@attrs.frozen(kw_only=True)
class StateOfKey:
    """What a state has for a key. What JSON does not know is text: dates as Python writes them, bytes in base64."""

    operator: str
    key: Any
    value: Any
    """An object of a value state, a list of objects of a list state, a list of keys and values of a map state; null if
    there is nothing."""

    @classmethod
    def of(cls, operator: str, key: Any, value: Any) -> StateOfKey:
        """Describe what ``CheckpointCoordinator.get`` has returned."""
        return cls(operator=operator, key=key, value=_told(value))


def _told(value: Any) -> Any:
    """Return a value of a state as JSON has it."""
    if isinstance(value, Row):
        return {name: _told(one) for name, one in value.asDict().items()}
    if isinstance(value, Mapping):
        return [{"key": _told(one), "value": _told(other)} for one, other in value.items()]
    if isinstance(value, list | tuple):
        return [_told(one) for one in value]
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    # JSON has no NaN and no infinity.
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


@attrs.frozen(kw_only=True)
class Done:
    """What was ordered is done, or goes on."""

    says: str


@attrs.frozen(kw_only=True)
class Problem:
    """Why there is no other answer."""

    error: str
