"""Bugs in the decisions of protocol, recovery and state hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import attrs
import pytest

from chandy.barrier.barrier import Barrier
from chandy.barrier.gate import Gate
from chandy.coordinator.execution import checkpoint_jobs
from chandy.coordinator.execution.commit import commit_steps
from chandy.coordinator.protocol import events
from chandy.coordinator.protocol.admission import Admission
from chandy.coordinator.protocol.checkpoints import Checkpoints
from chandy.coordinator.protocol.copies import CopyPhase
from chandy.coordinator.protocol.failover import Failover
from chandy.coordinator.protocol.moves import Moves
from chandy.coordinator.protocol.pending import AckResult, PendingCheckpoint
from chandy.coordinator.protocol.placement import Placement
from chandy.coordinator.protocol.query_state import Queries, QueryState
from chandy.coordinator.protocol.reasons import Reason
from chandy.coordinator.protocol.reopenings import Reopenings
from chandy.coordinator.protocol.shard_assignment import ShardAssignment
from chandy.coordinator.protocol.state_machine import PipelineStateMachine
from chandy.state.errors import ShardRefusedError
from chandy.state.host.batches import ShardBatches, StagedChanges
from chandy.state.host.forwarding import Forwarding
from chandy.state.host.shard_key import ShardKey
from chandy.state.host.snapshot_bases import SnapshotBases, StoredBase
from chandy.state.host.snapshot_orders import AcceptedOrder, SnapshotOrders
from chandy.state.rpc.messages import (
    Decline,
)
from chandy.state.rpc.orders import SnapshotOrder
from chandy.state.shards import ShardId
from chandy.storage.checkpoints import collect
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.manifest import Handle
from chandy.storage.checkpoints.proof import FenceProof
from chandy.storage.checkpoints.retention import deletable
from chandy.storage.ids import BatchId, CheckpointId
from chandy.storage.store import Store

from ...mutation import mutate
from .bug import WORLDS, Bug, tests


def count_an_acknowledgement_twice(patch: pytest.MonkeyPatch) -> None:
    """It is counted how many have acknowledged, not who."""
    right = PendingCheckpoint.acknowledge_shard

    def acknowledge(
        pending: PendingCheckpoint, query: str, shard: ShardId, handle: Handle | None, new_bytes: int = 0
    ) -> AckResult:
        result = right(pending, query, shard, handle, new_bytes)
        wanted = pending.parts[query].wanted if query in pending.parts else None
        if result is AckResult.DUPLICATE and wanted:
            wanted.pop()
        return result

    patch.setattr(PendingCheckpoint, "acknowledge_shard", acknowledge)


def apply_a_batch_twice(patch: pytest.MonkeyPatch) -> None:
    """A batch that begins again finds what its first attempt has done."""

    def begin(batches: ShardBatches[Any], batch: BatchId) -> None:
        batches._promote(batch)
        batches.begun = batch

    patch.setattr(ShardBatches, "begin", begin)
    patch.setattr(ShardBatches, "check_current", lambda batches, batch: None)


def apply_what_a_left_over_attempt_has_made(patch: pytest.MonkeyPatch) -> None:
    """A batch that a snapshot has applied is staged once more."""

    def check_current(batches: ShardBatches[Any], batch: int) -> None:
        if batch != batches.begun:
            raise ShardRefusedError("another batch has begun", str(batches.begun), str(batch))

    patch.setattr(ShardBatches, "check_current", check_current)


def snapshot_a_shard_before_the_staged_batch(patch: pytest.MonkeyPatch) -> None:
    """A batch that is staged is left out of a snapshot, although it has committed."""
    patch.setattr(ShardBatches, "cut", lambda batches, batch: None)


def leave_out_a_shard_of_an_order(patch: pytest.MonkeyPatch) -> None:
    """A host acknowledges one shard and takes that for the whole order."""
    right = SnapshotOrders.accept

    def accept(orders: SnapshotOrders, order: SnapshotOrder) -> AcceptedOrder:
        return right(orders, attrs.evolve(order, shards=order.shards[:1]))

    patch.setattr(SnapshotOrders, "accept", accept)


def build_on_whatever_was_stored_last(patch: pytest.MonkeyPatch) -> None:
    """A shard's newest snapshot is its base, whether its checkpoint has completed or not."""

    def base(bases: SnapshotBases, shard: ShardKey, order: SnapshotOrder) -> Handle | None:
        stored: Mapping[int, StoredBase] = bases._stored.get(shard, {})
        return stored[max(stored)].handle if stored else None

    patch.setattr(SnapshotBases, "base", base)
    patch.setattr(SnapshotBases, "abort", lambda bases, checkpoint: None)


def place_a_barrier_before_a_batch_that_has_passed(patch: pytest.MonkeyPatch) -> None:
    """What was planned when it was looked at is taken for the cut, whatever has passed the gate since."""

    def place(gate: Gate, checkpoint: CheckpointId, planned: BatchId) -> Barrier:
        return gate.place_at(checkpoint, BatchId(planned - 1))

    patch.setattr(Gate, "place", place)


def change_the_answer_for_a_batch(patch: pytest.MonkeyPatch) -> None:
    """Whoever asks again for a batch is told of the barriers that were placed since, too."""

    def passes(gate: Gate, batch: BatchId) -> tuple[Barrier, ...]:
        gate.passed = max(gate.passed, BatchId(batch - 1))
        return tuple(b for b in gate._barriers if b.is_ahead_of(batch))

    patch.setattr(Gate, "passes", passes)
    patch.setattr(Gate, "place", lambda gate, checkpoint, planned: gate.place_at(checkpoint, gate.passed))


def cut_upstream_first(patch: pytest.MonkeyPatch) -> None:
    right = Queries.downstream_first
    patch.setattr(Queries, "downstream_first", lambda queries: right(queries)[::-1])


def delete_what_others_need(patch: pytest.MonkeyPatch) -> None:
    """Retention deletes all objects of a dropped checkpoint."""
    right = deletable
    patch.setattr(collect, "deletable", lambda dropped, kept: right(dropped, ()))


def announce_before_the_manifest_is_durable(patch: pytest.MonkeyPatch) -> None:
    right = commit_steps

    def stop_early(*given: Any) -> Iterator[None]:
        next(right(*given))
        yield

    patch.setattr(checkpoint_jobs, "commit_steps", stop_early)


def never_look_for_a_successor(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Catalog, "check_not_fenced", lambda catalog, generation: None)


def delete_a_successors_objects(patch: pytest.MonkeyPatch) -> None:
    """What an aborted checkpoint has left is deleted without a look at whose it is."""

    def discard_aborted(store: Store, checkpoint: int, proof: FenceProof) -> None:
        for key in store.list(f"checkpoints/{checkpoint}/"):
            store.delete(key)

    patch.setattr(checkpoint_jobs, "discard_aborted", discard_aborted)


def abort_a_checkpoint_whose_manifest_is_being_written(patch: pytest.MonkeyPatch) -> None:
    def decline(checkpoints: Checkpoints, decline: Decline, now: float) -> None:
        if (pending := checkpoints.pending.get(decline.checkpoint)) is not None:
            checkpoints._abort(pending, Reason.DECLINED, decline.error, now)

    patch.setattr(Checkpoints, "decline", decline)


def use_ids_again(patch: pytest.MonkeyPatch) -> None:
    right = Checkpoints._abort

    def abort(checkpoints: Checkpoints, pending: PendingCheckpoint, *why: Any, **how: Any) -> None:
        right(checkpoints, pending, *why, **how)
        checkpoints.next_id = pending.id

    patch.setattr(Checkpoints, "_abort", abort)


def forget_a_request_that_waits(patch: pytest.MonkeyPatch) -> None:
    """Nothing starts when a checkpoint was aborted."""
    patch.setattr(Checkpoints, "_trigger", lambda checkpoints, request, now: None)


def keep_on_restarting_in_place(patch: pytest.MonkeyPatch) -> None:
    """Lost state is no reason to go back."""
    patch.setattr(Failover, "_lose", lambda machine, why, with_host: None)


def take_checkpoints_while_going_back(patch: pytest.MonkeyPatch) -> None:
    """Checkpoints of the state that is given up go on."""
    right = "self.checkpoints.abort_all(Reason.JOB_FAILOVER, life.because, now)"
    mutate(patch, PipelineStateMachine, "_live", right, "pass")


def abort_whatever_fails_late(patch: pytest.MonkeyPatch) -> None:
    """A failure aborts a checkpoint although its manifest is being written."""

    def failed(
        checkpoints: Checkpoints, checkpoint: CheckpointId, reason: Reason, detail: str, now: float
    ) -> None:
        if (pending := checkpoints.pending.get(checkpoint)) is not None:
            checkpoints._abort(pending, reason, detail, now)

    patch.setattr(Checkpoints, "failed", failed)


def wait_for_a_manifest_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint does not expire while its manifest is being written."""
    right = Checkpoints._expire

    def expire(checkpoints: Checkpoints, pending: PendingCheckpoint, now: float) -> None:
        if pending.is_revocable:
            right(checkpoints, pending, now)

    patch.setattr(Checkpoints, "_expire", expire)


def wait_for_a_place_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A request does not expire before its checkpoint has begun."""
    patch.setattr(Admission, "_waits_until", lambda admission, request: 1e12)


def abort_an_overdue_checkpoint(patch: pytest.MonkeyPatch) -> None:
    """What takes too long is given up and deleted, although its manifest may appear."""
    right = Checkpoints._expire

    def expire(checkpoints: Checkpoints, pending: PendingCheckpoint, now: float) -> None:
        if pending.is_revocable:
            right(checkpoints, pending, now)
        else:
            checkpoints._abort(pending, Reason.EXPIRED, "", now)

    patch.setattr(Checkpoints, "_expire", expire)


def delete_what_a_manifest_may_name(patch: pytest.MonkeyPatch) -> None:
    """That nobody knows whether a manifest was written is taken for that it was not."""
    right = Checkpoints.not_finalized

    def not_finalized(checkpoints: Checkpoints, event: events.NotFinalized, now: float) -> None:
        right(checkpoints, attrs.evolve(event, is_known=True), now)

    patch.setattr(Checkpoints, "not_finalized", not_finalized)


def forget_the_batch_before_the_move(patch: pytest.MonkeyPatch) -> None:
    """What is staged when a shard is sealed is not handed over, although it has committed."""
    patch.setattr(ShardBatches, "seal", lambda batches, batch: None)


def have_two_owners_in_one_term(patch: pytest.MonkeyPatch) -> None:
    """The term does not rise."""
    patch.setattr(
        ShardAssignment, "raise_term", lambda assignment, shard: assignment._terms.setdefault(shard, 1)
    )


def snapshot_shards_that_are_being_handed_over(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint and a move do not exclude each other."""
    patch.setattr(Checkpoints, "is_awaited", lambda checkpoints, query, shard: False)


def begin_a_batch_while_a_shard_is_handed_over(patch: pytest.MonkeyPatch) -> None:
    """Neither batches nor snapshots wait for the end of a move."""
    patch.setattr(Moves, "holds", lambda moves, query: False)


def count_the_acknowledgement_of_a_zombie(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardAssignment, "is_owner", lambda assignment, shard, host, term: True)


def promote_a_standby_that_has_missed_something(patch: pytest.MonkeyPatch) -> None:
    """The coordinator consents, and promotes the standby all the same."""
    patch.setattr(Placement, "drop_standby", lambda placement, drop: None)


def tell_the_task_before_the_standby_has_it(patch: pytest.MonkeyPatch) -> None:
    def stage(forwarding: Forwarding, task: object, shards: dict, changes: dict) -> None:  # type: ignore[type-arg]
        for number, shard in shards.items():
            shard.stage(task.batch, changes.get(number))  # type: ignore[attr-defined]

    patch.setattr(Forwarding, "stage", stage)


def go_on_without_asking(patch: pytest.MonkeyPatch) -> None:
    """The owner drops a standby that does not answer by itself."""

    def drop(forwarding: Forwarding, request: object, shards: dict) -> None:  # type: ignore[type-arg]
        for number, one in request.shards.items():  # type: ignore[attr-defined]
            shards[number].end_standby(one.copy_id)

    patch.setattr(Forwarding, "_drop", drop)


def promote_while_the_former_owner_may_acknowledge(patch: pytest.MonkeyPatch) -> None:
    """The coordinator lets any host that asks go on without a standby, even one that it takes for lost."""
    patch.setattr(
        Placement,
        "drop_standby",
        lambda placement, drop: placement._end_standbys(
            lambda one: one.id == drop.copy_id and one.phase is not CopyPhase.HANDING_OVER
        ),
    )


def forget_what_is_staged(patch: pytest.MonkeyPatch) -> None:
    """What has committed, and is only staged at the standby, is lost."""

    def promote(batches: ShardBatches, cut: int) -> None:  # type: ignore[type-arg]
        batches.staged = None

    patch.setattr(ShardBatches, "promote", promote)


def apply_what_has_not_committed(patch: pytest.MonkeyPatch) -> None:
    right = ShardBatches.promote
    patch.setattr(ShardBatches, "promote", lambda batches, cut: right(batches, cut + 1))


def replay_what_may_not_have_committed(patch: pytest.MonkeyPatch) -> None:
    right = ShardBatches.reopen

    def reopen(batches: ShardBatches, staged: StagedChanges | None, begun: BatchId) -> None:  # type: ignore[type-arg]
        right(batches, staged, begun)
        batches.cut(begun)

    patch.setattr(ShardBatches, "reopen", reopen)


def let_the_next_batch_begin(patch: pytest.MonkeyPatch) -> None:
    """Nothing waits for a shard that is opened again."""
    patch.setattr(Reopenings, "holds", lambda reopenings, query: False)


def start_from_an_old_checkpoint(patch: pytest.MonkeyPatch) -> None:
    """What hosts have forgotten since is not in the changelogs any more."""
    patch.setattr(
        QueryState,
        "newest_source",
        lambda query, shard: (query.assignment.sources.get(shard), query.started_after),
    )


def start_from_the_newest_checkpoint_as_if_it_were_older(patch: pytest.MonkeyPatch) -> None:
    right = QueryState.newest_source

    def newest_source(query: QueryState, shard: ShardId) -> object:
        source, after = right(query, shard)
        return (None, after) if source is not None else (source, after)

    patch.setattr(QueryState, "newest_source", newest_source)


def let_the_lost_host_count(patch: pytest.MonkeyPatch) -> None:
    """The lost host begins the next batch, whose changes nobody reads."""
    right = Placement.replace

    def replace(placement: Placement, *args: object) -> None:
        right(placement, *args)  # type: ignore[arg-type]
        placement.members.dismissed.clear()

    patch.setattr(Placement, "replace", replace)
    patch.setattr(Reopenings, "holds", lambda reopenings, query: False)


def forget_what_is_staged_in_a_changelog(patch: pytest.MonkeyPatch) -> None:
    """What has committed, and is only staged in the changelog, is lost."""

    def reopen(batches: ShardBatches, staged: StagedChanges | None, begun: BatchId) -> None:  # type: ignore[type-arg]
        batches.staged, batches.begun = None, None

    patch.setattr(ShardBatches, "reopen", reopen)


def _bug(change: Callable[[pytest.MonkeyPatch], object], node: str = "") -> Bug:
    return Bug(change.__name__.replace("_", " "), change, tests(f"tests/{node}") if node else WORLDS)


PROTOCOL: Final = (
    _bug(apply_a_batch_twice),
    _bug(
        count_an_acknowledgement_twice,
        "coordinator/protocol/test_pending.py",
    ),
    _bug(
        apply_what_a_left_over_attempt_has_made,
        "state/host/test_batches.py",
    ),
    _bug(snapshot_a_shard_before_the_staged_batch),
    _bug(leave_out_a_shard_of_an_order),
    _bug(build_on_whatever_was_stored_last),
    _bug(
        place_a_barrier_before_a_batch_that_has_passed,
        "coordinator/protocol/test_state_machine.py",
    ),
    _bug(
        change_the_answer_for_a_batch,
        "coordinator/protocol/test_state_machine.py",
    ),
    _bug(
        cut_upstream_first,
        "coordinator/protocol/test_state_machine.py",
    ),
    _bug(delete_what_others_need),
    _bug(announce_before_the_manifest_is_durable),
    _bug(never_look_for_a_successor),
    _bug(delete_a_successors_objects),
    _bug(
        abort_a_checkpoint_whose_manifest_is_being_written,
        "coordinator/execution/test_checkpoint_jobs.py",
    ),
    _bug(use_ids_again),
    _bug(
        forget_a_request_that_waits,
        "coordinator/protocol/test_state_machine.py",
    ),
    _bug(
        keep_on_restarting_in_place,
        "coordinator/protocol/test_decisions.py",
    ),
    _bug(take_checkpoints_while_going_back),
    _bug(
        abort_whatever_fails_late,
        "coordinator/execution/test_checkpoint_jobs.py",
    ),
    _bug(
        wait_for_a_manifest_for_ever,
        "coordinator/protocol/test_state_machine.py",
    ),
    _bug(
        wait_for_a_place_for_ever,
        "coordinator/protocol/test_state_machine.py",
    ),
    _bug(
        abort_an_overdue_checkpoint,
        "coordinator/protocol/test_state_machine.py",
    ),
    _bug(
        delete_what_a_manifest_may_name,
        "coordinator/execution/test_checkpoint_jobs.py",
    ),
    _bug(
        forget_the_batch_before_the_move,
        "state/host/test_arrivals.py",
    ),
    _bug(
        have_two_owners_in_one_term,
        "coordinator/protocol/test_reopenings.py",
    ),
    _bug(
        snapshot_shards_that_are_being_handed_over,
        "coordinator/protocol/test_invariants.py",
    ),
    _bug(
        begin_a_batch_while_a_shard_is_handed_over,
        "coordinator/protocol/test_terms.py",
    ),
    _bug(
        count_the_acknowledgement_of_a_zombie,
        "coordinator/protocol/test_terms.py",
    ),
    _bug(
        promote_a_standby_that_has_missed_something,
        "coordinator/protocol/test_promotion.py",
    ),
    _bug(
        tell_the_task_before_the_standby_has_it,
        "state/host/test_standbys.py",
    ),
    _bug(
        go_on_without_asking,
        "state/host/test_forwarding.py",
    ),
    _bug(
        promote_while_the_former_owner_may_acknowledge,
        "coordinator/protocol/test_promotion.py",
    ),
    _bug(
        forget_what_is_staged,
        "state/host/test_standbys.py",
    ),
    _bug(
        apply_what_has_not_committed,
        "state/host/test_standbys.py",
    ),
    _bug(
        replay_what_may_not_have_committed,
        "state/host/test_changelogs.py",
    ),
    _bug(let_the_next_batch_begin),
    _bug(
        start_from_an_old_checkpoint,
        "coordinator/protocol/test_reopenings.py",
    ),
    _bug(
        start_from_the_newest_checkpoint_as_if_it_were_older,
        "coordinator/protocol/test_reopenings.py",
    ),
    _bug(
        let_the_lost_host_count,
        "coordinator/protocol/test_reopenings.py",
    ),
    _bug(
        forget_what_is_staged_in_a_changelog,
        "state/host/test_changelogs.py",
    ),
)
