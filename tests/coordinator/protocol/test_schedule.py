"""The timer of periodic checkpoints."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chandy.coordinator.protocol.schedule import Schedule

NOW = 1_000.0


def running(interval: float = 10.0, initial_delay: float = 10.0, now: float = NOW) -> Schedule:
    schedule = Schedule(interval, initial_delay=initial_delay)
    schedule.start(now, 0.0)
    return schedule


@given(st.floats(0.001, 1e6), st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, NOW, 1.7e9]))
def test_the_first_tick_comes_by_chance_within_the_interval(
    interval: float, chance: float, now: float
) -> None:
    schedule = Schedule(interval)
    schedule.start(now, chance)
    assert schedule.next_at is not None
    assert now <= schedule.next_at <= now + interval


def test_the_first_delay_follows_chance_so_that_pipelines_do_not_align() -> None:
    due = []
    for chance in (0.0, 0.25, 0.75):
        schedule = Schedule(10.0)
        schedule.start(NOW, chance)
        due.append(schedule.next_at)
    assert due == [NOW, NOW + 2.5, NOW + 7.5]


def test_a_first_delay_that_is_configured_is_kept_to() -> None:
    assert running(interval=10, initial_delay=90).next_at == NOW + 90
    assert running(interval=10, initial_delay=0).due(NOW)


def test_ticks_come_at_a_fixed_rate_however_late_each_is_taken() -> None:
    schedule = running()
    schedule.ticked(NOW + 10.5)
    assert schedule.next_at == NOW + 20
    schedule.ticked(NOW + 29.9)
    assert schedule.next_at == NOW + 30


# A tick that has been taken must not be due again at the same moment, whatever the numbers.
@example(interval=0.001, passing=[4.0, 1.0], now=0.0)
@given(st.floats(0.001, 1e6), st.lists(st.floats(0, 1e7), max_size=20), st.sampled_from([0.0, 1.7e9]))
def test_after_a_tick_the_next_is_later_but_no_more_than_an_interval_away(
    interval: float, passing: list[float], now: float
) -> None:
    schedule = running(interval, interval, now)
    for passed in passing:
        now += passed
        if not schedule.due(now):
            continue
        schedule.ticked(now)
        assert schedule.next_at is not None
        assert now < schedule.next_at <= now + interval * 1.001


def test_a_stopped_schedule_is_never_due_and_no_late_event_starts_it() -> None:
    schedule = running()
    schedule.stop()
    schedule.ticked(NOW + 10)
    assert schedule.next_at is None
    assert not schedule.due(NOW + 1_000_000)


def test_after_a_restart_no_tick_is_due_before_one_that_was_taken_even_if_the_clock_was_set_back() -> None:
    schedule = running()
    schedule.ticked(NOW + 10)
    schedule.stop()
    schedule.start(NOW - 500, 0.0)
    assert schedule.next_at == NOW + 10


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["start", "stop", "tick", "behind", "caught up"]),
            st.floats(-100, 100),
        ),
        max_size=40,
    )
)
def test_the_times_of_ticks_never_decrease_across_restarts(steps: list[tuple[str, float]]) -> None:
    schedule = Schedule(10.0, initial_delay=10.0, interval_during_backlog=60.0)
    schedule.start(NOW, 0.0)
    now, ticks = NOW, []
    for step, passed in steps:
        now += passed
        if step == "start":
            schedule.start(now, 0.0)
        elif step == "stop":
            schedule.stop()
        elif step in ("behind", "caught up"):
            schedule.falls_behind(step == "behind")
        elif schedule.due(now):
            schedule.ticked(now)
            ticks.append(schedule.ticked_at)
            assert now == schedule.ticked_at
    assert ticks == sorted(ticks)


def test_while_the_pipeline_is_behind_ticks_come_at_the_other_interval() -> None:
    schedule = Schedule(10.0, initial_delay=10.0, interval_during_backlog=60.0)
    schedule.start(NOW, 0.0)
    schedule.ticked(NOW + 10)
    schedule.falls_behind(True)
    assert (schedule.current, schedule.next_at) == (60.0, NOW + 70)
    schedule.ticked(NOW + 70)
    assert schedule.next_at == NOW + 130
    # It has caught up 30 s after a tick: the tick that would have come after 10 s is due at once.
    schedule.falls_behind(False)
    assert schedule.due(NOW + 100)
    schedule.ticked(NOW + 100)
    assert schedule.next_at == NOW + 110


@given(
    st.lists(st.tuples(st.booleans(), st.floats(0, 300)), max_size=30),
    st.sampled_from([10.0, 60.0, None]),
)
def test_ticks_are_never_further_away_than_the_interval_that_holds(
    steps: list[tuple[bool, float]], other: float | None
) -> None:
    schedule, now = Schedule(10.0, initial_delay=10.0, interval_during_backlog=other), NOW
    schedule.start(now, 0.0)
    for is_behind, passed in steps:
        schedule.falls_behind(is_behind)
        now += passed
        if schedule.due(now):
            schedule.ticked(now)
        assert schedule.next_at is not None
        assert now < schedule.next_at <= now + (other or 10.0) * 1.001
    schedule.falls_behind(False)
    assert schedule.next_at is not None
    assert schedule.next_at <= now + 10.01


@pytest.mark.parametrize("initial_delay", [None, 5.0])
def test_without_an_interval_nothing_is_ever_due(initial_delay: float | None) -> None:
    schedule = Schedule(None, initial_delay=initial_delay)
    schedule.start(NOW, 0.0)
    schedule.falls_behind(True)
    assert schedule.next_at is None
    assert not schedule.due(NOW + 1_000_000)
