"""Machines that users drain and executors that leave: when a request is done, and the checkpoints that it takes."""

from __future__ import annotations

import copy
from typing import Any

import attrs
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from chandy.coordinator.assigned_shard import assigned_shards
from chandy.coordinator.protocol import emptying
from chandy.coordinator.protocol import events as on
from chandy.coordinator.protocol import instructions as do
from chandy.coordinator.protocol.copies import CopyPhase
from chandy.coordinator.protocol.errors import DrainError, RequestPhaseError
from chandy.coordinator.protocol.placement import Placement
from chandy.coordinator.protocol.reasons import Reason
from chandy.coordinator.protocol.user_requests import NEXT, RequestPhase, UserRequest
from chandy.state.rpc.messages import Ack, AskBatch, ClaimShards, CopyReport, CopyStep, Decline, HostHello
from chandy.state.rpc.orders import OpenAhead, Promote, Reopen, SnapshotOrder, TakeOver
from chandy.storage.checkpoints.manifest import QueryRecord
from chandy.storage.errors import ChandyError

from ...effort import always_kept, until_found
from ..life_events import FENCED, RUNS, STOPPED, going_back
from .bench import SHARDS, Bench, handle, hello_on

MACHINES = {"one": "a", "two": "b", "three": "c"}
NOBODY = -1


def keeping(host: str, machine: str) -> HostHello:
    """A host that keeps changelogs on its machine, beside the machine's only executor."""
    hello = attrs.evolve(hello_on(host, machine), executor=machine, spark_executor=f"beside {machine}")
    return attrs.evolve(hello, changelogs=f"disk of {machine}")


def bench(**config: Any) -> Bench:
    """Host a on machine one has a shard, host b on machine two two. A batch of query up runs."""
    made = Bench(**config)
    for hello in (keeping("a", "one"), keeping("b", "two")):
        made(on.HostJoined(hello))
    made.machine.placement.moves.is_uneven = False
    made.completed()
    made.answer(on.BatchAsked(AskBatch("a", "up-id", 5)))
    return made


def drain(made: Bench, machine: str = "one", seconds: float = 600.0) -> UserRequest:
    return made.answer(on.DrainRequested(machine, seconds))


def due(made: Bench) -> int | None:
    """Let what is due be done; return the id of the checkpoint that has begun, None if none has."""
    before = made.machine.checkpoints.next_id
    made(on.Tick())
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
    made(on.BatchCommitted("up", 5))
    made.answer(on.BatchAsked(AskBatch("b", "down-id", 6)))
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
        with pytest.raises(RequestPhaseError, match="to do something cannot go from 'asked'"):
            request.enter(early)
    request.enter(RequestPhase.ADMITTED)
    with pytest.raises(RequestPhaseError):
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
    made(on.HostLeft(keeping("a", "one")))
    assert request.phase is RequestPhase.UNDER_WAY
    (left,) = made.machine.placement.shards_on("one")
    assert (left.host, left.phase) == (None, CopyPhase.LOST)
    (seen,) = [one for one in assigned_shards(made.machine) if one.machine == "one"]
    assert (seen.executor, seen.progress) == (None, "waits for a host on its machine")
    made(on.HostJoined(keeping("a2", "one")))
    ((_, order),) = made.orders(Reopen)
    assert [one.host for one in made.machine.placement.shards_on("one")] == ["a2"]
    made(CopyReport("a2", order.copy_id, CopyStep.TAKEN, order.term))
    checkpoint = due(made)
    assert checkpoint is not None, "the next host is emptied, too"
    moved(made, checkpoint)
    assert request.phase is RequestPhase.DONE
    # Its executor ends, and then it is like any other.
    made(on.HostLeft(keeping("a2", "one")))
    assert made.machine.placement.moves.draining == {"one"}
    made(on.ExecutorsGone(frozenset({"beside one"})))
    assert made.machine.placement.moves.draining == set()


def test_an_executor_that_leaves_while_its_host_opens_shards_of_a_lost_one_is_emptied() -> None:
    made = bench()
    made(on.HostJoined(attrs.evolve(keeping("a2", "one"), executor="other", spark_executor="8")))
    made.machine.placement.moves.is_uneven = False
    made(on.HostLeft(keeping("a", "one")))
    ((host, order),) = made.orders(Reopen)
    made(on.ExecutorsLeaving(frozenset({"8"})))
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
    assert not made.of(do.FailPipeline)


@pytest.mark.parametrize("ends", ["its time is up", "the pipeline stops", "another takes the pipeline over"])
def test_a_drain_that_does_not_get_there_ends_with_the_reason(ends: str) -> None:
    made = bench()
    request = drain(made, seconds=20.0)
    made(going_back("a query has failed"))
    if ends == "its time is up":
        made.now += 20.0
        made(on.Tick())
        assert request.phase is RequestPhase.FAILED
        with pytest.raises(DrainError, match=r"'one' is not drained yet.* 1: shard 0 of 'up-op'"):
            request.check()
        return
    made(FENCED if "another" in ends else STOPPED)
    assert request.phase is RequestPhase.CANCELLED
    with pytest.raises(DrainError, match="FENCED" if "another" in ends else "COORDINATOR_SHUTDOWN"):
        request.check()
    assert drain(made).is_over, "nothing that is asked of a pipeline that has ended stays open"


# --- whatever happens ---------------------------------------------------------------------------------------


class DrainedPipeline(RuleBasedStateMachine):
    """Three machines that are drained, lose hosts, and get others, while checkpoints, moves and restores go on."""

    def __init__(self) -> None:
        super().__init__()
        self.made = Bench(claimed=False, standbys=1, tolerable_failures=1_000)
        self.todo: list[do.Instruction] = []
        self.requests: list[tuple[str, UserRequest]] = []
        self.checked: set[int] = set()
        self.run, self.lives = 0, 0
        self.must_go_back = False
        for host in "ab":
            self.tell(on.HostLeft(self.made.machine.members.hosts[host]))
        for machine in MACHINES:
            self.a_host_joins(machine)
        self.it_goes_back()
        self.shards_are_claimed(0)

    def tell(self, event: on.Event[on.Answer]) -> on.Answer | None:
        """Let something happen, unless it is refused; take down what is to be done."""
        self.made.now += 0.1
        try:
            outcome = self.made.machine.handle(event, self.made.now)
        except ChandyError:
            return None
        self.must_go_back |= any(isinstance(one, do.GoBack) for one in outcome.instructions)
        self.todo += outcome.instructions
        self.check_done()
        return outcome.answer

    def check_done(self) -> None:
        for machine, request in self.requests:
            if request.phase is RequestPhase.DONE and id(request) not in self.checked:
                self.checked.add(id(request))
                self.check_nothing_is_lost_with(machine)

    def check_nothing_is_lost_with(self, machine: str) -> None:
        after = copy.deepcopy(self.made.machine)
        gone = [hello for hello in after.members.hosts.values() if hello.machine == machine]
        events = [on.HostLeft(hello, is_silent=True) for hello in gone]
        for event in (*events, on.ExecutorsGone(frozenset({f"beside {machine}"}))):
            instructions = after.handle(event, self.made.now).instructions
            lost = [one.why for one in instructions if isinstance(one, do.GoBack)]
            assert not lost, f"{machine} was drained, and state was lost with it: {lost}"

    @property
    def hosts(self) -> dict[str, HostHello]:
        return self.made.machine.members.hosts

    @rule(machine=st.sampled_from(sorted(MACHINES)), seconds=st.sampled_from([5.0, 600.0]))
    def a_drain_is_asked_for(self, machine: str, seconds: float) -> None:
        request = self.tell(on.DrainRequested(machine, seconds))
        assert request is not None
        self.requests.append((machine, request))
        self.check_done()

    @rule(machine=st.sampled_from(sorted(MACHINES)))
    def an_executor_is_decommissioned(self, machine: str) -> None:
        self.tell(on.ExecutorsLeaving(frozenset({f"beside {machine}"})))

    @rule(machine=st.sampled_from(sorted(MACHINES)))
    def a_host_joins(self, machine: str) -> None:
        self.lives += 1
        self.tell(on.HostJoined(keeping(f"{MACHINES[machine]}{self.lives}", machine)))

    @rule(machine=st.sampled_from(sorted(MACHINES)), is_silent=st.booleans())
    def a_host_is_lost(self, machine: str, is_silent: bool) -> None:
        for hello in [one for one in self.hosts.values() if one.machine == machine]:
            self.tell(on.HostLeft(hello, is_silent=is_silent))

    @rule(fails=st.sampled_from([NOBODY, NOBODY, 0, 1, 2]), steps=st.integers(1, 40))
    def what_is_to_be_done_is_done(self, fails: int, steps: int) -> None:
        for number in range(steps):
            if not self.todo:
                break
            self.carry_out(self.todo.pop(0), is_well=number != fails)

    def carry_out(self, instruction: do.Instruction, *, is_well: bool) -> None:
        made, machine = self.made, self.made.machine
        match instruction:
            case do.ChooseCut(checkpoint, queries):
                for query in queries:
                    self.tell(on.CutChosen(checkpoint, query, machine.queries[query].gate.passed))
                self.tell(on.PlanningDone(checkpoint))
            case do.StoreProgress(checkpoint, query, cut):
                record = QueryRecord(query, cut, handle(f"progress-{checkpoint}"))
                self.tell(on.ProgressStored(checkpoint, record, 1))
            case do.Finalize(checkpoint) if manifest := machine.manifest(checkpoint, made.now):
                failed = on.NotFinalized(manifest, Reason.FINALIZE_CHECKPOINT_FAILURE, "disk full")
                self.tell(on.Finalized(manifest) if is_well else failed)
            case do.Discard(dropped):
                self.tell(on.Discarded(tuple(one.id for one in dropped), ()))
            case do.Send(host, order) if host in self.hosts:
                self.obey(host, order, is_well=is_well)

    def obey(self, host: str, order: object, *, is_well: bool) -> None:
        step = CopyStep.TAKEN if is_well else CopyStep.FAILED
        match order:
            case SnapshotOrder() if is_well:
                if self.made.machine.queries.running(order.query_id) is not None:
                    self.tell(on.Acked(in_their_terms(self.made, self.made.ack_of(host, order))))
            case SnapshotOrder(checkpoint):
                self.tell(Decline(host, checkpoint, order.query_id, "no space"))
            case OpenAhead(copy_id):
                opened = CopyStep.OPENED if is_well else CopyStep.FAILED
                self.tell(CopyReport(host, copy_id, opened))
            case TakeOver(copy_id, _, term) | Promote(copy_id, _, term):
                self.tell(CopyReport(host, copy_id, step, term))
            case Reopen(copy_id, term=term):
                self.tell(CopyReport(host, copy_id, step, term))

    @rule(query=st.sampled_from(sorted(SHARDS)), commits=st.booleans())
    def a_batch_runs(self, query: str, commits: bool) -> None:
        state = self.made.machine.queries[query]
        if commits:
            self.tell(on.BatchCommitted(query, state.gate.passed))
        elif state.committed == state.gate.passed:
            for host in self.hosts:
                self.tell(on.BatchAsked(AskBatch(host, state.query_id, state.gate.passed + 1)))

    @rule(seconds=st.sampled_from([0.0, 2.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.made.now += seconds
        self.tell(on.Tick())

    @rule()
    def it_goes_back(self) -> None:
        self.run += 1
        self.tell(going_back("a query has failed"))
        for name, reads in (("up", ()), ("down", ("up",))):
            self.made.add(name, reads, {}, id=f"id{self.run}")
        self.must_go_back = False
        self.tell(RUNS)
        self.tell(on.PipelineRestored(None))

    @rule(which=st.integers(0, 5))
    def shards_are_claimed(self, which: int) -> None:
        for query in self.made.machine.queries.values():
            hosts = sorted(self.hosts)
            for shard in range(SHARDS[query.name]) if hosts else ():
                host = hosts[(which + shard) % len(hosts)]
                for _ in range(2):
                    answer = self.tell(ClaimShards(host, query.query_id, f"{query.name}-op", (shard,)))
                    elsewhere = answer.elsewhere.values() if answer else ()
                    if not (named := [one for one in hosts if f"address-{one}" in elsewhere]):
                        break
                    (host,) = named

    @invariant()
    def whoever_waits_is_told(self) -> None:
        placement = self.made.machine.placement
        for machine, request in self.requests:
            assert request.is_over or not placement.is_empty(machine), "a drain is done, and nobody is told"
            assert not (self.must_go_back and placement.is_empty(machine)), (
                "state is lost, and nobody says so"
            )

    def teardown(self) -> None:
        self.made.now += 601.0
        self.tell(on.Tick())
        assert all(request.is_over for _, request in self.requests), "a drain has not ended in its time"


def test_a_drain_ends_and_nothing_is_lost_with_a_machine_whose_drain_is_done() -> None:
    run_state_machine_as_test(DrainedPipeline, settings=always_kept(15, 40))


def test_a_drain_that_does_not_wait_for_shards_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Placement, "is_empty", lambda placement, machine: True)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(DrainedPipeline, settings=until_found(40))
