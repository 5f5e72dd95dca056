"""One pending checkpoint: its phases, from its trigger to its one outcome, and what it still waits for."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator

import attrs

from ...state.rpc.messages import ShardSnapshot
from ...state.rpc.orders import SnapshotOrder
from ...state.shards import ShardId
from ...storage.checkpoints.manifest import CheckpointKind, Handle, Manifest, OperatorRecord, QueryRecord
from ...storage.ids import BatchId, CheckpointId
from .errors import PhaseError
from .reasons import Reason
from .requests import Request
from .totals import PhaseSeconds


class CheckpointPhase(enum.StrEnum):
    """The phase that a checkpoint is in. ``PHASES`` says what each allows."""

    PLANNING = "planning"
    """The cut is being chosen, query by query."""
    COLLECTING = "collecting"
    """All barriers are placed; acknowledgements come in."""
    FINALIZING = "finalizing"
    """All participants have acknowledged; the manifest is being written."""
    OVERDUE = "overdue"
    """The manifest is still being written, but the time is up: the request has failed."""
    COMPLETED = "completed"
    """The manifest is durable."""
    ABORTED = "aborted"
    """Nothing of it is ever restored."""


@attrs.frozen
class PhaseRules:
    """What a phase allows."""

    next: frozenset[CheckpointPhase] = frozenset()
    """The phases that may follow it."""
    revocable: bool = False
    """Whether a failure, a timeout, a decline or a stop aborts the checkpoint. Not once its manifest may be durable:
    then only the result of the write decides, and a timeout fails the request alone."""


PHASES = {
    CheckpointPhase.PLANNING: PhaseRules(
        frozenset({CheckpointPhase.COLLECTING, CheckpointPhase.ABORTED}), revocable=True
    ),
    CheckpointPhase.COLLECTING: PhaseRules(
        frozenset({CheckpointPhase.FINALIZING, CheckpointPhase.ABORTED}), revocable=True
    ),
    CheckpointPhase.FINALIZING: PhaseRules(
        frozenset({CheckpointPhase.COMPLETED, CheckpointPhase.ABORTED, CheckpointPhase.OVERDUE})
    ),
    CheckpointPhase.OVERDUE: PhaseRules(frozenset({CheckpointPhase.COMPLETED, CheckpointPhase.ABORTED})),
    CheckpointPhase.COMPLETED: PhaseRules(),
    CheckpointPhase.ABORTED: PhaseRules(),
}


class AckResult(enum.StrEnum):
    """The result of an acknowledgement."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    """It was acknowledged before. The first acknowledgement counts, and its files are the same."""
    UNKNOWN = "unknown"
    """Its sender takes no part in this checkpoint."""
    FENCED = "fenced"
    """Its sender had the shard in an older term."""


@attrs.define
class _Part:
    """What a checkpoint has of one query, and what it still waits for."""

    cut: BatchId
    wanted: set[ShardId] | None = None
    """Shards that have not acknowledged; None until the cut has committed, because only then are they known."""
    progress: QueryRecord | None = None
    orders: dict[str, SnapshotOrder] = attrs.field(factory=dict)
    """The order for each host that takes part."""
    operators: tuple[OperatorRecord, ...] = ()
    """The operators whose state the shards are: as they were at the cut, whatever becomes of the query since."""


@attrs.define
class PendingCheckpoint:
    """A checkpoint that was triggered and has no outcome yet."""

    id: CheckpointId
    request: Request
    root: str
    """URI of the store that it is written to."""
    base: CheckpointId | None
    """The completed checkpoint that it is an increment to; None if it is full."""
    triggered_at: float
    deadline: float
    phase: CheckpointPhase = CheckpointPhase.PLANNING
    entered: dict[CheckpointPhase, float] = attrs.field(factory=dict)
    """When it came into each phase after the first one, in seconds on the clock of ``triggered_at``."""
    reason: Reason | None = None
    """Why it was aborted."""
    parts: dict[str, _Part] = attrs.field(factory=dict)
    """By query."""
    handles: dict[ShardId, Handle | None] = attrs.field(factory=dict)
    """What has been acknowledged; None if the shard holds nothing."""
    snapshots: list[tuple[ShardSnapshot, float]] = attrs.field(factory=list)
    """What hosts have acknowledged, and when."""
    new_bytes: int = 0
    doomed: set[str] = attrs.field(factory=set)
    """Objects that retention has been deleting while this checkpoint was pending."""

    @property
    def kind(self) -> CheckpointKind:
        """Why it was taken."""
        return self.request.kind

    @property
    def is_savepoint(self) -> bool:
        """Whether it is self-contained and apart from the chain of checkpoints."""
        return self.request.is_savepoint

    @property
    def is_revocable(self) -> bool:
        """Whether a failure, a timeout, a decline or a stop aborts it now."""
        return PHASES[self.phase].revocable

    @property
    def is_awaited(self) -> bool:
        """Whether its request has no outcome yet."""
        return self.phase is not CheckpointPhase.OVERDUE

    def acknowledged_keys(self) -> Iterator[str]:
        """Yield the objects of the pipeline's store that it has acknowledgements of; a savepoint has its own store."""
        if not self.is_savepoint:
            for handle in self.handles.values():
                yield from (file.key for file in (handle.files if handle else ()))

    def enter(self, to: CheckpointPhase, now: float, reason: Reason | None = None) -> None:
        """Go to the next phase.

        Args:
            to: the phase.
            now: seconds on the clock of ``triggered_at``.
            reason: why it is aborted.

        Raises:
            PhaseError: the phase cannot follow; nothing has changed.
        """
        # A savepoint is its user's, whatever completes before it.
        is_wrong = reason is Reason.SUBSUMED and self.is_savepoint
        if (
            is_wrong
            or to not in PHASES[self.phase].next
            or (to is CheckpointPhase.FINALIZING and not self.is_fully_acknowledged)
        ):
            raise PhaseError(f"checkpoint {self.id}", self.phase, to, tuple(self.missing()))
        self.phase, self.reason = to, reason
        self.entered[to] = now

    def seconds(self, now: float) -> PhaseSeconds:
        """Return how long it has been in each phase."""
        planned = self.entered.get(CheckpointPhase.COLLECTING, now)
        collected = self.entered.get(CheckpointPhase.FINALIZING, now)
        return PhaseSeconds(planned - self.triggered_at, collected - planned, now - collected)

    def cut_at(self, query: str, batch: BatchId) -> None:
        """Fix a query's part of the cut."""
        self.parts[query] = _Part(batch)

    def expect(
        self,
        query: str,
        shards: Iterable[ShardId],
        orders: dict[str, SnapshotOrder],
        operators: tuple[OperatorRecord, ...],
    ) -> None:
        """Fix, once the query's cut has committed, which shards must acknowledge and by which orders."""
        part = self.parts[query]
        if part.wanted is None:
            part.wanted = set(shards)
            part.orders = orders
            part.operators = operators

    def has_committed(self, query: str) -> bool:
        """Whether the query's cut is known to have committed."""
        return self.parts[query].wanted is not None

    def acknowledge_shard(
        self, query: str, shard: ShardId, handle: Handle | None, new_bytes: int = 0
    ) -> AckResult:
        """Record that the snapshot of a shard is durable."""
        part = self.parts.get(query)
        if shard in self.handles:
            return AckResult.DUPLICATE
        if part is None or part.wanted is None or shard not in part.wanted:
            return AckResult.UNKNOWN
        part.wanted.remove(shard)
        self.handles[shard] = handle
        self.new_bytes += new_bytes
        return AckResult.ACCEPTED

    def waits_for(self, query: str, shard: ShardId) -> bool:
        """Whether a shard's host has been told to take its snapshot, and has not acknowledged."""
        part = self.parts.get(query)
        return part is not None and part.wanted is not None and shard in part.wanted

    def acknowledge_query(self, progress: QueryRecord, new_bytes: int) -> AckResult:
        """Record that a query's progress at the cut is durable."""
        part = self.parts.get(progress.name)
        if part is None or part.cut != progress.batch:
            return AckResult.UNKNOWN
        if part.progress is not None:
            return AckResult.DUPLICATE
        part.progress = progress
        self.new_bytes += new_bytes
        return AckResult.ACCEPTED

    def missing(self) -> Iterator[str]:
        """Describe what has not acknowledged yet."""
        for query, part in self.parts.items():
            if part.wanted is None:
                yield f"the commit of batch {part.cut} of query {query!r}"
                continue
            if part.progress is None:
                yield f"the progress of query {query!r}"
            for shard in sorted(part.wanted):
                yield f"shard {shard.shard} of operator {shard.uid!r}"

    @property
    def is_fully_acknowledged(self) -> bool:
        """Whether nothing is missing."""
        # Runs at every acknowledgement: describing what is missing would take longer than all else.
        return self.phase is not CheckpointPhase.PLANNING and all(
            part.progress is not None and part.wanted is not None and not part.wanted
            for part in self.parts.values()
        )

    def manifest(
        self,
        *,
        pipeline: str,
        generation: int,
        completed_at: float,
        versions: dict[str, str],
        unverified: bool = False,
    ) -> Manifest:
        """Return the manifest, once all participants have acknowledged.

        Args:
            pipeline: name of the pipeline.
            generation: the coordinator life that completes it.
            completed_at: seconds since 1970.
            versions: versions of what writes it.
            unverified: whether it may hold bytes that nobody has read since they were restored.

        Raises:
            PhaseError: something is missing.
        """
        if self.phase not in (CheckpointPhase.FINALIZING, CheckpointPhase.OVERDUE):
            raise PhaseError(
                f"checkpoint {self.id}", self.phase, CheckpointPhase.COMPLETED, tuple(self.missing())
            )
        return Manifest(
            id=self.id,
            kind=self.kind,
            pipeline=pipeline,
            generation=generation,
            triggered_at=self.triggered_at,
            completed_at=completed_at,
            queries=tuple(part.progress for part in self.parts.values() if part.progress is not None),
            operators=tuple(
                attrs.evolve(
                    operator,
                    shards=tuple(
                        self.handles.get(ShardId(operator.uid, n)) for n in range(len(operator.shards))
                    ),
                )
                for part in self.parts.values()
                for operator in part.operators
            ),
            new_bytes=self.new_bytes,
            versions=versions,
            unverified=unverified,
        )
