"""Machines that users drain and executors that leave: when a request is done, and the checkpoints that it takes."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from chandy.coordinator.assigned_shard import assigned_shards
from chandy.coordinator.protocol import emptying, events
from chandy.coordinator.protocol.copies import CopyPhase
from chandy.coordinator.protocol.errors import DrainError, PhaseError
from chandy.coordinator.protocol.reasons import Reason
from chandy.coordinator.protocol.user_requests import NEXT, RequestPhase, UserRequest
from chandy.state.rpc.messages import Ack, AskBatch, CopyReport, CopyStep, Decline, HostHello
from chandy.state.rpc.orders import OpenAhead, Reopen, TakeOver
from chandy.state.shards import ResumePoint
from chandy.storage.ids import BatchId

from ..life_events import FENCED, STOPPED, going_back
from .bench import Bench, hello_on


def keeping(host: str, machine: str) -> HostHello:
    """A host that keeps changelogs on its machine, beside the machine's only executor."""
    hello = attrs.evolve(hello_on(host, machine), executor=machine, spark_executor=f"beside {machine}")
    return attrs.evolve(hello, changelogs=f"disk of {machine}")


def bench(**config: Any) -> Bench:
    """Host a on machine one has a shard, host b on machine two two. A batch of query up runs."""
    made = Bench(**config)
    for hello in (keeping("a", "one"), keeping("b", "two")):
        made(events.HostJoined(hello))
    made.machine.placement.moves.is_uneven = False
    made.completed()
    made.answer(events.BatchAsked(AskBatch("a", "up-id", 5)))
    return made


def drain(made: Bench, machine: str = "one", seconds: float = 600.0) -> UserRequest:
    return made.answer(events.DrainRequested(machine, seconds))


def due(made: Bench) -> int | None:
    """Let what is due be done; return the id of the checkpoint that has begun, None if none has."""
    before = made.machine.checkpoints.next_id
    made(events.Tick())
    return before if made.machine.checkpoints.next_id > before else None


def in_their_terms(made: Bench, ack: Ack) -> Ack:
    """The snapshots are those of the owners of the shards."""
    query = made.machine.queries.get_running(ack.query_id)
    terms = [query.assignment.owner_term(one.shard) for one in ack.snapshots]
    snapshots = (attrs.evolve(one, term=term) for one, term in zip(ack.snapshots, terms, strict=True))
    return attrs.evolve(ack, snapshots=tuple(snapshots))


def moved(made: Bench, checkpoint: int) -> None:
    """Complete a checkpoint, and have the shards that move with it get to their targets."""
    made.plan(checkpoint, 5)
    made(events.BatchCommitted("up", 5))
    made.answer(events.BatchAsked(AskBatch("b", "down-id", 6)))
    for ack in made.acks(checkpoint):
        made.ack(in_their_terms(made, ack))
    made.store_progress(checkpoint, 5)
    made.finalize(checkpoint)
    for host, order in made.orders(OpenAhead):
        made(CopyReport(host, order.copy_id, CopyStep.OPENED))
    for host, order in made.orders(TakeOver):
        made(CopyReport(host, order.copy_id, CopyStep.TAKEN, order.term))


def test_a_request_goes_through_its_phases_and_ends_once() -> None:
    request = UserRequest("do something", 5.0)
    for early in (RequestPhase.DONE, RequestPhase.UNDER_WAY, RequestPhase.CANCELLED):
        with pytest.raises(PhaseError, match="to do something cannot go from 'asked'"):
            request.enter(early)
    request.enter(RequestPhase.ADMITTED)
    with pytest.raises(PhaseError):
        request.enter(RequestPhase.FAILED)  # without a reason
    request.enter(RequestPhase.FAILED, DrainError("it", "this", "that"))
    assert request.is_over
    with pytest.raises(DrainError):
        request.check()
    assert {phase for phase in NEXT if not NEXT[phase]} == {
        RequestPhase.DONE,
        RequestPhase.REFUSED,
        RequestPhase.FAILED,
        RequestPhase.CANCELLED,
    }


def test_a_drain_takes_a_checkpoint_of_its_own_and_is_done_when_the_shards_have_moved() -> None:
    made = bench()
    request = drain(made)
    checkpoint = due(made)
    assert checkpoint is not None
    assert due(made) is None, "one at a time"
    moved(made, checkpoint)
    assert request.phase is RequestPhase.DONE
    request.check()
    assert due(made) is None, "nothing is left"
    again = drain(made)
    assert again.phase is RequestPhase.DONE


def test_a_shard_that_waits_for_the_next_host_of_its_machine_is_on_it_and_stays_to_be_moved() -> None:
    made = bench()
    request = drain(made)
    made(events.HostLeft(keeping("a", "one")))
    assert request.phase is RequestPhase.UNDER_WAY
    (left,) = made.machine.placement.shards_on("one")
    assert (left.host, left.phase) == (None, CopyPhase.LOST)
    (seen,) = [one for one in assigned_shards(made.machine) if one.machine == "one"]
    assert (seen.executor, seen.progress) == (None, "waits for a host on its machine")
    made(events.HostJoined(keeping("a2", "one")))
    ((_, order),) = made.orders(Reopen)
    assert [one.host for one in made.machine.placement.shards_on("one")] == ["a2"]
    made(CopyReport("a2", order.copy_id, CopyStep.TAKEN, order.term))
    checkpoint = due(made)
    assert checkpoint is not None, "the next host is emptied, too"
    moved(made, checkpoint)
    assert request.phase is RequestPhase.DONE
    # Its executor ends, and then it is like any other.
    made(events.HostLeft(keeping("a2", "one")))
    assert made.machine.placement.moves.draining == {"one"}
    made(events.ExecutorsGone(frozenset({"beside one"})))
    assert made.machine.placement.moves.draining == set()


def test_a_shard_of_which_nobody_knows_where_it_is_may_be_on_any_machine() -> None:
    # Its query resumes from changelogs, and no host has opened it.
    made = bench()
    made(
        events.QueryAdded(
            "up",
            "up-again",
            batch=BatchId(5),
            operators=made.machine.queries["up"].operators,
            sources={},
            resume_point=ResumePoint("up-id", BatchId(3), BatchId(5)),
        )
    )
    for machine in ("one", "two"):
        unknown = [one for one in made.machine.placement.shards_on(machine) if one.query == "up"]
        assert [(one.machine, one.host) for one in unknown] == [(None, None), (None, None)]


def test_an_executor_that_leaves_while_its_host_opens_shards_of_a_lost_one_is_emptied() -> None:
    made = bench()
    made(events.HostJoined(attrs.evolve(keeping("a2", "one"), executor="other", spark_executor="8")))
    made.machine.placement.moves.is_uneven = False
    made(events.HostLeft(keeping("a", "one")))
    ((host, order),) = made.orders(Reopen)
    made(events.ExecutorsLeaving(frozenset({"8"})))
    assert due(made) is None, "what is being opened cannot be moved yet"
    made(CopyReport(host, order.copy_id, CopyStep.TAKEN, order.term))
    assert due(made) is not None


def test_checkpoints_of_a_drain_that_fail_do_not_count_and_come_no_faster_than_they_may() -> None:
    made = bench(tolerable_failures=0)
    drain(made)
    began = made.now
    for number in range(3):
        checkpoint = due(made)
        assert checkpoint is not None
        made.plan(checkpoint, 5)
        made(Decline("a", checkpoint, "up-id", "the store refuses"))
        assert due(made) is None
        made.now = began + (number + 1) * (emptying.RETRY_SECONDS + 0.1)
    assert made.reasons() == [Reason.DECLINED] * 3
    assert not made.failed()


@pytest.mark.parametrize("ends", ["its time is up", "the pipeline stops", "another takes the pipeline over"])
def test_a_drain_that_does_not_get_there_ends_with_the_reason(ends: str) -> None:
    made = bench()
    request = drain(made, seconds=20.0)
    made(going_back("a query has failed"))
    if ends == "its time is up":
        made.now += 20.0
        made(events.Tick())
        assert request.phase is RequestPhase.FAILED
        with pytest.raises(DrainError, match=r"'one' is not drained yet.* 1: shard 0 of 'up-op'"):
            request.check()
        return
    made(FENCED if "another" in ends else STOPPED)
    assert request.phase is RequestPhase.CANCELLED
    with pytest.raises(DrainError, match="FENCED" if "another" in ends else "COORDINATOR_SHUTDOWN"):
        request.check()
    assert drain(made).is_over, "nothing that is asked of a pipeline that has ended stays open"
