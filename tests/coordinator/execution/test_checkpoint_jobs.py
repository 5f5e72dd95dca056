"""What a checkpoint asks of stores, with real threads, a real store and a real catalog."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from chandy.coordinator.execution import checkpoint_jobs
from chandy.coordinator.execution import commit as commit_module
from chandy.coordinator.execution import executor as executor_module
from chandy.coordinator.execution.dispatch import JobLane
from chandy.coordinator.protocol import events, instructions
from chandy.coordinator.protocol.reasons import Reason
from chandy.coordinator.recovery.pipeline_events import CheckpointFailed
from chandy.state.rpc.messages import Decline
from chandy.state.rpc.orders import AbortOrder, CompleteOrder
from chandy.state.shards import RestoreSource, ShardId
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.layout import manifest_key, trigger_key
from chandy.storage.checkpoints.manifest import (
    CheckpointKind,
    EpochRecord,
    FileRef,
    Handle,
    Manifest,
    OutputRecord,
)
from chandy.storage.checkpoints.pins import Pins
from chandy.storage.checkpoints.proof import Unshared
from chandy.storage.checkpoints.restore import read_file
from chandy.storage.checkpoints.savepoint import read_savepoint
from chandy.storage.checkpoints.snapshots import SnapshotWriter
from chandy.storage.checkpoints.verification import verify
from chandy.storage.errors import FencedError, StorageReplacedError
from chandy.storage.ids import CheckpointId
from chandy.storage.store import Store

from ...builders import pack, shared
from ...waiting import DEADLINE, eventually
from .one_life import OneLife


def test_a_checkpoint_completes_with_what_hosts_and_queries_have_stored(setup: OneLife) -> None:
    checkpoint = setup.completed()
    assert (checkpoint.id, checkpoint.kind, checkpoint.uri) == (1, CheckpointKind.MANUAL, setup.store.uri)
    assert checkpoint.batches == {"q": 4}
    manifest = setup.catalog.latest()
    assert manifest is not None
    assert [file.name for file in manifest.queries[0].files.files] == ["working/offsets/4"]
    assert manifest.operators[0].shards == (Handle(), Handle())
    assert setup.executor.statistics().counts.completed == 1


def test_whoever_waits_for_a_checkpoint_learns_of_it_after_what_is_done_with_each(setup: OneLife) -> None:
    order: list[str] = []
    setup.reports.checkpoint_completed = lambda manifest, root: order.append(
        f"completed {manifest.id} {setup.store.list('checkpoints/1/manifest')}"
    )
    future = setup.request()
    future.add_done_callback(lambda _: order.append("told"))
    setup.host.acknowledge(1)
    future.result(DEADLINE)
    eventually(lambda: len(order) == 2)
    assert order == ["completed 1 ['checkpoints/1/manifest.json']", "told"]


def test_a_checkpoint_is_complete_whatever_becomes_of_the_news(setup: OneLife) -> None:
    def fail(_: Manifest, __: str) -> None:
        raise OSError("no broker")

    setup.reports.checkpoint_completed = fail
    assert setup.completed().id == 1
    assert setup.completed().id == 2
    assert setup.executor.statistics().counts.failed == 0


def test_the_manifest_is_durable_before_the_future_resolves_and_before_any_host_hears_of_it(
    setup: OneLife,
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


def test_a_manifest_that_cannot_be_written_fails_the_future_and_the_previous_stays_latest(
    setup: OneLife,
) -> None:
    setup.completed()
    setup.store.trouble = "before"
    future = setup.request()
    setup.host.acknowledge(2)
    error = setup.error(future)
    assert (error.id, error.reason) == (2, Reason.FINALIZE_CHECKPOINT_FAILURE)
    told = [one for one in setup.reports.told if isinstance(one, CheckpointFailed)]
    assert [(one.id, one.reason, one.detail) for one in told] == [(2, error.reason, error.detail)]
    assert "no space left" in error.detail
    eventually(lambda: setup.store.list("checkpoints/2/") == [trigger_key(2)])
    latest = setup.catalog.latest()
    assert latest is not None
    assert latest.id == 1
    assert setup.executor.statistics().counts.failed == 1
    setup.store.trouble = ""
    assert setup.completed().id == 3


def test_a_commit_whose_answer_was_lost_completes_its_checkpoint(
    setup: OneLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_module, "_ASK_AGAIN_SECONDS", 0.01)
    setup.store.trouble = "lost"
    assert setup.completed().id == 1
    assert setup.executor.statistics().counts.failed == 0
    assert setup.completed().id == 2


def test_of_a_commit_that_nobody_can_tell_of_nothing_is_deleted(
    setup: OneLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_module, "_ASK_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(executor_module, "_STOP_SECONDS", 2.0)
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
    [ended] = [
        one.event for one in setup.executor.protocol.events if isinstance(one.event, events.NotFinalized)
    ]
    assert not ended.is_known
    assert setup.store.list() == before
    latest = setup.catalog.latest()
    assert latest is not None
    assert latest.id == 2
    assert verify(setup.store, latest).ok


def test_a_deletion_that_takes_long_delays_no_checkpoint(make: Callable[..., OneLife]) -> None:
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


def test_a_failure_after_the_manifest_was_written_takes_it_back_and_keeps_the_old_checkpoints(
    make: Callable[..., OneLife],
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


def test_what_fails_at_the_trigger_fails_the_checkpoint_and_the_next_one_works(
    setup: OneLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(query: str) -> int:
        raise RuntimeError("offset log unreadable")

    with monkeypatch.context() as patch:
        patch.setattr(setup.queries, "begun", broken)
        error = setup.error(setup.request())
    assert (error.reason, error.detail) == (Reason.TRIGGER_CHECKPOINT_FAILURE, "offset log unreadable")
    assert setup.completed().id == 2


def test_a_query_that_stops_while_its_cut_is_chosen_ends_the_checkpoint(
    setup: OneLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.queries.newest = 5
    first = iter([None])
    monkeypatch.setattr(setup.queries, "current_batch", lambda query: next(first, 4))
    assert setup.error(setup.request()).reason is Reason.NOT_ALL_REQUIRED_TASKS_RUNNING


def test_a_manifest_that_names_what_is_being_deleted_is_not_written(
    setup: OneLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    protocol = setup.executor.protocol
    monkeypatch.setattr(type(protocol), "doomed", lambda protocol, manifest: frozenset({"shared/x"}))
    future = setup.request()
    setup.host.acknowledge(1)
    assert setup.error(future).reason is Reason.OBJECTS_DROPPED
    assert setup.catalog.latest() is None


def test_a_savepoint_into_a_folder_that_is_not_empty_fails_for_io_and_leaves_the_folder_alone(
    setup: OneLife, tmp_path: Path
) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mine").write_text("keep")
    error = setup.error(setup.request(CheckpointKind.SAVEPOINT, str(tmp_path / "target")))
    assert error.reason is Reason.IO_EXCEPTION
    setup.completed()
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["mine"]


def test_a_savepoint_is_in_its_own_folder_and_its_id_is_taken_in_the_pipeline_too(
    setup: OneLife, tmp_path: Path
) -> None:
    future = setup.request(CheckpointKind.SAVEPOINT, str(tmp_path / "target"))
    setup.host.acknowledge(1)
    savepoint = future.result(DEADLINE)
    assert read_savepoint(LocalStore(tmp_path / "target")).id == savepoint.id == 1
    assert setup.catalog.latest() is None
    assert setup.catalog.take_over("another", 2000.0).next_id == 2


def test_a_driver_that_is_overtaken_deletes_no_savepoint_that_its_successor_may_run_from(
    setup: OneLife, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = commit_module.commit_savepoint

    def slow(*args: Any) -> None:
        commit(*args)
        setup.catalog.take_over("another", 2000.0)

    monkeypatch.setattr(commit_module, "commit_savepoint", slow)
    target = LocalStore(tmp_path / "target")
    future = setup.request(CheckpointKind.SAVEPOINT, target.uri)
    setup.host.acknowledge(1)
    assert setup.error(future).reason is Reason.FENCED
    eventually(lambda: all(workers.is_idle for workers in setup.executor._all_workers()))
    assert verify(target, read_savepoint(target)).ok


def test_a_savepoint_that_is_declined_fails_with_the_cause_and_its_folder_is_empty_again(
    setup: OneLife, tmp_path: Path
) -> None:
    future = setup.request(CheckpointKind.SAVEPOINT, str(tmp_path / "target"))
    order = setup.host.ordered(1)
    eventually(lambda: bool(LocalStore(tmp_path / "target").list("checkpoints/1/")))
    setup.executor.hosts.decline(Decline("host", 1, order.query_id, "the disk is full"))
    assert "state host host on machine: the disk is full" in str(setup.error(future))
    eventually(lambda: not LocalStore(tmp_path / "target").list())


def test_what_the_driver_writes_for_a_savepoint_that_was_aborted_meanwhile_does_not_stay(
    setup: OneLife, tmp_path: Path
) -> None:
    target = LocalStore(tmp_path / "target")
    setup.queries.may_hold.clear()
    future = setup.request(CheckpointKind.SAVEPOINT, target.uri)
    order = setup.host.ordered(1)
    assert setup.queries.is_holding.wait(DEADLINE)
    setup.executor.hosts.decline(Decline("host", 1, order.query_id, "the disk is full"))
    setup.error(future)
    eventually(lambda: setup.executor._elsewhere[target.uri].lanes[JobLane.CLEANER].is_idle)
    setup.queries.may_hold.set()
    eventually(lambda: setup.executor._elsewhere[target.uri].is_idle)
    assert target.list() == []


def test_each_shard_that_no_host_has_is_copied_with_its_own_files(setup: OneLife, tmp_path: Path) -> None:
    elsewhere, shards = LocalStore(tmp_path / "elsewhere"), [ShardId("op", number) for number in (0, 1)]
    writer = SnapshotWriter(elsewhere, "pack")
    for shard in shards:
        (tmp_path / str(shard.shard)).write_text(f"state of {shard.shard}")
        writer.add(str(shard.shard), {"file": tmp_path / str(shard.shard)}, None)
    theirs = writer.finish()
    sources = [RestoreSource(elsewhere.uri, 1, 4, theirs[str(shard.shard)].handle) for shard in shards]
    setup.request()
    setup.host.ordered(1)
    order = instructions.CopyShards(
        CheckpointId(1), "q", tuple(zip(shards, sources, strict=True)), setup.store.uri
    )
    for _ in setup.executor.jobs.copy_shards(order):
        pass
    [copied] = [
        one.event for one in setup.executor.protocol.events if isinstance(one.event, events.ShardsCopied)
    ]
    found = {shard.shard: read_file(setup.store, handle.files[0]) for shard, handle in copied.handles.items()}
    assert found == {0: b"state of 0", 1: b"state of 1"}


def test_no_sink_is_asked_for_a_checkpoint_that_has_ended(setup: OneLife) -> None:
    assert (
        list(setup.executor.jobs.store_progress(instructions.StoreProgress(1, "q", 4, setup.store.uri, None)))
        == []
    )
    assert setup.queries.pre_committed == []
    assert setup.store.list("checkpoints/") == []
    setup.completed()
    assert setup.queries.pre_committed == [1]


def test_what_retention_drops_is_deleted_and_what_is_kept_restores(make: Callable[..., OneLife]) -> None:
    setup = make(retained=2)
    for _ in range(4):
        setup.completed()
    eventually(lambda: [manifest.id for manifest in setup.catalog.completed()] == [3, 4])
    eventually(lambda: not setup.store.list("checkpoints/1/") and not setup.store.list("checkpoints/2/"))
    for manifest in setup.catalog.completed():
        assert set(manifest.keys()) <= set(setup.store.list())


def test_what_a_reader_needs_is_dropped_again_once_it_is_released(make: Callable[..., OneLife]) -> None:
    setup = make(retained=1)
    setup.completed()
    reader = Pins(setup.store, "reader")
    reader.hold(CheckpointId(1), setup.now)
    setup.completed()
    setup.completed()
    eventually(lambda: [manifest.id for manifest in setup.catalog.completed()] == [1, 3])
    # What is being deleted when a checkpoint completes is dropped again with the one after that.
    eventually(lambda: setup.executor.protocol.read(lambda state: state.checkpoints.retained.deletions) == 0)
    reader.release(Unshared())
    setup.completed()
    eventually(lambda: [manifest.id for manifest in setup.catalog.completed()] == [4])


def test_a_savepoint_asks_again_for_what_was_published_and_deleted_meanwhile(
    setup: OneLife, tmp_path: Path
) -> None:
    gone = OutputRecord("s", (EpochRecord(CheckpointId(1), 1, Handle((FileRef("f", "gone", 1, "ab"),))),))
    answers = iter([(gone,), ()])
    setup.queries.pre_commit = lambda query, checkpoint: next(answers)  # type: ignore[method-assign]
    future = setup.request(CheckpointKind.SAVEPOINT, str(tmp_path / "savepoint"))
    setup.host.acknowledge(1)
    assert future.result(DEADLINE).id == 1
    assert next(answers, None) is None


# Promise 4
def test_a_coordinator_that_was_overtaken_completes_nothing_deletes_nothing_and_says_so(
    setup: OneLife,
) -> None:
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


@pytest.mark.parametrize("is_savepoint", [False, True], ids=["checkpoint", "savepoint"])
def test_a_coordinator_that_was_overtaken_takes_no_id_of_its_successor(
    setup: OneLife, tmp_path: Path, is_savepoint: bool
) -> None:
    successor = setup.catalog.take_over("another driver", 2000.0)
    before, target = setup.store.list(), LocalStore(tmp_path / "target")
    root = target.uri if is_savepoint else setup.store.uri
    for _ in setup.executor.jobs.choose_cut(
        instructions.ChooseCut(successor.next_id, ("q",), root, is_savepoint)
    ):
        pass
    assert setup.store.list() == before
    assert target.list() == []
    assert not any(isinstance(one.event, events.CutChosen) for one in setup.executor.protocol.events)


def test_a_place_that_is_taken_too_late_may_have_been_a_successors(
    setup: OneLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_jobs, "_TAKEN_SECONDS", -1.0)
    create = setup.store.create

    def late(key: str, data: bytes) -> None:
        if key == trigger_key(1):
            # The successor's checkpoint of this id is dropped already: nothing is in the way.
            setup.catalog.take_over("another driver", 2000.0)
        create(key, data)

    monkeypatch.setattr(setup.store, "create", late)
    assert setup.error(setup.request()).reason is Reason.FENCED
    assert not any(isinstance(one.event, events.CutChosen) for one in setup.executor.protocol.events)


def test_a_storage_that_was_wiped_ends_the_pipeline_and_is_called_so(setup: OneLife) -> None:
    setup.completed()
    setup.store.delete_all(setup.store.list())
    assert setup.error(setup.request()).reason is Reason.FENCED
    eventually(lambda: len(setup.failures) == 1)
    assert isinstance(setup.failures[0], StorageReplacedError)
    assert "was wiped" in str(setup.failures[0])


# --- stores that do not answer ------------------------------------------------------------------------------


@pytest.mark.parametrize("held", ["claim", "manifest", "delete"])
def test_a_savepoints_store_that_does_not_answer_holds_up_no_checkpoint(
    make: Callable[..., OneLife], held: str
) -> None:
    setup = make(savepoint_timeout="30 s", retained=1)
    stores = [setup.store_elsewhere(held) for _ in range(5)]
    futures = []
    for number, store in enumerate(stores, start=1):
        futures.append(setup.request(CheckpointKind.SAVEPOINT, store.uri))
        if held == "claim":
            assert store.waiting.wait(DEADLINE)
            setup.now += 31
            setup.executor.protocol.handle(events.Tick())
        elif held == "delete":
            setup.executor.hosts.decline(Decline("host", number, setup.host.ordered(number).query_id, "no"))
            assert store.waiting.wait(DEADLINE)
        else:
            setup.host.acknowledge(number)
            assert store.waiting.wait(DEADLINE)
    for _ in range(4):
        setup.completed()
    eventually(lambda: setup.catalog.list_ids() == [9])
    setup.now += 31
    setup.executor.protocol.handle(events.Tick())
    reason = Reason.DECLINED if held == "delete" else Reason.EXPIRED
    assert {setup.error(future).reason for future in futures} == {reason}
    assert setup.completed().id == 10


def test_a_savepoint_whose_store_lets_go_too_late_is_whole_and_not_the_latest(
    make: Callable[..., OneLife],
) -> None:
    setup = make(savepoint_timeout="30 s")
    store = setup.store_elsewhere("manifest")
    future = setup.request(CheckpointKind.SAVEPOINT, store.uri)
    setup.host.acknowledge(1)
    assert store.waiting.wait(DEADLINE)
    setup.now += 31
    setup.executor.protocol.handle(events.Tick())
    assert setup.error(future).reason is Reason.EXPIRED
    setup.completed()
    store.let_go.set()
    eventually(lambda: not setup.executor.protocol.read(lambda state: state.checkpoints.pending))
    assert verify(store, read_savepoint(store)).ok
    latest = setup.catalog.latest()
    assert latest is not None
    assert latest.id == 2


def test_progress_that_fails_while_the_manifest_is_being_written_damages_nothing(
    setup: OneLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.store.open.clear()
    right, calls = setup.queries.current_batch, iter(range(10))

    def fails_late(query: str) -> int | None:
        if next(calls) == 0:
            return right(query)
        # The cut is chosen; meanwhile all have acknowledged.
        setup.host.acknowledge(1)
        assert setup.store.waiting.wait(DEADLINE)
        raise RuntimeError("commit log unreadable")

    monkeypatch.setattr(setup.queries, "current_batch", fails_late)
    future = setup.request()
    assert setup.store.waiting.wait(DEADLINE)
    eventually(lambda: setup.executor._own.lanes[JobLane.IO].is_idle)
    setup.store.open.set()
    assert future.result(DEADLINE).id == 1
    eventually(lambda: setup.executor._own.is_idle)
    latest = setup.catalog.latest()
    assert latest is not None
    assert verify(setup.store, latest).ok


def test_a_bug_in_writing_a_manifest_ends_its_future_and_deletes_nothing(
    setup: OneLife, monkeypatch: pytest.MonkeyPatch
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
    make: Callable[..., OneLife], monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = make(retained=1)

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(checkpoint_jobs, "discard", broken)
    for id in range(1, 6):
        assert setup.completed().id == id


def test_a_savepoint_that_expired_before_its_place_was_taken_gives_the_place_up(
    make: Callable[..., OneLife],
) -> None:
    setup = make(savepoint_timeout="30 s")
    store = setup.store_elsewhere("claim")
    future = setup.request(CheckpointKind.SAVEPOINT, store.uri)
    assert store.waiting.wait(DEADLINE)
    setup.now += 31
    setup.executor.protocol.handle(events.Tick())
    assert setup.error(future).reason is Reason.EXPIRED
    eventually(lambda: setup.executor._elsewhere[store.uri].lanes[JobLane.CLEANER].is_idle)
    store.let_go.set()
    eventually(lambda: setup.executor._elsewhere[store.uri].is_idle)
    assert store.list() == []
    again = setup.request(CheckpointKind.SAVEPOINT, store.uri)
    setup.host.acknowledge(2)
    assert again.result(DEADLINE).id == 2


def test_the_place_of_a_savepoint_is_asked_for_until_the_savepoint_expires(
    make: Callable[..., OneLife], monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = make(savepoint_timeout="30 s")
    store, bounds = setup.store_elsewhere("claim"), list[float]()

    def within(self: Store, seconds: float) -> Store:
        bounds.append(seconds)
        return self

    monkeypatch.setattr(type(store), "within", within)
    future = setup.request(CheckpointKind.SAVEPOINT, store.uri)
    assert store.waiting.wait(DEADLINE)
    assert bounds == [30.0]
    store.let_go.set()
    setup.host.acknowledge(1)
    assert future.result(DEADLINE).id == 1


def test_a_savepoint_can_go_where_an_aborted_one_has_left_something(
    setup: OneLife,
) -> None:
    store = setup.store_elsewhere()
    future = setup.request(CheckpointKind.SAVEPOINT, store.uri)
    setup.executor.hosts.decline(Decline("host", 1, setup.host.ordered(1).query_id, "no"))
    setup.error(future)
    eventually(lambda: setup.executor._elsewhere[store.uri].is_idle)
    # Uploads that were on their way when it was aborted.
    store.write(pack(1, "host-id"), b"late")
    store.write(shared("a"), b"late, too")
    again = setup.request(CheckpointKind.SAVEPOINT, store.uri)
    setup.host.acknowledge(2)
    assert again.result(DEADLINE).id == 2
    assert verify(store, read_savepoint(store)).ok
