"""The executor of checkpoints with real threads, a real store and a real catalog. The test drives hosts and queries."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from chandy.coordinator.checkpoint import Checkpoint
from chandy.coordinator.errors import CheckpointError
from chandy.coordinator.execution import executor as executor_module
from chandy.coordinator.protocol import events
from chandy.coordinator.protocol.instructions import Reject
from chandy.coordinator.protocol.reasons import Reason
from chandy.state.rpc.messages import AskBatch, ClaimShards, Decline, TaskFailure
from chandy.state.rpc.orders import AbortOrder, SnapshotOrder, StopHost
from chandy.storage import runtime
from chandy.storage.checkpoints.layout import trigger_key
from chandy.storage.checkpoints.verification import verify

from ...waiting import DEADLINE, eventually
from .one_life import OneLife


def test_a_request_after_the_end_fails_at_once_and_nobody_hears_of_it(setup: OneLife) -> None:
    setup.close()
    future = setup.request()
    assert setup.error(future).reason is Reason.COORDINATOR_SHUTDOWN
    assert setup.host.heard_of(SnapshotOrder) == []


def test_requests_while_it_closes_all_come_to_an_end(setup: OneLife) -> None:
    futures: list[Future[Checkpoint]] = []
    begun, done = threading.Event(), threading.Event()

    def ask() -> None:
        # Some at a time: closing is to get its turn at the lock.
        while not done.wait(0.001):
            futures.append(setup.request())
            begun.set()
        futures.append(setup.request())

    thread = threading.Thread(target=ask)
    thread.start()
    assert begun.wait(DEADLINE)
    setup.executor.close()
    done.set()
    thread.join(DEADLINE)
    assert {setup.error(future).reason for future in futures} <= {
        Reason.COORDINATOR_SHUTDOWN,
        Reason.TOO_MANY_REQUESTS,
    }


def test_closing_fails_what_is_on_its_way_and_what_waits_and_deletes_what_was_stored(setup: OneLife) -> None:
    pending, queued = setup.request(), setup.request()
    setup.host.ordered(1)
    eventually(lambda: len(setup.store.list("checkpoints/1/")) > 1)
    setup.close()
    assert [setup.error(future).reason for future in (pending, queued)] == [Reason.COORDINATOR_SHUTDOWN] * 2
    # That its id was used remains.
    assert setup.store.list("checkpoints/") == [trigger_key(1)]
    assert setup.host.heard[-1] == StopHost()
    # Messages that come later change nothing and raise nothing.
    setup.host.acknowledge(1)
    setup.executor.hosts.decline(Decline("host", 1, "id", "late"))
    assert setup.catalog.latest() is None


def test_closing_waits_for_a_manifest_that_is_being_written(setup: OneLife) -> None:
    future = setup.request_held()
    closer = threading.Thread(target=setup.executor.close)
    closer.start()
    eventually(lambda: setup.executor.protocol.read(lambda p: p.life.why_over) is Reason.COORDINATOR_SHUTDOWN)
    setup.store.open.set()
    closer.join(DEADLINE)
    assert future.result(0).id == 1


def test_closing_ends_every_future_and_waits_for_no_callback(setup: OneLife) -> None:
    closed = threading.Event()
    waited: list[bool] = []
    futures = [setup.request() for _ in range(10)]
    for future in futures:
        future.add_done_callback(lambda _: waited.append(closed.wait(DEADLINE)))
    setup.executor.close()
    assert all(future.done() for future in futures)
    closed.set()
    eventually(lambda: waited == [True] * 10)


def test_closing_waits_for_an_answer_that_is_on_its_way(
    setup: OneLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    awaited = threading.Event()
    wait, reject = runtime.wait, setup.executor.reject

    def waiting(futures: list[Future[Checkpoint]], timeout: float) -> None:
        awaited.set()
        wait(futures, timeout)

    def late(order: Reject) -> None:
        assert awaited.wait(DEADLINE)
        reject(order)

    monkeypatch.setattr(runtime, "wait", waiting)
    monkeypatch.setattr(setup.executor, "reject", late)
    future = setup.request()
    setup.executor.close()
    assert future.done()


def test_a_callback_may_close(setup: OneLife) -> None:
    closed: list[None] = []
    future = setup.request()
    setup.host.ordered(1)
    future.add_done_callback(lambda _: closed.append(setup.executor.close()))
    setup.host.acknowledge(1)
    eventually(lambda: closed == [None])
    assert future.result(0).id == 1


@pytest.fixture
def left_behind(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What closing, which has little time, says is left behind: the names of jobs, each time."""
    said: list[list[str]] = []
    monkeypatch.setattr(executor_module, "_STOP_SECONDS", 0.1)
    monkeypatch.setattr(executor_module.log, "error", lambda event, **about: said.append(about["what"]))
    return said


def check_left_behind(said: list[list[str]], job: str) -> None:
    [what] = said
    assert job in what
    # On a slow machine, others may be left, too, but each is an instruction for the checkpoint.
    assert all(name.endswith(" of checkpoint 1") for name in what)


def test_a_manifest_that_lands_after_closing_has_stopped_waiting_resolves_nothing_twice_and_hangs_nobody(
    setup: OneLife, left_behind: list[list[str]]
) -> None:
    future = setup.request_held()
    setup.executor.close()
    error = setup.error(future)
    assert error.reason is Reason.COORDINATOR_SHUTDOWN
    assert "not known in time" in error.detail
    check_left_behind(left_behind, "Finalize of checkpoint 1")
    setup.store.open.set()
    eventually(lambda: setup.catalog.list_ids() == [1])
    latest = setup.catalog.latest()
    assert latest is not None
    assert verify(setup.store, latest).ok


def test_a_manifest_that_lands_while_closing_waits_for_its_thread_resolves_its_future(
    setup: OneLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It lands when the dispatching thread has ended, so nobody hands the answer on.
    monkeypatch.setattr(setup.executor, "_await_all_manifests", lambda: None)
    future = setup.request_held()
    closer = threading.Thread(target=setup.executor.close)
    closer.start()
    dispatcher = next(thread for thread in setup.executor._threads if thread.name == "chandy-dispatch")
    dispatcher.join(DEADLINE)
    assert not dispatcher.is_alive()
    setup.store.open.set()
    closer.join(DEADLINE)
    assert future.result(0).id == 1


def test_closing_comes_to_an_end_although_something_on_the_driver_hangs(
    setup: OneLife, left_behind: list[list[str]]
) -> None:
    setup.queries.may_plan.clear()
    future = setup.request()
    assert setup.queries.is_planning.wait(DEADLINE)
    setup.executor.close()
    setup.queries.may_plan.set()
    assert setup.error(future).reason is Reason.COORDINATOR_SHUTDOWN
    check_left_behind(left_behind, "ChooseCut of checkpoint 1")


def test_closing_twice_is_no_error(setup: OneLife) -> None:
    setup.executor.close()
    setup.executor.close()


# Promise 6
@pytest.mark.parametrize("kind", ["the manifest is being written", "the cut is being chosen"])
def test_a_store_or_disk_that_blocks_does_not_hold_up_a_batch(setup: OneLife, kind: str) -> None:
    if kind == "the manifest is being written":
        future = setup.request_held()
    else:
        setup.queries.may_plan.clear()
        future = setup.request()
    # All of these return although the gate is closed; it is opened only afterwards.
    setup.executor.hosts.ask(AskBatch("host", "id", 5))
    setup.executor.hosts.claim(ClaimShards("host", "id", "op", ()))
    setup.executor.statistics()
    setup.request()
    setup.executor.hosts.handlers[TaskFailure](TaskFailure("id", 5, "op", "key", "ValueError", "Traceback"))
    assert not future.done()
    assert len(setup.reports.processor_failures) == 1
    setup.store.open.set()
    setup.queries.may_plan.set()


def test_an_idle_query_gets_its_barrier_when_its_cut_has_committed(setup: OneLife) -> None:
    setup.queries.newest = 5
    future = setup.request()
    eventually(lambda: setup.executor.protocol.read(lambda p: p.waiting_for_commits()) == {"q": 5})
    assert setup.host.heard_of(SnapshotOrder) == []
    setup.queries.newest_committed = 5
    setup.host.acknowledge(1)
    assert future.result(DEADLINE).batches == {"q": 5}


def test_a_checkpoint_that_takes_too_long_expires(make: Callable[..., OneLife]) -> None:
    setup = make(timeout="30 s")
    future = setup.request()
    setup.host.ordered(1)
    setup.now += 31
    # Any event makes it look at the time.
    setup.executor.protocol.handle(events.BatchCommitted("q", 0))
    assert setup.error(future).reason is Reason.EXPIRED
    eventually(lambda: setup.host.heard_of(AbortOrder) == [AbortOrder(1, None)])
    assert setup.completed().id == 2


@pytest.mark.parametrize("hangs", [False, True])
def test_a_checkpoint_expires_although_nobody_can_tell_whether_its_cut_has_committed(
    make: Callable[..., OneLife], monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    setup = make(timeout="30 s")
    asked: list[int] = []
    go_on = threading.Event()

    def broken(query: str, batch: int) -> bool:
        asked.append(batch)
        if hangs:
            go_on.wait(DEADLINE)
        raise RuntimeError("not a commit log")

    monkeypatch.setattr(setup.queries, "is_committed", broken)
    setup.queries.newest = 5
    future = setup.request()
    eventually(lambda: bool(asked))
    setup.now += 31
    setup.executor.protocol.handle(events.BatchCommitted("q", 0))
    assert setup.error(future).reason is Reason.EXPIRED
    go_on.set()


def test_an_abort_never_overtakes_the_order_that_it_aborts(setup: OneLife) -> None:
    future = setup.request()
    order = setup.host.ordered(1)
    setup.executor.hosts.decline(Decline("host", 1, order.query_id, "no"))
    setup.error(future)
    eventually(lambda: len(setup.host.heard) == 2)
    assert [type(order) for order in setup.host.heard] == [SnapshotOrder, AbortOrder]


def test_too_many_failures_in_a_row_fail_the_pipeline(make: Callable[..., OneLife]) -> None:
    setup = make(tolerable_failures=1)
    for number in (1, 2):
        future = setup.request()
        setup.executor.hosts.decline(Decline("host", number, setup.host.ordered(number).query_id, "no"))
        setup.error(future)
    eventually(lambda: len(setup.failures) == 1)
    (failure,) = setup.failures
    assert isinstance(failure, CheckpointError)
    assert failure.reason is Reason.DECLINED
