"""What becomes of batches, acknowledgements and claims while shards move, and which machines can be drained."""

from __future__ import annotations

import attrs
import pytest

from chandy.coordinator.assigned_shard import assigned_shards
from chandy.coordinator.protocol import events
from chandy.coordinator.protocol.copies import HAND_OVER_SECONDS
from chandy.coordinator.protocol.errors import DrainError
from chandy.coordinator.protocol.pending import AckResult
from chandy.coordinator.protocol.shard_assignment import STAYS
from chandy.state.errors import ShardMovingError
from chandy.state.rpc.messages import Ack, AskBatch, BatchAnswer, ClaimShards, CopyReport, CopyStep, Decline
from chandy.state.rpc.orders import ConfirmOwner, OpenAhead, SnapshotOrder, TakeOver
from chandy.state.shards import ShardId
from chandy.storage.checkpoints.manifest import QueryRecord

from .bench import Bench, handle, hello_on

SHARD = ShardId("up-op", 0)


def drained() -> Bench:
    """Host a is on machine one, which is drained, b on machine two. A checkpoint has completed since."""
    bench = Bench()
    bench(events.HostJoined(hello_on("a", "one")))
    bench(events.HostJoined(hello_on("b", "two")))
    bench(events.DrainRequested("one"))
    bench.completed()
    return bench


def opened() -> Bench:
    """The target follows the owner."""
    bench = drained()
    bench(CopyReport("b", 1, CopyStep.OPENED))
    return bench


def test_a_shard_moves_with_a_checkpoint_and_the_owner_keeps_what_follows() -> None:
    bench = drained()
    follow = {host: order.follow for host, order in bench.orders(SnapshotOrder) if order.query == "up"}
    assert follow == {"a": (SHARD,), "b": ()}
    ((host, order),) = bench.orders(OpenAhead)
    assert (host, order.shard, order.owner, order.source.checkpoint) == ("b", SHARD, "address-a", 1)


def test_the_next_batch_waits_until_the_target_has_the_shard() -> None:
    bench = opened()
    assert bench.orders(TakeOver) == [("b", TakeOver(1, 4, 2))]
    assert bench.answer(events.BatchAsked(AskBatch("a", "up-id", 5))) is None
    # Of another query nothing waits.
    assert bench.answer(events.BatchAsked(AskBatch("b", "down-id", 5))) == BatchAnswer()
    bench(CopyReport("b", 1, CopyStep.TAKEN, 2))
    assert bench.answer(events.BatchAsked(AskBatch("a", "up-id", 5))) == BatchAnswer()
    confirmed = ConfirmOwner("up-id", SHARD, "b", 2)
    assert bench.orders(ConfirmOwner) == [("a", confirmed), ("b", confirmed)]
    (shard,) = [one for one in assigned_shards(bench.machine) if (one.operator, one.shard) == ("up-op", 0)]
    assert (shard.machine, shard.term, shard.moves_to) == ("two", 2, None)


def test_a_shard_does_not_move_while_a_batch_runs() -> None:
    bench = drained()
    assert bench.answer(events.BatchAsked(AskBatch("a", "up-id", 5))) == BatchAnswer()
    bench(CopyReport("b", 1, CopyStep.OPENED))
    assert bench.orders(TakeOver) == []
    assert bench.machine.waiting_for_commits() == {"up": 5}
    bench(events.BatchCommitted("up", 5))
    assert bench.orders(TakeOver) == [("b", TakeOver(1, 5, 2))]


def test_a_target_that_is_too_slow_gets_nothing() -> None:
    bench = opened()
    bench.now += HAND_OVER_SECONDS
    bench(events.Tick())
    assert bench.answer(events.BatchAsked(AskBatch("a", "up-id", 5))) == BatchAnswer()
    bench(CopyReport("b", 1, CopyStep.TAKEN, 2))
    assert [(one.shard, one.host) for one in bench.machine.placement.shards_on("one")] == [(SHARD, "a")]
    answer = bench.answer(ClaimShards("a", "up-id", "up-op", (0,), {0: 1}))
    assert answer.kept == (0,)


def test_nobody_gets_a_shard_while_it_is_handed_over() -> None:
    bench = opened()
    with pytest.raises(ShardMovingError):
        bench.claim("a", "up", (0,))


def test_a_claim_after_the_move_is_told_where_the_shard_is() -> None:
    bench = opened()
    bench(CopyReport("b", 1, CopyStep.TAKEN, 2))
    late = bench.answer(ClaimShards("a", "up-id", "up-op", (0,), {0: 1}))
    assert (late.elsewhere, late.kept) == ({0: "address-b"}, ())
    mine = bench.answer(ClaimShards("b", "up-id", "up-op", (0,), {0: 2}))
    assert mine.kept == (0,)


def test_an_acknowledgement_of_an_older_term_does_not_count() -> None:
    bench = opened()
    bench(CopyReport("b", 1, CopyStep.TAKEN, 2))
    bench.trigger(2)
    ((_, order),) = [(h, o) for h, o in bench.orders(SnapshotOrder) if o.checkpoint == 2 and o.query == "up"]
    assert set(order.shards) == {SHARD, ShardId("up-op", 1)}
    zombie = bench.ack_of("a", attrs.evolve(order, shards=(SHARD,)))
    assert bench.ack(zombie) == (AckResult.FENCED,)
    assert bench.ack(attrs.evolve(zombie, host="b")) == (AckResult.FENCED,)
    (snapshot,) = zombie.snapshots
    right = Ack("b", 2, "up-id", (attrs.evolve(snapshot, term=2),))
    assert bench.ack(right) == (AckResult.ACCEPTED,)


def test_a_checkpoint_waits_for_the_end_of_a_move_and_a_move_for_the_snapshot() -> None:
    bench = opened()
    bench.trigger(2)
    assert "up" not in {order.query for _, order in bench.orders(SnapshotOrder) if order.checkpoint == 2}
    bench(CopyReport("b", 1, CopyStep.TAKEN, 2))
    assert ("b", "up") in {(h, o.query) for h, o in bench.orders(SnapshotOrder) if o.checkpoint == 2}

    bench = drained()
    bench.trigger(2)
    bench(CopyReport("b", 1, CopyStep.OPENED))
    assert bench.orders(TakeOver) == []
    bench.acknowledge(2)
    bench.finalize(2)
    # No batch has to run for that, and a checkpoint that follows at once waits.
    assert bench.orders(TakeOver) == [("b", TakeOver(1, 4, 2))]
    bench.trigger(3)
    assert "up" not in {order.query for _, order in bench.orders(SnapshotOrder) if order.checkpoint == 3}


def test_a_shard_that_a_checkpoint_keeps_waiting_moves_when_that_is_aborted() -> None:
    bench = drained()
    bench.trigger(2)
    bench(CopyReport("b", 1, CopyStep.OPENED))
    bench(Decline("a", 2, "up-id", "no disk"))
    assert bench.orders(TakeOver) == [("b", TakeOver(1, 4, 2))]


def test_the_loss_of_the_target_ends_a_move_and_that_of_the_owner_goes_back() -> None:
    bench = opened()
    bench(events.HostJoined(hello_on("c", "three")))
    bench(events.HostLeft(hello_on("b", "two")))
    assert not bench.machine.placement.moves.under_way
    assert bench.answer(events.BatchAsked(AskBatch("a", "up-id", 5))) == BatchAnswer()


def test_shards_that_a_drained_machine_claims_go_elsewhere() -> None:
    bench = Bench(claimed=False)
    bench(events.HostJoined(hello_on("a", "one")))
    bench(events.HostJoined(hello_on("b", "two")))
    bench(events.DrainRequested("one"))
    answer = bench.answer(ClaimShards("a", "up-id", "up-op", (0,)))
    assert (answer.granted, answer.elsewhere) == ({}, {0: "address-b"})
    # A machine that has left and comes back under its name is like any other.
    bench(events.HostLeft(hello_on("a", "one")))
    bench(events.HostJoined(hello_on("a2", "one")))
    answer = bench.answer(ClaimShards("a2", "up-id", "up-op", (0,)))
    assert list(answer.granted) == [0]


def test_shards_that_a_drained_machine_claims_are_spread_over_all_others() -> None:
    bench = Bench(claimed=False)
    for host, machine in {"a": "one", "b": "two", "c": "three"}.items():
        bench(events.HostJoined(hello_on(host, machine)))
    bench(events.DrainRequested("one"))
    claim = ClaimShards("a", "up-id", "up-op", (0, 1))
    answer = bench.answer(claim)
    assert (answer.granted, set(answer.elsewhere.values())) == ({}, {"address-b", "address-c"})
    # The same again: a task looks for each shard at one host.
    assert bench.answer(claim) == answer


def test_shards_leave_the_host_of_an_executor_that_is_decommissioned_and_not_its_machine(
    bench: Bench,
) -> None:
    for host, executor in {"a": "0", "b": "1", "c": "2"}.items():
        bench(events.HostJoined(attrs.evolve(hello_on(host, "one"), spark_executor=executor)))
    assert bench.machine.placement.shards_leaving() == []
    bench(events.ExecutorsLeaving(frozenset({"0", "7"})))
    left = bench.machine.placement.shards_leaving()
    assert {one.shard for one in left} == {SHARD}
    moves = bench.machine.placement.moves.under_way.values()
    assert {move.owner for move in moves} == {"a"}
    assert "a" not in {move.target for move in moves}
    # Executors leave one after the other. The last of them keeps what it has: nobody else is there.
    bench(events.ExecutorsLeaving(frozenset({"1"})))
    assert {move.target for move in bench.machine.placement.moves.under_way.values()} <= {"c"}
    bench(events.ExecutorsLeaving(frozenset({"2"})))
    assert bench.machine.placement.shards_leaving() == []


@pytest.mark.parametrize("was_there", [False, True])
def test_a_host_that_joins_after_its_executor_was_decommissioned_gets_nothing(
    bench: Bench, was_there: bool
) -> None:
    late = attrs.evolve(hello_on("late", "two"), spark_executor="9")
    if was_there:
        bench(events.HostJoined(late))
    bench(events.ExecutorsLeaving(frozenset({"9"})))
    if was_there:
        bench(events.HostLeft(late))
    bench(events.HostJoined(late))
    assert "late" not in bench.machine.placement.moves.may_have_shards(bench.machine.members.hosts)
    bench.completed()
    assert not bench.machine.placement.moves.under_way
    assert bench.machine.placement.empty_hosts({"9"}) == ["late"]


def test_an_executor_that_has_left_makes_nothing_move_between_the_others(bench: Bench) -> None:
    leaving = attrs.evolve(hello_on("leaving", "three"), spark_executor="9")
    for one in (hello_on("a", "one"), hello_on("without shards", "two"), leaving):
        bench(events.HostJoined(one))
    bench.machine.placement.moves.is_uneven = False
    bench(events.HostLeft(leaving))
    bench(events.ExecutorsLeaving(frozenset({"9"})))
    bench.completed()
    assert not bench.machine.placement.moves.under_way


def test_a_machine_that_is_not_there_or_is_the_last_one_cannot_be_drained() -> None:
    bench = drained()
    with pytest.raises(DrainError, match="'nowhere' cannot be drained: expected one that has a state host"):
        bench.answer(events.DrainRequested("nowhere")).check()
    with pytest.raises(DrainError, match="expected another machine"):
        bench.answer(events.DrainRequested("two")).check()


def test_a_host_that_joins_when_all_shards_have_owners_gets_its_part(bench: Bench) -> None:
    bench.completed()
    assert not bench.machine.placement.moves.under_way
    bench(events.HostJoined(hello_on("c", "three")))
    bench.completed()
    bench.completed()
    ((host, _),) = bench.orders(OpenAhead)
    assert host == "c"


def asks_for_batches(bench: Bench, host: str, batches: range) -> None:
    """A task beside a host wants a shard of host a, batch after batch."""
    for batch in batches:
        assert bench.answer(events.BatchAsked(AskBatch(host, "up-id", batch))) == BatchAnswer()
        bench.claim(host, "up", (0,))
        # An attempt that runs again changes nothing.
        bench.claim(host, "up", (0,))


def following() -> Bench:
    bench = Bench()
    bench.machine.placement.moves.follows_tasks = True
    bench(events.HostJoined(hello_on("c", "three")))
    return bench


def planned(bench: Bench) -> list[tuple[ShardId, str]]:
    """Complete a checkpoint of the newest batches; return what is to move then, and where to."""
    checkpoint, newest = bench.machine.checkpoints.next_id, bench.machine.queries["up"].gate.passed
    bench.request()
    bench(events.CutChosen(checkpoint, "down", 4))
    bench(events.CutChosen(checkpoint, "up", newest))
    bench(events.PlanningDone(checkpoint))
    bench(events.BatchCommitted("up", newest))
    for ack in bench.acks(checkpoint):
        bench.ack(ack)
    for query, batch in (("down", 4), ("up", newest)):
        bench(events.ProgressStored(checkpoint, QueryRecord(query, batch, handle(query)), 1))
    bench.finalize(checkpoint)
    return [(move.shard, move.target) for move in bench.machine.placement.moves.under_way.values()]


def test_a_shard_follows_its_task_when_that_has_moved_for_good() -> None:
    bench = following()
    asks_for_batches(bench, "c", range(5, 5 + STAYS - 1))
    assert planned(bench) == []
    asks_for_batches(bench, "c", range(4 + STAYS, 5 + STAYS))
    assert planned(bench) == [(SHARD, "c")]


def test_a_task_that_was_elsewhere_only_now_and_then_leaves_its_shard_where_it_is() -> None:
    bench = following()
    asks_for_batches(bench, "c", range(5, 5 + STAYS - 1))
    asks_for_batches(bench, "b", range(4 + STAYS, 5 + STAYS))
    asks_for_batches(bench, "c", range(5 + STAYS, 4 + 2 * STAYS))
    assert planned(bench) == []
    # It ran where its shard is for two batches, whose claims nobody sees.
    asks_for_batches(bench, "c", range(6 + 2 * STAYS, 5 + 3 * STAYS))
    assert planned(bench) == []


def test_a_task_that_is_back_beside_its_shard_leaves_it_there() -> None:
    bench = following()
    asks_for_batches(bench, "c", range(5, 5 + STAYS))
    for batch in (5 + STAYS, 6 + STAYS):
        bench.answer(events.BatchAsked(AskBatch("a", "up-id", batch)))
    assert planned(bench) == []


def test_shards_that_follow_their_tasks_are_not_spread_when_a_host_joins_nor_go_to_a_drained_machine() -> (
    None
):
    bench = following()
    assert planned(bench) == []
    bench(events.HostJoined(hello_on("a", "one")))
    bench(events.HostJoined(hello_on("b", "two")))
    bench(events.DrainRequested("three"))
    asks_for_batches(bench, "c", range(5, 6 + STAYS))
    assert planned(bench) == []


def test_without_such_tasks_nothing_follows(bench: Bench) -> None:
    asks_for_batches(bench, "b", range(5, 6 + STAYS))
    assert planned(bench) == []
