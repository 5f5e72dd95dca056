"""Failures in a row."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chandy.coordinator.protocol.failures import FailureCounter
from chandy.coordinator.protocol.reasons import Reason

COUNTED = [reason for reason in Reason if reason.counted]
NOT_COUNTED = [reason for reason in Reason if not reason.counted]


def test_the_count_begins_anew_after_it_has_failed_the_pipeline() -> None:
    counter = FailureCounter(tolerable=1)
    verdicts = [counter.failed(id, Reason.DECLINED) for id in range(6)]
    assert verdicts == [False, True, False, True, False, True]


def test_a_checkpoint_that_is_reported_several_times_is_counted_once() -> None:
    counter = FailureCounter(tolerable=1)
    assert not any(counter.failed(1, reason) for reason in COUNTED * 2)
    assert counter.count == 1
    assert counter.failed(2, Reason.DECLINED)


def test_a_checkpoint_that_was_counted_is_not_counted_again_after_the_pipeline_has_failed() -> None:
    counter = FailureCounter(tolerable=1)
    assert [counter.failed(id, Reason.DECLINED) for id in (1, 2)] == [False, True]
    assert [counter.failed(id, Reason.DECLINED) for id in (1, 2)] == [False, False]
    assert counter.count == 0


def test_a_late_report_of_a_checkpoint_before_a_completed_one_is_not_counted() -> None:
    counter = FailureCounter(tolerable=0)
    counter.completed(5)
    assert not counter.failed(4, Reason.DECLINED)
    assert counter.failed(6, Reason.DECLINED)


def test_an_older_completion_does_not_clear_failures_since_a_newer_one() -> None:
    counter = FailureCounter(tolerable=1)
    counter.completed(5)
    counter.failed(6, Reason.DECLINED)
    counter.completed(4)
    assert counter.failed(7, Reason.DECLINED)


# Two run at once, the newer one fails and is reported again after the older one has completed.
def test_a_checkpoint_stays_counted_when_an_older_one_completes() -> None:
    counter = FailureCounter(tolerable=0)
    assert counter.failed(6, Reason.DECLINED)
    counter.completed(5)
    assert not counter.failed(6, Reason.EXPIRED)


def test_a_checkpoint_that_ended_by_policy_can_still_be_counted() -> None:
    counter = FailureCounter(tolerable=0)
    assert not counter.failed(1, Reason.SUBSUMED)
    assert counter.failed(1, Reason.DECLINED)


def test_requests_that_failed_before_they_had_an_id_count_each() -> None:
    counter = FailureCounter(tolerable=2)
    verdicts = [counter.failed(None, Reason.EXPIRED) for _ in range(3)]
    assert verdicts == [False, False, True]


@given(st.integers(0, 5), st.lists(st.sampled_from(Reason), max_size=60))
def test_without_a_success_the_pipeline_fails_once_for_every_tolerable_number_plus_one(
    tolerable: int, reasons: list[Reason]
) -> None:
    counter = FailureCounter(tolerable)
    verdicts = [counter.failed(id, reason) for id, reason in enumerate(reasons)]
    assert sum(verdicts) == sum(reason.counted for reason in reasons) // (tolerable + 1)
