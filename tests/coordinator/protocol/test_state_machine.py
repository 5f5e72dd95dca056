"""The decisions of the checkpoint state machine, event by event."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from chandy.coordinator.assigned_shard import AssignedShard, assigned_shards
from chandy.coordinator.errors import (
    CheckpointError,
    PipelineStateLostError,
    StaleQueryError,
    StateLostError,
)
from chandy.coordinator.protocol import events, instructions
from chandy.coordinator.protocol.decisions import HostLost, WaitToRestart
from chandy.coordinator.protocol.life import LifePhase
from chandy.coordinator.protocol.pending import AckResult, CheckpointPhase
from chandy.coordinator.protocol.reasons import Reason
from chandy.coordinator.protocol.shard_assignment import ShardLocations
from chandy.coordinator.protocol.statistics import History
from chandy.state.errors import DefinitionError
from chandy.state.rpc.messages import Ack, AskBatch, ClaimShards, Decline, ShardNotOpened
from chandy.state.rpc.orders import AbortOrder, CompleteOrder, Order, ReleaseOrder, SnapshotOrder, StopHost
from chandy.state.shards import RestoreSource, ResumePoint, ShardId
from chandy.storage.checkpoints.manifest import CheckpointKind, Handle, Manifest, OperatorRecord, StateRecord

from ...builders import make_manifest
from ..life_events import RUNS, STOPPED, going_back
from .bench import ROOT, SHARDS, Bench, handle, hello

# --- triggering ---------------------------------------------------------------------------------------------


def test_a_trigger_makes_one_pending_checkpoint_one_deadline_and_one_order_a_host_and_query() -> None:
    bench = Bench(timeout="30 s")
    bench.request()
    assert list(bench.machine.checkpoints.pending) == [1]
    assert bench.of(instructions.ChooseCut) == [instructions.ChooseCut(1, ("down", "up"), ROOT, False)]
    assert bench.machine.next_deadline() == 130.0
    bench.plan(1)
    orders = bench.orders(SnapshotOrder)
    assert [(host, order.query, order.cut) for host, order in orders] == [
        ("b", "down", 4),
        ("a", "up", 4),
        ("b", "up", 4),
    ]
    assert {(o.checkpoint, o.triggered_at) for _, o in orders} == {(1, 100.0)}
    told = sorted((shard.uid, shard.shard) for _, order in orders for shard in order.shards)
    assert told == [("down-op", 0), ("up-op", 0), ("up-op", 1)]


@pytest.mark.parametrize("why", ["no query", "a restored query is missing"])
def test_a_request_before_every_query_has_started_is_refused_and_leaves_nothing(why: str) -> None:
    bench = Bench(required=("third",) if why == "a restored query is missing" else ())
    if why == "no query":
        bench.machine.queries.clear()
    request = bench.request()
    assert bench.reasons() == [Reason.NOT_ALL_REQUIRED_TASKS_RUNNING]
    assert bench.of(instructions.Reject)[0].request is request
    assert bench.of(instructions.Reject)[0].error.id is None
    assert len(bench.seen) == 1
    assert (bench.machine.checkpoints.pending, bench.machine.checkpoints.next_id) == ({}, 1)


@pytest.mark.parametrize(("required", "refused"), [(("up", "down"), True), ((), False)])
def test_without_a_query_that_the_restored_checkpoint_has_and_that_could_not_start_there_is_none(
    required: tuple[str, ...], refused: bool
) -> None:
    bench = Bench(required=required)
    bench(events.QueryRemoved("down"))
    bench.request()
    assert bench.reasons() == [Reason.NOT_ALL_REQUIRED_TASKS_RUNNING] * refused
    if refused:
        assert "down" in bench.of(instructions.Reject)[0].error.detail
        bench.add("down", ("up",), {})
        bench.request()
        assert list(bench.machine.checkpoints.pending) == [1]


def test_a_query_that_stops_before_its_cut_has_committed_aborts_the_checkpoint_and_all_are_told(
    bench: Bench,
) -> None:
    bench.trigger(1, planned=5)
    bench(events.QueryStopped("up", 4))
    assert bench.reasons() == [Reason.NOT_ALL_REQUIRED_TASKS_RUNNING]
    assert [host for host, _ in bench.orders(AbortOrder)] == ["a", "b"]


def test_a_place_that_cannot_be_made_aborts_the_checkpoint_for_io_and_counts(bench: Bench) -> None:
    bench.request()
    bench(events.InstructionFailed(1, Reason.IO_EXCEPTION, "read-only"))
    assert bench.reasons() == [Reason.IO_EXCEPTION]
    assert bench.machine.admission.failures.count == 1
    assert bench.machine.checkpoints.pending == {}


# As in Flink, a savepoint to a bad place is its user's problem.
def test_a_savepoint_to_a_bad_place_fails_and_does_not_count() -> None:
    bench = Bench(tolerable_failures=0)
    bench.request(CheckpointKind.SAVEPOINT)
    bench(events.InstructionFailed(1, Reason.IO_EXCEPTION, "not empty"))
    assert bench.reasons() == [Reason.IO_EXCEPTION]
    assert bench.machine.admission.failures.count == 0
    assert bench.failed() == []


def test_periodic_checkpoints_end_with_the_schedule_and_those_by_hand_go_on(bench: Bench) -> None:
    bench(events.ScheduleStarted(0.0))
    bench.machine.admission.schedule.stop()
    bench(events.Tick(), bench.now + 1000)
    assert bench.seen == []
    assert bench.completed().id == 1


@pytest.mark.parametrize("kind", list(CheckpointKind))
def test_a_request_after_the_end_is_refused_and_nobody_is_asked_for_anything(
    bench: Bench, kind: CheckpointKind
) -> None:
    bench(STOPPED)
    bench.request(kind)
    bench(events.ScheduleStarted(0.0))
    bench(events.Tick(), bench.now + 1000)
    assert bench.reasons() == [Reason.COORDINATOR_SHUTDOWN]
    assert [type(instruction) for instruction in bench.seen] == [instructions.Reject]


def test_ids_and_times_of_triggers_grow_strictly_whatever_becomes_of_the_checkpoints() -> None:
    bench = Bench(next_id=8)
    bench.completed()
    bench.request()
    bench.fail(9)
    bench.request(CheckpointKind.SAVEPOINT)
    bench.complete(10)
    bench.completed()
    assert [choose.checkpoint for choose in bench.of(instructions.ChooseCut)] == [8, 9, 10, 11]
    times = [o.triggered_at for _, o in bench.orders(SnapshotOrder)]
    assert times == sorted(times)


def test_a_periodic_tick_triggers_a_checkpoint_and_a_second_one_waits_only_once(bench: Bench) -> None:
    bench(events.ScheduleStarted(0.0))
    for _ in range(4):
        bench.now += 10
        bench(events.Tick())
    assert [p.kind for p in bench.machine.checkpoints.pending.values()] == [CheckpointKind.PERIODIC]
    assert len(bench.machine.admission.queue) == 1


def test_while_the_pipeline_is_behind_periodic_checkpoints_come_at_the_other_interval() -> None:
    bench = Bench(interval_during_backlog="60 s")
    bench(events.ScheduleStarted(0.0))
    bench(events.BacklogChanged(True))
    bench.now += 59
    bench(events.Tick())
    assert bench.seen == []
    bench(events.BacklogChanged(False))
    bench(events.Tick())
    assert [p.kind for p in bench.machine.checkpoints.pending.values()] == [CheckpointKind.PERIODIC]


# --- the cut ------------------------------------------------------------------------------------------------


def test_a_batch_after_the_cut_is_told_of_the_barrier_and_one_before_it_is_not(bench: Bench) -> None:
    bench.trigger(1, planned=5)
    assert bench.answer(events.BatchAsked(AskBatch("a", "up-id", 5))).orders == ()
    outcome = bench.machine.handle(events.BatchAsked(AskBatch("a", "up-id", 6)), bench.now)
    assert [(o.checkpoint, o.cut, o.shards) for o in outcome.answer.orders] == [
        (1, 5, (ShardId("up-op", 0),))
    ]
    assert instructions.StoreProgress(1, "up", 5, ROOT, None) in outcome.instructions


def test_every_host_hears_of_the_same_barriers_ahead_of_a_batch_whenever_it_asks() -> None:
    bench = Bench(max_concurrent=2)
    bench.trigger(1)
    first = bench.answer(events.BatchAsked(AskBatch("a", "up-id", 5)))
    bench.trigger(2, planned=5)
    second = bench.answer(events.BatchAsked(AskBatch("b", "up-id", 5)))
    assert (
        [(o.checkpoint, o.cut) for o in first.orders]
        == [(o.checkpoint, o.cut) for o in second.orders]
        == [(1, 4)]
    )
    assert bench.answer(events.BatchAsked(AskBatch("a", "up-id", 5))) == first


def test_an_idle_query_is_told_as_soon_as_its_cut_is_known_to_have_committed(bench: Bench) -> None:
    bench.trigger(1, planned=5)
    assert bench.orders(SnapshotOrder) == []
    assert bench.machine.waiting_for_commits() == {"up": 5, "down": 5}
    bench(events.BatchCommitted("up", 5))
    assert {order.query for _, order in bench.orders(SnapshotOrder)} == {"up"}
    assert bench.machine.waiting_for_commits() == {"down": 5}
    bench(events.BatchCommitted("up", 5))
    assert len(bench.orders(SnapshotOrder)) == 2


def test_an_order_says_how_many_seconds_its_checkpoint_has_left() -> None:
    bench = Bench(timeout="30 s")
    bench.trigger(1, planned=5)
    deadline = bench.machine.checkpoints.pending[1].deadline
    bench(events.BatchCommitted("down", 5), deadline - 7.0)
    # The watch may notice a moment later that the time is over.
    bench(events.BatchAsked(AskBatch("a", "up-id", 6)), deadline + 1.0)
    assert {(o.query, o.seconds_left) for _, o in bench.orders(SnapshotOrder)} == {("down", 7.0), ("up", 0.0)}


def test_a_query_that_stands_still_is_cut_at_what_it_has_committed(bench: Bench) -> None:
    bench.answer(events.BatchAsked(AskBatch("a", "up-id", 5)))
    bench.request()
    bench(events.CutChosen(1, "down", 4))
    bench(events.CutChosen(1, "up", 5, 4))
    bench(events.PlanningDone(1))
    assert {(o.query, o.cut) for _, o in bench.orders(SnapshotOrder)} == {("up", 4), ("down", 4)}


def test_a_task_of_a_run_that_is_over_is_refused(bench: Bench) -> None:
    bench.add("up", (), {}, id="again")
    with pytest.raises(StaleQueryError):
        bench.answer(events.BatchAsked(AskBatch("a", "up-id", 5)))
    with pytest.raises(StaleQueryError):
        bench.claim("a", "up", (0,))


def test_a_query_that_reads_an_unknown_one_is_refused_and_not_added(bench: Bench) -> None:
    del bench.machine.queries["down"]
    with pytest.raises(DefinitionError, match="reads 'nobody'"):
        bench.add("down", ("nobody",), {})
    assert list(bench.machine.queries) == ["up"]


def test_a_shard_that_nobody_has_touched_keeps_the_state_that_it_came_with() -> None:
    sources = {ShardId("up-op", 0): RestoreSource(ROOT, 7, 4, handle("seven"))}
    bench = Bench(claimed=False, sources=sources)
    bench.trigger(1)
    bench.store_progress(1)
    shards = {operator.uid: operator.shards for operator in bench.finalize(1).operators}
    assert shards == {"up-op": (handle("seven"), None), "down-op": (None,)}


def test_a_checkpoint_before_any_batch_has_the_operators_that_were_restored_and_one_after_it_those_of_now() -> (
    None
):
    bench = Bench(claimed=False)
    old, count = StateRecord(("old",)), StateRecord(("count",))
    shards: tuple[None, ...] = (None,) * SHARDS["up"]
    was = OperatorRecord("up-op", "up", "{}", {"dropped": old}, shards)
    now = (
        OperatorRecord("up-op", "up", "{}", {"count": count}, shards),
        OperatorRecord("new", "up", "{}", {}, (None,)),
    )
    bench(events.QueryAdded("up", "up-id", batch=4, operators=now, restored=(was,), sources={}))

    def states(manifest: Manifest) -> dict[str, dict[str, StateRecord]]:
        return {operator.uid: operator.states for operator in manifest.operators if operator.query == "up"}

    bench.trigger(1)
    bench.store_progress(1)
    assert states(bench.finalize(1)) == {"up-op": {"dropped": old}}
    bench.trigger(2, planned=5)
    for query in ("up", "down"):
        bench(events.BatchCommitted(query, 5))
    bench.store_progress(2, cut=5)
    assert states(bench.finalize(2)) == {"up-op": {"count": count}, "new": {}}


def test_state_that_came_from_elsewhere_is_copied_and_the_first_checkpoint_builds_on_nothing() -> None:
    shard = ShardId("up-op", 0)
    source = RestoreSource("file:///savepoint", -1, 4, handle("theirs"))
    bench = Bench(claimed=False, sources={shard: source})
    bench.trigger(1)
    assert bench.of(instructions.CopyShards) == [instructions.CopyShards(1, "up", ((shard, source),), ROOT)]
    assert all(store.base is None for store in bench.of(instructions.StoreProgress))
    bench.store_progress(1)
    assert bench.of(instructions.Finalize) == []
    bench(events.ShardsCopied(1, "up", {shard: handle("ours")}, 9))
    manifest = bench.finalize(1)
    assert {o.uid: o.shards for o in manifest.operators}["up-op"] == (handle("ours"), None)
    assert manifest.new_bytes == 2 + 9


def test_a_savepoint_between_does_not_make_the_first_checkpoint_an_increment(bench: Bench) -> None:
    bench.completed(kind=CheckpointKind.SAVEPOINT)
    bench.completed()
    assert {order.base for _, order in bench.orders(SnapshotOrder)} == {None}
    # What was restored is never in the list of what retention may drop.
    assert [m.id for m in bench.machine.checkpoints.retained.manifests] == [2]


def test_a_checkpoint_builds_on_the_one_before_it(bench: Bench) -> None:
    bench.completed()
    bench.completed()
    assert {o.base for _, o in bench.orders(SnapshotOrder) if o.checkpoint == 2} == {1}
    assert {s.base for s in bench.of(instructions.StoreProgress) if s.checkpoint == 2} == {
        handle("progress-1")
    }


# --- requests -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["completed", "expired", "declined"])
def test_a_request_beyond_the_places_starts_when_a_place_is_free(bench: Bench, end: str) -> None:
    bench.trigger(1)
    bench.request()
    assert list(bench.machine.checkpoints.pending) == [1]
    if end == "completed":
        bench.acknowledge(1)
        bench.finalize(1)
    elif end == "expired":
        bench.now += 3600
        bench(events.Tick())
    else:
        bench.fail(1)
    assert list(bench.machine.checkpoints.pending) == [2]


def test_when_the_newer_of_two_completes_the_older_is_subsumed_and_both_places_are_free() -> None:
    bench = Bench(max_concurrent=2)
    for number in (1, 2):
        bench.trigger(number)
    bench.request()
    bench.request()
    bench.acknowledge(2)
    bench.finalize(2)
    assert bench.reasons() == [Reason.SUBSUMED]
    assert list(bench.machine.checkpoints.pending) == [3]
    bench.plan(3)
    assert list(bench.machine.checkpoints.pending) == [3, 4]


def test_requests_during_a_trigger_wait_in_order_and_run_even_though_it_failed() -> None:
    bench = Bench(max_concurrent=3)
    requests = [bench.request() for _ in range(3)]
    assert list(bench.machine.checkpoints.pending) == [1]
    bench(events.InstructionFailed(1, Reason.IO_EXCEPTION, "down"))
    bench.plan(2)
    bench.plan(3)
    assert [p.request for p in bench.machine.checkpoints.pending.values()] == requests[1:]


def test_a_request_beyond_the_queue_is_refused_and_does_not_count() -> None:
    bench = Bench(max_queued=1)
    bench.request()
    bench.request()
    bench.request()
    assert bench.reasons() == [Reason.TOO_MANY_REQUESTS]
    assert bench.machine.admission.failures.count == 0


def test_no_checkpoint_starts_while_more_deletions_wait_than_may_be_under_way() -> None:
    bench = Bench(retained=1)
    for _ in range(3):
        bench.completed()
    bench.request()
    assert bench.machine.checkpoints.pending == {}
    bench.end_deletions()
    assert list(bench.machine.checkpoints.pending) == [4]


def test_the_next_request_starts_when_a_checkpoint_is_aborted_while_it_is_planned(bench: Bench) -> None:
    bench.request()
    bench.request()
    bench(events.InstructionFailed(1, Reason.TRIGGER_CHECKPOINT_FAILURE, "a bug"))
    assert list(bench.machine.checkpoints.pending) == [2]
    assert bench.complete(2).id == 2


def test_nothing_starts_while_the_pipeline_goes_back_and_what_waits_starts_afterwards(bench: Bench) -> None:
    bench.trigger(1)
    waiting = bench.request()
    bench(going_back("a host is gone"))
    assert bench.reasons() == [Reason.JOB_FAILOVER]
    assert bench.machine.checkpoints.pending == {}
    bench(RUNS)
    bench(events.PipelineRestored(None))
    assert [p.request for p in bench.machine.checkpoints.pending.values()] == [waiting]


# --- acknowledgements ---------------------------------------------------------------------------------------


def test_the_last_distinct_acknowledgement_completes_the_checkpoint_exactly_once(bench: Bench) -> None:
    request = bench.trigger(1)
    bench.store_progress(1)
    acks = bench.acks(1)
    for ack in acks:
        assert bench.of(instructions.Finalize) == []
        assert set(bench.ack(ack)) == {AckResult.ACCEPTED}
    for ack in acks:
        bench.ack(ack)
    assert bench.of(instructions.Finalize) == [instructions.Finalize(1, ROOT)]
    manifest = bench.finalize(1)
    assert bench.of(instructions.Resolve) == [instructions.Resolve(request, manifest, ROOT)]
    assert bench.machine.checkpoints.pending == {}
    assert bench.machine.next_deadline() is None


def test_an_acknowledgement_again_after_completion_discards_nothing(bench: Bench) -> None:
    bench.completed()
    for ack in bench.acks(1):
        assert set(bench.ack(ack)) == {AckResult.UNKNOWN}
    assert bench.of(instructions.DiscardAborted) == []


# What its host wrote lies in the checkpoint's own folder and goes with it.


def test_an_acknowledgement_of_another_run_is_ignored_and_its_checkpoint_untouched(bench: Bench) -> None:
    bench.trigger(1)
    (ack, *_) = bench.acks(1)
    seen = len(bench.seen)
    assert set(bench.ack(Ack("a", 1, "nobody", ack.snapshots))) == {AckResult.UNKNOWN}
    assert len(bench.seen) == seen
    bench.acknowledge(1)
    assert bench.finalize(1).id == 1


@pytest.mark.parametrize(("checkpoint", "discards"), [(0, False), (99, False), (1, True)])
def test_an_acknowledgement_for_no_checkpoint_is_unknown_and_one_that_is_late_is_discarded(
    bench: Bench, checkpoint: int, discards: bool
) -> None:
    bench.trigger(1)
    (ack, *_) = bench.acks(1)
    bench.fail(1)
    bench.seen.clear()
    assert set(bench.ack(Ack("a", checkpoint, "up-id", ack.snapshots))) == {AckResult.UNKNOWN}
    assert bench.seen == ([instructions.DiscardAborted(1, ROOT, False)] if discards else [])


def test_progress_that_is_stored_too_late_is_discarded(bench: Bench) -> None:
    bench.trigger(1)
    bench.fail(1)
    bench.seen.clear()
    bench.store_progress(1)
    assert set(bench.seen) == {instructions.DiscardAborted(1, ROOT, False)}
    bench.completed()
    bench.seen.clear()
    bench.store_progress(2)
    assert bench.seen == []


def test_a_decline_aborts_the_checkpoint_and_discards_what_was_collected(bench: Bench) -> None:
    request = bench.trigger(1)
    bench.ack(bench.acks(1)[0])
    bench.fail(1, "no space left")
    (reject,) = bench.of(instructions.Reject)
    assert reject.request is request
    assert isinstance(reject.error, CheckpointError)
    assert (reject.error.id, reject.error.reason, reject.error.detail) == (
        1,
        Reason.DECLINED,
        "state host a on machine: no space left",
    )
    assert bench.of(instructions.DiscardAborted) == [instructions.DiscardAborted(1, ROOT, False)]
    assert bench.machine.checkpoints.pending == {}


def test_further_declines_of_an_aborted_checkpoint_do_nothing_and_it_counts_once() -> None:
    bench = Bench(tolerable_failures=1)
    bench.trigger(1)
    bench.fail(1)
    seen = list(bench.seen)
    for _ in range(3):
        bench.fail(1)
    assert bench.seen == seen
    assert bench.machine.admission.failures.count == 1


def test_a_decline_of_one_checkpoint_leaves_another_alone_and_none_takes_its_place() -> None:
    bench = Bench(max_concurrent=2)
    for number in (1, 2):
        bench.trigger(number)
    bench.fail(1)
    assert list(bench.machine.checkpoints.pending) == [2]
    bench.acknowledge(2)
    assert bench.finalize(2).id == 2


def test_every_host_hears_of_an_abort_with_the_latest_completed_checkpoint(bench: Bench) -> None:
    bench.completed()
    bench.trigger(2)
    bench.fail(2)
    assert bench.orders(AbortOrder) == [("a", AbortOrder(2, 1)), ("b", AbortOrder(2, 1))]


def test_a_timeout_expires_the_checkpoint_and_says_what_is_missing_and_frees_its_place() -> None:
    bench = Bench(timeout="30 s")
    bench.trigger(1)
    bench.ack(bench.acks(1)[0])
    bench.request()
    assert bench.machine.next_deadline() == 130.0
    bench(events.Tick(), 129.9)
    assert bench.reasons() == []
    bench(events.Tick(), 130.0)
    (reject,) = bench.of(instructions.Reject)
    assert reject.error.reason is Reason.EXPIRED
    assert "shard 0 of operator 'up-op'" in reject.error.detail
    assert bench.of(instructions.DiscardAborted) == [instructions.DiscardAborted(1, ROOT, False)]
    assert bench.orders(CompleteOrder) == []
    assert list(bench.machine.checkpoints.pending) == [2]


# --- completion ---------------------------------------------------------------------------------------------


def test_nothing_is_announced_before_the_manifest_is_said_to_be_durable(bench: Bench) -> None:
    bench.trigger(1)
    bench.acknowledge(1)
    assert bench.machine.manifest(1, bench.now) is not None
    assert bench.of(instructions.Resolve) == bench.orders(CompleteOrder) == []
    assert (bench.machine.checkpoints.retained.manifests, bench.machine.checkpoints.retained.base) == (
        (),
        None,
    )


@pytest.mark.parametrize("then", ["removed", "added again"])
def test_a_manifest_has_what_was_acknowledged_whatever_becomes_of_its_queries(
    bench: Bench, then: str
) -> None:
    bench.trigger(1)
    bench.acknowledge(1)
    before = bench.machine.manifest(1, bench.now)
    # Spark cannot start the query again.
    bench(events.QueryRemoved("down"))
    if then == "added again":
        bench.add("down", ("up",), {}, id="other")
    manifest = bench.finalize(1)
    assert before is not None
    assert manifest.operators == before.operators
    assert {operator.query for operator in manifest.operators} == {query.name for query in manifest.queries}
    assert all(all(operator.shards) for operator in manifest.operators)


def test_a_manifest_that_cannot_be_written_fails_the_checkpoint_and_the_one_before_stays_latest() -> None:
    bench = Bench(retained=1)
    bench.completed()
    bench.trigger(2)
    bench.acknowledge(2)
    bench.not_finalized(2)
    assert bench.reasons() == [Reason.FINALIZE_CHECKPOINT_FAILURE]
    assert bench.of(instructions.DiscardAborted) == [instructions.DiscardAborted(2, ROOT, False)]
    assert bench.of(instructions.Discard) == []
    assert [m.id for m in bench.machine.checkpoints.retained.manifests] == [1]
    assert bench.machine.checkpoints.retained.base == 1
    assert bench.machine.admission.failures.count == 1


def test_older_checkpoints_are_subsumed_and_their_late_acknowledgements_complete_nothing() -> None:
    bench = Bench(max_concurrent=3)
    for number in (1, 2, 3):
        bench.trigger(number)
    bench.acknowledge(2)
    bench.finalize(2)
    assert [(r.error.id, r.error.reason) for r in bench.of(instructions.Reject)] == [(1, Reason.SUBSUMED)]
    assert instructions.DiscardAborted(1, ROOT, False) in bench.of(instructions.DiscardAborted)
    assert list(bench.machine.checkpoints.pending) == [3]
    bench.acknowledge(1)
    assert bench.of(instructions.Finalize) == [instructions.Finalize(2, ROOT)]
    assert bench.machine.admission.failures.count == 0


def test_an_older_one_that_waits_to_be_written_is_subsumed_and_never_written() -> None:
    bench = Bench(max_concurrent=2)
    for number in (1, 2):
        bench.trigger(number)
    bench.acknowledge(2)
    bench.acknowledge(1)
    bench.finalize(2)
    assert bench.machine.manifest(1, bench.now) is None


def test_every_host_hears_of_a_completion_exactly_once_and_of_no_aborted_one(bench: Bench) -> None:
    bench.completed()
    bench.request()
    bench.fail(2)
    assert bench.orders(CompleteOrder) == [("a", CompleteOrder(1)), ("b", CompleteOrder(1))]


def test_a_host_that_is_gone_when_a_checkpoint_completes_does_not_undo_it(bench: Bench) -> None:
    bench.trigger(1)
    bench.acknowledge(1)
    bench(events.HostLeft(hello("a")))
    assert bench.lost() == ["state host a on machine is gone"]
    assert bench.finalize(1) in bench.machine.checkpoints.retained.manifests
    assert bench.orders(CompleteOrder) == [("b", CompleteOrder(1))]


def test_two_checkpoints_with_interleaved_acknowledgements_complete_each_with_its_own_state() -> None:
    bench = Bench(max_concurrent=2)
    for number in (1, 2):
        bench.trigger(number)
    for first, second in zip(bench.acks(1), bench.acks(2), strict=True):
        bench.ack(second)
        bench.ack(first)
    bench.store_progress(1)
    bench.store_progress(2)
    for number in (1, 2):
        keys = bench.finalize(number).keys()
        assert keys == {str(number), f"progress-{number}"}
    assert [m.id for m in bench.machine.checkpoints.retained.manifests] == [1, 2]


# --- failures that come late --------------------------------------------------------------------------------


def finalizing(
    bench: Bench, kind: CheckpointKind = CheckpointKind.MANUAL, *, target: str | None = None
) -> int:
    checkpoint = bench.machine.checkpoints.next_id
    bench.request(kind, target=target)
    bench.plan(checkpoint)
    bench.acknowledge(checkpoint)
    assert bench.machine.checkpoints.pending[checkpoint].phase is CheckpointPhase.FINALIZING
    return checkpoint


@pytest.mark.parametrize(
    "late",
    [
        events.InstructionFailed(
            1, Reason.TRIGGER_CHECKPOINT_FAILURE, "the progress of a query cannot be read"
        ),
        Decline("a", 1, "up-id", "no answer to my word"),
        events.QueryStopped("up", 3),
        events.QueryRemoved("up"),
        events.Tick(),
        events.HostLeft(hello("a")),
        going_back("a host is gone"),
        STOPPED,
    ],
    ids=lambda event: type(event).__name__,
)
@pytest.mark.parametrize("overdue", [False, True])
def test_nothing_is_deleted_of_a_checkpoint_whose_manifest_is_being_written(
    late: events.Event[None], overdue: bool
) -> None:
    bench = Bench(timeout="30 s")
    finalizing(bench)
    if overdue:
        bench(events.Tick(), bench.now + 31)
    bench.now += 40
    bench(late)
    assert bench.of(instructions.DiscardAborted) == []
    manifest = bench.finalize(1)
    assert [manifest.id for manifest in bench.machine.checkpoints.retained.manifests] == [1]
    if not overdue and not isinstance(late, events.Tick):
        assert [resolve.manifest for resolve in bench.of(instructions.Resolve)] == [manifest]
        assert bench.reasons() == []


def test_the_timeout_ends_a_request_whose_manifest_is_being_written() -> None:
    bench = Bench(timeout="30 s")
    request = bench.trigger(1)
    bench.acknowledge(1)
    assert bench.machine.next_deadline() == 130.0
    bench(events.Tick(), 130.0)
    (reject,) = bench.of(instructions.Reject)
    assert (reject.request, reject.error.reason) == (request, Reason.EXPIRED)
    assert ROOT in reject.error.detail
    assert "may still appear" in reject.error.detail
    assert bench.machine.admission.failures.count == 1
    assert bench.machine.checkpoints.history.counts.failed == 1
    assert bench.machine.next_deadline() is None


def test_an_overdue_checkpoint_whose_manifest_appears_is_the_latest_and_nobody_is_answered_twice() -> None:
    bench = Bench(timeout="30 s")
    finalizing(bench)
    bench(events.Tick(), 131.0)
    bench.now = 140.0
    bench.finalize(1)
    assert bench.of(instructions.Resolve) == []
    assert len(bench.of(instructions.Reject)) == 1
    assert bench.machine.checkpoints.retained.base == 1
    assert bench.machine.admission.failures.count == 0
    assert bench.completed().id == 2


def test_a_checkpoint_that_expires_while_its_cut_is_chosen_says_what_the_driver_waits_for() -> None:
    bench = Bench(timeout="10 s")
    bench.request()
    bench(events.Tick(), bench.now + 11)
    (rejected,) = bench.of(instructions.Reject)
    assert f"its cut was not chosen: the driver waits for {bench.machine.root}" in str(rejected.error)
    assert "acknowledged" not in str(rejected.error)


def test_an_overdue_savepoint_whose_manifest_is_not_written_is_discarded_then_and_not_before() -> None:
    bench = Bench(savepoint_timeout="30 s")
    finalizing(bench, CheckpointKind.SAVEPOINT)
    bench(events.Tick(), 131.0)
    assert bench.reasons() == [Reason.EXPIRED]
    assert bench.of(instructions.DiscardAborted) == []
    # Meanwhile the pipeline's own checkpoints go on.
    bench.now = 132.0
    assert bench.completed().id == 2
    bench.not_finalized(1)
    assert bench.of(instructions.DiscardAborted) == [
        instructions.DiscardAborted(1, "file:///savepoint", True)
    ]
    assert bench.reasons() == [Reason.EXPIRED]


def test_nothing_that_a_manifest_names_is_deleted_if_nobody_knows_whether_it_is_there() -> None:
    bench = Bench(retained=1)
    bench.completed()
    finalizing(bench)
    manifest = bench.machine.manifest(2, bench.now)
    bench.not_finalized(2, is_known=False)
    assert bench.reasons() == [Reason.FINALIZE_CHECKPOINT_FAILURE]
    bench.ack(bench.acks(2)[0])
    assert bench.of(instructions.DiscardAborted) == []
    bench.completed()
    assert bench.of(instructions.Discard)
    assert manifest in bench.machine.checkpoints.retained.there_besides((1,))


# --- everything that is asked for comes to an end -----------------------------------------------------------


@pytest.mark.parametrize("kind", [CheckpointKind.MANUAL, CheckpointKind.SAVEPOINT])
@pytest.mark.parametrize("why", ["going back", "deletions", "an overdue checkpoint"])
def test_a_request_that_cannot_begin_fails_after_its_timeout(kind: CheckpointKind, why: str) -> None:
    bench = Bench(timeout="30 s", savepoint_timeout="60 s", retained=1)
    match why:
        case "going back":
            bench(going_back("a host is gone"))
        case "deletions":
            for _ in range(3):
                bench.completed()
        case "an overdue checkpoint":
            finalizing(bench)
            bench.now += 30
            bench(events.Tick())
    before = len(bench.reasons())
    request = bench.request(kind)
    deadline = bench.machine.next_deadline()
    assert deadline is not None
    assert deadline <= bench.now + 60
    bench(events.Tick(), deadline)
    assert bench.reasons()[before:] == [Reason.JOB_FAILOVER if why == "going back" else Reason.EXPIRED]
    assert bench.of(instructions.Reject)[-1].request is request
    assert list(bench.machine.admission.queue) == []


def test_a_request_waits_as_long_as_those_before_it_make_headway() -> None:
    bench = Bench(timeout="30 s")
    for _ in range(4):
        bench.request()
    for number in (1, 2, 3, 4):
        bench.now += 25
        bench(events.Tick())
        bench.complete(number)
    assert bench.reasons() == []
    assert len(bench.of(instructions.Resolve)) == 4


def test_a_savepoint_of_a_stop_does_not_wait_for_the_pipeline_to_go_back(bench: Bench) -> None:
    bench(going_back("a host is gone"))
    waiting = bench.request(CheckpointKind.SAVEPOINT)
    asked = bench.request(CheckpointKind.SAVEPOINT, is_final=True)
    assert [(r.request, r.error.reason) for r in bench.of(instructions.Reject)] == [
        (asked, Reason.JOB_FAILOVER)
    ]
    bench(RUNS)
    bench(events.PipelineRestored(None))
    assert [pending.request for pending in bench.machine.checkpoints.pending.values()] == [waiting]


def test_a_savepoint_of_a_stop_that_waits_ends_when_the_pipeline_is_to_go_back(bench: Bench) -> None:
    bench.trigger(1)
    asked = bench.request(CheckpointKind.SAVEPOINT, is_final=True)
    assert list(bench.machine.admission.queue) == [asked]
    bench(going_back("a host is gone"))
    assert [r.request.number for r in bench.of(instructions.Reject)] == [1, 2]
    assert bench.reasons() == [Reason.JOB_FAILOVER] * 2


class BrokenHistory(History):
    def _count(self, **more: int) -> None:
        raise ZeroDivisionError("no mean of nothing")


def test_checkpoints_go_on_without_statistics() -> None:
    bench = Bench(retained=1)
    bench.machine.checkpoints.history = BrokenHistory()
    for _ in range(3):
        bench.completed()
        bench.end_deletions()
    bench.request()
    bench.fail(4)
    bench(RUNS)
    bench(events.PipelineRestored(3))
    assert len(bench.of(instructions.Resolve)) == 3
    assert bench.reasons() == [Reason.DECLINED]
    assert {str(one.error) for one in bench.of(instructions.ReportStatisticsFailure)} == {
        "no mean of nothing"
    }


# --- savepoints ---------------------------------------------------------------------------------------------


def test_savepoints_are_bounded_by_the_queue_whether_they_wait_or_run() -> None:
    bench = Bench(max_queued=3)
    for number in range(1, 6):
        bench.request(CheckpointKind.SAVEPOINT, target=f"file:///savepoint{number}")
        if number <= 3:
            bench.plan(number)
    assert list(bench.machine.checkpoints.pending) == [1, 2, 3]
    assert bench.reasons() == [Reason.TOO_MANY_REQUESTS] * 2
    assert "3 savepoints" in bench.of(instructions.Reject)[0].error.detail
    # They do not keep checkpoints from being taken.
    assert bench.completed().id == 4
    bench.acknowledge(1)
    bench.finalize(1)
    bench.request(CheckpointKind.SAVEPOINT, target="file:///another")
    assert list(bench.machine.checkpoints.pending) == [2, 3, 5]


def test_a_savepoint_is_not_subsumed_by_a_newer_checkpoint(bench: Bench) -> None:
    savepoint = bench.request(CheckpointKind.SAVEPOINT)
    bench.plan(1)
    bench.completed()
    assert [p.request for p in bench.machine.checkpoints.pending.values()] == [savepoint]
    assert bench.reasons() == []


def test_a_savepoint_subsumes_nothing_is_not_retained_and_sends_no_notice() -> None:
    bench = Bench(max_concurrent=2)
    bench.trigger(1)
    bench.completed(kind=CheckpointKind.SAVEPOINT)
    assert list(bench.machine.checkpoints.pending) == [1]
    assert (bench.machine.checkpoints.retained.manifests, bench.machine.checkpoints.retained.base) == (
        (),
        None,
    )
    assert bench.orders(CompleteOrder) == []
    assert [resolve.root for resolve in bench.of(instructions.Resolve)] == ["file:///savepoint"]


def test_a_savepoint_is_full_and_goes_to_its_own_place(bench: Bench) -> None:
    bench.completed()
    bench.completed(kind=CheckpointKind.SAVEPOINT)
    orders = [o for _, o in bench.orders(SnapshotOrder) if o.checkpoint == 2]
    assert {(o.root, o.base, o.is_savepoint) for o in orders} == {("file:///savepoint", None, True)}
    first = [o for _, o in bench.orders(SnapshotOrder) if o.checkpoint == 1]
    assert {o.is_savepoint for o in first} == {False}
    assert {(s.root, s.base) for s in bench.of(instructions.StoreProgress) if s.checkpoint == 2} == {
        ("file:///savepoint", None)
    }


def test_a_savepoint_of_a_stopped_pipeline_that_is_declined_says_why(bench: Bench) -> None:
    for query in ("down", "up"):
        bench(events.QueryStopped(query, 4))
    bench.request(CheckpointKind.SAVEPOINT)
    bench.plan(1)
    bench.fail(1, "the root cause")
    (reject,) = bench.of(instructions.Reject)
    assert "the root cause" in str(reject.error)
    assert bench.of(instructions.DiscardAborted) == [
        instructions.DiscardAborted(1, "file:///savepoint", True)
    ]


# Each has its own future and its own place.
def test_two_savepoints_are_two(bench: Bench) -> None:
    first = bench.request(CheckpointKind.SAVEPOINT, target="file:///one")
    second = bench.request(CheckpointKind.SAVEPOINT, target="file:///two")
    bench.complete(1)
    bench.complete(2)
    assert [(r.request, r.root) for r in bench.of(instructions.Resolve)] == [
        (first, "file:///one"),
        (second, "file:///two"),
    ]


# --- retention ----------------------------------------------------------------------------------------------


def test_exactly_the_newest_remain_and_exactly_the_dropped_are_discarded() -> None:
    bench = Bench(retained=2)
    for _ in range(5):
        bench.completed()
        for discard in bench.of(instructions.Discard)[-1:]:
            bench(events.Discarded(tuple(manifest.id for manifest in discard.dropped), ()))
    assert [m.id for m in bench.machine.checkpoints.retained.manifests] == [4, 5]
    dropped = [[m.id for m in discard.dropped] for discard in bench.of(instructions.Discard)]
    assert dropped == [[1], [2], [3]]


def test_a_savepoint_between_neither_pushes_a_checkpoint_out_nor_is_ever_dropped() -> None:
    bench = Bench(retained=1)
    bench.completed()
    bench.completed(kind=CheckpointKind.SAVEPOINT)
    assert [m.id for m in bench.machine.checkpoints.retained.manifests] == [1]
    bench.completed()
    assert [m.id for m in bench.machine.checkpoints.retained.manifests] == [3]
    assert [[m.id for m in d.dropped] for d in bench.of(instructions.Discard)] == [[1]]


def restored_bench(**config: Any) -> Bench:
    """A pipeline that is restored from the last of three checkpoints; both shards of a query come from there."""
    sources = {ShardId("up-op", n): RestoreSource(ROOT, 3, 4, handle(f"three-{n}")) for n in range(2)}
    completed = tuple(make_manifest(id) for id in (1, 2, 3))
    return Bench(claimed=False, next_id=4, base=3, completed=completed, sources=sources, **config)


def verification(bench: Bench) -> list[tuple[int, bool]]:
    """The retained checkpoints, and whether each is verified."""
    return [
        (manifest.id, not manifest.unverified) for manifest in bench.machine.checkpoints.retained.manifests
    ]


def test_a_checkpoint_with_bytes_that_nobody_has_read_since_the_restore_takes_no_verified_ones_place() -> (
    None
):
    bench = restored_bench(retained=2)
    bench.claim("a", "up", (0,))
    bench(events.ShardsRead("up-id", (ShardId("up-op", 0),)))
    for _ in range(3):
        assert bench.completed().unverified
        bench.end_deletions()
    assert verification(bench) == [(2, True), (3, True), (5, False), (6, False)]
    bench(events.ShardsRead("up-id", (ShardId("up-op", 1),)))
    assert not bench.completed().unverified
    # An unverified one makes room for the verified in its turn, and not before.
    assert verification(bench) == [(3, True), (5, False), (6, False), (7, True)]
    bench.end_deletions()
    bench.completed()
    assert verification(bench) == [(7, True), (8, True)]


def test_what_a_shard_has_changed_since_does_not_make_up_for_what_was_not_read() -> None:
    bench = restored_bench()
    bench.claim("a", "up", (0, 1))
    manifest = bench.completed()
    assert {o.uid: o.shards for o in manifest.operators}["up-op"] == (handle("4"), handle("4"))
    assert manifest.unverified, "a snapshot may share files with what it was restored from"
    assert bench.of(instructions.ReadBack) == [], "this one does not"
    assert not bench.completed().unverified


def test_the_driver_reads_what_no_host_has_read_once_a_checkpoint_has_done_without_it() -> None:
    bench = restored_bench()
    bench(events.ShardsRead("up-id", (ShardId("up-op", 0),)))
    bench.completed()
    unread = RestoreSource(ROOT, 3, 4, handle("three-1"))
    assert bench.of(instructions.ReadBack) == [instructions.ReadBack("up-id", (unread,))]
    bench.completed()
    assert len(bench.of(instructions.ReadBack)) == 1, "it is being read"
    bench(events.SourcesReadBack("up-id", whole=False))
    assert bench.completed().unverified
    assert len(bench.of(instructions.ReadBack)) == 2, "it was not read in vain"
    bench(events.SourcesReadBack("up-id", whole=True))
    assert not bench.completed().unverified
    assert len(bench.of(instructions.ReadBack)) == 2


def test_files_of_a_querys_own_that_a_restore_has_not_read_are_read_back_as_well() -> None:
    bench = Bench(claimed=False)
    # Of one file the next checkpoint has the same bytes.
    files = handle("progress-1").files + handle("progress-0").files
    source = RestoreSource(ROOT, 3, 4, Handle(files))
    bench(events.QueryAdded("up", "up-id", batch=4, operators=(), sources={}, progress=source))
    assert bench.completed().unverified
    left = RestoreSource(ROOT, 3, 4, handle("progress-1"))
    assert bench.of(instructions.ReadBack) == [instructions.ReadBack("up-id", (left,))]
    bench(events.SourcesReadBack("up-id", whole=True))
    assert not bench.completed().unverified


def test_who_goes_back_has_read_nothing_of_what_is_restored() -> None:
    bench = restored_bench()
    everything = tuple(ShardId("up-op", number) for number in range(2))
    bench(events.ShardsRead("up-id", everything))
    assert not bench.completed().unverified
    bench.add("up", (), {shard: RestoreSource(ROOT, 4, 4, handle("four")) for shard in everything}, "again")
    bench(events.SourcesReadBack("up-id", whole=True))
    bench(events.ShardsRead("up-id", everything))
    assert bench.completed().unverified, "that was said of the run that is over"
    bench(events.ShardsRead("up-again", everything))
    assert not bench.completed().unverified


def test_a_savepoint_says_that_it_is_unverified_too() -> None:
    bench = restored_bench()
    bench.claim("a", "up", (0, 1))
    assert bench.completed(kind=CheckpointKind.SAVEPOINT).unverified
    assert verification(bench) == [(1, True), (2, True), (3, True)]


def test_a_shard_that_its_host_could_not_open_is_what_it_was_restored_from() -> None:
    bench = restored_bench()
    bench.claim("a", "up", (0, 1))
    bench(ShardNotOpened("b", "up-id", ShardId("up-op", 0), "boom"))
    bench(ShardNotOpened("a", "up-before", ShardId("up-op", 0), "boom"))
    assert bench.machine.queries["up"].assignment.by_owner() == {
        "a": (ShardId("up-op", 0), ShardId("up-op", 1))
    }
    bench(ShardNotOpened("a", "up-id", ShardId("up-op", 0), "boom"))
    # Batches have begun since; whoever needs the shard now hears why it cannot be opened, from the store.
    bench.answer(events.BatchAsked(AskBatch("a", "up-id", 6)))
    claim = ClaimShards("a", "up-id", "up-op", (0,))
    assert bench.answer(claim).granted == {0: RestoreSource(ROOT, 3, 4, handle("three-0"))}


def test_the_base_of_a_checkpoint_on_its_way_is_kept() -> None:
    bench = Bench(retained=1, max_concurrent=3)
    bench.completed()
    for number in (2, 3):
        bench.trigger(number)
    bench.acknowledge(2)
    bench.finalize(2)
    assert [m.id for m in bench.machine.checkpoints.retained.manifests] == [1, 2]
    bench.acknowledge(3)
    bench.finalize(3)
    assert [m.id for m in bench.machine.checkpoints.retained.manifests] == [3]


def test_an_older_checkpoint_is_kept_while_one_on_its_way_has_objects_that_it_alone_has() -> None:
    # A shard has moved, and its new host has stored the files that checkpoint 1 has, and 2 has no more.
    bench = Bench(retained=1, max_concurrent=3)
    bench.completed()
    bench.completed()
    bench.end_deletions()
    bench.trigger(3)
    bench.trigger(4)
    for ack in bench.acks(4):
        again = tuple(attrs.evolve(one, handle=handle("2")) for one in ack.snapshots)
        bench.ack(attrs.evolve(ack, snapshots=again))
    bench.store_progress(4)
    bench.acknowledge(3)
    bench.finalize(3)
    manifest = bench.machine.manifest(4, bench.now)
    assert manifest is not None
    assert bench.machine.checkpoints.doomed(manifest) == frozenset()
    assert [m.id for m in bench.machine.checkpoints.retained.manifests] == [2, 3]
    bench.finalize(4)
    assert [m.id for m in bench.machine.checkpoints.retained.manifests] == [4]
    assert bench.of(instructions.Discard)[-1].dropped[0].id == 2


def test_an_object_that_retention_was_deleting_meanwhile_is_not_relied_on() -> None:
    # Checkpoint 1 is being deleted when checkpoint 3 is triggered, and 3 has uploaded the very same bytes.
    bench = Bench(retained=1)
    first = bench.completed()
    bench.completed()
    assert bench.of(instructions.Discard)
    bench.trigger(3)
    for ack in bench.acks(3):
        again = tuple(attrs.evolve(one, handle=handle("1")) for one in ack.snapshots)
        bench.ack(attrs.evolve(ack, snapshots=again))
    bench.store_progress(3)
    manifest = bench.machine.manifest(3, bench.now)
    assert manifest is not None
    assert bench.machine.checkpoints.doomed(manifest) == {"1"} <= first.keys()
    bench(events.NotFinalized(manifest, Reason.OBJECTS_DROPPED, "gone"))
    # Once the deletion is done, the next checkpoint can have the same bytes again.
    bench.end_deletions()
    bench.trigger(4)
    bench.acknowledge(4)
    manifest = bench.machine.manifest(4, bench.now)
    assert manifest is not None
    assert bench.machine.checkpoints.doomed(manifest) == frozenset()


def test_what_is_being_deleted_is_forgotten_once_it_is_deleted_although_there_is_always_more() -> None:
    bench = Bench(retained=1, max_concurrent=2)
    for number in range(1, 51):
        bench.completed()
        if number > 2:
            # The deletion before the newest is done: there is never a moment without one.
            discard = bench.of(instructions.Discard)[-2]
            bench(events.Discarded(tuple(manifest.id for manifest in discard.dropped), ()))
    assert len(bench.of(instructions.Discard)) == 49
    assert bench.machine.checkpoints.retained.deletions == 1
    # The bytes of checkpoint 1 were deleted long ago: now they are there again.
    bench.trigger(51)
    for ack in bench.acks(51):
        again = tuple(attrs.evolve(one, handle=handle("1")) for one in ack.snapshots)
        bench.ack(attrs.evolve(ack, snapshots=again))
    bench.store_progress(51)
    manifest = bench.machine.manifest(51, bench.now)
    assert manifest is not None
    assert bench.machine.checkpoints.doomed(manifest) == frozenset()
    assert len(bench.machine.checkpoints.pending[51].doomed) < 10


# --- failures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tolerable", [0, 1, 3])
def test_the_pipeline_fails_once_at_one_failure_more_than_is_tolerable(tolerable: int) -> None:
    bench = Bench(tolerable_failures=tolerable, timeout="30 s")
    for number in range(1, tolerable + 2):
        assert bench.failed() == []
        bench.trigger(number)
        bench.now += 31
        bench(events.Tick())
    (error,) = bench.failed()
    assert isinstance(error, CheckpointError)
    assert error.reason is Reason.EXPIRED
    assert bench.machine.admission.failures.count == 0


def test_a_completed_checkpoint_makes_the_count_begin_anew() -> None:
    bench = Bench(tolerable_failures=1)
    for _ in range(3):
        bench.request()
        bench.fail(bench.machine.checkpoints.next_id - 1)
        bench.completed()
    assert bench.failed() == []
    assert bench.machine.admission.failures.count == 0


def test_after_a_timeout_within_tolerance_the_next_periodic_checkpoint_comes() -> None:
    bench = Bench(timeout="5 s", tolerable_failures=1)
    bench(events.ScheduleStarted(0.0))
    for time in (110.0, 115.0):
        bench(events.Tick(), time)
    assert bench.reasons() == [Reason.EXPIRED]
    assert bench.failed() == []
    bench(events.Tick(), 120.0)
    assert list(bench.machine.checkpoints.pending) == [2]


# --- where state is -----------------------------------------------------------------------------------------


def test_the_state_of_an_operator_is_at_its_hosts_and_where_untouched_shards_come_from() -> None:
    source = RestoreSource(ROOT, 7, 4, handle("seven"))
    bench = Bench(claimed=False, sources={ShardId("up-op", 1): source})
    assert bench.machine.placement.locations("up", "up-op") == ShardLocations(
        "up-id", (), {0: None, 1: source}
    )
    bench.claim("b", "up", (0,))
    bench.claim("a", "down", (0,))
    assert bench.machine.placement.locations("up", "up-op") == ShardLocations(
        "up-id", (hello("b"),), {1: source}
    )
    bench.claim("a", "up", (1,))
    assert bench.machine.placement.locations("up", "up-op") == ShardLocations(
        "up-id", (hello("a"), hello("b")), {}
    )


def test_the_assignment_names_the_machine_of_each_shard_that_has_been_claimed() -> None:
    bench = Bench(claimed=False)
    bench.claim("b", "up", (0,))
    assert assigned_shards(bench.machine) == (
        AssignedShard("down", "down-op", 0, None, None),
        AssignedShard("up", "up-op", 0, "machine", "b", term=1),
        AssignedShard("up", "up-op", 1, None, None),
    )


def test_the_state_of_one_operator_is_not_where_that_of_another_of_its_query_is() -> None:
    bench = Bench(claimed=False)
    operators = tuple(OperatorRecord(uid, "two", "{}", {}, (None,)) for uid in ("first", "second"))
    bench(events.QueryAdded("two", "two-id", batch=4, operators=operators, sources={}))
    bench(ClaimShards("a", "two-id", "first", (0,)))
    assert bench.machine.placement.locations("two", "first") == ShardLocations("two-id", (hello("a"),), {})
    assert bench.machine.placement.locations("two", "second") == ShardLocations("two-id", (), {0: None})


def test_a_checkpoint_waits_until_hosts_have_the_shards_that_changelogs_belong_to() -> None:
    bench = Bench(claimed=False)
    resume_point = ResumePoint("before", 4, 6)
    operators = (OperatorRecord("up-op", "up", "{}", {}, (None, None)),)
    bench(
        events.QueryAdded(
            "up",
            "up-id",
            batch=6,
            operators=operators,
            restored=operators,
            sources={},
            resume_point=resume_point,
        )
    )
    bench.request()
    assert bench.machine.placement.locations("up", "up-op").resume_point == resume_point
    for host, shard in (("a", 0), ("b", 1)):
        assert bench(events.Tick()) == bench.seen == []
        answer = bench.answer(ClaimShards(host, "up-id", "up-op", (shard,)))
        assert answer.resume_point == resume_point
    assert [type(one) for one in bench.seen] == [instructions.ChooseCut]


def test_a_checkpoint_does_not_wait_for_ever_for_shards_that_changelogs_belong_to() -> None:
    bench = Bench(claimed=False, timeout="30 s")
    operators = (OperatorRecord("up-op", "up", "{}", {}, (None, None)),)
    resume_point = ResumePoint("before", 4, 6)
    bench(
        events.QueryAdded("up", "up-id", batch=6, operators=operators, sources={}, resume_point=resume_point)
    )
    request = bench.request()
    assert bench.machine.next_deadline() == request.created_at + 30
    assert bench(events.Tick(), request.created_at + 29.9) == []
    (rejected,) = bench(events.Tick(), request.created_at + 30)
    assert isinstance(rejected, instructions.Reject)
    assert (rejected.request, rejected.error.reason) == (request, Reason.EXPIRED)
    assert "changelogs" in rejected.error.detail


def test_state_whose_host_is_gone_is_nowhere(bench: Bench) -> None:
    bench(events.HostLeft(hello("b")))
    with pytest.raises(StateLostError):
        bench.machine.placement.locations("up", "up-op")


# --- hosts --------------------------------------------------------------------------------------------------


def test_state_is_lost_with_a_host_that_owned_some_and_with_no_other() -> None:
    bench = Bench(claimed=False)
    bench.claim("a", "up", (0, 1))
    assert bench(events.HostLeft(hello("b"))) == []
    bench(events.HostLeft(hello("a")))
    assert bench.lost() == ["state host a on machine is gone"]
    with pytest.raises(StateLostError):
        bench.claim("b", "up", (0,))


def test_a_loss_is_decided_in_the_step_that_notices_it(bench: Bench) -> None:
    """No event comes in between: no checkpoint completes, and none is admitted, once state is known to be lost."""
    bench.trigger(1)
    at = bench.now
    bench(events.HostLeft(hello("a")))
    lost = "state host a on machine is gone"
    (decided,) = bench.of(instructions.Decided)
    assert decided == instructions.Decided(
        HostLost(lost), WaitToRestart(at + 1.0, PipelineStateLostError(lost))
    )
    assert bench.machine.life.phase is LifePhase.RECOVERING
    assert bench.reasons() == [Reason.JOB_FAILOVER]
    assert not bench.machine.checkpoints.pending


def test_a_new_host_of_an_executor_takes_the_place_of_the_old_one_and_its_state_is_lost(bench: Bench) -> None:
    stop, *_ = bench(events.HostJoined(hello("a2", "a")))
    # It may live: what an earlier host has said may come in after the later one.
    assert stop == instructions.Send("a", StopHost(is_replaced=True))
    (why,) = bench.lost()
    assert "took the place" in why
    assert bench(events.HostLeft(hello("a"))) == []
    assert set(bench.machine.members.hosts) == {"a2", "b"}


def test_a_new_host_replaces_the_newest_of_its_executor_that_has_not_left() -> None:
    bench = Bench(claimed=False)
    bench(events.HostJoined(hello("a2", "a")))
    # What the host before has left open ends later, and does not end the one that is there.
    bench(events.HostLeft(hello("a")))
    bench.claim("a2", "up", (0, 1))
    bench(events.HostJoined(hello("a3", "a")))
    assert bench.lost()
    bench(events.HostLeft(hello("a3", "a")))
    assert bench(events.HostJoined(hello("a4", "a"))) == []
    assert set(bench.machine.members.hosts) == {"a4", "b"}


def test_a_host_that_opens_its_stream_again_has_lost_nothing(bench: Bench) -> None:
    assert bench(events.HostJoined(hello("a"))) == []
    assert set(bench.machine.members.hosts) == {"a", "b"}


def test_all_hosts_hear_that_runs_are_over(bench: Bench) -> None:
    bench(events.Released(("one", "two")))
    expected: list[tuple[str, Order]] = [(h, ReleaseOrder(q)) for q in ("one", "two") for h in "ab"]
    assert bench.orders(ReleaseOrder) == expected


# --- end and statistics -------------------------------------------------------------------------------------


def test_closing_ends_what_waits_and_what_is_on_its_way_and_later_messages_are_ignored() -> None:
    bench = Bench(max_concurrent=2)
    bench(events.ScheduleStarted(0.0))
    requests = [bench.request() for _ in range(3)]
    bench.plan(1)
    bench(STOPPED)
    assert {reject.request for reject in bench.of(instructions.Reject)} == set(requests)
    assert set(bench.reasons()) == {Reason.COORDINATOR_SHUTDOWN}
    assert [d.checkpoint for d in bench.of(instructions.DiscardAborted)] == [1, 2]
    assert bench.machine.next_deadline() is None
    acks = bench.acks(1)
    bench.seen.clear()
    for ack in acks:
        bench.ack(ack)
    bench.store_progress(1)
    bench.fail(1)
    # Word of what was stored too late still has it deleted; nothing else happens.
    assert set(map(type, bench.seen)) <= {instructions.DiscardAborted}


@pytest.mark.parametrize(("checkpoint", "count"), [(7, 1), (None, 0)])
def test_a_restore_is_counted_if_it_is_one_of_a_checkpoint(
    bench: Bench, checkpoint: int | None, count: int
) -> None:
    bench(going_back("a host is gone"))
    bench(RUNS)
    bench(events.PipelineRestored(checkpoint))
    statistics = bench.machine.checkpoints.history.snapshot()
    assert (statistics.restored, statistics.counts.restored) == (checkpoint, count)


def test_what_is_no_event_is_refused() -> None:
    class Stranger(events.Event[None]):
        pass

    with pytest.raises(TypeError, match="Stranger is no event"):
        Bench()(Stranger())
