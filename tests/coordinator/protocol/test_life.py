"""The lives of a pipeline and of its queries: whatever happens, a step is in the table, and an end stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.coordinator.errors import QueryFailedError
from chandy.coordinator.protocol import life as lives
from chandy.coordinator.protocol.errors import PhaseError
from chandy.coordinator.protocol.life import (
    QUERY_NEXT,
    Life,
    LifePhase,
    QueryLife,
    QueryPhase,
    Setback,
)
from chandy.coordinator.protocol.reasons import Reason
from chandy.storage import FencedError

BOOM = QueryFailedError("q", "boom\nat line 3")
FENCED = FencedError("file:///store", 1, 2, "another driver")
SETBACK = Setback(BOOM, 1.0)

STEPS: dict[str, Callable[[Life], Life]] = {
    "a query starts": lambda life: life.started(),
    "state is lost": lambda life: life.set_back(SETBACK),
    "it has gone back": lambda life: life.went_back(),
    "it is to stop": lambda life: life.stopping(),
    "the stop is withdrawn": lambda life: life.withdrawn(),
    "it fails": lambda life: life.failing(BOOM),
    "it is overtaken": lambda life: life.failing(FENCED),
    "it is known why": lambda life: life.failed(BOOM),
    "a successor is why": lambda life: life.failed(FENCED),
    "all is stopped": lambda life: life.stopped(),
}
QUERY_STEPS: dict[str, Callable[[QueryLife], QueryLife]] = {
    "it fails": lambda life: life.failed(SETBACK),
    "an attempt begins": lambda life: life.restarting(SETBACK),
    "it commits": lambda life: life.running(),
    "it ends": lambda life: life.ended(None),
    "it ends by an error": lambda life: life.ended(BOOM),
}


def follows(before: LifePhase, after: LifePhase) -> bool:
    """Whether the table leads from one phase to another: an end may come by way of ``STOPPING``."""
    phases = lives.NEXT[before]
    stops = lives.NEXT[LifePhase.STOPPING] if LifePhase.STOPPING in phases else frozenset()
    return before is after or after in phases or after in {one for one in stops if not lives.NEXT[one]}


@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=12))
def test_whatever_happens_to_a_pipeline_a_step_is_in_the_table_and_an_end_stays(steps: list[str]) -> None:
    life = Life()
    for step in steps:
        before, life = life, STEPS[step](life)
        assert follows(before.phase, life.phase)
        assert life == before or not before.is_over, "an end does not stay"
        assert not (life.phase is LifePhase.RECOVERING and life.takes_checkpoints)
        assert (life.setback is not None) >= (life.phase is LifePhase.RECOVERING), "it recovers from nothing"
        assert not (life.error is not None and life.phase in (LifePhase.RUNNING, LifePhase.RECOVERING))
        assert (life.why_over is None) is not life.is_over
        assert (life.phase is LifePhase.FENCED) is isinstance(life.error, FencedError)


@given(st.lists(st.sampled_from(sorted(QUERY_STEPS)), max_size=12))
def test_whatever_happens_to_a_query_a_step_is_in_the_table(steps: list[str]) -> None:
    life = QueryLife()
    for step in steps:
        try:
            before, life = life, QUERY_STEPS[step](life)
        except PhaseError:
            # A query that has ended cannot fail.
            assert (life.phase, step) == (QueryPhase.ENDED, "it fails")
            continue
        assert life.phase is before.phase or life.phase in QUERY_NEXT[before.phase]
        assert life.restarts is (life.setback is not None)
        assert life.restarts is (life.attempts > 0) or life.phase is QueryPhase.ENDED
        assert life.error is None or life.phase is QueryPhase.ENDED


def test_every_phase_can_be_reached() -> None:
    for phases, first in ((lives.NEXT, LifePhase.STARTING), (QUERY_NEXT, QueryPhase.STARTING)):
        found, new = set(), {first}
        while new:
            found |= new
            new = {after for phase in new for after in phases[phase]} - found  # type: ignore[index]
        assert found == set(phases)


def test_a_step_that_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(PhaseError, match="cannot go from 'stopped' to 'runs'"):
        Life().stopped().enter(LifePhase.RUNNING)


@pytest.mark.parametrize(
    ("life", "phase", "reason"),
    [
        (Life().stopped(), LifePhase.STOPPED, Reason.COORDINATOR_SHUTDOWN),
        (Life().started().failing(BOOM).stopped(), LifePhase.FAILED, Reason.COORDINATOR_SUSPENDED),
        # What was noticed first is not always why.
        (Life().started().failing(BOOM).failed(FENCED).stopped(), LifePhase.FENCED, Reason.FENCED),
        (Life().stopping().failing(FENCED), LifePhase.FENCED, Reason.FENCED),
    ],
)
def test_an_end_says_why(life: Life, phase: LifePhase, reason: Reason) -> None:
    assert (life.phase, life.why_over) == (phase, reason)
    assert "\n" not in life.because


def test_a_stop_that_is_withdrawn_goes_on_with_what_it_found() -> None:
    recovering = Life().started().set_back(SETBACK)
    assert recovering.phase is LifePhase.RECOVERING
    assert recovering.stopping().withdrawn() == recovering
    assert Life().stopping().set_back(SETBACK).withdrawn().phase is LifePhase.RECOVERING
    assert Life().stopping().failing(BOOM).withdrawn().phase is LifePhase.STOPPING


def test_a_query_that_fails_again_and_again_says_how_often_and_when_it_is_tried_again() -> None:
    life = QueryLife()
    for attempt in (1, 2, 3):
        life = life.failed(SETBACK).due(9.0)
        assert (life.phase, life.attempts, life.next_attempt_at) == (QueryPhase.WAITING, attempt, 9.0)
        life = life.restarting(SETBACK)
        assert (life.phase, life.attempts, life.next_attempt_at) == (QueryPhase.RESTARTING, attempt, None)
    assert life.because == str(BOOM).partition("\n")[0]
    assert life.running() == QueryLife().running()
