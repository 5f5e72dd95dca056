"""Shards that get to another host, through a checkpoint: what moves, standbys and the shards of lost hosts share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import ClassVar, Final

import attrs

from ...state.rpc.messages import CopyReport, CopyStep, HostHello
from ...state.rpc.orders import OpenAhead
from ...state.shards import NO_TERM, CopyId, RestoreSource, ShardId, Term
from ...storage.ids import CheckpointId
from .errors import PhaseError
from .instructions import Send
from .query_state import QueryState, StoredCheckpoint

MOVES_AT_A_TIME: Final = 2
"""How many shards of a pipeline move at a time, as in Kafka Streams (KIP-441): what moves takes disk and network from
the batches that run meanwhile. Of standbys, so many are restored at a time."""
HAND_OVER_SECONDS: Final = 5.0
"""How long a batch waits for a shard to get another owner before that is given up."""


class CopyPhase(StrEnum):
    """How far a move is, a standby, or the shard of a lost host. ``NEXT`` says which phases may follow each."""

    PLANNED = "waits for a checkpoint"
    """It waits for the next checkpoint."""
    STORING = "is in a checkpoint"
    """A checkpoint takes the snapshot that it is restored from."""
    STORED = "waits for its turn"
    """That checkpoint has completed."""
    OPENING = "is restored ahead"
    """Its host restores it, and follows the owner."""
    READY = "waits for the end of a batch"
    """It has what the owner has. A move waits for the end of a batch, a standby for the end of its owner."""
    LOST = "waits for a host on its machine"
    """Its owner is lost, and what that had is on the disk of the machine (``reopenings``). The life of a copy begins
    here, or with ``PLANNED``."""
    HANDING_OVER = "is handed over"
    """Its host takes the rest over, in a term of its own."""


NEXT: Final[Mapping[CopyPhase, frozenset[CopyPhase]]] = {
    CopyPhase.PLANNED: frozenset({CopyPhase.STORING}),
    # The checkpoint may be aborted.
    CopyPhase.STORING: frozenset({CopyPhase.STORED, CopyPhase.PLANNED}),
    CopyPhase.STORED: frozenset({CopyPhase.OPENING}),
    CopyPhase.OPENING: frozenset({CopyPhase.READY}),
    CopyPhase.READY: frozenset({CopyPhase.HANDING_OVER}),
    CopyPhase.LOST: frozenset({CopyPhase.HANDING_OVER}),
    CopyPhase.HANDING_OVER: frozenset(),
}
"""The phases that may follow each. A copy may be given up in any of them; after the last one it is the shard."""


@attrs.define
class ShardCopy:
    """One shard on its way. A standby is one that stays where it is ready, until its owner is gone. Of a lost host, it
    is the shard that another one opens again."""

    id: CopyId
    query: str
    shard: ShardId
    owner: str
    """Id of the host that has it, or had it before it was lost."""
    target: str
    """Id of the host that it goes to; empty in the phase ``LOST``."""
    phase: CopyPhase = CopyPhase.PLANNED
    checkpoint: CheckpointId | None = None
    """The checkpoint that it goes through."""
    source: RestoreSource | None = None
    term: Term = NO_TERM
    """The term in which the target will have it, once it is handed over."""
    deadline: float | None = None

    def enter(self, phase: CopyPhase, deadline: float | None = None) -> None:
        """Go to the next phase.

        Args:
            deadline: when it is given up in this phase; None: never.

        Raises:
            PhaseError: the phase cannot follow; nothing has changed.
        """
        if phase not in NEXT[self.phase]:
            raise PhaseError(f"copy {self.id} of a shard", self.phase, phase)
        self.phase, self.deadline = phase, deadline


@attrs.define
class CopyIds:
    """Gives ids that no copy had before."""

    last: int = 0

    def next(self) -> CopyId:
        """Return another one."""
        self.last += 1
        return CopyId(self.last)


@attrs.define
class Copies:
    """The copies of a pipeline's shards, up to the point where each follows its owner."""

    are_standbys: ClassVar[bool] = False
    active: ClassVar[frozenset[CopyPhase]] = frozenset()
    """The phases in which one takes a place from others."""
    ids: CopyIds = attrs.field(factory=CopyIds, kw_only=True)
    """No two copies of a pipeline have an id in common: hosts know them by it."""
    under_way: dict[CopyId, ShardCopy] = attrs.field(factory=dict, init=False)

    def of(self, query: str, *phases: CopyPhase) -> list[ShardCopy]:
        """Return those of a query's shards, those in some phases only."""
        return [
            one
            for one in self.under_way.values()
            if one.query == query and (one.phase in phases or not phases)
        ]

    def holds(self, query: str) -> bool:
        """Whether a query's next batch and its snapshots wait for a shard that is being handed over."""
        return bool(self.of(query, CopyPhase.HANDING_OVER))

    def next_deadline(self) -> float | None:
        """When one is given up unless something happens."""
        return min(
            (one.deadline for one in self.under_way.values() if one.deadline is not None), default=None
        )

    def add(self, query: str, shard: ShardId, owner: str, target: str) -> None:
        """Plan one."""
        copy_id = self.ids.next()
        self.under_way[copy_id] = ShardCopy(copy_id, query, shard, owner, target)

    def follow(self, query: str, checkpoint: CheckpointId) -> tuple[ShardId, ...]:
        """Return the shards whose owners must keep what follows the snapshots of a checkpoint."""
        planned = self.of(query, CopyPhase.PLANNED)
        for one in planned:
            one.enter(CopyPhase.STORING)
            one.checkpoint = checkpoint
        return tuple(one.shard for one in planned)

    def not_stored(self, checkpoint: CheckpointId) -> None:
        """Wait for the next checkpoint: this one was aborted."""
        for one in self.under_way.values():
            if one.phase is CopyPhase.STORING and one.checkpoint == checkpoint:
                one.enter(CopyPhase.PLANNED)
                one.checkpoint = None

    def stored(self, stored: StoredCheckpoint) -> None:
        """Let shards that a completed checkpoint has wait for their turn, and the others for the next one.

        A checkpoint has nothing of an operator that no batch has reached yet.
        """
        for one in self.under_way.values():
            if one.phase is CopyPhase.STORING and one.checkpoint == stored.manifest.id:
                one.source = stored.source(one.query, one.shard)
                if one.source is None:
                    one.checkpoint = None
                one.enter(CopyPhase.PLANNED if one.source is None else CopyPhase.STORED)

    def open(
        self, queries: Mapping[str, QueryState], hosts: Mapping[str, HostHello], until: float
    ) -> Iterator[Send]:
        """Have targets restore what waits for its turn, as far as there are places."""
        places = MOVES_AT_A_TIME - sum(one.phase in self.active for one in self.under_way.values())
        waiting = [one for one in self.under_way.values() if one.phase is CopyPhase.STORED]
        for one in waiting[: max(0, places)]:
            assert one.source is not None
            one.enter(CopyPhase.OPENING, until)
            query, owner, target = queries[one.query], hosts[one.owner], hosts[one.target]
            term = query.assignment.owner_term(one.shard)
            back = target.address_from(owner.place) if self.are_standbys else None
            address = owner.address_from(target.place)
            order = OpenAhead(one.id, query.query_id, one.shard, one.source, address, term, back)
            yield Send(one.target, order)

    def opened(self, report: CopyReport) -> ShardCopy | None:
        """Record that a target follows the owner."""
        one = self._reported(report, CopyPhase.OPENING)
        if one is not None:
            one.enter(CopyPhase.READY)
        return one

    def handed_over(self, report: CopyReport) -> ShardCopy | None:
        """Return what has ended with its target as the owner; None if it was given up before."""
        one = self._reported(report, CopyPhase.HANDING_OVER)
        if one is None or report.term != one.term:
            return None
        return self.under_way.pop(one.id)

    def pop(self, which: Callable[[ShardCopy], bool]) -> list[ShardCopy]:
        """End some, and return them."""
        ended = [one for one in self.under_way.values() if which(one)]
        for one in ended:
            del self.under_way[one.id]
        return ended

    def _reported(self, report: CopyReport, phase: CopyPhase) -> ShardCopy | None:
        one = self.under_way.get(report.copy_id)
        if (
            one is None
            or one.target != report.host
            or one.phase is not phase
            or report.step is CopyStep.FAILED
        ):
            return None
        return one
