"""What is decided about failures, without a thread: single rules, and random interleavings of everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from chandy.coordinator.errors import (
    NotRescaledError,
    PipelineFailedError,
    PipelineStateLostError,
    QueryFailedError,
    RescaledError,
)
from chandy.coordinator.protocol.decisions import (
    BatchOver,
    CheckpointsFailed,
    Decision,
    DelayOver,
    DoNothing,
    EndQuery,
    FailForGood,
    Failure,
    FatalError,
    FirstCommit,
    HostLost,
    NotStopped,
    QueryOver,
    RecoveryEvent,
    RescaleRequested,
    RestartedInPlace,
    RestartFailed,
    RestartInPlace,
    RollBack,
    RunEnded,
    RunStarted,
    RunStopped,
    ShardsNotOpened,
    StateGivenUp,
    StopForPlan,
    StopRequested,
    StopWithdrawn,
    WaitToRestart,
    WentBack,
)
from chandy.coordinator.protocol.event_log import as_asked
from chandy.coordinator.protocol.failover import Failover
from chandy.coordinator.protocol.life import NEXT, LifePhase
from chandy.coordinator.protocol.query_lives import QueryLives
from chandy.coordinator.protocol.repetition import SAME, FailurePoint, Repetition
from chandy.coordinator.protocol.rescaling import Rescalings
from chandy.coordinator.protocol.restart_tracker import RestartStrategy
from chandy.coordinator.protocol.user_requests import RequestPhase, UserRequest
from chandy.coordinator.recovery.restart import ExponentialBackoff, FixedDelay, NoRestart
from chandy.storage import DamagedCheckpointError, FencedError
from chandy.storage.errors import FailureCode

from ...effort import examples, sampled, until_found

BOOM = QueryFailedError("q", "boom")
FENCED = FencedError("file:///store", 1, 2, "another driver")
DAMAGED = DamagedCheckpointError("file:///store", "a.sst", "x", "y", 2, 1)
TWO = FixedDelay("5 s", attempts=2)


class LoggedFailover(Failover):
    """One that remembers each event, its time and what was decided about it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.log: list[tuple[float, RecoveryEvent, Decision]] = []

    def decide(self, event: RecoveryEvent, now: float) -> Decision:
        decision = super().decide(event, now)
        self.log.append((now, event, decision))
        return decision


def machine(strategy: RestartStrategy = TWO, *queries: str) -> LoggedFailover:
    made = LoggedFailover(strategy.tracker(), lambda: 0.5)
    for number, query in enumerate(queries or ("q",)):
        made.decide(RunStarted(query, number, f"id of {query}"), 0.0)
    return made


def failed(*codes: FailureCode, query: str = "q", run: int = 0, at: float = 1.0) -> RunEnded:
    return RunEnded(query, run, Failure(BOOM, frozenset(codes)), at)


OVERWRITTEN = RunEnded("q", 0, Failure(BOOM, output_is_shared=True), 1.0)


def decisions(
    made: LoggedFailover, *events: RecoveryEvent, start: float = 1.0, step: float = 1.0
) -> list[Decision]:
    return [made.decide(event, start + number * step) for number, event in enumerate(events)]


def replays(made: LoggedFailover) -> bool:
    """Whether a fresh machine decides the same about the logged events. Errors have no equality: their text has."""
    again = Failover(made.tracker.strategy.tracker(), lambda: 0.5)
    asked: dict[int, UserRequest] = {}
    return all(
        repr(again.decide(as_asked(event, asked), now)) == repr(decision) for now, event, decision in made.log
    )


@pytest.fixture
def made() -> LoggedFailover:
    return machine()


# --- in place or back ---------------------------------------------------------------------------------------


def test_a_query_that_fails_alone_restarts_in_place_after_the_delay() -> None:
    assert decisions(machine(), failed(), DelayOver()) == [
        WaitToRestart(6.0, BOOM),
        RestartInPlace(("q",), BOOM, 1.0),
    ]


@pytest.mark.parametrize(
    ("events", "resume"),
    [
        ([failed(FailureCode.HOST_LOST)], True),
        ([HostLost("killed")], True),
        ([failed(FailureCode.STATE_UNUSABLE)], False),
        ([CheckpointsFailed(BOOM)], False),
        # One loss that is not a host's alone spoils it, whichever comes first.
        ([HostLost("killed"), failed(FailureCode.STATE_UNUSABLE)], False),
        ([failed(FailureCode.STATE_UNUSABLE), HostLost("killed")], False),
        ([failed(FailureCode.HOST_LOST, FailureCode.STATE_UNUSABLE)], False),
        # What another program has written must go, and a resumed query would leave it there.
        ([OVERWRITTEN], False),
        ([HostLost("killed"), OVERWRITTEN], False),
        # A query has failed alone, and then a host is lost while it waits.
        ([failed(), HostLost("killed")], True),
    ],
)
def test_lost_state_sends_the_pipeline_back_and_resumes_it_if_only_hosts_were_lost(
    made: LoggedFailover, events: list[RecoveryEvent], resume: bool
) -> None:
    decisions(made, *events)
    decision = made.decide(DelayOver(), 9.0)
    assert isinstance(decision, RollBack)
    assert decision.resume is resume


def test_several_queries_that_fail_in_one_delay_are_one_failure() -> None:
    made = machine(FixedDelay("5 s", attempts=1), "q", "r")
    found = decisions(made, failed(), failed(query="r", run=1), failed(), DelayOver())
    assert found[0] == found[1] == found[2] == WaitToRestart(6.0, BOOM)
    assert found[3] == RestartInPlace(("q", "r"), BOOM, 1.0)


def test_a_query_that_has_restarted_is_not_restarted_again_for_another_that_has_not() -> None:
    made = machine(TWO, "q", "r")
    decisions(made, failed(), failed(query="r", run=1), DelayOver())
    decisions(made, RunStarted("q", 2), RestartedInPlace("q"), start=7.0)
    decisions(made, RestartFailed(PipelineFailedError("the JVM is gone"), final=False), start=9.0)
    assert made.decide(DelayOver(), 20.0) == RestartInPlace(("r",), BOOM, 1.0)


def test_an_end_of_a_run_that_is_over_changes_nothing(made: LoggedFailover) -> None:
    made.decide(RunStarted("q", 1), 0.0)
    assert decisions(made, failed(FailureCode.STATE_UNUSABLE), DelayOver()) == [DoNothing()] * 2
    made.decide(RunStopped("q", 1), 0.0)
    assert decisions(made, failed(run=1), DelayOver()) == [DoNothing()] * 2
    assert made.loss is None


def test_a_run_that_is_stopped_on_the_way_back_does_not_end_its_query(made: LoggedFailover) -> None:
    """Spark reports its end like that of a run that has done its work."""
    made.decide(RunStopped("q", 0), 1.0)
    assert made.decide(RunEnded("q", 0, None, 1.0), 2.0) == DoNothing()
    # The stop of a run that is over says nothing about the one in its place.
    made.decide(RunStarted("q", 1), 3.0)
    made.decide(RunStopped("q", 0), 4.0)
    assert made.decide(RunEnded("q", 1, None, 5.0), 5.0) == EndQuery("q", 1)


def test_a_run_that_has_done_its_work_ends_its_query(made: LoggedFailover) -> None:
    assert made.decide(RunEnded("q", 0, None, 1.0), 1.0) == EndQuery("q", 0)
    assert made.decide(failed(), 2.0) == DoNothing()


@pytest.mark.parametrize("over", [RunStopped("q", 0), RunEnded("q", 0, None, 2.0)])
def test_a_query_that_is_over_before_the_delay_is_does_not_restart(over: RecoveryEvent) -> None:
    assert decisions(machine(), failed(), over, DelayOver())[-1] == DoNothing()


def test_a_query_that_was_stopped_in_the_delay_takes_its_failure_with_it(made: LoggedFailover) -> None:
    made.decide(failed(), 0.0)
    made.decide(RunStopped("q", 0), 0.5)
    assert made.life.setback is None and not made.queries.waiting
    made.decide(RunStarted("q", 1), 10.0)
    other = RunEnded("q", 1, Failure(QueryFailedError("q", "another")), 90_000.0)
    decision = made.decide(other, 90_000.0)
    assert isinstance(decision, WaitToRestart)
    assert "another" in str(decision.cause)


@pytest.mark.parametrize("needed", [True, False])
def test_shards_that_cannot_be_opened_ahead_matter_if_their_state_lies_in_changelogs(
    made: LoggedFailover, needed: bool
) -> None:
    made.decide(RunStarted("q", 1, "id of q", needs_changelogs=needed), 0.0)
    found = decisions(made, ShardsNotOpened("id of q", "no host", 1.0), DelayOver())
    assert isinstance(found[1], RollBack) == needed
    assert decisions(machine(), ShardsNotOpened("another", "no host", 1.0)) == [DoNothing()]


def test_damage_ends_the_pipeline_at_once_unless_its_query_has_gone_back_since() -> None:
    damage = DamagedCheckpointError("file:///s", "a.pack", "x", "y", checkpoint=3, intact=2)
    made = machine()
    made.decide(RunStarted("q", 1, "id of q"), 0.0)
    assert made.decide(ShardsNotOpened("before", "damaged", 1.0, damage), 1.0) == DoNothing()
    assert made.decide(ShardsNotOpened("id of q", "damaged", 1.0, damage), 1.0) == FailForGood(damage)


# --- another plan -------------------------------------------------------------------------------------------

RESCALED = RescaledError("q", "totals", 4)


def asked(made: LoggedFailover, seconds: float = 60.0, at: float = 5.0) -> UserRequest:
    """Query q is to go on with another plan."""
    request = UserRequest("rescale", at + seconds)
    assert made.decide(RescaleRequested("q", RESCALED, request), at) == DoNothing()
    return request


def ended(run: int = 0, *codes: FailureCode, text: str = "") -> RunEnded:
    """The end of a run that was told to stop."""
    return RunEnded("q", run, Failure(BOOM, frozenset(codes)) if text or codes else None, 6.0)


IN_PLACE = RestartInPlace(("q",), RESCALED, 5.0)


def test_a_query_goes_on_with_another_plan_at_once_and_that_counts_for_no_failure() -> None:
    made = machine(FixedDelay("5 s", attempts=1))
    for run in range(3):
        request = asked(made)
        assert request.phase is RequestPhase.ADMITTED
        assert made.decide(BatchOver("q", request), 5.0) == StopForPlan("q", run)
        assert made.decide(BatchOver("q", request), 5.0) == DoNothing()
        # Stopped in its batch, it may end with an error: the batch runs again.
        assert made.decide(ended(run, text="cancelled" if run else ""), 6.0) == IN_PLACE
        assert request.phase is RequestPhase.UNDER_WAY
        decisions(made, RunStarted("q", run + 1), RestartedInPlace("q"))
        assert request.phase is RequestPhase.DONE
        assert made.life.setback is None and not made.queries.waiting
    assert isinstance(made.decide(failed(run=3), 9.0), WaitToRestart)


@pytest.mark.parametrize("is_told", [False, True])
@pytest.mark.parametrize(
    "end",
    [failed(FailureCode.STATE_UNUSABLE), failed(FailureCode.HOST_LOST), OVERWRITTEN],
    ids=["state unusable", "host lost", "output shared"],
)
def test_a_run_that_fails_while_its_query_is_to_get_another_plan_has_failed(
    made: LoggedFailover, end: RunEnded, is_told: bool
) -> None:
    request = asked(made)
    if is_told:
        made.decide(BatchOver("q", request), 5.0)
    assert isinstance(made.decide(end, 6.0), WaitToRestart)
    assert made.loss is not None
    assert isinstance(made.decide(DelayOver(), 20.0), RollBack)
    assert request.phase is RequestPhase.UNDER_WAY
    made.decide(WentBack(), 21.0)
    assert request.phase is RequestPhase.DONE


def test_a_run_that_has_failed_before_it_was_told_to_stop_has_failed(made: LoggedFailover) -> None:
    request = asked(made)
    made.decide(BatchOver("q", request), 5.0)
    made.decide(NotStopped("q", 0), 5.0)
    assert isinstance(made.decide(failed(), 6.0), WaitToRestart)


def test_a_query_that_cannot_go_on_with_another_plan_is_restarted_as_after_a_failure() -> None:
    made = machine(FixedDelay("5 s", attempts=1))
    request = asked(made)
    decisions(made, BatchOver("q", request), ended())
    assert made.decide(RestartFailed(BOOM, final=False), 6.0) == WaitToRestart(11.0, RESCALED)
    with pytest.raises(NotRescaledError, match="could not be started"):
        request.check()
    assert made.decide(DelayOver(), 11.0) == IN_PLACE


def test_another_plan_waits_for_nothing_that_another_query_waits_for() -> None:
    made = machine(FixedDelay("5 s", attempts=9))
    made.decide(RunStarted("r", 1), 0.0)
    made.decide(failed(query="r", run=1), 1.0)
    request = asked(made)
    assert made.decide(BatchOver("q", request), 5.0) == StopForPlan("q", 0)
    assert made.decide(ended(), 5.0) == IN_PLACE
    decisions(made, RunStarted("q", 2), RestartedInPlace("q"))
    assert request.phase is RequestPhase.DONE
    assert made.decide(DelayOver(), 6.0) == RestartInPlace(("r",), BOOM, 1.0)


@pytest.mark.parametrize("in_time", [True, False])
@pytest.mark.parametrize("event", [HostLost("killed"), failed()], ids=["a host is lost", "it fails"])
def test_a_query_that_is_to_be_restarted_gets_the_other_plan_then_or_not_at_all(
    made: LoggedFailover, event: RecoveryEvent, in_time: bool
) -> None:
    request = asked(made)
    made.decide(event, 5.5)
    assert made.decide(BatchOver("q", request), 6.0) == DoNothing()
    assert request.phase is RequestPhase.ADMITTED
    if in_time:
        made.decide(DelayOver(), 20.0)
        assert request.phase is RequestPhase.UNDER_WAY
        return
    made.decide(BatchOver("q", request), 65.0)
    with pytest.raises(NotRescaledError, match="waits to be restarted after a failure"):
        request.check()
    assert asked(made, at=66.0).phase is RequestPhase.ADMITTED


@pytest.mark.parametrize("is_told", [False, True])
@pytest.mark.parametrize(
    ("event", "phase"),
    [
        (StopRequested(), RequestPhase.CANCELLED),
        (FatalError(FENCED), RequestPhase.CANCELLED),
        (FatalError(BOOM), RequestPhase.FAILED),
        (QueryOver("q"), RequestPhase.FAILED),
    ],
    ids=["stop", "fenced", "failed", "the query is stopped"],
)
def test_whoever_waits_for_another_plan_is_told_why_it_does_not_come(
    made: LoggedFailover, event: RecoveryEvent, phase: RequestPhase, is_told: bool
) -> None:
    request = asked(made)
    if is_told:
        made.decide(BatchOver("q", request), 5.0)
    made.decide(event, 6.0)
    assert request.phase is phase
    assert made.decide(BatchOver("q", request), 6.0) == DoNothing()
    if not isinstance(event, QueryOver):
        assert asked(made).phase is RequestPhase.REFUSED


def test_a_stop_keeps_a_query_that_was_told_to_stop_from_going_on_until_it_is_withdrawn(
    made: LoggedFailover,
) -> None:
    request = asked(made)
    decisions(made, BatchOver("q", request), StopRequested())
    assert made.decide(ended(), 5.0) == DoNothing()
    assert isinstance(made.decide(StopWithdrawn(), 6.0), WaitToRestart)
    assert made.decide(DelayOver(), 20.0) == IN_PLACE
    decisions(made, RunStarted("q", 1), RestartedInPlace("q"))
    assert asked(made).phase is RequestPhase.ADMITTED


# --- going back ---------------------------------------------------------------------------------------------


def test_a_query_without_its_working_directory_goes_back_and_resumes_nothing() -> None:
    made = machine(FixedDelay("5 s", attempts=9))
    made.decide(RunStarted("a", 1), 0.0)
    made.decide(RunEnded("a", 1, Failure(BOOM), 1.0), 1.0)
    assert isinstance(made.decide(DelayOver(), 6.0), RestartInPlace)
    made.decide(RestartFailed(BOOM, final=False, directory_is_lost=True), 7.0)
    decision = made.decide(DelayOver(), 12.0)
    assert isinstance(decision, RollBack)
    assert not decision.resume


def test_a_loss_during_the_way_back_sends_the_pipeline_back_again(made: LoggedFailover) -> None:
    decisions(made, HostLost("first"), DelayOver(), StateGivenUp())
    made.decide(HostLost("a host that was to open shards"), 4.5)
    made.decide(WentBack(), 5.0)
    made.decide(HostLost("the same host"), 6.0)
    assert isinstance(made.decide(DelayOver(), 20.0), RollBack)


def test_a_way_back_that_failed_half_way_is_gone_again_and_resumes_nothing(made: LoggedFailover) -> None:
    decisions(made, HostLost("killed"), DelayOver(), StateGivenUp())
    made.decide(RestartFailed(PipelineFailedError("no JVM"), final=False), 5.0)
    decision = made.decide(DelayOver(), 20.0)
    assert isinstance(decision, RollBack)
    assert (decision.resume, decision.noticed_at) == (False, 1.0)


def test_no_loss_on_a_way_back_that_failed_half_way_lets_anything_resume() -> None:
    made = machine(FixedDelay("5 s", attempts=9))
    decisions(made, CheckpointsFailed(BOOM), DelayOver(), StateGivenUp())
    # Some queries are at the checkpoint by now, and others where they were.
    made.decide(RestartFailed(PipelineFailedError("no JVM"), final=False), 5.0)
    made.decide(HostLost("killed"), 6.0)
    again = made.decide(DelayOver(), 20.0)
    assert isinstance(again, RollBack)
    assert not again.resume
    decisions(made, StateGivenUp(), WentBack(), start=21.0)
    made.decide(HostLost("another one"), 30.0)
    later = made.decide(DelayOver(), 40.0)
    assert isinstance(later, RollBack)
    assert later.resume


# --- the same failure again ---------------------------------------------------------------------------------

WALL = FailurePoint(7, "the same wall", in_user_code=False)
RAISED = FailurePoint(7, "the same key", in_user_code=True)


def hits(
    point: FailurePoint | None,
    times: int,
    made: LoggedFailover | None = None,
    commits: int | None = None,
) -> list[Decision]:
    """What is done about a query that fails like this, and fails again after each restart."""
    made = made or machine(FixedDelay("5 s", attempts=100))
    found: list[Decision] = []
    for number in range(times):
        at = made.log[-1][0] + 10.0
        made.decide(attrs.evolve(failed(run=number, at=at), failure=Failure(BOOM, point=point)), at)
        found.append(made.log[-1][2] if made.life.error else made.decide(DelayOver(), at + 5.0))
        made.decide(RunStarted("q", number + 1), at + 6.0)
        done = WentBack() if isinstance(found[-1], RollBack) else RestartedInPlace("q")
        made.decide(done, at + 6.0)
        if commits is not None:
            made.decide(FirstCommit("q", number + 1, commits), at + 7.0)
    return found


def test_a_wall_is_met_once_more_in_place_and_once_more_from_the_checkpoint() -> None:
    assert [type(one) for one in hits(WALL, 3)] == [RestartInPlace, RollBack, FailForGood]


def test_what_the_users_code_raises_three_times_is_final_without_going_back() -> None:
    found = hits(RAISED, 3)
    assert [type(one) for one in found] == [RestartInPlace, RestartInPlace, FailForGood]
    assert found[-1] == FailForGood(BOOM, "it has failed 3 times in a row in the same way")


def test_trouble_that_may_pass_is_left_to_the_restart_strategy() -> None:
    assert {type(one) for one in hits(None, 20)} == {RestartInPlace}


@pytest.mark.parametrize("point", [WALL, RAISED])
def test_a_commit_of_the_batch_makes_the_next_failure_the_first(point: FailurePoint) -> None:
    assert {type(one) for one in hits(point, 9, commits=7)} == {RestartInPlace}
    # One of an earlier batch, behind the checkpoint, does not.
    assert isinstance(hits(point, 3, commits=6)[-1], FailForGood)


@pytest.mark.parametrize(
    "other", [attrs.evolve(WALL, batch=8), attrs.evolve(WALL, how="another error"), None], ids=str
)
def test_another_failure_in_between_is_not_the_same(other: FailurePoint | None) -> None:
    made = machine(FixedDelay("5 s", attempts=100))
    hits(WALL, 1, made)
    made.decide(RunStarted("q", 0), 50.0)
    hits(other, 1, made)
    made.decide(RunStarted("q", 0), 100.0)
    # Trouble that passes tells nothing about what was there before it.
    assert isinstance(hits(WALL, 1, made)[-1], RollBack if other is None else RestartInPlace)


def test_each_query_has_its_own_walls() -> None:
    made = machine(FixedDelay("5 s", attempts=100), "q", "r")
    for query, run in (("q", 0), ("r", 1)):
        made.decide(attrs.evolve(failed(query=query, run=run), failure=Failure(BOOM, point=WALL)), 1.0)
    assert made.decide(DelayOver(), 20.0) == RestartInPlace(("q", "r"), BOOM, 1.0)


def test_a_wall_does_not_fail_a_pipeline_that_stops() -> None:
    made = machine(FixedDelay("5 s", attempts=100))
    hits(WALL, 2, made)
    made.decide(StopRequested(), 100.0)
    assert hits(WALL, 1, made) == [DoNothing()] or made.life.error is None


# --- first commits ------------------------------------------------------------------------------------------


def test_a_first_commit_of_a_run_that_is_over_does_not_bring_the_pipeline_back(made: LoggedFailover) -> None:
    decisions(made, failed(), DelayOver(), RunStarted("q", 1), FirstCommit("q", 0), step=10.0)
    assert made.tracker.running_since is None
    made.decide(FirstCommit("q", 1), 50.0)
    assert made.tracker.running_since == 50.0


def test_a_first_commit_during_a_delay_leaves_the_failures_of_the_delay_one() -> None:
    made = machine(FixedDelay("5 s", attempts=1), "q", "r", "s")
    found = decisions(made, failed(), FirstCommit("r", 1), failed(query="s", run=2))
    assert found == [WaitToRestart(6.0, BOOM), DoNothing(), WaitToRestart(6.0, BOOM)]


# --- a stop that is withdrawn -------------------------------------------------------------------------------


def test_a_stop_that_is_withdrawn_lets_a_waiting_restart_go_on() -> None:
    made = machine(FixedDelay("5 s", attempts=1))
    found = decisions(made, failed(), StopRequested(), StopWithdrawn())
    assert found[-1] == WaitToRestart(6.0, BOOM)
    assert made.decide(DelayOver(), 6.0) == RestartInPlace(("q",), BOOM, 1.0)


def test_a_stop_does_not_fail_a_pipeline_whose_way_back_fails_in_passing(made: LoggedFailover) -> None:
    decisions(made, HostLost("killed"), DelayOver(), StateGivenUp(), StopRequested())
    lost = PipelineFailedError("no JVM")
    assert made.decide(RestartFailed(lost, final=False), 5.0) == DoNothing()
    assert made.life.phase is LifePhase.STOPPING
    assert isinstance(made.decide(StopWithdrawn(), 20.0), WaitToRestart)
    assert isinstance(made.decide(DelayOver(), 21.0), RollBack)


def test_a_host_lost_during_a_stop_that_is_withdrawn_sends_the_pipeline_back(made: LoggedFailover) -> None:
    decisions(made, StopRequested(), HostLost("killed"), RestartedInPlace("q"))
    assert made.decide(StopWithdrawn(), 5.0) == WaitToRestart(10.0, made.life.setback.cause)  # type: ignore[union-attr]
    assert isinstance(made.decide(DelayOver(), 10.0), RollBack)


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_a_stop_is_told_that_the_pipeline_must_go_back(made: LoggedFailover, when: str) -> None:
    lost, stop = HostLost("killed"), StopRequested()
    match when:
        case "before":
            found = decisions(made, lost, stop)
        case "between":
            # Two attempts to go back.
            failed_once = RestartFailed(PipelineFailedError("no JVM"), final=False)
            found = decisions(made, lost, DelayOver(), StateGivenUp(), failed_once, stop)
        case "after":
            found = decisions(made, stop, lost)
    assert found[-1] == DoNothing()
    assert made.must_go_back
    assert not made.life.takes_checkpoints


def test_a_stop_takes_its_savepoint_although_a_query_has_failed_on_its_own(made: LoggedFailover) -> None:
    assert decisions(made, failed(), StopRequested())[-1] == DoNothing()
    assert not made.must_go_back


def test_a_query_that_failed_during_a_stop_and_runs_again_is_mended() -> None:
    made = machine(NoRestart())
    decisions(made, StopRequested(), failed(), RunStarted("q", 1), RestartedInPlace("q"))
    assert made.decide(StopWithdrawn(), 9.0) == DoNothing()


# --- the end ------------------------------------------------------------------------------------------------


def test_a_restart_strategy_that_gives_up_fails_the_pipeline_with_the_last_failure() -> None:
    assert decisions(machine(NoRestart()), failed()) == [FailForGood(BOOM)]
    made = machine()
    last = PipelineFailedError("the JVM is gone")
    again = [DelayOver(), RestartFailed(last, final=False)]
    found = decisions(made, failed(), *again, *again, step=10.0)
    assert found[-1] == FailForGood(last)
    assert made.life.error is last


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (FatalError(FENCED), FENCED),
        (RunEnded("q", 0, Failure(BOOM, frozenset({FailureCode.UNREADABLE}), DAMAGED), 1.0), DAMAGED),
    ],
)
def test_what_no_restart_can_mend_fails_the_pipeline_at_once(
    made: LoggedFailover, event: RecoveryEvent, error: Exception
) -> None:
    assert made.decide(event, 1.0) == FailForGood(error)
    assert decisions(made, failed(), HostLost("x"), DelayOver()) == [DoNothing()] * 3


def test_a_store_that_refuses_ends_a_way_back_for_good(made: LoggedFailover) -> None:
    decisions(made, HostLost("killed"), DelayOver())
    assert made.decide(RestartFailed(DAMAGED, final=True), 3.0) == FailForGood(DAMAGED)


def test_nothing_restarts_while_the_pipeline_stops(made: LoggedFailover) -> None:
    found = decisions(made, failed(), StopRequested(), DelayOver(), HostLost("x"), DelayOver())
    assert found[2:] == [DoNothing()] * 3
    made.decide(StopWithdrawn(), 9.0)
    # What was lost meanwhile is still lost.
    assert isinstance(decisions(made, failed(), DelayOver(), start=10.0)[1], RollBack)


def test_a_pipeline_that_has_run_long_enough_has_all_its_attempts_again() -> None:
    strategy = ExponentialBackoff(initial="1 s", attempts=1, reset_after="10 s")
    made = machine(strategy)
    again = [RunStarted("q", 1), RestartedInPlace("q"), FirstCommit("q", 1)]
    decisions(made, failed(), DelayOver(), *again)
    assert isinstance(made.decide(failed(run=1), 30.0), WaitToRestart)
    made.decide(RestartFailed(BOOM, final=False), 31.0)
    assert isinstance(made.life.error, QueryFailedError)


def test_the_log_replays_a_run(made: LoggedFailover) -> None:
    decisions(made, failed(), HostLost("x"), DelayOver(), StateGivenUp(), WentBack(), failed())
    assert len(made.log) == 7
    assert replays(made)


# --- whatever happens ---------------------------------------------------------------------------------------

QUERIES = ("q", "r", "s")
CODES = st.frozensets(st.sampled_from([FailureCode.HOST_LOST, FailureCode.STATE_UNUSABLE]), max_size=2)
POINTS = (WALL, RAISED)


class Failures(RuleBasedStateMachine):
    """Everything that can fail, in any order; beside it, what is really lost."""

    @initialize(attempts=st.integers(0, 4))
    def start(self, attempts: int) -> None:
        self.machine = LoggedFailover(FixedDelay("1 s", attempts=attempts).tracker(), lambda: 0.5)
        self.now = 10.0
        self.number = 0
        self.runs: dict[str, int] = {}
        self.lost = self.spoilt = self.half_way = False
        self.final: Exception | None = None
        self.unwell: set[str] = set()
        """Queries that have committed nothing since they failed."""
        self.stopping = False
        self.walled = False
        """Whether a restart in place would meet the same wall again."""
        self.walls: dict[str, tuple[FailurePoint, int]] = {}
        """By query how it has failed last, and how often in a row."""
        self.requests: list[tuple[str, UserRequest]] = []
        self.taken: list[UserRequest] = []
        """Those whose plans queries have been started with."""
        self.told: dict[str, tuple[int, bool]] = {}
        """By query the run that was told to stop, and whether it ends with an error."""
        for query in QUERIES:
            self.begin(query)

    def begin(self, query: str) -> None:
        self.number += 1
        self.runs[query] = self.number
        self.tell(RunStarted(query, self.number))

    def tell(self, event: RecoveryEvent) -> Decision:
        self.now += 1.0
        before = self.machine.life
        decision = self.machine.decide(event, self.now)
        if isinstance(event, QueryOver | FirstCommit):
            self.unwell.discard(event.query)
        if isinstance(event, RunEnded) and isinstance(decision, WaitToRestart):
            self.unwell.add(event.query)
        after = self.machine.life
        assert after.phase is before.phase or after.phase in NEXT[before.phase]
        assert after == before or not before.is_over, "an end does not stay"
        if self.final is not None:
            assert isinstance(decision, DoNothing), (
                "something is done about a pipeline that has failed for good"
            )
        if self.stopping:
            assert not isinstance(decision, WaitToRestart | RestartInPlace | RollBack)
        if isinstance(decision, FailForGood):
            self.final = decision.error
        return decision

    @rule(query=st.sampled_from(QUERIES), codes=CODES, shared=st.booleans(), stale=st.booleans())
    def a_run_fails(self, query: str, codes: frozenset[FailureCode], shared: bool, stale: bool) -> None:
        if query not in self.runs:
            return
        number = self.runs[query] - stale
        if not stale and self.final is None:
            self.lost = self.lost or shared or bool(codes)
            self.spoilt = self.spoilt or shared or FailureCode.STATE_UNUSABLE in codes
        failure = Failure(BOOM, codes, output_is_shared=shared)
        self.tell(RunEnded(query, number, failure, self.now))

    @rule(query=st.sampled_from(QUERIES), point=st.sampled_from(POINTS))
    def a_run_meets_a_wall(self, query: str, point: FailurePoint) -> None:
        if query not in self.runs or self.final is not None:
            return
        before, times = self.walls.get(query, (point, 0))
        times = times + 1 if before == point else 1
        self.walls[query] = point, times
        self.walled = self.walled or (times > 1 and not point.in_user_code)
        decision = self.tell(RunEnded(query, self.runs[query], Failure(BOOM, point=point), self.now))
        if not self.stopping:
            assert times < SAME or isinstance(decision, FailForGood), "it goes into the same wall for ever"
        if isinstance(decision, FailForGood) and decision.because:
            assert times >= SAME, "it gives up although it may pass"

    @rule(
        query=st.sampled_from(QUERIES),
        points=st.lists(st.sampled_from((*POINTS, None)), min_size=3, max_size=4),
    )
    def a_run_meets_walls_and_gets_past_them(self, query: str, points: list[FailurePoint | None]) -> None:
        for point in points:
            if point is None:
                self.the_first_batch_commits(query, False, WALL.batch)
            else:
                self.a_run_meets_a_wall(query, point)
                self.the_delay_is_over("no", final=False)

    @rule()
    def a_host_is_lost(self) -> None:
        self.lost = True
        self.tell(HostLost("killed"))

    @rule()
    def too_many_checkpoints_fail(self) -> None:
        self.lost = self.spoilt = True
        self.tell(CheckpointsFailed(BOOM))

    @rule(query=st.sampled_from(QUERIES))
    def a_query_is_stopped(self, query: str) -> None:
        self.tell(RunStopped(query, self.runs.pop(query, 0)))
        self.tell(QueryOver(query))

    @rule(query=st.sampled_from(QUERIES), seconds=st.sampled_from([0.0, 100.0]))
    def another_plan_is_asked_for(self, query: str, seconds: float) -> None:
        request = UserRequest("rescale", self.now + seconds)
        self.requests.append((query, request))
        self.tell(RescaleRequested(query, RESCALED, request))

    @rule(
        query=st.sampled_from(QUERIES),
        which=st.sampled_from([0, 0, 1]),
        ends=st.sampled_from(["well", "with an error", "not told"]),
    )
    def its_batch_is_over(self, query: str, which: int, ends: str) -> None:
        asked = [request for one, request in self.requests if one == query]
        if not asked:
            return
        request = asked[-1 - which % len(asked)]
        waits = request.phase is RequestPhase.ADMITTED
        decision = self.tell(BatchOver(query, request))
        if isinstance(decision, DoNothing):
            return
        assert decision == StopForPlan(query, self.runs[query])
        assert waits, "a query is stopped for nothing"
        assert not (self.lost or self.stopping), "it is stopped, and nobody starts it"
        if ends == "not told":
            self.tell(NotStopped(query, self.runs[query]))
        else:
            self.told[query] = self.runs[query], ends != "well"

    @rule(query=st.sampled_from(QUERIES), codes=CODES, fails=st.booleans())
    def what_was_told_to_stop_ends(self, query: str, codes: frozenset[FailureCode], fails: bool) -> None:
        number, with_error = self.told.pop(query, (0, False))
        if number == 0 or self.runs.get(query) != number or self.final is not None:
            return
        if with_error and codes:
            self.a_run_fails(query, codes, shared=False, stale=False)
            return
        failure = Failure(BOOM) if with_error else None
        decision = self.tell(RunEnded(query, number, failure, self.now))
        if isinstance(decision, DoNothing):
            assert self.stopping or self.machine.must_go_back, "nobody restarts it"
            assert query in self.machine.queries.waiting
            return
        assert isinstance(decision, RestartInPlace)
        assert decision.queries == (query,)
        assert not self.lost, "a query restarts in place although state is lost"
        self.take_plans()
        if fails:
            self.tell(RestartFailed(BOOM, final=False))
        else:
            self.begin(query)
            self.tell(RestartedInPlace(query))

    def take_plans(self) -> None:
        """What the shell does before it starts queries."""
        self.taken += [one for _, one in self.requests if one.phase is RequestPhase.UNDER_WAY]

    @invariant()
    def what_is_said_to_be_done_is_done(self) -> None:
        for _, request in getattr(self, "requests", ()):
            done = request.phase is RequestPhase.DONE
            assert not done or any(one is request for one in self.taken), "it goes on as it was"
            assert request.is_over or not (self.stopping or self.final), "nobody is told of the end"

    @rule(query=st.sampled_from(QUERIES))
    def a_query_fails_and_is_stopped_in_the_delay(self, query: str) -> None:
        self.a_run_fails(query, frozenset(), shared=False, stale=False)
        self.a_query_is_stopped(query)
        self.the_delay_is_over("no", final=False)

    @rule(
        query=st.sampled_from(QUERIES),
        stale=st.booleans(),
        batch=st.sampled_from([WALL.batch - 1, WALL.batch]),
    )
    def the_first_batch_commits(self, query: str, stale: bool, batch: int) -> None:
        if query in self.runs:
            self.tell(FirstCommit(query, self.runs[query] - stale, batch))
            if not stale and query in self.walls and batch >= self.walls[query][0].batch:
                del self.walls[query]

    @rule()
    def a_stop_begins_or_is_withdrawn(self) -> None:
        self.stopping = not self.stopping
        waits = self.final is None and (self.machine.must_go_back or self.machine.queries.waiting)
        decision = self.tell(StopRequested() if self.stopping else StopWithdrawn())
        if not self.stopping and waits:
            assert isinstance(decision, WaitToRestart | FailForGood), "a failure is forgotten by a stop"

    @rule(fails=st.sampled_from(["no", "before", "after"]), final=st.booleans(), loses=st.booleans())
    def the_delay_is_over(self, fails: str, final: bool, loses: bool = False) -> None:
        decision = self.tell(DelayOver())
        self.take_plans()
        match decision:
            case RestartInPlace(queries):
                assert not self.lost, "a query restarts in place although state is lost"
                assert set(queries) <= set(self.runs), "a query restarts that was stopped"
                assert not self.walled, "it meets the same wall in place"
                for query in queries:
                    if fails == "no":
                        self.begin(query)
                        self.tell(RestartedInPlace(query))
            case RollBack() as back:
                assert not (back.resume and self.spoilt), "changelogs are trusted that cannot be"
                assert not (back.resume and self.half_way), "queries are resumed at different cuts"
                if fails != "before":
                    self.lost = self.spoilt = False
                    self.half_way = True
                    self.tell(StateGivenUp())
                if fails == "no":
                    for query in self.runs:
                        self.begin(query)
                    self.tell(WentBack())
                    self.walled = self.half_way = False
            case _:
                return
        if fails != "no":
            error = PipelineFailedError("it could not start")
            loses = loses and not final and isinstance(decision, RestartInPlace)
            if loses:
                self.lost = self.spoilt = True
            self.tell(RestartFailed(error, final, directory_is_lost=loses))

    @rule(fails=st.lists(st.sampled_from(["before", "after"]), max_size=2))
    def hosts_are_lost_one_after_the_other(self, fails: list[str]) -> None:
        for how in (*fails, "no"):
            self.a_host_is_lost()
            self.the_delay_is_over(how, final=False)

    @precondition(lambda self: self.final is None)
    @invariant()
    def what_is_lost_is_known(self) -> None:
        if self.lost:
            assert self.machine.loss is not None
        if self.machine.loss is not None and self.spoilt:
            assert not self.machine.loss.with_host

    @invariant()
    def a_query_that_has_failed_runs_only_once_it_has_committed(self) -> None:
        for query in getattr(self, "unwell", ()):
            assert self.machine.queries.of(query).restarts, "it is said to run, and has committed nothing"

    @invariant()
    def what_waits_is_to_run(self) -> None:
        assert set(self.machine.queries.waiting) <= self.runs.keys()

    def teardown(self) -> None:
        if not hasattr(self, "machine"):
            return
        self.now += 100.0
        for query in QUERIES:
            for which in range(len(self.requests)):
                self.its_batch_is_over(query, which, "well")
            self.what_was_told_to_stop_ends(query, frozenset(), fails=False)
        self.the_delay_is_over("no", final=False)
        assert all(request.is_over for _, request in self.requests), "somebody waits for ever"
        assert replays(self.machine)


STEPS = 25
Failures.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=STEPS, deadline=None)
TestFailures = Failures.TestCase


# --- does it find anything? ---------------------------------------------------------------------------------


def restart_in_place_whatever_is_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Failover, "_lose", lambda machine, why, with_host: None)


def trust_every_changelog(patch: pytest.MonkeyPatch) -> None:
    right = Failover._lose
    patch.setattr(Failover, "_lose", lambda machine, why, with_host: right(machine, why, with_host=True))


def restart_what_was_stopped(patch: pytest.MonkeyPatch) -> None:
    right = Failover.decide

    def decide(machine: Failover, event: RecoveryEvent, now: float) -> Decision:
        return DoNothing() if isinstance(event, RunStopped) else right(machine, event, now)

    patch.setattr(Failover, "decide", decide)


def restart_while_stopping(patch: pytest.MonkeyPatch) -> None:
    right = Failover.decide

    def decide(machine: Failover, event: RecoveryEvent, now: float) -> Decision:
        return DoNothing() if isinstance(event, StopRequested) else right(machine, event, now)

    patch.setattr(Failover, "decide", decide)


def forget_failures_when_stopping(patch: pytest.MonkeyPatch) -> None:
    right = Failover._stop_withdrawn

    def withdrawn(machine: Failover, now: float) -> Decision:
        machine.queries = QueryLives()
        return right(machine, now)

    patch.setattr(Failover, "_stop_withdrawn", withdrawn)


def go_on_after_the_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Failover, "_fail", lambda machine, error, because="": FailForGood(error))


def take_every_failure_for_the_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Repetition, "then", lambda repetition, point: Repetition(point))


def take_every_failure_for_the_same(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Repetition, "then", lambda repetition, point: Repetition(point, repetition.times + 1))


def resume_half_way(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Failover, "_is_half_way", property(lambda machine: False, lambda machine, to: None))


def stay_in_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Failover, "_must_go_back", lambda machine: None)


def forget_who_got_another_plan(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Failover, "_stopped_for_plan", lambda machine, asked, event: DoNothing())


def say_too_early_that_it_is_done(patch: pytest.MonkeyPatch) -> None:
    right = Failover._batch_over

    def decide(machine: Failover, query: str, request: UserRequest, now: float) -> Decision:
        decision = right(machine, query, request, now)
        machine.rescalings.starting((query,))
        machine.rescalings.started((query,))
        return decision

    patch.setattr(Failover, "_batch_over", decide)


def stop_for_another_plan_whatever_is_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Failover, "must_go_back", property(lambda machine: False))


def let_a_stop_cancel_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Rescalings, "cancel", lambda rescalings, why: None)


def never_forget_a_failure(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Failover, "_committed", lambda machine, event, now: None)


@pytest.mark.parametrize(
    "bug",
    sampled(
        [
            forget_failures_when_stopping,
            forget_who_got_another_plan,
            go_on_after_the_end,
            let_a_stop_cancel_nothing,
            never_forget_a_failure,
            restart_in_place_whatever_is_lost,
            restart_what_was_stopped,
            restart_while_stopping,
            resume_half_way,
            say_too_early_that_it_is_done,
            stay_in_place,
            stop_for_another_plan_whatever_is_lost,
            take_every_failure_for_the_first,
            take_every_failure_for_the_same,
            trust_every_changelog,
        ],
        1,
    ),
    ids=lambda bug: bug.__name__,
)
def test_the_machine_of_failures_finds(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Failures, settings=until_found(STEPS))


def test_a_lost_host_is_told_as_lost_state() -> None:
    decision = machine(NoRestart()).decide(HostLost("state host a is gone"), 1.0)
    assert isinstance(decision, FailForGood)
    assert isinstance(decision.error, PipelineStateLostError)
    assert "state host a is gone" in str(decision.error)
