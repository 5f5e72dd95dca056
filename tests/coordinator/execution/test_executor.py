"""The executor of checkpoints with real threads, a real store and a real catalog. The test drives hosts and queries.

Here a notice is an order in a mailbox. A notice cannot be delivered (D7) if its host is gone.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from chandy.coordinator.checkpoint import Checkpoint
from chandy.coordinator.config import CheckpointConfig
from chandy.coordinator.errors import CheckpointError, StaleQueryError
from chandy.coordinator.execution import executor as executor_module
from chandy.coordinator.execution.executor import CheckpointExecutor
from chandy.coordinator.protocol import events as on
from chandy.coordinator.protocol.event_log import replay
from chandy.coordinator.protocol.instructions import Reject
from chandy.coordinator.protocol.reasons import Reason
from chandy.coordinator.protocol.state_machine import CheckpointStateMachine
from chandy.state.errors import HostDismissedError
from chandy.state.rpc.messages import (
    AbortOrder,
    Ack,
    AskBatch,
    BatchTimes,
    ClaimShards,
    CompleteOrder,
    Decline,
    Heartbeat,
    HostHello,
    HostPulse,
    Order,
    ShardSnapshot,
    ShardsRestored,
    SnapshotOrder,
    StopOrder,
    TaskFailure,
)
from chandy.storage.catalog import Catalog
from chandy.storage.errors import (
    ChandyError,
    FailureCode,
    FencedError,
    OutcomeUnknownError,
    StorageReplacedError,
    StoreFailedError,
)
from chandy.storage.layout import manifest_key, pack_key, shared_key, trigger_key
from chandy.storage.local import LocalStore
from chandy.storage.manifest import (
    ChannelRecord,
    CheckpointKind,
    Handle,
    Manifest,
    OperatorRecord,
    OutputRecord,
)
from chandy.storage.savepoint import read_savepoint
from chandy.storage.store import Store
from chandy.storage.verification import verify

from ...waiting import DEADLINE, eventually


class TroubledStore(LocalStore):
    """A store that can fail before or after it creates a manifest, and can be held up."""

    trouble = ""
    open = threading.Event()
    waiting = threading.Event()
    reads = 0

    def create(self, key: str, data: bytes) -> None:
        manifest = key.endswith("manifest.json")
        if manifest:
            self.waiting.set()
            assert self.open.wait(DEADLINE)
        if manifest and self.trouble == "before":
            raise StoreFailedError(self.uri, key, "create", "no space left on device")
        if manifest and self.trouble == "silent" and key in self.list():
            raise OutcomeUnknownError(self.uri, key, "create", "timed out", transient=True)
        super().create(key, data)
        if manifest and self.trouble in ("lost", "silent"):
            self.trouble = "" if self.trouble == "lost" else self.trouble
            raise OutcomeUnknownError(self.uri, key, "create", "timed out", transient=True)
        if manifest and self.trouble == "after":
            raise StoreFailedError(self.uri, key, "create", "connection reset")


class Queries:
    """One query, "q", on the driver's disk."""

    def __init__(self, folder: Path) -> None:
        self.newest = self.newest_committed = 4
        self.stopped = False
        self.offsets = folder / "offsets"
        self.holds = itertools.count()
        self.on_times: Callable[[], object] = lambda: None
        self.may_plan = threading.Event()
        self.may_plan.set()

    def planned(self, query: str) -> int:
        assert self.may_plan.wait(DEADLINE)
        return self.newest

    def stands_at(self, query: str) -> int | None:
        return self.newest_committed if self.stopped else None

    def is_committed(self, query: str, batch: int) -> bool:
        return batch <= self.newest_committed

    def times(self, query_id: str, batch: int) -> BatchTimes:
        if query_id != "id":
            raise StaleQueryError(query_id, batch)
        self.on_times()
        return BatchTimes(batch * 1000, batch * 10, batch * 10 - 10)

    def close_epoch(self, query: str, checkpoint: int, cut: int) -> None:
        pass

    def pre_commit(self, query: str, checkpoint: int) -> tuple[OutputRecord, ...]:
        return ()

    def commit(self, query: str, checkpoint: int) -> None:
        pass

    def channels(self, manifest: Manifest) -> tuple[ChannelRecord, ...]:
        return ()

    @contextmanager
    def hold(self, query: str, batch: int) -> Iterator[Mapping[str, Path]]:
        # Never twice the same: a checkpoint refers to its base for what has not changed.
        self.offsets.write_text(f"offsets {next(self.holds)}")
        yield {"working/offsets/4": self.offsets}


class FakeHost:
    """A state host that reads its orders; the test answers them."""

    def __init__(
        self,
        executor: CheckpointExecutor,
        name: str = "host",
        spark_executor: str = "executor",
        machine: str = "machine",
    ) -> None:
        self.name, self.executor = name, executor
        self.heard: list[Order] = []
        self.on_order: Callable[[Order], None] = lambda order: None
        self.welcomed = threading.Event()
        self.leave = threading.Event()
        hello = HostHello(name, f"address-{name}", machine, spark_executor, 1)
        self.thread = threading.Thread(target=self._listen, args=(hello,), daemon=True)
        self.thread.start()
        assert self.welcomed.wait(DEADLINE)

    def _listen(self, hello: HostHello) -> None:
        stream = self.executor.orders(hello)
        for order in stream:
            self.welcomed.set()
            if not isinstance(order, Heartbeat):
                self.on_order(order)
                self.heard.append(order)
            if self.leave.is_set():
                break
        stream.close()  # type: ignore[attr-defined]

    def heard_of(self, kind: type[Order]) -> list[Order]:  # type: ignore[valid-type]
        return [order for order in self.heard if isinstance(order, kind)]

    def ordered(self, checkpoint: int) -> SnapshotOrder:
        def found() -> list[SnapshotOrder]:
            return [o for o in self.heard if isinstance(o, SnapshotOrder) and o.checkpoint == checkpoint]

        eventually(lambda: bool(found()))
        return found()[0]

    def ack_of(self, order: SnapshotOrder) -> Ack:
        snapshots = (ShardSnapshot(shard, Handle(), 1, 0.0, 0.0, 0.0) for shard in order.shards)
        return Ack(self.name, order.checkpoint, order.query_id, tuple(snapshots))

    def acknowledge(self, checkpoint: int) -> None:
        self.executor.ack(self.ack_of(self.ordered(checkpoint)))


class Setup:
    """One coordinator life on a store, one query, one host that owns its two shards."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.folder = folder
        self.store = TroubledStore(folder / "store")
        self.store.open, self.store.waiting = threading.Event(), threading.Event()
        self.store.open.set()
        self.catalog = Catalog(self.store)
        self.queries = Queries(folder)
        self.now = 1000.0
        self.lost: list[str] = []
        self.failures: list[ChandyError] = []
        self.processor_failures: list[TaskFailure] = []
        self.restored: list[ShardsRestored] = []
        self.not_opened: list[tuple[str, str, FailureCode | None]] = []
        self.on_completed: Callable[[Manifest], None] = lambda manifest: None
        generation = self.catalog.take_over("driver", self.now)
        self.generation = generation.generation
        limits = CheckpointConfig(**{"interval": None, **config}).limits
        self.machine = lambda: CheckpointStateMachine(
            pipeline="p", generation=generation.generation, root=self.store.uri, limits=limits, next_id=1
        )
        self.executor = CheckpointExecutor(
            self.machine(),
            catalog=self.catalog,
            store=self.store,
            progress=self.queries,
            clock=lambda: self.now,
            host_timeout=60.0,
            on_state_lost=self.lost.append,
            on_failure=self.failures.append,
            on_processor_failure=self.processor_failures.append,
            on_restored=self.restored.append,
            on_not_opened=lambda query_id, why, code: self.not_opened.append((query_id, why, code)),
            on_completed=lambda manifest: self.on_completed(manifest),
        )
        operators = (OperatorRecord("op", "q", "{}", {}, (None, None)),)
        self.executor.handle(
            on.QueryAdded("q", "id", batch=4, operators=operators, restored=operators, sources={})
        )
        self.host = FakeHost(self.executor)
        self.executor.claim(ClaimShards("host", "id", "op", (0, 1)))

    def request(
        self, kind: CheckpointKind = CheckpointKind.MANUAL, target: str | None = None
    ) -> Future[Checkpoint]:
        return self.executor.request(kind, target=target)

    def completed(self) -> Checkpoint:
        future = self.request()
        self.host.acknowledge(self.executor.read(lambda p: p.next_id) - 1)
        return future.result(DEADLINE)

    def error(self, future: Future[Checkpoint]) -> CheckpointError:
        error = future.exception(DEADLINE)
        assert isinstance(error, CheckpointError)
        return error

    def close(self) -> None:
        self.store.open.set()
        self.queries.may_plan.set()
        self.executor.close()
        # Its stream ends with the order to stop.
        self.host.thread.join(DEADLINE)
        assert not self.host.thread.is_alive(), "the host was not told to stop"


class HeldStore(LocalStore):
    """A store that does not answer: each kind of call waits until it is let go."""

    def __init__(self, folder: Path, *held: str) -> None:
        super().__init__(folder)
        self.held = held
        self.waiting, self.let_go = threading.Event(), threading.Event()

    def hold(self, what: str) -> None:
        if what in self.held:
            self.waiting.set()
            assert self.let_go.wait(DEADLINE)

    def create(self, key: str, data: bytes) -> None:
        self.hold("manifest" if key.endswith("manifest.json") else "claim")
        super().create(key, data)

    def delete(self, key: str) -> None:
        self.hold("delete")
        super().delete(key)

    def within(self, seconds: float) -> Store:
        return self


Elsewhere = Callable[..., HeldStore]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Elsewhere]:
    """Makes stores for savepoints, by what they do not answer."""
    made: dict[str, HeldStore] = {}
    right = executor_module.open_store
    monkeypatch.setattr(executor_module, "open_store", lambda uri: made.get(uri) or right(uri))

    def make_store(*held: str) -> HeldStore:
        store = HeldStore(tmp_path / f"elsewhere{len(made)}", *held)
        made[store.uri] = store
        return store

    yield make_store
    for store in made.values():
        store.let_go.set()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Setup]]:
    made: list[Setup] = []

    def make_setup(**config: Any) -> Setup:
        made.append(Setup(tmp_path, **config))
        return made[-1]

    yield make_setup
    for setup in made:
        setup.close()


@pytest.fixture
def setup(make: Callable[..., Setup]) -> Setup:
    return make()


def test_a_checkpoint_completes_with_what_hosts_and_queries_have_stored(setup: Setup) -> None:
    checkpoint = setup.completed()
    assert (checkpoint.id, checkpoint.kind, checkpoint.uri) == (1, CheckpointKind.MANUAL, setup.store.uri)
    assert checkpoint.batches == {"q": 4}
    manifest = setup.catalog.latest()
    assert manifest is not None
    assert [file.name for file in manifest.queries[0].files.files] == ["working/offsets/4"]
    assert manifest.operators[0].shards == (Handle(), Handle())
    assert setup.executor.statistics().counts.completed == 1


def test_whoever_waits_for_a_checkpoint_learns_of_it_after_what_is_done_with_each(setup: Setup) -> None:
    order: list[str] = []
    setup.on_completed = lambda manifest: order.append(
        f"completed {manifest.id} {setup.store.list('checkpoints/1/manifest')}"
    )
    future = setup.request()
    future.add_done_callback(lambda _: order.append("told"))
    setup.host.acknowledge(1)
    future.result(DEADLINE)
    eventually(lambda: len(order) == 2)
    assert order == ["completed 1 ['checkpoints/1/manifest.json']", "told"]


def test_a_checkpoint_is_complete_whatever_becomes_of_the_news(setup: Setup) -> None:
    def fail(_: Manifest) -> None:
        raise OSError("no broker")

    setup.on_completed = fail
    assert setup.completed().id == 1
    assert setup.completed().id == 2
    assert setup.executor.statistics().counts.failed == 0


# D1
def test_the_manifest_is_durable_before_the_future_resolves_and_before_any_host_hears_of_it(
    setup: Setup,
) -> None:
    durable: list[bool] = []

    def is_durable(_: object) -> None:
        durable.append(manifest_key(1) in setup.store.list())

    setup.host.on_order = lambda order: is_durable(order) if isinstance(order, CompleteOrder) else None
    setup.store.open.clear()
    future = setup.request()
    future.add_done_callback(is_durable)
    setup.host.acknowledge(1)
    assert setup.store.waiting.wait(DEADLINE)
    assert setup.catalog.latest() is None
    assert not future.done()
    assert setup.host.heard_of(CompleteOrder) == []
    setup.store.open.set()
    future.result(DEADLINE)
    eventually(lambda: setup.host.heard_of(CompleteOrder) == [CompleteOrder(1)])
    eventually(lambda: len(durable) == 2)
    assert durable == [True, True]


# D2
def test_a_manifest_that_cannot_be_written_fails_the_future_and_the_previous_stays_latest(
    setup: Setup,
) -> None:
    setup.completed()
    setup.store.trouble = "before"
    future = setup.request()
    setup.host.acknowledge(2)
    error = setup.error(future)
    assert (error.id, error.reason) == (2, Reason.FINALIZE_CHECKPOINT_FAILURE)
    assert "no space left" in error.detail
    eventually(lambda: setup.store.list("checkpoints/2/") == [trigger_key(2)])
    latest = setup.catalog.latest()
    assert latest is not None
    assert latest.id == 1
    assert setup.executor.statistics().counts.failed == 1
    setup.store.trouble = ""
    assert setup.completed().id == 3


def test_a_commit_whose_answer_was_lost_completes_its_checkpoint(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_module, "_ASK_AGAIN_SECONDS", 0.01)
    setup.store.trouble = "lost"
    assert setup.completed().id == 1
    assert setup.executor.statistics().counts.failed == 0
    assert setup.completed().id == 2


def test_of_a_commit_that_nobody_can_tell_of_nothing_is_deleted(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_module, "_ASK_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(executor_module, "_STOP_SECONDS", 0.1)
    setup.completed()
    setup.store.trouble = "silent"
    future = setup.request()
    setup.host.acknowledge(2)
    eventually(lambda: setup.catalog.list_ids() == [1, 2])
    # Neither failed nor completed, for as long as the store does not say.
    assert not future.done()
    before = setup.store.list()
    setup.executor.close()
    assert setup.error(future).reason is Reason.FINALIZE_CHECKPOINT_FAILURE
    assert setup.store.list() == before
    latest = setup.catalog.latest()
    assert latest is not None
    assert latest.id == 2
    assert verify(setup.store, latest).ok


def test_a_deletion_that_takes_long_delays_no_checkpoint(make: Callable[..., Setup]) -> None:
    setup = make(retained=1, max_concurrent=4)
    goes_on = threading.Event()
    delete_all = setup.store.delete_all

    def slow(keys: Collection[str]) -> None:
        assert goes_on.wait(DEADLINE)
        delete_all(keys)

    setup.store.delete_all = slow  # type: ignore[method-assign]
    for id in range(1, 6):
        assert setup.completed().id == id
    assert setup.catalog.list_ids() == [1, 2, 3, 4, 5]
    goes_on.set()
    eventually(lambda: setup.catalog.list_ids() == [5])


# D3
def test_a_failure_after_the_manifest_was_written_takes_it_back_and_keeps_the_old_checkpoints(
    make: Callable[..., Setup],
) -> None:
    setup = make(retained=1)
    setup.completed()
    setup.store.trouble = "after"
    future = setup.request()
    setup.host.acknowledge(2)
    assert setup.error(future).reason is Reason.FINALIZE_CHECKPOINT_FAILURE
    eventually(lambda: setup.host.heard_of(AbortOrder) == [AbortOrder(2, 1)])
    eventually(lambda: setup.store.list("checkpoints/2/") == [trigger_key(2)])
    assert [manifest.id for manifest in setup.catalog.completed()] == [1]


# A6
def test_what_fails_at_the_trigger_fails_the_checkpoint_and_the_next_one_works(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(query: str) -> int:
        raise RuntimeError("offset log unreadable")

    with monkeypatch.context() as patch:
        patch.setattr(setup.queries, "planned", broken)
        error = setup.error(setup.request())
    assert (error.reason, error.detail) == (Reason.TRIGGER_CHECKPOINT_FAILURE, "offset log unreadable")
    assert setup.completed().id == 2


# A7
def test_a_savepoint_into_a_folder_that_is_not_empty_fails_for_io_and_leaves_the_folder_alone(
    setup: Setup, tmp_path: Path
) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mine").write_text("keep")
    error = setup.error(setup.request(CheckpointKind.SAVEPOINT, str(tmp_path / "target")))
    assert error.reason is Reason.IO_EXCEPTION
    setup.completed()
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["mine"]


def test_a_savepoint_is_in_its_own_folder_and_its_id_is_taken_in_the_pipeline_too(
    setup: Setup, tmp_path: Path
) -> None:
    future = setup.request(CheckpointKind.SAVEPOINT, str(tmp_path / "target"))
    setup.host.acknowledge(1)
    savepoint = future.result(DEADLINE)
    assert read_savepoint(LocalStore(tmp_path / "target")).id == savepoint.id == 1
    assert setup.catalog.latest() is None
    assert setup.catalog.take_over("another", 2000.0).next_id == 2


# E4
def test_a_savepoint_that_is_declined_fails_with_the_cause_and_its_folder_is_empty_again(
    setup: Setup, tmp_path: Path
) -> None:
    future = setup.request(CheckpointKind.SAVEPOINT, str(tmp_path / "target"))
    order = setup.host.ordered(1)
    eventually(lambda: bool(LocalStore(tmp_path / "target").list("checkpoints/1/")))
    setup.executor.decline(Decline("host", 1, order.query_id, "the disk is full"))
    assert "state host host on machine: the disk is full" in str(setup.error(future))
    eventually(lambda: not LocalStore(tmp_path / "target").list())


# A9
def test_a_request_after_the_end_fails_at_once_and_nobody_hears_of_it(setup: Setup) -> None:
    setup.close()
    future = setup.request()
    assert setup.error(future).reason is Reason.COORDINATOR_SHUTDOWN
    assert setup.host.heard_of(SnapshotOrder) == []


# A9
def test_requests_while_it_closes_all_come_to_an_end(setup: Setup) -> None:
    futures: list[Future[Checkpoint]] = []
    begun, done = threading.Event(), threading.Event()

    def ask() -> None:
        while not done.is_set():
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


def test_an_order_to_a_host_that_has_only_just_joined_reaches_it(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = setup.executor._change

    def order_at_once(event: on.Event[Any]) -> Any:
        outcome = change(event)
        if isinstance(event, on.HostJoined):
            setup.executor._order_streams.send(event.hello.host, AbortOrder(7, None))
        return outcome

    monkeypatch.setattr(setup.executor, "_change", order_at_once)
    host = FakeHost(setup.executor, "new", "new")
    eventually(lambda: host.heard == [AbortOrder(7, None)])


# I1
def test_closing_fails_what_is_on_its_way_and_what_waits_and_deletes_what_was_stored(setup: Setup) -> None:
    pending, queued = setup.request(), setup.request()
    setup.host.ordered(1)
    eventually(lambda: len(setup.store.list("checkpoints/1/")) > 1)
    setup.close()
    assert [setup.error(future).reason for future in (pending, queued)] == [Reason.COORDINATOR_SHUTDOWN] * 2
    # That its id was used remains.
    assert setup.store.list("checkpoints/") == [trigger_key(1)]
    assert setup.host.heard[-1] == StopOrder()
    # Messages that come later change nothing and raise nothing.
    setup.host.acknowledge(1)
    setup.executor.decline(Decline("host", 1, "id", "late"))
    assert setup.catalog.latest() is None


# I1
def test_closing_waits_for_a_manifest_that_is_being_written(setup: Setup) -> None:
    setup.store.open.clear()
    future = setup.request()
    setup.host.acknowledge(1)
    assert setup.store.waiting.wait(DEADLINE)
    closer = threading.Thread(target=setup.executor.close)
    closer.start()
    eventually(lambda: setup.executor.read(lambda p: p.closed) is Reason.COORDINATOR_SHUTDOWN)
    setup.store.open.set()
    closer.join(DEADLINE)
    assert future.result(0).id == 1


def test_closing_settles_every_future_and_waits_for_no_callback(setup: Setup) -> None:
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
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    awaited = threading.Event()
    wait, reject = executor_module.wait, setup.executor._reject

    def waiting(futures: list[Future[Checkpoint]], timeout: float) -> None:
        awaited.set()
        wait(futures, timeout)

    def late(order: Reject) -> None:
        assert awaited.wait(DEADLINE)
        reject(order)

    monkeypatch.setattr(executor_module, "wait", waiting)
    monkeypatch.setattr(setup.executor, "_reject", late)
    future = setup.request()
    setup.executor.close()
    assert future.done()


def test_a_callback_may_close(setup: Setup) -> None:
    closed: list[None] = []
    future = setup.request()
    setup.host.ordered(1)
    future.add_done_callback(lambda _: closed.append(setup.executor.close()))
    setup.host.acknowledge(1)
    eventually(lambda: closed == [None])
    assert future.result(0).id == 1


def test_a_manifest_that_lands_after_closing_has_stopped_waiting_resolves_nothing_twice_and_hangs_nobody(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_module, "_STOP_SECONDS", 0.1)
    setup.store.open.clear()
    future = setup.request()
    setup.host.acknowledge(1)
    assert setup.store.waiting.wait(DEADLINE)
    setup.executor.close()
    error = setup.error(future)
    assert error.reason is Reason.COORDINATOR_SHUTDOWN
    assert "not known in time" in error.detail
    setup.store.open.set()
    eventually(lambda: setup.catalog.list_ids() == [1])
    latest = setup.catalog.latest()
    assert latest is not None
    assert verify(setup.store, latest).ok


def test_a_manifest_that_lands_while_closing_waits_for_its_thread_resolves_its_future(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It lands when the dispatching thread has ended, so nobody hands the answer on.
    monkeypatch.setattr(setup.executor, "_settle_all", lambda: None)
    setup.store.open.clear()
    future = setup.request()
    setup.host.acknowledge(1)
    assert setup.store.waiting.wait(DEADLINE)
    closer = threading.Thread(target=setup.executor.close)
    closer.start()
    dispatcher = next(thread for thread in setup.executor._threads if thread.name == "chandy-dispatch")
    dispatcher.join(DEADLINE)
    assert not dispatcher.is_alive()
    setup.store.open.set()
    closer.join(DEADLINE)
    assert future.result(0).id == 1


def test_closing_comes_to_an_end_although_something_on_the_driver_hangs_and_says_what(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[object] = []
    monkeypatch.setattr(executor_module, "_STOP_SECONDS", 0.1)
    monkeypatch.setattr(executor_module.log, "error", lambda event, **about: said.append(about.get("what")))
    hanging, go_on = threading.Event(), threading.Event()

    def hangs(query: str) -> int:
        hanging.set()
        assert go_on.wait(DEADLINE)
        return 4

    monkeypatch.setattr(setup.queries, "planned", hangs)
    future = setup.request()
    assert hanging.wait(DEADLINE)
    setup.executor.close()
    go_on.set()
    assert setup.error(future).reason is Reason.COORDINATOR_SHUTDOWN
    assert said == [["ChooseCut of checkpoint 1"]]


def test_closing_twice_is_no_error(setup: Setup) -> None:
    setup.executor.close()
    setup.executor.close()


# D7
def test_a_host_that_is_gone_when_its_checkpoint_completes_does_not_undo_it(setup: Setup) -> None:
    setup.store.open.clear()
    future = setup.request()
    setup.host.acknowledge(1)
    assert setup.store.waiting.wait(DEADLINE)
    setup.host.leave.set()
    setup.host.thread.join(DEADLINE)
    eventually(lambda: setup.lost == ["state host host on machine is gone"])
    setup.store.open.set()
    assert future.result(DEADLINE).id == 1
    latest = setup.catalog.latest()
    assert latest is not None
    assert latest.id == 1


def test_a_host_that_opens_its_stream_again_is_not_lost_when_the_broken_one_ends(setup: Setup) -> None:
    again = FakeHost(setup.executor)
    setup.host.leave.set()
    setup.host.thread.join(DEADLINE)
    assert setup.executor.read(lambda p: list(p.hosts)) == ["host"]
    setup.host = again
    assert setup.completed().id == 1
    assert not any(isinstance(logged.event, on.HostLeft) for logged in setup.executor.events)
    assert setup.lost == []


def test_a_new_host_in_the_place_of_one_that_had_state_sends_the_pipeline_back(setup: Setup) -> None:
    FakeHost(setup.executor, "another")
    eventually(lambda: len(setup.lost) == 1)


# Promise 6
@pytest.mark.parametrize("kind", ["the manifest is being written", "the cut is being chosen"])
def test_a_store_or_disk_that_blocks_does_not_hold_up_a_batch(setup: Setup, kind: str) -> None:
    if kind == "the manifest is being written":
        setup.store.open.clear()
        future = setup.request()
        setup.host.acknowledge(1)
        assert setup.store.waiting.wait(DEADLINE)
    else:
        setup.queries.may_plan.clear()
        future = setup.request()
    # All of these return although the gate is closed; it is opened only afterwards.
    setup.executor.ask(AskBatch("host", "id", 5))
    setup.executor.claim(ClaimShards("host", "id", "op", ()))
    setup.executor.statistics()
    setup.request()
    setup.executor.report(TaskFailure("id", 5, "op", "key", "ValueError", "Traceback"))
    assert not future.done()
    assert len(setup.processor_failures) == 1
    setup.store.open.set()
    setup.queries.may_plan.set()


def test_an_idle_query_gets_its_barrier_when_its_cut_has_committed(setup: Setup) -> None:
    setup.queries.newest = 5
    future = setup.request()
    eventually(lambda: setup.executor.read(lambda p: p.waiting_for_commits()) == {"q": 5})
    assert setup.host.heard_of(SnapshotOrder) == []
    setup.queries.newest_committed = 5
    setup.host.acknowledge(1)
    assert future.result(DEADLINE).batches == {"q": 5}


# C14
def test_a_checkpoint_that_takes_too_long_expires(make: Callable[..., Setup]) -> None:
    setup = make(timeout="30 s")
    future = setup.request()
    setup.host.ordered(1)
    setup.now += 31
    # Any event makes it look at the time.
    setup.executor.handle(on.BatchCommitted("q", 0))
    assert setup.error(future).reason is Reason.EXPIRED
    eventually(lambda: setup.host.heard_of(AbortOrder) == [AbortOrder(1, None)])
    assert setup.completed().id == 2


@pytest.mark.parametrize("hangs", [False, True])
def test_a_checkpoint_expires_although_nobody_can_tell_whether_its_cut_has_committed(
    make: Callable[..., Setup], monkeypatch: pytest.MonkeyPatch, hangs: bool
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
    setup.executor.handle(on.BatchCommitted("q", 0))
    assert setup.error(future).reason is Reason.EXPIRED
    go_on.set()


# D6
def test_an_abort_never_overtakes_the_order_that_it_aborts(setup: Setup) -> None:
    future = setup.request()
    order = setup.host.ordered(1)
    setup.executor.decline(Decline("host", 1, order.query_id, "no"))
    setup.error(future)
    eventually(lambda: len(setup.host.heard) == 2)
    assert [type(order) for order in setup.host.heard] == [SnapshotOrder, AbortOrder]


# F1
def test_what_retention_drops_is_deleted_and_what_is_kept_restores(make: Callable[..., Setup]) -> None:
    setup = make(retained=2)
    for _ in range(4):
        setup.completed()
    eventually(lambda: [manifest.id for manifest in setup.catalog.completed()] == [3, 4])
    eventually(lambda: not setup.store.list("checkpoints/1/") and not setup.store.list("checkpoints/2/"))
    for manifest in setup.catalog.completed():
        assert set(manifest.keys()) <= set(setup.store.list())


# G1
def test_too_many_failures_in_a_row_fail_the_pipeline(make: Callable[..., Setup]) -> None:
    setup = make(tolerable_failures=1)
    for number in (1, 2):
        future = setup.request()
        setup.executor.decline(Decline("host", number, setup.host.ordered(number).query_id, "no"))
        setup.error(future)
    eventually(lambda: len(setup.failures) == 1)
    (failure,) = setup.failures
    assert isinstance(failure, CheckpointError)
    assert failure.reason is Reason.DECLINED


# Promise 4
def test_a_coordinator_that_was_overtaken_completes_nothing_deletes_nothing_and_says_so(setup: Setup) -> None:
    setup.completed()
    future = setup.request()
    setup.host.ordered(2)
    eventually(lambda: len(setup.store.list("checkpoints/2/")) > 1)
    successor = setup.catalog.take_over("another driver", 2000.0)
    before = setup.store.list("checkpoints/")
    setup.host.acknowledge(2)
    assert setup.error(future).reason is Reason.FENCED
    eventually(lambda: len(setup.failures) == 1)
    assert isinstance(setup.failures[0], FencedError)
    setup.close()
    assert setup.store.list("checkpoints/") == before
    latest = setup.catalog.latest()
    assert latest is not None
    assert latest.id == 1
    assert successor.next_id == 3


def test_a_storage_that_was_wiped_ends_the_pipeline_and_is_called_so(setup: Setup) -> None:
    setup.completed()
    setup.store.delete_all(setup.store.list())
    assert setup.error(setup.request()).reason is Reason.FENCED
    eventually(lambda: len(setup.failures) == 1)
    assert isinstance(setup.failures[0], StorageReplacedError)
    assert "was wiped" in str(setup.failures[0])


@pytest.mark.parametrize("later", [1.0, 60.0])
def test_a_driver_that_has_slept_begins_no_batch_under_a_successor(setup: Setup, later: float) -> None:
    """Frozen, or cut off from its store: meanwhile it may have been taken for dead."""
    setup.catalog.take_over("another driver", 2000.0)
    setup.now += later
    if later > setup.executor._trusts_look:
        with pytest.raises(FencedError):
            setup.executor.ask(AskBatch("host", "id", 5))
        eventually(lambda: [type(one) for one in setup.failures] == [FencedError])
    else:
        # A read for each batch would cost every batch, and tell of a successor hardly sooner.
        assert setup.executor.ask(AskBatch("host", "id", 5)).times == BatchTimes(5000, 50, 40)


def test_a_driver_that_cannot_look_for_a_successor_begins_no_batch(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Catalog, generation: int) -> None:
        raise StoreFailedError(self.store.uri, "generations/2.json", "read", "away", transient=True)

    with monkeypatch.context() as cut_off:
        cut_off.setattr(Catalog, "check_not_fenced", fails)
        setup.now += 60.0
        with pytest.raises(StoreFailedError):
            setup.executor.ask(AskBatch("host", "id", 5))
    assert setup.executor.ask(AskBatch("host", "id", 5)).times == BatchTimes(5000, 50, 40)
    assert not setup.failures


# --- stores that do not answer ------------------------------------------------------------------------------


@pytest.mark.parametrize("held", ["claim", "manifest", "delete"])
def test_a_savepoints_store_that_does_not_answer_holds_up_no_checkpoint(
    make: Callable[..., Setup], elsewhere: Elsewhere, held: str
) -> None:
    setup = make(savepoint_timeout="30 s", retained=1)
    stores = [elsewhere(held) for _ in range(5)]
    futures = []
    for number, store in enumerate(stores, start=1):
        futures.append(setup.request(CheckpointKind.SAVEPOINT, store.uri))
        if held == "claim":
            assert store.waiting.wait(DEADLINE)
            setup.now += 31
            setup.executor.handle(on.Tick())
        elif held == "delete":
            setup.executor.decline(Decline("host", number, setup.host.ordered(number).query_id, "no"))
            assert store.waiting.wait(DEADLINE)
        else:
            setup.host.acknowledge(number)
            assert store.waiting.wait(DEADLINE)
    for _ in range(4):
        setup.completed()
    eventually(lambda: setup.catalog.list_ids() == [9])
    setup.now += 31
    setup.executor.handle(on.Tick())
    reason = Reason.DECLINED if held == "delete" else Reason.EXPIRED
    assert {setup.error(future).reason for future in futures} == {reason}
    assert setup.completed().id == 10


def test_a_savepoint_whose_store_lets_go_too_late_is_whole_and_not_the_latest(
    make: Callable[..., Setup], elsewhere: Elsewhere
) -> None:
    setup = make(savepoint_timeout="30 s")
    store = elsewhere("manifest")
    future = setup.request(CheckpointKind.SAVEPOINT, store.uri)
    setup.host.acknowledge(1)
    assert store.waiting.wait(DEADLINE)
    setup.now += 31
    setup.executor.handle(on.Tick())
    assert setup.error(future).reason is Reason.EXPIRED
    setup.completed()
    store.let_go.set()
    eventually(lambda: not setup.executor.read(lambda machine: machine.pending))
    assert verify(store, read_savepoint(store)).ok
    latest = setup.catalog.latest()
    assert latest is not None
    assert latest.id == 2


def test_progress_that_fails_while_the_manifest_is_being_written_damages_nothing(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.store.open.clear()
    right, calls = setup.queries.stands_at, iter(range(10))

    def fails_late(query: str) -> int | None:
        if next(calls) == 0:
            return right(query)
        # The cut is chosen; meanwhile all have acknowledged.
        setup.host.acknowledge(1)
        assert setup.store.waiting.wait(DEADLINE)
        raise RuntimeError("commit log unreadable")

    monkeypatch.setattr(setup.queries, "stands_at", fails_late)
    future = setup.request()
    assert setup.store.waiting.wait(DEADLINE)
    eventually(lambda: setup.executor._own.io.is_idle)
    setup.store.open.set()
    assert future.result(DEADLINE).id == 1
    eventually(lambda: setup.executor._own.is_idle)
    latest = setup.catalog.latest()
    assert latest is not None
    assert verify(setup.store, latest).ok


def test_a_bug_in_writing_a_manifest_ends_its_future_and_deletes_nothing(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = setup.store.create

    def broken(key: str, data: bytes) -> None:
        right(key, data)
        if key.endswith("manifest.json"):
            raise ZeroDivisionError

    monkeypatch.setattr(setup.store, "create", broken)
    future = setup.request()
    setup.host.acknowledge(1)
    assert setup.error(future).reason is Reason.FINALIZE_CHECKPOINT_FAILURE
    latest = setup.catalog.latest()
    assert latest is not None
    assert verify(setup.store, latest).ok
    monkeypatch.undo()
    assert setup.completed().id == 2


def test_checkpoints_go_on_whatever_fails_while_old_ones_are_deleted(
    make: Callable[..., Setup], monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = make(retained=1)

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(executor_module, "discard", broken)
    for id in range(1, 6):
        assert setup.completed().id == id


# C1
def test_a_savepoint_that_expired_before_its_place_was_taken_gives_the_place_up(
    make: Callable[..., Setup], elsewhere: Elsewhere
) -> None:
    setup = make(savepoint_timeout="30 s")
    store = elsewhere("claim")
    future = setup.request(CheckpointKind.SAVEPOINT, store.uri)
    assert store.waiting.wait(DEADLINE)
    setup.now += 31
    setup.executor.handle(on.Tick())
    assert setup.error(future).reason is Reason.EXPIRED
    eventually(lambda: setup.executor._elsewhere[store.uri].cleaner.is_idle)
    store.let_go.set()
    eventually(lambda: setup.executor._elsewhere[store.uri].is_idle)
    assert store.list() == []
    again = setup.request(CheckpointKind.SAVEPOINT, store.uri)
    setup.host.acknowledge(2)
    assert again.result(DEADLINE).id == 2


def test_a_savepoint_can_go_where_an_aborted_one_has_left_something(
    setup: Setup, elsewhere: Elsewhere
) -> None:
    store = elsewhere()
    future = setup.request(CheckpointKind.SAVEPOINT, store.uri)
    setup.executor.decline(Decline("host", 1, setup.host.ordered(1).query_id, "no"))
    setup.error(future)
    eventually(lambda: setup.executor._elsewhere[store.uri].is_idle)
    # Uploads that were on their way when it was aborted.
    store.write(pack_key(1, "host-id"), b"late")
    store.write(shared_key("ab" * 32), b"late, too")
    again = setup.request(CheckpointKind.SAVEPOINT, store.uri)
    setup.host.acknowledge(2)
    assert again.result(DEADLINE).id == 2
    assert verify(store, read_savepoint(store)).ok


# --- hosts that go silent -----------------------------------------------------------------------------------


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Hosts whose processes were killed."""
    hosts: list[str] = []
    monkeypatch.setattr(executor_module, "end_host", lambda hello: hosts.append(hello.host) or True)
    return hosts


def let_time_pass(setup: Setup) -> None:
    setup.now += 0.5
    setup.executor.handle(on.Tick())


def test_a_host_that_says_nothing_is_taken_for_lost_and_killed_and_its_checkpoint_ends(
    setup: Setup, killed: list[str]
) -> None:
    future = setup.request()
    setup.host.ordered(1)

    def is_killed() -> bool:
        let_time_pass(setup)
        return killed == ["host"]

    eventually(is_killed)
    eventually(lambda: setup.lost == ["state host host on machine is gone"])
    assert setup.now >= 1060
    # It hears that it is to end, should it come back.
    eventually(lambda: setup.host.heard_of(StopOrder) == [StopOrder()])
    setup.executor.handle(on.Suspended("a host is gone"))
    assert setup.error(future).reason is Reason.JOB_FAILOVER


def test_nothing_counts_that_a_host_does_which_was_taken_for_lost(setup: Setup, killed: list[str]) -> None:
    def is_killed() -> bool:
        let_time_pass(setup)
        return bool(killed)

    eventually(is_killed)
    for call in (
        lambda: setup.executor.ask(AskBatch("host", "id", 5)),
        lambda: setup.executor.claim(ClaimShards("host", "id", "op", (0,))),
        lambda: setup.executor.ack(Ack("host", 1, "id", ())),
    ):
        with pytest.raises(HostDismissedError, match="host_timeout"):
            call()
    setup.executor.pulse(HostPulse("host"))
    again = setup.executor.orders(HostHello("host", "address", "machine", "executor", 1))
    assert list(again) == [StopOrder()]
    assert setup.executor.read(lambda machine: list(machine.hosts)) == []


def test_a_host_that_says_that_it_lives_stays(setup: Setup, killed: list[str]) -> None:
    while setup.now < 1200:
        setup.executor.pulse(HostPulse("host"))
        let_time_pass(setup)
    assert setup.executor.read(lambda machine: list(machine.hosts)) == ["host"]
    assert killed == []


# --- times --------------------------------------------------------------------------------------------------


def test_the_answer_to_begin_batch_says_when_the_batch_is(setup: Setup) -> None:
    answer = setup.executor.ask(AskBatch("host", "id", 5))
    assert answer.times == BatchTimes(5000, 50, 40)
    assert setup.executor.ask(AskBatch("host", "id", 5)) == answer


def test_the_times_of_a_batch_are_not_read_under_the_lock(setup: Setup) -> None:
    seen: list[int] = []
    # It would wait for ever.
    setup.queries.on_times = lambda: seen.append(setup.executor.read(lambda p: p.generation))
    setup.executor.ask(AskBatch("host", "id", 5))
    assert seen == [setup.generation]


# --- events -------------------------------------------------------------------------------------------------


def test_the_events_of_a_run_replayed_on_a_new_state_machine_lead_to_the_same_state(
    make: Callable[..., Setup], tmp_path: Path
) -> None:
    setup = make(interval="10 s", retained=1)
    setup.executor.handle(on.ScheduleStarted(0.25))
    setup.completed()
    future = setup.request()
    setup.executor.decline(Decline("host", 2, setup.host.ordered(2).query_id, "no"))
    setup.error(future)
    with pytest.raises(StaleQueryError):
        setup.executor.ask(AskBatch("host", "nobody", 5))
    setup.completed()
    setup.close()
    events = setup.executor.events
    assert [type(logged.event) for logged in events][:3] == [on.QueryAdded, on.HostJoined, on.ShardsClaimed]
    assert on.BatchAsked(AskBatch("host", "nobody", 5)) in [logged.event for logged in events]
    again = setup.machine()
    replay(again, events)
    assert again == setup.executor.read(lambda machine: machine)
    assert again.closed is Reason.COORDINATOR_SHUTDOWN
    assert again.history.counts.completed == 2
