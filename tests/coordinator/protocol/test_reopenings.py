"""Hosts that are lost and have left changelogs on their machine: the next host there opens their shards again."""

from __future__ import annotations

import attrs
import pytest

from chandy.coordinator.protocol import events, instructions
from chandy.coordinator.protocol.copies import CopyPhase
from chandy.coordinator.protocol.reasons import Reason
from chandy.coordinator.protocol.reopenings import AWAIT_HOST_SECONDS
from chandy.state.errors import HostDismissedError, ShardMovingError
from chandy.state.rpc.messages import AskBatch, BatchAnswer, ClaimShards, CopyReport, CopyStep, HostHello
from chandy.state.rpc.orders import ConfirmOwner, EndStandby, Promote, Reopen, SnapshotOrder, StopHost
from chandy.state.shards import ShardId

from ..life_events import going_back
from .bench import Bench, hello_on

SHARD = ShardId("up-op", 0)


def keeping(host: str, machine: str) -> HostHello:
    """A host that keeps changelogs for others on its machine."""
    return attrs.evolve(hello_on(host, machine), changelogs=f"disk of {machine}")


A, B, NEXT_A = keeping("a", "one"), keeping("b", "two"), attrs.evolve(keeping("a2", "one"), executor="a")


# --- one step after the other -------------------------------------------------------------------------------


def bench() -> Bench:
    """Hosts a, on machine one, and b, on machine two, have shards; each keeps changelogs."""
    made = Bench()
    for hello in (A, B):
        made(events.HostJoined(hello))
    made.machine.placement.moves.is_uneven = False
    return made


def lost(made: Bench) -> Bench:
    made(events.HostLeft(A))
    return made


def reopening(made: Bench) -> Reopen:
    """The order of the only shard that is opened again, which host a2 has got."""
    ((host, order),) = made.orders(Reopen)
    assert host == "a2"
    return order


def taken(made: Bench) -> Bench:
    order = reopening(made)
    made(CopyReport("a2", order.copy_id, CopyStep.TAKEN, order.term))
    return made


def test_the_next_host_on_the_machine_opens_the_shard_and_the_query_goes_on() -> None:
    made = bench()
    checkpoint = made.completed()
    assert made.answer(events.BatchAsked(AskBatch("a", "up-id", 5))) == BatchAnswer()
    lost(made)
    assert made.of(instructions.ReplaceHost) == [
        instructions.ReplaceHost("state host a on one is gone", (), (SHARD,))
    ]
    assert not made.orders(Reopen), "there is no host on the machine"
    # The tasks of the running batch wait, and so does the next one.
    with pytest.raises(ShardMovingError):
        made.claim("b", "up", (0,))
    assert made.answer(events.BatchAsked(AskBatch("b", "up-id", 5))) == BatchAnswer()
    made(events.HostJoined(NEXT_A))
    assert made.answer(events.BatchAsked(AskBatch("b", "up-id", 6))) is None
    order = reopening(made)
    assert order.source is not None
    # Batch 5 runs, so batch 4 has committed.
    assert (order.source.checkpoint, order.after, order.cut, order.begun) == (checkpoint.id, 4, 4, 5)
    assert (order.lost, order.term, order.shard) == ("a", 2, SHARD)
    with pytest.raises(ShardMovingError):
        made.claim("a2", "up", (0,))
    assert made.machine.placement.reopened == 0
    taken(made)
    assert (made.machine.placement.reopened, made.machine.placement.promoted) == (1, 0)
    assert made.orders(ConfirmOwner)[-1] == ("a2", ConfirmOwner("up-id", SHARD, "a2", 2))
    assert made.answer(events.BatchAsked(AskBatch("b", "up-id", 6))) == BatchAnswer()
    claim = ClaimShards("a2", "up-id", "up-op", (0,), {0: 2})
    assert made.answer(claim).kept == (0,)
    assert not made.lost()


def test_before_a_checkpoint_has_completed_a_shard_comes_from_what_the_query_was_restored_from() -> None:
    made = bench()
    made.answer(events.BatchAsked(AskBatch("a", "up-id", 6)))
    lost(made)
    made(events.HostJoined(NEXT_A))
    order = reopening(made)
    assert (order.source, order.after, order.cut, order.begun) == (None, 4, 5, 6)


def test_a_host_that_is_already_there_opens_it_at_once() -> None:
    made = bench()
    made(events.HostJoined(attrs.evolve(keeping("a2", "one"), executor="another")))
    lost(made)
    assert reopening(made).lost == "a"


def test_a_host_in_the_place_of_another_in_its_executor_opens_its_shards() -> None:
    made = bench()
    made(events.HostJoined(NEXT_A))
    assert reopening(made).lost == "a"
    # The end of the stream of the one before is noticed later.
    lost(made)
    taken(made)
    assert not made.lost()


@pytest.mark.parametrize(
    "next_host",
    [
        keeping("c", "three"),
        hello_on("c", "one"),
        attrs.evolve(keeping("c", "one"), changelogs="another disk"),
    ],
    ids=["on another machine", "that keeps none", "with another disk"],
)
def test_a_host_that_cannot_read_the_changelogs_opens_nothing(next_host: HostHello) -> None:
    made = lost(bench())
    made(events.HostJoined(next_host))
    assert not made.orders(Reopen)
    made.now += AWAIT_HOST_SECONDS
    made(events.Tick())
    (back,) = made.lost()
    assert "no state host on its machine" in back


@pytest.mark.parametrize("why", ["it is silent", "it keeps none", "the pipeline goes back"])
def test_the_pipeline_goes_back_at_once_if(why: str) -> None:
    made = bench()
    if why == "the pipeline goes back":
        made(going_back("a query has failed"))
    hello = hello_on("a", "one") if why == "it keeps none" else A
    made(events.HostLeft(hello, is_silent=why == "it is silent"))
    assert made.lost()
    assert not made.machine.placement.reopenings.under_way


@pytest.mark.parametrize("first", ["the host", "the executor"])
def test_with_its_executor_a_lost_host_takes_the_pipeline_back_unless_another_is_on_the_machine(
    first: str,
) -> None:
    one = attrs.evolve(A, spark_executor="7")
    gone = [events.HostLeft(one), events.ExecutorsGone(frozenset({"7"}))]
    made = bench()
    made(events.HostJoined(one))
    for event in gone if first == "the host" else reversed(gone):
        made(event)
    (back,) = made.lost()
    assert "its executor with it" in back

    other = attrs.evolve(keeping("a2", "one"), executor="another", spark_executor="8")
    for is_lost in (False, True):
        made = bench()
        for hello in (one, other):
            made(events.HostJoined(hello))
        if is_lost:
            # Its executor starts the next one.
            made(events.HostLeft(other))
        for event in gone if first == "the host" else reversed(gone):
            made(event)
        if is_lost:
            assert not made.orders(Reopen)
            made(events.HostJoined(other))
        taken(made)
        assert not made.lost()


def test_a_machine_that_is_drained_opens_its_shards_and_an_executor_that_leaves_opens_none() -> None:
    made = bench()
    made(events.DrainRequested("one"))
    made(events.HostJoined(NEXT_A))
    assert reopening(made).lost == "a"

    made = bench()
    made(events.HostJoined(attrs.evolve(A, spark_executor="7")))
    made(events.ExecutorsLeaving(frozenset({"7"})))
    made(events.HostLeft(attrs.evolve(A, spark_executor="7")))
    assert made.lost(), "nobody waits for a host beside an executor that leaves"


def test_a_shard_that_cannot_be_opened_goes_back_with_the_reason() -> None:
    made = lost(bench())
    made(events.HostJoined(NEXT_A))
    order = reopening(made)
    made(CopyReport("a2", order.copy_id, CopyStep.FAILED, why="a record is damaged"))
    (back,) = made.lost()
    assert "a record is damaged" in back
    # What comes late does not count.
    taken(made)
    assert made.machine.queries["up"].assignment.owner_term(SHARD) == 1


def test_a_host_that_is_lost_while_it_opens_a_shard_is_followed_by_the_next_one() -> None:
    made = lost(bench())
    made(events.HostJoined(NEXT_A))
    first = reopening(made)
    made(events.HostLeft(NEXT_A))
    assert not made.lost()
    made(events.HostJoined(attrs.evolve(NEXT_A, host="a3")))
    (_, (host, second)) = made.orders(Reopen)
    assert (host, second.lost, second.term) == ("a3", "a", first.term + 1)
    # What the one before has to say does not count.
    made(CopyReport("a2", first.copy_id, CopyStep.TAKEN, first.term))
    assert made.machine.placement.holds("up")
    made(CopyReport("a3", second.copy_id, CopyStep.TAKEN, second.term))
    assert made.machine.queries["up"].assignment.is_owner(SHARD, "a3", second.term)


def test_hosts_that_are_lost_again_and_again_are_not_followed_for_ever() -> None:
    made = lost(bench())
    for _ in range(10):
        made(events.HostJoined(NEXT_A))
        made(events.HostLeft(NEXT_A))
        made.now += AWAIT_HOST_SECONDS / 4
    assert len(made.orders(Reopen)) == 4
    made(events.Tick())
    assert made.lost()


def test_a_host_that_takes_too_long_is_told_to_give_up() -> None:
    made = lost(bench())
    made(events.HostJoined(NEXT_A))
    order = reopening(made)
    made.now += made.machine.limits.timeout
    made(events.Tick())
    assert made.lost()
    assert made.orders(EndStandby) == [("a2", EndStandby("up-id", SHARD, order.copy_id))]


def test_the_lost_host_leaves_its_changelogs_and_counts_no_more() -> None:
    made = lost(bench())
    assert instructions.Send("a", StopHost(is_replaced=True)) in made(events.HostJoined(A))
    with pytest.raises(HostDismissedError):
        made.answer(events.BatchAsked(AskBatch("a", "up-id", 5)))
    with pytest.raises(HostDismissedError):
        made.claim("a", "up", (0,))


def test_a_checkpoint_that_waits_for_the_lost_host_is_given_up_and_the_next_takes_the_shard_where_it_is() -> (
    None
):
    made = bench()
    made.trigger(1)
    lost(made)
    assert made.reasons() == [Reason.JOB_FAILOVER]
    made(events.HostJoined(NEXT_A))
    made.trigger(2)
    assert not [one for _, one in made.orders(SnapshotOrder) if (one.checkpoint, one.query) == (2, "up")]
    taken(made)
    hosts = {host for host, one in made.orders(SnapshotOrder) if one.checkpoint == 2 and SHARD in one.shards}
    assert hosts == {"a2"}


def test_a_shard_with_a_standby_has_it_promoted_and_the_others_are_opened_again() -> None:
    made = Bench(standbys=1)
    for hello in (A, B):
        made(events.HostJoined(hello))
    made.machine.placement.moves.is_uneven = False
    made.completed()
    standbys = made.machine.placement.standbys
    (own,) = [one for one in standbys.under_way.values() if one.shard == SHARD]
    for one in list(standbys.under_way.values()):
        if one is own and one.phase is CopyPhase.OPENING:
            made(CopyReport(one.target, one.id, CopyStep.OPENED))
    made.claim("a", "down", ())
    lost(made)
    assert [host for host, _ in made.orders(Promote)] == ["b"]
    assert not made.machine.placement.reopenings.under_way
