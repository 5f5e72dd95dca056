"""What becomes of batches, claims and checkpoints when the host of shards is lost that have standbys."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest

from chandy.coordinator.assigned_shard import assigned_shards
from chandy.coordinator.protocol import events, instructions
from chandy.coordinator.protocol.copies import HAND_OVER_SECONDS, CopyPhase
from chandy.coordinator.protocol.errors import NotTheOwnerError
from chandy.coordinator.protocol.pending import AckResult
from chandy.coordinator.protocol.reasons import Reason
from chandy.state.errors import HostDismissedError, ShardMovingError
from chandy.state.rpc.messages import AskBatch, BatchAnswer, ClaimShards, CopyReport, CopyStep, DropStandby
from chandy.state.rpc.orders import ConfirmOwner, EndStandby, OpenAhead, Promote, SnapshotOrder, StopHost
from chandy.state.shards import ShardId

from .bench import Bench, hello_on

SHARD = ShardId("up-op", 0)


def standing_by(machines: Sequence[str] = ("one", "two")) -> Bench:
    """Host a has a shard on machine one, whose standby is on b; b, on machine two, has the two others."""
    bench = Bench(standbys=1)
    for host, machine in zip("abc", machines, strict=False):
        bench(events.HostJoined(hello_on(host, machine)))
    # The hosts of ``Bench`` have been here before, with other machines: what was planned then is not.
    bench.machine.placement.moves.is_uneven = False
    bench.completed()
    told = 0
    while told < len(bench.orders(OpenAhead)):
        host, order = bench.orders(OpenAhead)[told]
        bench(CopyReport(host, order.copy_id, CopyStep.OPENED))
        told += 1
    return bench


def number(bench: Bench) -> int:
    """The number of the standby of the shard of host a."""
    return next(order.copy_id for _, order in bench.orders(OpenAhead) if order.shard == SHARD)


def lost(bench: Bench) -> Bench:
    bench(events.HostLeft(hello_on("a", "one")))
    return bench


def taken(bench: Bench) -> Bench:
    bench(CopyReport("b", number(bench), CopyStep.TAKEN, 2))
    return bench


def completed(bench: Bench) -> int:
    """Complete a checkpoint, each shard in its owner's term; return its id."""
    checkpoint = bench.machine.checkpoints.next_id
    bench.trigger(checkpoint)
    for ack in bench.acks(checkpoint):
        query = next(one for one in bench.machine.queries.values() if one.query_id == ack.query_id)
        term = query.assignment.owner_term
        in_term = tuple(attrs.evolve(one, term=term(one.shard)) for one in ack.snapshots)
        bench.ack(attrs.evolve(ack, snapshots=in_term))
    bench.store_progress(checkpoint)
    return bench.finalize(checkpoint).id


def drop(bench: Bench, host: str = "a", term: int = 1) -> DropStandby:
    return DropStandby(host, "up-id", SHARD, term, number(bench))


def test_every_shard_gets_a_standby_on_another_machine_with_a_checkpoint() -> None:
    bench = standing_by()
    owners = {(one.operator, one.shard): (one.machine, one.standby) for one in assigned_shards(bench.machine)}
    assert owners == {
        ("down-op", 0): ("two", "one"),
        ("up-op", 0): ("one", "two"),
        ("up-op", 1): ("two", "one"),
    }
    follow = {shard for _, order in bench.orders(SnapshotOrder) for shard in order.follow}
    assert len(follow) == 3
    (order,) = [order for _, order in bench.orders(OpenAhead) if order.shard == SHARD]
    assert (order.owner, order.standby_at, order.owner_term) == ("address-a", "address-b", 1)


def test_it_is_said_once_that_all_shards_have_standbys_and_again_after_a_loss() -> None:
    bench = standing_by()
    assert bench.of(instructions.StandbysInSync) == [instructions.StandbysInSync(3)]
    taken(lost(bench))
    bench(events.HostJoined(hello_on("c", "three")))
    # Nothing moves to it.
    bench.machine.placement.moves.is_uneven = False
    assert len(bench.of(instructions.StandbysInSync)) == 1
    completed(bench)
    # They are made a few at a time.
    for at in (3, 4, 5):
        assert len(bench.of(instructions.StandbysInSync)) == 1
        host, order = bench.orders(OpenAhead)[at]
        bench(CopyReport(host, order.copy_id, CopyStep.OPENED))
    assert len(bench.of(instructions.StandbysInSync)) == 2


def test_without_another_machine_or_without_standbys_there_are_none() -> None:
    assert not standing_by(("one", "one")).orders(OpenAhead)
    bench = Bench()
    bench(events.HostJoined(hello_on("a", "one")))
    bench.completed()
    assert not bench.machine.placement.standbys.under_way


def test_a_standby_takes_the_place_of_a_lost_shard_and_nothing_goes_back() -> None:
    bench = standing_by()
    assert bench.answer(events.BatchAsked(AskBatch("a", "up-id", 5))) == BatchAnswer()
    lost(bench)
    # Batch 5 runs, so batch 4 has committed.
    assert bench.orders(Promote) == [("b", Promote(number(bench), 4, 2))]
    assert bench.of(instructions.ReplaceHost) == [
        instructions.ReplaceHost("state host a on one is gone", (SHARD,), ())
    ]
    assert bench.machine.placement.promoted == 0
    # The tasks of the running batch go on elsewhere, and the next one waits.
    assert bench.answer(events.BatchAsked(AskBatch("b", "up-id", 5))) == BatchAnswer()
    assert bench.answer(events.BatchAsked(AskBatch("b", "up-id", 6))) is None
    with pytest.raises(ShardMovingError):
        bench.claim("b", "up", (0,))
    taken(bench)
    assert bench.orders(ConfirmOwner)[-1] == ("b", ConfirmOwner("up-id", SHARD, "b", 2))
    assert (bench.machine.placement.promoted, bench.machine.placement.reopened) == (1, 0)
    assert bench.answer(events.BatchAsked(AskBatch("b", "up-id", 6))) == BatchAnswer()
    claim = ClaimShards("b", "up-id", "up-op", (0,), {0: 2})
    assert bench.answer(claim).kept == (0,)
    assert not bench.lost()


def test_another_standby_is_made_with_the_next_checkpoint() -> None:
    bench = taken(lost(standing_by()))
    bench(events.HostJoined(hello_on("c", "three")))
    before = len(bench.orders(OpenAhead))
    completed(bench)
    made = {(host, order.shard, order.owner_term) for host, order in bench.orders(OpenAhead)[before:]}
    assert ("c", SHARD, 2) in made


def test_a_host_that_is_replaced_is_told_to_end_and_counts_no_more() -> None:
    bench = lost(standing_by())
    for _ in range(2):
        with pytest.raises(NotTheOwnerError):
            bench(drop(bench))
        with pytest.raises(HostDismissedError):
            bench.answer(events.BatchAsked(AskBatch("a", "up-id", 5)))
        with pytest.raises(HostDismissedError):
            bench.claim("a", "up", (0,))
        assert StopHost(is_replaced=True) in [
            send.order
            for send in bench(events.HostJoined(hello_on("a", "one")))
            if isinstance(send, instructions.Send)
        ]
        assert "a" not in bench.machine.members.hosts
        bench(events.HostLeft(hello_on("a", "one")))
        taken(bench)
    assert not bench.lost()


def test_a_batch_of_a_host_that_is_replaced_changes_nothing() -> None:
    bench = lost(standing_by())
    pending = bench.machine.checkpoints.next_id
    bench.trigger(pending, planned=5)
    waiting = bench.machine.waiting_for_commits()
    with pytest.raises(HostDismissedError):
        bench.answer(events.BatchAsked(AskBatch("a", "up-id", 6)))
    assert bench.machine.waiting_for_commits() == waiting
    assert waiting["up"] == 5
    assert not bench.machine._out


def test_a_standby_that_was_dropped_takes_no_place() -> None:
    bench = standing_by()
    bench(drop(bench))
    ended = EndStandby("up-id", SHARD, number(bench))
    assert bench.orders(EndStandby) == [("a", ended), ("b", ended)]
    lost(bench)
    assert bench.lost()
    assert not bench.orders(Promote)


def test_an_owner_of_another_term_drops_nothing() -> None:
    bench = standing_by()
    with pytest.raises(NotTheOwnerError):
        bench(drop(bench, term=2))
    with pytest.raises(NotTheOwnerError):
        bench(drop(bench, host="b"))
    lost(bench)
    assert bench.orders(Promote)


def test_a_standby_that_is_restored_only_now_takes_no_place() -> None:
    bench = Bench(standbys=1)
    for host, machine in (("a", "one"), ("b", "two")):
        bench(events.HostJoined(hello_on(host, machine)))
    bench.completed()
    assert bench.orders(OpenAhead)
    lost(bench)
    assert bench.lost()


def test_a_checkpoint_without_the_shard_leaves_the_standby_to_the_next_one() -> None:
    bench = Bench(standbys=1)
    for host, machine in (("a", "one"), ("b", "two")):
        bench(events.HostJoined(hello_on(host, machine)))
    # Hosts have opened the shards of an operator whose first batch is still to come: it is not in the manifest.
    for query in bench.machine.queries.values():
        query.restored = ()
    bench.completed()
    under_way = bench.machine.placement.standbys.under_way.values()
    assert {one.phase for one in under_way} == {CopyPhase.PLANNED}
    assert {one.checkpoint for one in under_way} == {None}


def test_the_loss_of_a_standby_costs_nothing_and_that_of_both_goes_back() -> None:
    bench = standing_by(("one", "two", "three"))
    shard = next(one for one in assigned_shards(bench.machine) if (one.operator, one.shard) == ("up-op", 0))
    assert shard.standby == "three"
    bench(events.HostLeft(hello_on("c", "three")))
    assert not bench.lost()
    ended = [host for host, order in bench.orders(EndStandby) if order.shard == SHARD]
    assert ended == ["a", "c"]
    lost(bench)
    assert bench.lost()


def test_a_standby_that_is_lost_while_it_takes_a_place_goes_back() -> None:
    bench = lost(standing_by())
    bench(events.HostLeft(hello_on("b", "two")))
    assert bench.lost()


def test_a_standby_that_fails_to_take_its_place_or_is_too_slow_goes_back() -> None:
    bench = lost(standing_by())
    bench(CopyReport("b", number(bench), CopyStep.FAILED, why="its disk is full"))
    (back,) = bench.lost()
    assert "its disk is full" in back

    bench = lost(standing_by())
    bench.now += HAND_OVER_SECONDS
    bench(events.Tick())
    assert bench.lost()
    taken(bench)
    assert bench.machine.queries["up"].assignment.owner_term(SHARD) == 1


def test_a_checkpoint_that_waits_for_the_lost_host_is_given_up_and_counts_as_no_failure() -> None:
    bench = standing_by()
    bench.trigger(2)
    lost(bench)
    assert bench.reasons() == [Reason.JOB_FAILOVER]
    taken(bench)
    assert completed(bench) == 3


def test_a_checkpoint_that_has_the_lost_hosts_part_goes_on() -> None:
    bench = standing_by()
    bench.trigger(2)
    ((_, order),) = [
        (host, one) for host, one in bench.orders(SnapshotOrder) if host == "a" and one.checkpoint == 2
    ]
    assert bench.ack(bench.ack_of("a", order)) == (AckResult.ACCEPTED,)
    taken(lost(bench))
    bench.acknowledge(2)
    assert bench.finalize(2).id == 2


def test_an_acknowledgement_of_the_lost_host_does_not_count() -> None:
    bench = taken(lost(standing_by()))
    bench.trigger(2)
    order = next(one for _, one in bench.orders(SnapshotOrder) if one.checkpoint == 2 and one.query == "up")
    zombie = bench.ack_of("a", attrs.evolve(order, shards=(SHARD,)))
    assert bench.ack(zombie) == (AckResult.FENCED,)


def test_a_host_that_takes_the_place_of_another_in_its_executor_lets_standbys_take_over() -> None:
    bench = standing_by()
    bench(events.HostJoined(attrs.evolve(hello_on("a2", "one"), executor="a")))
    assert bench.orders(Promote)
    # The end of the stream of the one before is noticed later.
    lost(bench)
    taken(bench)
    assert not bench.lost()


def test_a_drained_machine_has_no_standbys() -> None:
    bench = standing_by(("one", "two", "three"))
    bench(events.DrainRequested("three"))
    assert "three" not in {one.standby for one in assigned_shards(bench.machine)}


def test_the_host_of_an_executor_that_is_decommissioned_has_no_standbys_and_is_empty() -> None:
    bench = standing_by(("one", "two", "three"))
    for host, executor in {"a": "0", "b": "1", "c": "2"}.items():
        bench(events.HostJoined(attrs.evolve(bench.machine.members.hosts[host], spark_executor=executor)))
    assert "c" in {one.target for one in bench.machine.placement.standbys.under_way.values()}
    bench(events.ExecutorsLeaving(frozenset({"2"})))
    assert "c" not in {one.target for one in bench.machine.placement.standbys.under_way.values()}
    assert bench.machine.placement.empty_hosts({"2"}) == ["c"]
    assert bench.machine.placement.empty_hosts({"0", "1"}) == [], (
        "hosts that do not leave are nobody's concern"
    )
    bench(events.ExecutorsLeaving(frozenset({"0"})))
    assert bench.machine.placement.empty_hosts({"0", "2"}) == ["c"], "host a still has a shard"
