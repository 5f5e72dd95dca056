"""Restart strategies."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.coordinator.durations import seconds
from chandy.coordinator.errors import ConfigError
from chandy.coordinator.protocol.restart_tracker import RestartStrategy, RestartTracker
from chandy.coordinator.recovery.restart import ExponentialBackoff, FixedDelay, NoRestart

NOW = 1_000.0
CHANCE = st.floats(0, 1, exclude_max=True)


def middle() -> float:
    return 0.5


def fail_in_turn(
    tracker: RestartTracker, times: int, now: float = NOW, random: Callable[[], float] = middle
) -> list[float | None]:
    """Fail again at once after every restart, as a pipeline does that cannot start."""
    delays = []
    for _ in range(times):
        delay = tracker.failed(now, random)
        delays.append(delay)
        now += delay or 0.0
    return delays


def test_no_restart_gives_up_at_the_first_failure() -> None:
    assert NoRestart().tracker().failed(NOW, middle) is None


def test_a_fixed_delay_is_always_the_same_until_its_attempts_are_used_up() -> None:
    tracker = FixedDelay("2 s", attempts=3).tracker()
    assert fail_in_turn(tracker, 5) == [2.0, 2.0, 2.0, None, None]


def test_a_fixed_delay_counts_for_life_even_if_the_pipeline_ran_for_long() -> None:
    tracker = FixedDelay("2 s", attempts=1).tracker()
    assert tracker.failed(NOW, middle) == 2.0
    tracker.recovered(NOW + 2)
    assert tracker.failed(NOW + 1_000_000, middle) is None


def test_an_exponential_delay_grows_by_its_multiplier_up_to_its_maximum() -> None:
    tracker = ExponentialBackoff("1 s", "10 s", multiplier=2, jitter=0, attempts=6).tracker()
    assert fail_in_turn(tracker, 7) == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0, None]


def test_without_a_number_of_attempts_it_never_gives_up() -> None:
    tracker = ExponentialBackoff("1 s", "10 s", attempts=None).tracker()
    assert fail_in_turn(tracker, 3000)[-1] is not None


def test_jitter_lengthens_and_shortens_a_delay_by_its_share() -> None:
    strategy = ExponentialBackoff("1 s", "100 s", multiplier=10, jitter=0.5)
    assert strategy.backoff(1, lambda: 0.0) == 5.0
    assert strategy.backoff(1, lambda: 0.75) == 12.5


@given(st.integers(0, 2000), CHANCE, st.floats(1, 1000), st.floats(0, 1))
def test_no_delay_is_below_the_initial_one_or_above_the_maximum(
    attempt: int, chance: float, multiplier: float, jitter: float
) -> None:
    strategy = ExponentialBackoff("250 ms", "90 s", multiplier, jitter, attempts=None)
    delay = strategy.backoff(attempt, lambda: chance)
    assert delay is not None
    assert 0.25 <= delay <= 90


@given(st.integers(0, 30), st.floats(1, 10))
def test_without_jitter_no_delay_is_shorter_than_the_one_before(attempts: int, multiplier: float) -> None:
    tracker = ExponentialBackoff("1 s", "1 h", multiplier, jitter=0, attempts=attempts).tracker()
    delays = fail_in_turn(tracker, attempts)
    assert delays == sorted(delay for delay in delays if delay is not None)
    assert tracker.failed(NOW + 10_000_000, middle) is None


def test_the_count_begins_anew_once_the_pipeline_was_stable() -> None:
    tracker = ExponentialBackoff("1 s", "1 min", jitter=0, reset_after="1 h", attempts=2).tracker()
    assert fail_in_turn(tracker, 2) == [1.0, 2.0]
    tracker.recovered(NOW + 3)
    assert tracker.failed(NOW + 3 + 3600, middle) == 1.0


def test_the_count_goes_on_if_the_pipeline_ran_for_less() -> None:
    tracker = ExponentialBackoff("1 s", "1 min", jitter=0, reset_after="1 h", attempts=3).tracker()
    fail_in_turn(tracker, 2)
    tracker.recovered(NOW + 3)
    assert tracker.failed(NOW + 3 + 3599, middle) == 4.0


def test_a_pipeline_that_does_not_come_back_after_a_stable_time_goes_on_counting() -> None:
    tracker = ExponentialBackoff("1 s", "1 min", jitter=0, reset_after="1 h").tracker()
    tracker.recovered(NOW)
    assert fail_in_turn(tracker, 3, now=NOW + 7200) == [1.0, 2.0, 4.0]


def test_time_spent_restoring_does_not_make_a_pipeline_stable() -> None:
    tracker = ExponentialBackoff("1 s", "1 min", jitter=0, reset_after="1 h").tracker()
    tracker.failed(NOW, middle)
    assert tracker.failed(NOW + 7200, middle) == 2.0


def test_a_failure_while_a_restart_is_waiting_belongs_to_the_same_failure() -> None:
    tracker = FixedDelay("10 s", attempts=1).tracker()
    assert tracker.failed(NOW, middle) == 10.0
    assert tracker.failed(NOW + 4, middle) == 6.0
    assert tracker.failed(NOW + 10, middle) is None


def test_a_failure_after_the_pipeline_came_back_early_is_a_new_one() -> None:
    tracker = FixedDelay("10 s", attempts=2).tracker()
    tracker.failed(NOW, middle)
    tracker.recovered(NOW + 1)
    assert tracker.failed(NOW + 2, middle) == 10.0
    tracker.recovered(NOW + 3)
    assert tracker.failed(NOW + 4, middle) is None


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=40), CHANCE)
def test_no_run_of_failures_is_given_more_restarts_than_attempts(
    steps: list[tuple[float, bool]], chance: float
) -> None:
    tracker = ExponentialBackoff("1 s", "8 s", attempts=3, reset_after="2 h").tracker()
    now, restarts = NOW, 0
    for passed, recovers in steps:
        now += passed
        if recovers:
            tracker.recovered(now)
            continue
        waiting = tracker.restart_at is not None and now < tracker.restart_at
        delay = tracker.failed(now, lambda: chance)
        if waiting:
            assert delay is not None
            assert 0 < delay <= 8
        else:
            restarts += delay is not None
            assert (delay is None) == (tracker.restart_at is None)
    assert restarts <= 3


def test_durations_may_be_text_or_timedelta() -> None:
    assert FixedDelay(timedelta(seconds=3)).tracker().failed(NOW, middle) == seconds("3 s")


def test_each_pipeline_has_its_own_count() -> None:
    strategy: RestartStrategy = FixedDelay("1 s", attempts=1)
    strategy.tracker().failed(NOW, middle)
    assert strategy.tracker().failed(NOW, middle) == 1.0


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: FixedDelay("soon"), "FixedDelay.delay"),
        (lambda: FixedDelay(attempts=-1), "FixedDelay.attempts"),
        (lambda: ExponentialBackoff("0 s"), "ExponentialBackoff.initial"),
        (lambda: ExponentialBackoff("2 s", "1 s"), "ExponentialBackoff.maximum"),
        (lambda: ExponentialBackoff(multiplier=0.5), "ExponentialBackoff.multiplier"),
        (lambda: ExponentialBackoff(multiplier=float("nan")), "ExponentialBackoff.multiplier"),
        (lambda: ExponentialBackoff(jitter=1.1), "ExponentialBackoff.jitter"),
        (lambda: ExponentialBackoff(reset_after="0 s"), "ExponentialBackoff.reset_after"),
        (lambda: ExponentialBackoff(attempts=-1), "ExponentialBackoff.attempts"),
    ],
)
def test_a_strategy_that_makes_no_sense_is_refused_at_once(make: Callable[[], object], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.what == f"invalid {field}"
