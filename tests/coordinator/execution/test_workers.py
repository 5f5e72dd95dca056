"""Threads that carry jobs out."""

from __future__ import annotations

import threading
import time

import pytest

from chandy.coordinator.execution.dispatch import JobLane
from chandy.coordinator.execution.workers import StoreWorkers, Workers

from ...waiting import DEADLINE, eventually


def soon() -> float:
    return time.monotonic() + DEADLINE


def test_one_worker_does_jobs_in_their_order_and_leaves_no_thread() -> None:
    done: list[int] = []
    workers = Workers(done.append, 1, "one-worker")
    for number in range(200):
        workers.submit(number)
    assert workers.wait(soon()) == ()
    assert done == list(range(200))
    eventually(lambda: "one-worker" not in [thread.name for thread in threading.enumerate()])
    workers.submit(200)
    assert workers.wait(soon()) == ()
    assert done[-1] == 200


def test_no_more_jobs_run_at_a_time_than_may() -> None:
    go_on, running, most = threading.Event(), threading.Semaphore(3), []

    def job(number: int) -> None:
        most.append(running.acquire(blocking=False))
        go_on.wait(DEADLINE)
        running.release()

    workers = Workers(job, 3, "worker")
    for number in range(9):
        workers.submit(number)
    eventually(lambda: len(most) == 3)
    go_on.set()
    assert workers.wait(soon()) == ()
    assert most == [True] * 9


def test_waiting_ends_at_its_deadline_with_what_is_left() -> None:
    go_on, begun = threading.Event(), threading.Event()

    def job(name: str) -> None:
        begun.set()
        go_on.wait(DEADLINE)

    workers = Workers(job, 1, "worker")
    workers.submit("hangs")
    workers.submit("waits")
    assert begun.wait(DEADLINE)
    assert workers.wait(time.monotonic()) == ("hangs", "waits")
    assert not workers.is_idle
    go_on.set()
    assert workers.wait(soon()) == ()
    assert workers.is_idle


# An exit is what a user's callback may ask for.
@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_a_job_that_raises_ends_no_worker(error: type[BaseException]) -> None:
    done: list[int] = []

    def job(number: int) -> None:
        if number == 0:
            raise error
        done.append(number)

    workers = Workers(job, 1, "worker")
    for number in range(3):
        workers.submit(number)
    assert workers.wait(soon()) == ()
    assert done == [1, 2]


def test_a_job_waits_until_a_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    workers = Workers(done.append, 1, "worker")

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        workers.submit(1)
        assert workers.wait(time.monotonic()) == (1,)
    assert not workers.is_idle
    workers.submit(2)
    assert workers.wait(soon()) == ()
    assert done == [1, 2]


def test_the_interpreter_does_not_wait_for_a_worker() -> None:
    daemons: list[bool] = []
    workers = Workers(lambda job: daemons.append(threading.current_thread().daemon), 1, "worker")
    workers.submit(None)
    assert workers.wait(soon()) == ()
    assert daemons == [True]


def test_what_hangs_in_one_kind_of_work_for_a_store_leaves_the_others_alone() -> None:
    go_on, done = threading.Event(), threading.Event()
    workers = StoreWorkers(lambda job: job())
    workers.lanes[JobLane.MANIFESTS].submit(lambda: go_on.wait(DEADLINE))
    workers.lanes[JobLane.CLEANER].submit(done.set)
    assert done.wait(DEADLINE)
    assert not workers.is_idle
    go_on.set()
    assert workers.wait(soon()) == ()
    assert workers.is_idle
