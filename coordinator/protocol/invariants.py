"""What always holds of the checkpoint protocol between two events, whatever has happened.

Tests check it after every event, and ``CHANDY_CHECK_INVARIANTS=1`` has the coordinator do so. An invariant that
does not hold is a bug of Chandy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from .copies import Copies, CopyPhase, ShardCopy
from .decisions import CheckpointsFailed
from .errors import InvariantBrokenError
from .events import Answer, Event
from .instructions import Decided
from .pending import PHASES, CheckpointPhase
from .reopenings import Reopenings
from .standbys import Standbys
from .state_machine import Outcome, PipelineStateMachine


class CheckedStateMachine(PipelineStateMachine):
    """A state machine that checks its invariants after every event, and fails the pipeline if one does not hold."""

    def handle(self, event: Event[Answer], now: float) -> Outcome[Answer]:
        """Handle an event as ``PipelineStateMachine`` does."""
        outcome = super().handle(event, now)
        if not (broken := broken_invariants(self)):
            return outcome
        # The other instructions are carried out all the same: somebody may wait for what they answer.
        failed = CheckpointsFailed(InvariantBrokenError(type(event).__name__, tuple(broken)))
        decided = super().handle(failed, now)
        follows = (*outcome.instructions, *decided.instructions, Decided(failed, decided.answer))
        return Outcome(outcome.answer, follows)


def broken_invariants(state: PipelineStateMachine) -> list[str]:
    """Return a sentence for each invariant that does not hold; empty if all hold."""
    return [
        *_members(state),
        *_queries(state),
        *_checkpoints(state),
        *_admission(state),
        *_moves(state),
    ]


def _members(state: PipelineStateMachine) -> Iterator[str]:
    members = state.members
    if twice := _twice(hello.executor for hello in members.hosts.values()):
        yield f"executors have two state hosts: {twice}"
    for host in members.dismissed:
        if host in members.hosts:
            yield f"dismissed host {host} is a member"


def _queries(state: PipelineStateMachine) -> Iterator[str]:
    pending = state.checkpoints.pending
    for query in state.queries.values():
        if query.gate.passed < query.started_after:
            yield f"query {query.name!r} stands at {query.gate.passed}, before it has started"
        for barrier in query.gate.barriers:
            checkpoint = pending.get(barrier.checkpoint)
            if checkpoint is None or query.name not in checkpoint.parts:
                yield f"query {query.name!r} has a barrier of checkpoint {barrier.checkpoint}, which is over"
        owned = [shard for shards in query.assignment.by_owner().values() for shard in shards]
        if unknown := set(owned) - set(query.assignment.shards):
            yield f"query {query.name!r} has no such shards, but hosts own them: {sorted(unknown)}"


def _checkpoints(state: PipelineStateMachine) -> Iterator[str]:
    checkpoints, limits = state.checkpoints, state.limits
    pending = checkpoints.pending.values()
    if (planning := sum(one.phase is CheckpointPhase.PLANNING for one in pending)) > 1:
        yield f"{planning} checkpoints are being planned at once"
    if (running := sum(not one.is_savepoint for one in pending)) > limits.max_concurrent:
        yield f"{running} checkpoints are pending, and {limits.max_concurrent} may be"
    latest = checkpoints.retained.latest
    for id, one in checkpoints.pending.items():
        if id != one.id or id >= checkpoints.next_id:
            yield f"pending checkpoint {one.id} is kept as {id}, and the next is {checkpoints.next_id}"
        if not PHASES[one.phase].next:
            yield f"pending checkpoint {id} is {one.phase}"
        if (
            one.phase in (CheckpointPhase.FINALIZING, CheckpointPhase.OVERDUE)
            and not one.is_fully_acknowledged
        ):
            yield f"checkpoint {id} is {one.phase}, but misses {', '.join(one.missing())}"
        if one.base is not None and not checkpoints.retained.may_exist(one.base):
            yield f"the base of pending checkpoint {id}, {one.base}, has been dropped"
        if latest is not None and not one.is_savepoint and id < latest.id:
            yield f"checkpoint {id} is pending although {latest.id} has completed"
        if one.is_revocable and not state.life.takes_checkpoints:
            yield f"checkpoint {id} is {one.phase} although no checkpoint may run"


def _admission(state: PipelineStateMachine) -> Iterator[str]:
    admission = state.admission
    if len(admission.queue) > state.limits.max_queued:
        yield f"{len(admission.queue)} requests wait"
    if state.life.is_over and (len(admission.queue) or admission.schedule.next_at is not None):
        yield "requests wait, or are scheduled, although the coordinator is closed"
    if not state.life.takes_checkpoints and any(request.is_final for request in admission.queue):
        yield "the request of a stop waits for a pipeline that goes back"


def _moves(state: PipelineStateMachine) -> Iterator[str]:
    for copies in state.placement.copies:
        what = type(copies).__name__
        if twice := _twice((one.query, one.shard) for one in copies.under_way.values()):
            yield f"shards have two {what}: {twice}"
        for one in copies.under_way.values():
            for wrong in _wrong(state, copies, one):
                yield f"{one} {wrong}"
    if twice := _twice(id for copies in state.placement.copies for id in copies.under_way):
        yield f"two copies have the same number: {twice}"


def _wrong(state: PipelineStateMachine, copies: Copies, one: ShardCopy) -> Iterator[str]:
    if (query := state.queries.get(one.query)) is None:
        yield "belongs to no query"
        return
    if one.owner == one.target:
        yield "has its owner as its target"
    if one.phase is CopyPhase.LOST:
        if one.target:
            yield "has a target before there is one"
    elif one.target not in state.members.hosts:
        yield "has a target that is gone"
    is_promotion = isinstance(copies, Standbys) and one.phase is CopyPhase.HANDING_OVER
    is_without_owner = is_promotion or isinstance(copies, Reopenings)
    owned = query.assignment.by_owner().get(one.owner, ())
    if is_without_owner is (one.owner in state.members.hosts):
        yield "has an owner that is there, or one that is gone"
    if one.shard not in owned:
        yield "has an owner without the shard"
    if one.phase is CopyPhase.STORING and one.checkpoint not in state.checkpoints.pending:
        yield "waits for a checkpoint that is not pending"
    if one.phase is CopyPhase.PLANNED and one.checkpoint is not None:
        yield "is in a checkpoint before it waits for it"
    if one.phase in (CopyPhase.LOST, CopyPhase.HANDING_OVER):
        if one.deadline is None:
            yield "gets another owner without a deadline"
        if one.phase is CopyPhase.HANDING_OVER and one.term <= query.assignment.owner_term(one.shard):
            yield "is handed over without a new term"
        if state.checkpoints.is_awaited(one.query, one.shard):
            yield "gets another owner while a checkpoint waits for its snapshot"


def _twice(values: Iterator[object]) -> list[object]:
    return [value for value, times in Counter(values).items() if times > 1]
