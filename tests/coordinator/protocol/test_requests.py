"""Requests for checkpoints and the policy that starts them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.coordinator.protocol.requests import Request, RequestQueue, startable
from chandy.storage.checkpoints.manifest import CheckpointKind

NOW = 1_000.0


_numbers = itertools.count(1)


def periodic(created_at: float = NOW) -> Request:
    return Request(next(_numbers), CheckpointKind.PERIODIC, created_at)


def manual(created_at: float = NOW) -> Request:
    return Request(next(_numbers), CheckpointKind.MANUAL, created_at)


def savepoint(created_at: float = NOW) -> Request:
    return Request(next(_numbers), CheckpointKind.SAVEPOINT, created_at)


def queue_of(requests: Iterable[Request], limit: int = 1000) -> RequestQueue:
    queue = RequestQueue(limit)
    for request in requests:
        assert queue.admit(request) is None
    return queue


def ask(
    queue: RequestQueue,
    *,
    pending: int = 0,
    max_concurrent: int = 1,
    triggering: bool = False,
    deletions_waiting: int = 0,
    is_output_full: bool = False,
) -> Request | None:
    return startable(
        queue,
        pending=pending,
        max_concurrent=max_concurrent,
        triggering=triggering,
        deletions_waiting=deletions_waiting,
        is_output_full=is_output_full,
    )


def started(queue: RequestQueue, *, pending: int = 0, max_concurrent: int = 1) -> Request:
    """The request that starts next, out of the queue."""
    request = ask(queue, pending=pending, max_concurrent=max_concurrent)
    assert request is not None
    queue.remove(request)
    return request


def test_two_requests_of_one_kind_and_time_are_two() -> None:
    first, second = manual(), manual()
    queue = queue_of([first, second])
    queue.remove(second)
    assert list(queue) == [first]


# The older one is subsumed by the newer one that completed, so both places are free.


def test_requests_start_savepoint_first_then_by_users_then_periodic_then_by_age() -> None:
    in_order = [
        savepoint(NOW + 7),
        savepoint(NOW + 8),
        manual(NOW + 4),
        manual(NOW + 5),
        periodic(NOW + 2),
        periodic(NOW + 3),
    ]
    queue = queue_of(reversed(in_order))
    assert [started(queue) for _ in in_order] == in_order


def test_requests_of_the_same_instant_start_in_the_order_in_which_they_came() -> None:
    requests = [manual() for _ in range(10)]
    assert list(queue_of(requests)) == requests


@given(st.lists(st.sampled_from([periodic, manual, savepoint]), max_size=12), st.data())
def test_the_order_does_not_depend_on_the_order_of_arrival(
    makers: list[Callable[[float], Request]], data: st.DataObject
) -> None:
    requests = [make(NOW + number) for number, make in enumerate(makers)]
    shuffled = data.draw(st.permutations(requests))
    assert list(queue_of(shuffled)) == list(queue_of(requests))


def test_the_least_urgent_request_is_refused_when_the_queue_is_full() -> None:
    old, young = periodic(NOW), periodic(NOW + 1)
    queue = queue_of([old, manual(), young], limit=3)
    newcomer = manual(NOW + 2)
    assert queue.admit(newcomer) is young
    assert newcomer in list(queue)
    assert len(queue) == 3


def test_a_periodic_request_that_finds_the_queue_full_is_the_one_refused() -> None:
    queue = queue_of([manual(), periodic(NOW)], limit=2)
    newcomer = periodic(NOW + 1)
    assert queue.admit(newcomer) is newcomer
    assert newcomer not in list(queue)


@pytest.mark.parametrize("newcomer", [manual(NOW + 9), savepoint(NOW + 9), periodic(NOW + 9)])
def test_the_new_request_is_refused_when_only_users_requests_are_waiting(newcomer: Request) -> None:
    waiting = [manual(NOW), manual(NOW + 1)]
    queue = queue_of(waiting, limit=2)
    assert queue.admit(newcomer) is newcomer
    assert list(queue) == waiting


@given(st.lists(st.sampled_from([periodic, manual, savepoint]), max_size=30), st.integers(1, 5))
def test_no_request_is_lost_and_the_queue_never_exceeds_its_limit(
    makers: list[Callable[[float], Request]], limit: int
) -> None:
    queue = RequestQueue(limit)
    requests = [make(NOW + number) for number, make in enumerate(makers)]
    refused = []
    for request in requests:
        rejected = queue.admit(request)
        refused += [rejected] if rejected else []
        assert len(queue) <= limit
    assert {*queue, *refused} == set(requests)
    assert len(queue) + len(refused) == len(requests)
    assert len(queue) == min(limit, len(requests))


def test_that_of_a_stop_waits_for_no_output() -> None:
    request = Request(next(_numbers), CheckpointKind.SAVEPOINT, NOW, is_final=True)
    assert ask(queue_of([manual()]), is_output_full=True) is None
    assert ask(queue_of([request]), is_output_full=True) is request


def test_all_waiting_requests_are_handed_back_to_be_failed_when_the_queue_is_cleared() -> None:
    requests = [savepoint(), manual(), periodic()]
    queue = queue_of(requests)
    assert queue.holds(CheckpointKind.PERIODIC)
    assert queue.clear() == tuple(requests)
    assert len(queue) == 0
    assert not queue.holds(CheckpointKind.PERIODIC)
    assert queue.first is None
