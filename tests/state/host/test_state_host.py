"""A state host in this process with real RocksDB and stores. Only the coordinator is a plain object."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pytest

from chandy.state.errors import (
    CannotGoBackError,
    ChangelogBrokenError,
    RemoteError,
    ShardMissingError,
    ShardRefusedError,
)
from chandy.state.host import restoring
from chandy.state.host.changelogs import RunChangelogs
from chandy.state.host.changes import Changes
from chandy.state.host.memory import Memory
from chandy.state.host.shard_snapshot import Snapshot
from chandy.state.host.snapshot_manager import SnapshotTask
from chandy.state.host.snapshot_orders import AcceptedOrder
from chandy.state.host.state_host import StateHost
from chandy.state.local.changelog import admit, gap, shard_folder
from chandy.state.rpc.messages import Ack, BatchTimes, BeginTask, OpenShards, ReadValues, ShardsRestored
from chandy.state.rpc.orders import AbortOrder, CompleteOrder, ReleaseOrder, SnapshotOrder, StopHost
from chandy.state.shards import RestoreSource, ResumePoint, ShardId
from chandy.storage.backends.local import LocalStore
from chandy.storage.backends.open import open_store
from chandy.storage.backends.retrying import RetryingStore, RetryPolicy
from chandy.storage.checkpoints.files import FileCache
from chandy.storage.checkpoints.manifest import Handle
from chandy.storage.errors import ChandyError, DamagedError, FailureCode, ObjectMissingError, StoreFailedError
from chandy.storage.ids import NO_BATCH
from chandy.storage.store import Store

from ...waiting import DEADLINE, eventually
from ..fake_control import FakeControl, order


class GatedStore(LocalStore):
    """A store whose writes wait for a gate: an upload that takes its time."""

    gate = threading.Event()
    waiting = threading.Event()

    def upload(self, path: Path, key: str) -> None:
        GatedStore.waiting.set()
        assert GatedStore.gate.wait(DEADLINE)
        super().upload(path, key)

    def write(self, key: str, data: bytes) -> None:
        GatedStore.waiting.set()
        assert GatedStore.gate.wait(DEADLINE)
        super().write(key, data)


class UnreachableStore(LocalStore):
    """A store that cannot be reached, which may pass."""

    def upload(self, path: Path, key: str) -> None:
        raise StoreFailedError(self.uri, "an object", "write", "it is away", transient=True)

    def write(self, key: str, data: bytes) -> None:
        self.upload(Path(), key)


class OneHost:
    def __init__(
        self, directory: Path, open_store: Callable[[str], Store] = open_store, cache_bytes: int = 1 << 30
    ) -> None:
        self.directory = directory
        self.cache_bytes = cache_bytes
        self.control = FakeControl()
        self.store = f"file://{directory / 'store'}"
        self.state_host = self.another("host", open_store)

    def another(self, name: str, open_store: Callable[[str], Store] = open_store) -> StateHost:
        """One more host on the machine, with a cache of its own."""
        memory, cache = Memory(32 << 20), self.cache_of(name)
        return StateHost(
            name,
            self.control,
            self.directory / name,
            memory,
            cache,
            open_store,
            RunChangelogs(self.changelogs),
        )

    def cache_of(self, name: str) -> FileCache:
        return FileCache(self.directory / name / "cache", self.cache_bytes)

    @property
    def cache(self) -> FileCache:
        return self.cache_of("host")

    @property
    def changelogs(self) -> Path:
        return self.directory / "changelogs"

    @staticmethod
    def task(batch: int, shards: tuple[int, ...] = (0,), query_id: str = "q") -> BeginTask:
        return BeginTask(query_id, batch, "op", shards)

    def stage(self, batch: int, values: dict[bytes, bytes | None], shards: tuple[int, ...] = (0,)) -> None:
        """What a task's ``apply`` does, the same changes in every shard."""
        for shard in self.state_host.shards(self.task(batch, shards)).values():
            shard.stage(batch, Changes.of(shard.name, values))

    def run(self, batch: int, values: dict[bytes, bytes | None], shards: tuple[int, ...] = (0,)) -> None:
        self.state_host.begin(self.task(batch, shards))
        self.stage(batch, values, shards)

    def order(self, checkpoint: int, cut: int, shards: tuple[int, ...] = (0,), **more: Any) -> SnapshotOrder:
        return order(self.store, checkpoint, cut, shards, **more)

    def acked(self) -> Ack:
        return self.control.acked()

    def declined(self) -> str:
        return self.control.declined()

    def state_of(
        self, ack: Ack, cut: int, keys: list[bytes], shard: int = 0, root: str = ""
    ) -> list[bytes | None]:
        """The values of keys that another host restores from an acknowledged checkpoint."""
        self.control.restore_from(ack, root or self.store, cut)
        state_host = self.another(f"reader-{ack.checkpoint}-{shard}")
        state_host.begin(self.task(cut + 100, (shard,), query_id="restored"))
        try:
            return state_host.shards(self.task(cut + 100, (shard,), query_id="restored"))[shard].fetch(keys)
        finally:
            state_host.close()


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[OneHost]:
    made = OneHost(tmp_path)
    yield made
    made.state_host.close()


def big(text: bytes) -> bytes:
    """A value that makes its file too large for the pack."""
    return text + random.Random(0).randbytes(100_000)


# --- asking and claiming ------------------------------------------------------------------------------------


def test_the_coordinator_is_asked_once_a_batch_for_all_tasks(setup: OneHost) -> None:
    setup.control.ask_gate.clear()
    with ThreadPoolExecutor(4) as pool:
        tasks = [pool.submit(setup.state_host.begin, setup.task(0, (shard,))) for shard in range(4)]
        eventually(lambda: bool(setup.control.asked))
        setup.control.ask_gate.set()
        for task in tasks:
            task.result(DEADLINE)
    assert [ask.batch for ask in setup.control.asked] == [0]


def test_two_tasks_that_need_a_shard_claim_it_once(setup: OneHost) -> None:
    with ThreadPoolExecutor(2) as pool:
        for task in [pool.submit(setup.state_host.begin, setup.task(0, (0, 1))) for _ in range(2)]:
            task.result(DEADLINE)
    assert [claim.shards for claim in setup.control.claims] == [(0, 1)]


def test_a_refusal_reaches_the_task_and_the_next_task_asks_again(setup: OneHost) -> None:
    setup.control.refusal = RemoteError("StaleQueryError", "another id")
    with pytest.raises(RemoteError, match="StaleQueryError: another id"):
        setup.state_host.begin(setup.task(0))
    setup.control.refusal = None
    setup.state_host.begin(setup.task(0))
    assert len(setup.control.asked) == 2


def test_shards_of_another_host_are_named_and_asked_for_again_the_next_time(setup: OneHost) -> None:
    setup.control.elsewhere = {1: "grpc+unix:///there"}
    assert setup.state_host.begin(setup.task(0, (0, 1))).elsewhere == {1: "grpc+unix:///there"}
    setup.control.elsewhere = {}
    assert setup.state_host.begin(setup.task(0, (0, 1))).elsewhere == {}
    with pytest.raises(ShardMissingError):
        setup.state_host.shards(setup.task(0, (2,)))


def test_the_times_of_a_batch_come_with_it(setup: OneHost) -> None:
    setup.control.times[0] = BatchTimes(1000, 900, 800)
    assert setup.state_host.begin(setup.task(0)).times == BatchTimes(1000, 900, 800)


def test_a_shard_is_fresh_until_a_batch_was_applied_to_it(setup: OneHost) -> None:
    assert setup.state_host.begin(setup.task(0, (0, 1))).fresh == (0, 1)
    setup.stage(0, {b"a": b"0"})
    assert setup.state_host.begin(setup.task(0, (0, 1))).fresh == (0, 1)
    setup.stage(0, {b"a": b"0"})
    # A batch that changes nothing is a batch.
    setup.stage(0, {}, (1,))
    assert setup.state_host.begin(setup.task(0, (2,))).fresh == (2,)
    setup.stage(0, {}, (2,))
    assert setup.state_host.begin(setup.task(1, (0, 1, 2))).fresh == ()
    setup.state_host.obey(setup.order(1, 0))
    setup.control.sources[5] = RestoreSource(setup.store, 1, 0, setup.acked().snapshots[0].handle)
    assert setup.state_host.begin(setup.task(1, (5,))).fresh == ()


def test_values_are_read_from_whatever_shard_has_them(setup: OneHost) -> None:
    setup.run(0, {b"a": b"0"}, (0,))
    setup.run(0, {b"b": b"0", b"\xff": b""}, (1,))

    def read(committed: int, uid: str = "op") -> dict[bytes, bytes]:
        keys = tuple(key.hex() for key in [b"a", b"b", b"\xff", b"c"])
        found = setup.state_host.read(ReadValues("q", uid, keys, committed)).entries
        return {bytes.fromhex(key): bytes.fromhex(value) for key, value in found.items()}

    assert read(-1) == read(0, "another") == {}
    assert read(0) == {b"a": b"0", b"b": b"0", b"\xff": b""}
    setup.run(1, {b"a": None}, (0,))
    assert read(0) == {b"a": b"0", b"b": b"0", b"\xff": b""}
    assert read(1) == {b"b": b"0", b"\xff": b""}


def test_a_failed_restore_leaves_nothing_behind_and_can_be_tried_again(setup: OneHost) -> None:
    setup.run(0, {b"a": big(b"1")})
    setup.state_host.obey(setup.order(1, 0))
    ack = setup.acked()
    handle = ack.snapshots[0].handle
    damaged = next(file for file in handle.files if file.key.startswith("shared/"))
    path = setup.directory / "store" / damaged.key
    # The store's file is a hard link to what the cache and the shard have: damage a copy.
    good = path.read_bytes()
    path.unlink()
    path.write_bytes(b"X" + good[1:])
    setup.control.sources[0] = RestoreSource(setup.store, 1, 0, handle)
    other = setup.another("other")
    with pytest.raises(DamagedError):
        other.begin(setup.task(1, query_id="q2"))
    with pytest.raises(ShardMissingError):
        other.shards(setup.task(1, query_id="q2"))
    assert list((setup.directory / "other" / "shards").iterdir()) == []
    path.unlink()
    with pytest.raises(ObjectMissingError):
        other.begin(setup.task(1, query_id="q2"))
    path.write_bytes(good)
    other.begin(setup.task(1, query_id="q2"))
    assert other.shards(setup.task(1, query_id="q2"))[0].fetch([b"a"]) == [big(b"1")]
    other.close()


def test_a_restore_that_takes_long_is_told_in_the_log(
    setup: OneHost, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(restoring, "_EVERY_SECONDS", 0.0)
    setup.run(0, {b"a": big(b"1")})
    setup.state_host.obey(setup.order(1, 0))
    setup.control.sources[0] = RestoreSource(setup.store, 1, 0, setup.acked().snapshots[0].handle)
    other = setup.another("other")
    other.begin(setup.task(1, query_id="q2"))
    told = [message for message in caplog.messages if message.startswith("event=restoring shard=op/0")]
    assert len(told) > 1
    assert told[-1].endswith("percent=100")
    other.close()


def test_the_coordinator_is_told_once_for_a_claim_what_its_shards_took(setup: OneHost) -> None:
    setup.run(0, {b"a": big(b"1")}, (0, 1))
    setup.state_host.obey(setup.order(1, 0, (0, 1)))
    snapshots = setup.acked().snapshots
    for snapshot in snapshots:
        setup.control.sources[snapshot.shard.shard] = RestoreSource(setup.store, 1, 0, snapshot.handle)
    setup.control.told.get(timeout=DEADLINE)
    other = setup.another("other")
    size = sum(snapshot.handle.size for snapshot in snapshots)
    for query_id, found in (("q2", False), ("q3", True)):
        other.begin(setup.task(1, (0, 1), query_id=query_id))
        told = setup.control.told.get(timeout=DEADLINE)
        assert (told.host, told.query_id) == ("other", query_id)
        assert told.files > 0
        assert told.opening > 0
        # The first restore has put the large files into the cache; small ones are read from the store every time.
        assert (told.found_bytes > size / 2) == found
        assert told.found_bytes + told.downloaded_bytes == size
    assert setup.control.told.empty()
    other.close()


def test_shards_that_are_opened_ahead_are_there_when_a_task_begins(setup: OneHost) -> None:
    setup.run(0, {b"a": big(b"1")})
    setup.state_host.obey(setup.order(1, 0))
    setup.control.sources[0] = RestoreSource(setup.store, 1, 0, setup.acked().snapshots[0].handle)
    setup.control.told.get(timeout=DEADLINE)
    other = setup.another("other")
    other.open(OpenShards("q2", "op", (0,)))
    told = setup.control.told.get(timeout=DEADLINE)
    # Nobody has waited for it.
    assert told.ahead > 0
    assert (told.files, told.opening) == (0.0, 0.0)
    claims = len(setup.control.claims)
    other.begin(setup.task(1, query_id="q2"))
    assert other.shards(setup.task(1, query_id="q2"))[0].fetch([b"a"]) == [big(b"1")]
    assert len(setup.control.claims) == claims
    other.close()


def test_a_shard_that_could_not_be_opened_ahead_is_claimed_again_by_the_task(setup: OneHost) -> None:
    setup.run(0, {b"a": big(b"1")})
    setup.state_host.obey(setup.order(1, 0))
    snapshot = setup.acked().snapshots[0]
    setup.control.sources[0] = RestoreSource("file:///nowhere", 1, 0, snapshot.handle)
    other = setup.another("other")
    other.open(OpenShards("q2", "op", (0,)))
    with pytest.raises(ChandyError):
        other.begin(setup.task(1, query_id="q2"))
    setup.control.sources[0] = RestoreSource(setup.store, 1, 0, snapshot.handle)
    other.begin(setup.task(1, query_id="q2"))
    assert other.shards(setup.task(1, query_id="q2"))[0].fetch([b"a"]) == [big(b"1")]
    other.close()


def test_a_shard_that_is_damaged_is_given_up_with_the_reason_and_others_are_told_as_read(
    setup: OneHost,
) -> None:
    setup.run(0, {b"a": b"1"}, shards=(0, 1))
    setup.state_host.obey(setup.order(1, 0, shards=(0, 1)))
    setup.control.restore_from(setup.acked(), setup.store, 0)
    setup.control.told.get(timeout=DEADLINE)
    source = setup.control.sources[0]
    other_bytes = attrs.evolve(source.handle.files[0], sha256="00" * 32)
    setup.control.sources[0] = attrs.evolve(source, handle=Handle((other_bytes,)))
    other = setup.another("other")
    other.open(OpenShards("q2", "op", (0, 1)))
    given_up = setup.control.given_up.get(timeout=DEADLINE)
    assert (given_up.query_id, given_up.shard, given_up.code) == (
        "q2",
        ShardId("op", 0),
        FailureCode.UNREADABLE,
    )
    assert other_bytes.key in given_up.why
    assert setup.control.told.get(timeout=DEADLINE).read == (1,)
    other.close()


def test_what_a_machine_has_kept_is_not_read_in_the_store_unless_it_is_the_same_file(setup: OneHost) -> None:
    setup.run(0, {b"a": big(b"1")})
    setup.state_host.obey(setup.order(1, 0))
    ack = setup.acked()
    setup.control.restore_from(ack, setup.store, 0)
    setup.control.told.get(timeout=DEADLINE)
    (stored,) = (setup.directory / "store" / "shared").glob("*/*")
    for query_id, read in (("linked", (0,)), ("copied", ())):
        setup.state_host.begin(setup.task(1, query_id=query_id))
        assert setup.control.told.get(timeout=DEADLINE).read == read
        # The same bytes in another file: what happens to the one does not show in the other.
        content = stored.read_bytes()
        stored.unlink()
        stored.write_bytes(content)


def test_a_coordinator_that_cannot_be_told_of_a_restore_holds_up_no_batch(
    setup: OneHost, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: ShardsRestored) -> None:
        raise RemoteError("CoordinatorLostError", "gone")

    monkeypatch.setitem(setup.control.handlers, ShardsRestored, fail)
    setup.run(0, {b"a": b"1"})
    eventually(lambda: "restore not reported" in caplog.text)
    assert setup.state_host.shards(setup.task(0))[0].fetch([b"a"]) == [None]


def test_files_that_hold_more_than_their_checkpoint_says_are_refused(setup: OneHost) -> None:
    setup.run(5, {b"a": b"1"})
    setup.state_host.obey(setup.order(1, 5))
    handle = setup.acked().snapshots[0].handle
    setup.control.sources[0] = RestoreSource(setup.store, 1, 4, handle)
    other = setup.another("other")
    with pytest.raises(ShardRefusedError, match="after batch 4, found the state after batch 5"):
        other.begin(setup.task(5, query_id="q2"))
    other.close()


def test_shards_of_a_query_that_is_released_are_deleted_and_others_stay(setup: OneHost) -> None:
    setup.run(0, {b"a": b"1"})
    setup.state_host.begin(setup.task(0, query_id="other"))
    setup.state_host.obey(ReleaseOrder("q"))
    with pytest.raises(ShardMissingError):
        setup.state_host.shards(setup.task(0))
    setup.state_host.shards(setup.task(0, query_id="other"))
    eventually(lambda: len(list((setup.directory / "host" / "shards").iterdir())) == 1)


def test_a_release_does_not_wait_for_a_shard_that_is_being_written(setup: OneHost) -> None:
    setup.run(0, {b"a": b"1"})
    shard = setup.state_host.shards(setup.task(0))[0]
    # As the thread that takes orders, which renews the lease, too.
    obeys = threading.Thread(target=setup.state_host.obey, args=(ReleaseOrder("q"),), daemon=True)
    with shard.levels._disk:
        obeys.start()
        obeys.join(DEADLINE)
        assert not obeys.is_alive()
        assert shard.directory.exists()
    eventually(lambda: not shard.directory.exists())


def test_a_stop_order_is_passed_on(setup: OneHost) -> None:
    assert not setup.state_host.stopped.is_set()
    setup.state_host.obey(StopHost())
    assert setup.state_host.stopped.is_set()


# --- snapshots ----------------------------------------------------------------------------------------------


def test_an_order_in_the_answer_snapshots_before_the_batch(setup: OneHost) -> None:
    setup.run(0, {b"a": b"0"})
    setup.control.ahead[1] = (setup.order(1, 0),)
    setup.run(1, {b"a": b"1"})
    setup.state_host.begin(setup.task(2))
    assert setup.state_of(setup.acked(), 0, [b"a"]) == [b"0"]


def test_a_pushed_order_snapshots_an_idle_shard(setup: OneHost) -> None:
    setup.run(0, {b"a": b"0"})
    setup.state_host.obey(setup.order(1, 0))
    assert setup.state_of(setup.acked(), 0, [b"a"]) == [b"0"]


def test_a_pushed_order_leaves_out_a_later_batch_that_is_staged(setup: OneHost) -> None:
    setup.run(0, {b"a": b"0"})
    setup.run(1, {b"a": b"1"})
    setup.state_host.obey(setup.order(1, 0))
    assert setup.state_of(setup.acked(), 0, [b"a"]) == [b"0"]


def test_an_order_that_comes_both_ways_is_acknowledged_once(setup: OneHost) -> None:
    setup.run(0, {b"a": b"0"})
    order = setup.order(1, 0)
    setup.control.ahead[1] = (order,)
    setup.state_host.begin(setup.task(1))
    setup.state_host.obey(order)
    setup.acked()
    setup.state_host.obey(order)
    setup.state_host.obey(setup.order(2, 0))
    assert setup.acked().checkpoint == 2
    assert setup.control.declines.empty()


def test_an_order_in_the_answer_reaches_shards_that_have_no_task_in_the_batch(setup: OneHost) -> None:
    setup.run(0, {b"a": b"0"}, (0, 1, 2))
    setup.control.ahead[1] = (setup.order(1, 0, (0, 1, 2)),)
    setup.state_host.begin(setup.task(1, (0,)))
    assert [snapshot.shard.shard for snapshot in setup.acked().snapshots] == [0, 1, 2]


# --- batches that a sink takes in part ----------------------------------------------------------------------


def left_out(setup: OneHost) -> None:
    """Batch 1 commits, although the task of shards 2 and 3 has not even begun: the sink needed no rows of it."""
    for shards in ((0, 1), (2, 3)):
        setup.run(0, {b"a": b"0"}, shards)
    setup.run(1, {b"a": b"1"}, (0, 1))


@pytest.mark.parametrize("begun_before", [False, True])
def test_a_task_that_was_left_out_of_a_batch_is_found_when_the_next_begins(
    setup: OneHost, begun_before: bool
) -> None:
    left_out(setup)
    if begun_before:
        # Whichever task comes first finds it.
        with pytest.raises(ShardRefusedError, match="has not finished"):
            setup.state_host.begin(setup.task(2, (0, 1)))
    with pytest.raises(
        ShardRefusedError, match=r"its task on shard .* every task of batch 1 to finish before batch 2"
    ):
        setup.state_host.begin(setup.task(2, (2, 3)))


def test_no_checkpoint_has_a_batch_that_a_task_was_left_out_of(setup: OneHost) -> None:
    left_out(setup)
    setup.state_host.obey(setup.order(1, 1, (0, 1, 2, 3)))
    assert "batch 1 has committed, but its task on shard op/2 has not finished" in setup.declined()
    # What lies before it is whole.
    setup.state_host.obey(setup.order(2, 0, (0, 1, 2, 3)))
    assert len(setup.acked().snapshots) == 4


def test_a_batch_that_runs_again_may_have_reached_some_shards_before(setup: OneHost) -> None:
    left_out(setup)
    # It has not committed: its query failed, and Spark runs it again.
    for shards in ((2, 3), (0, 1)):
        setup.run(1, {b"a": b"again"}, shards)
    setup.state_host.begin(setup.task(2, (0, 1)))
    setup.state_host.begin(setup.task(2, (2, 3)))


def test_a_batch_that_spark_has_run_no_task_of_is_missed_nowhere(setup: OneHost) -> None:
    for batch in (0, 2):
        for shards in ((0, 1), (2, 3)):
            setup.run(batch, {b"a": b"0"}, shards)
    setup.state_host.obey(setup.order(1, 2, (0, 1, 2, 3)))
    assert len(setup.acked().snapshots) == 4


def test_uploads_do_not_hold_up_the_batches_that_follow(tmp_path: Path) -> None:
    GatedStore.gate.clear()
    GatedStore.waiting.clear()
    setup = OneHost(tmp_path, lambda uri: GatedStore(tmp_path / "store"))
    setup.run(0, {b"a": big(b"0")})
    setup.control.ahead[1] = (setup.order(1, 0),)
    for batch in range(1, 6):
        setup.run(batch, {b"a": big(b"%d" % batch)})
    assert GatedStore.waiting.wait(DEADLINE)
    assert setup.control.acks.empty()
    GatedStore.gate.set()
    assert setup.state_of(setup.acked(), 0, [b"a"]) == [big(b"0")]
    setup.state_host.close()


def opened_after(event: threading.Event) -> Callable[[str], Store]:
    """Return what opens a store once an event is set."""

    def open_late(uri: str) -> Store:
        assert event.wait(DEADLINE)
        return open_store(uri)

    return open_late


def test_a_task_takes_the_snapshot_itself_when_the_background_is_late(tmp_path: Path) -> None:
    """No record of the next batch may reach a shard before the snapshot ahead of it."""
    late = threading.Event()
    setup = OneHost(tmp_path, opened_after(late))
    setup.run(0, {b"a": b"0"}, (0, 1))
    setup.control.ahead[1] = (setup.order(1, 0, (0, 1)),)
    for batch in range(1, 4):
        setup.run(batch, {b"a": b"later"}, (0, 1))
    late.set()
    ack = setup.acked()
    assert [setup.state_of(ack, 0, [b"a"], shard) for shard in (0, 1)] == [[b"0"], [b"0"]]
    setup.state_host.close()


def test_only_what_the_base_does_not_have_is_uploaded(setup: OneHost) -> None:
    setup.run(0, {b"a": big(b"0")})
    setup.state_host.obey(setup.order(1, 0))
    first = setup.acked().snapshots[0]
    setup.state_host.obey(CompleteOrder(1))
    setup.run(1, {b"b": b"small"})
    setup.state_host.obey(setup.order(2, 1, base=1))
    second = setup.acked()
    assert first.new_bytes > 100_000
    assert second.snapshots[0].new_bytes < 10_000
    assert setup.state_of(second, 1, [b"a", b"b"]) == [big(b"0"), b"small"]


def test_a_checkpoint_of_small_state_costs_what_has_changed(setup: OneHost) -> None:
    """Of five hundred small keys each batch changes one, in one of two shards."""
    setup.run(0, {b"%03d" % number: os.urandom(100) for number in range(500)}, (0, 1))
    changed = everything = 0
    for batch in range(40):
        checkpoint = batch + 1
        setup.state_host.obey(setup.order(checkpoint, batch, (0, 1), base=batch or None))
        ack = setup.acked()
        first, second = ack.snapshots
        assert first.handle.size > 50_000
        if batch:
            assert second.new_bytes == 0
            changed += first.new_bytes
            everything += first.handle.size
        setup.state_host.obey(CompleteOrder(checkpoint))
        setup.state_host.begin(setup.task(batch + 1, (0, 1)))
        setup.stage(batch + 1, {b"%03d" % batch: b"changed"}, (0,))
        setup.stage(batch + 1, {}, (1,))
    # A compaction writes the shard again now and then, and RocksDB's record of its files goes with every change.
    assert changed < everything * 0.09
    assert setup.state_of(ack, 39, [b"000", b"038"]) == [b"changed", b"changed"]


def test_checkpoints_that_follow_each_other_closely_store_little_beside_the_changes(setup: OneHost) -> None:
    """Of two thousand small keys each batch changes a quarter, and a checkpoint comes after each batch."""
    keys = [b"%04d" % number for number in range(2000)]
    state: dict[bytes, bytes | None] = {key: os.urandom(40) for key in keys}
    setup.run(0, state)
    changed = stored = 0
    for batch in range(24):
        at_cut = [state[key] for key in keys]
        setup.state_host.obey(setup.order(batch + 1, batch, base=batch or None))
        ack = setup.acked()
        stored += ack.snapshots[0].new_bytes if batch else 0
        setup.state_host.obey(CompleteOrder(batch + 1))
        changes = {key: os.urandom(40) for key in random.Random(batch).sample(keys, 500)}
        changed += sum(len(key) + len(value) for key, value in changes.items())
        state = {**state, **changes}
        setup.run(batch + 1, {**changes})
    assert stored < 1.55 * changed
    assert setup.state_of(ack, 23, keys) == at_cut


def test_what_a_shard_was_restored_from_is_a_base(setup: OneHost) -> None:
    setup.run(0, {b"a": big(b"0")})
    setup.state_host.obey(setup.order(1, 0))
    setup.control.sources[0] = RestoreSource(setup.store, 1, 0, setup.acked().snapshots[0].handle)
    setup.state_host = setup.another("second")
    setup.state_host.begin(setup.task(1))
    setup.state_host.obey(setup.order(2, 0, base=1))
    ack = setup.acked()
    assert ack.snapshots[0].new_bytes < 10_000
    assert setup.state_of(ack, 0, [b"a"]) == [big(b"0")]


def test_a_savepoint_holds_every_file_itself(setup: OneHost) -> None:
    # It neither uses nor becomes a base.
    setup.run(0, {b"a": big(b"0")})
    setup.state_host.obey(setup.order(1, 0))
    setup.acked()
    root = f"file://{setup.directory / 'savepoint'}"
    setup.state_host.obey(setup.order(2, 0, root=root, is_savepoint=True))
    savepoint = setup.acked()
    keys = {file.key for file in savepoint.snapshots[0].handle.files}
    assert all((setup.directory / "savepoint" / key).exists() for key in keys)
    assert savepoint.snapshots[0].new_bytes > 100_000
    setup.state_host.obey(CompleteOrder(2))
    setup.state_host.obey(setup.order(3, 0, base=2))
    after = setup.acked()
    assert after.snapshots[0].new_bytes > 100_000
    assert setup.state_of(after, 0, [b"a"]) == [big(b"0")]
    assert setup.state_of(savepoint, 0, [b"a"], root=root) == [big(b"0")]


def test_a_completed_savepoint_leaves_the_base_of_the_next_checkpoint(setup: OneHost) -> None:
    setup.run(0, {b"a": big(b"0")})
    setup.state_host.obey(setup.order(1, 0))
    setup.acked()
    setup.state_host.obey(CompleteOrder(1))
    savepoint = f"file://{setup.directory / 'savepoint'}"
    setup.state_host.obey(setup.order(2, 0, root=savepoint, is_savepoint=True))
    setup.acked()
    setup.state_host.obey(CompleteOrder(2))
    setup.state_host.obey(setup.order(3, 0, base=1))
    assert setup.acked().snapshots[0].new_bytes < 10_000


def test_a_savepoint_is_copied_from_the_pipelines_store_and_nothing_from_a_savepoint(tmp_path: Path) -> None:
    copies: list[tuple[str, str]] = []

    class Told(LocalStore):
        def copy(self, source: Store, source_key: str, key: str) -> bool:
            copies.append((source.uri, self.uri))
            return super().copy(source, source_key, key)

    setup = OneHost(tmp_path, lambda uri: Told(Path(uri.removeprefix("file://"))))
    places = [f"file://{tmp_path / name}" for name in ("one", "two", "three")]
    setup.run(0, {b"a": big(b"0")})

    def snapshot(checkpoint: int, **more: Any) -> list[tuple[str, str]]:
        copies.clear()
        setup.state_host.obey(setup.order(checkpoint, 0, **more))
        setup.acked()
        setup.state_host.obey(CompleteOrder(checkpoint))
        return copies

    # The first savepoint is there before any checkpoint of the pipeline.
    assert snapshot(1, root=places[0], is_savepoint=True) == []
    assert snapshot(2) == []
    assert snapshot(3, root=places[1], is_savepoint=True) == [(setup.store, places[1])]
    assert snapshot(4) == []
    assert snapshot(5, root=places[2], is_savepoint=True) == [(setup.store, places[2])]
    setup.state_host.close()


def test_a_checkpoint_after_a_savepoint_that_was_damaged_restores(setup: OneHost) -> None:
    setup.run(0, {b"a": big(b"0")})
    setup.state_host.obey(
        setup.order(1, 0, root=f"file://{setup.directory / 'savepoint'}", is_savepoint=True)
    )
    setup.acked()
    setup.state_host.obey(CompleteOrder(1))
    for path in (setup.directory / "savepoint" / "shared").glob("*/*"):
        size = path.stat().st_size
        # Not in place: it is a link of the shard's own file.
        path.unlink()
        path.write_bytes(b"x" * size)
    setup.state_host.obey(setup.order(2, 0))
    assert setup.state_of(setup.acked(), 0, [b"a"]) == [big(b"0")]


def test_an_order_whose_cut_has_passed_is_declined_and_the_batch_goes_on(setup: OneHost) -> None:
    setup.run(0, {b"a": b"0"})
    setup.run(1, {b"a": b"1"})
    setup.run(2, {})
    setup.control.ahead[3] = (setup.order(1, 0),)
    setup.run(3, {b"a": b"3"})
    assert setup.declined().startswith(
        "ShardRefusedError: shard op/0 cannot be snapshotted: expected to snapshot its state after batch 0"
    )
    setup.state_host.begin(setup.task(4))
    assert setup.state_host.shards(setup.task(4))[0].fetch([b"a"]) == [b"3"]


def test_an_order_for_a_shard_that_is_not_here_is_declined(setup: OneHost) -> None:
    setup.run(0, {b"a": b"0"})
    setup.state_host.obey(setup.order(1, 0, (0, 7)))
    assert setup.declined().startswith("ShardMissingError: state host host does not hold shard op/7")


@pytest.mark.parametrize(("seconds_left", "attempts"), [(0.0, ""), (1000.0, " (5 attempts)")])
def test_a_store_that_is_away_is_asked_again_only_as_long_as_the_checkpoint_has_left(
    tmp_path: Path, seconds_left: float, attempts: str
) -> None:
    policy = RetryPolicy(seconds=1000.0, attempts=5, first=0.001)
    setup = OneHost(tmp_path, lambda uri: RetryingStore(UnreachableStore(tmp_path / "store"), policy))
    setup.run(0, {b"a": b"0"})
    setup.state_host.obey(setup.order(1, 0, seconds_left=seconds_left))
    assert setup.declined().endswith(f": it is away{attempts}")


def test_a_store_that_fails_declines_the_checkpoint_and_not_the_batch(tmp_path: Path) -> None:
    def no_store(uri: str) -> Store:
        raise OSError("store is away")

    setup = OneHost(tmp_path, no_store)
    setup.run(0, {b"a": b"0"})
    setup.control.ahead[1] = (setup.order(1, 0),)
    setup.run(1, {b"a": b"1"})
    assert setup.declined() == "OSError: store is away"
    setup.state_host.begin(setup.task(2))
    assert setup.state_host.shards(setup.task(2))[0].fetch([b"a"]) == [b"1"]
    eventually(lambda: not list((tmp_path / "host" / "snapshots").glob("*")))
    setup.state_host.close()


def test_an_aborted_checkpoint_is_neither_acknowledged_nor_declined(tmp_path: Path) -> None:
    GatedStore.gate.clear()
    GatedStore.waiting.clear()
    setup = OneHost(tmp_path, lambda uri: GatedStore(tmp_path / "store"))
    setup.run(0, {b"a": big(b"0")})
    setup.state_host.obey(setup.order(1, 0))
    assert GatedStore.waiting.wait(DEADLINE)
    setup.state_host.obey(AbortOrder(1, None))
    assert not list((tmp_path / "host" / "snapshots").glob("*"))
    GatedStore.gate.set()
    setup.state_host.obey(setup.order(2, 0))
    assert setup.acked().checkpoint == 2
    assert setup.control.declines.empty()
    setup.state_host.close()


@pytest.mark.parametrize("when", ["before its barrier", "after its barrier"])
def test_what_an_aborted_checkpoint_was_to_write_is_written_with_the_next(tmp_path: Path, when: str) -> None:
    late = threading.Event()
    setup = OneHost(tmp_path, opened_after(late))
    setup.run(0, {b"a": b"0", b"b": b"0"})
    setup.control.ahead[1] = (setup.order(1, 0),)
    if when == "before its barrier":
        setup.state_host.obey(setup.control.ahead[1][0])
        setup.state_host.obey(AbortOrder(1, None))
    setup.run(1, {b"a": b"1"})
    if when == "after its barrier":
        setup.state_host.obey(AbortOrder(1, None))
    setup.control.ahead[2] = (setup.order(2, 1),)
    setup.run(2, {b"a": b"2", b"b": b"2"})
    late.set()
    ack = setup.acked()
    assert ack.checkpoint == 2
    # Two keys and the position, and not one of them twice.
    assert setup.state_host.shards(setup.task(2))[0].levels.database.db.latest_sequence_number() == 3
    assert setup.state_of(ack, 1, [b"a", b"b"]) == [b"1", b"0"]
    eventually(lambda: not list((tmp_path / "host" / "snapshots").glob("*")))
    assert setup.control.declines.empty()
    setup.state_host.close()


@pytest.mark.parametrize("end", [AcceptedOrder.abort, AcceptedOrder.fail])
def test_a_snapshot_whose_order_ends_while_it_is_taken_is_given_up_at_once(
    setup: OneHost, monkeypatch: pytest.MonkeyPatch, end: Callable[[AcceptedOrder], Any]
) -> None:
    setup.run(0, {b"a": b"0"})
    accepted = AcceptedOrder(setup.order(1, 0))
    task = SnapshotTask(accepted, setup.directory / "snapshots", threading.Lock())
    shard = setup.state_host.shards(setup.task(0))[0]
    right = shard.snapshot

    def late(directory: Path, cut: int, **more: Any) -> Snapshot:
        taken = right(directory, cut)
        end(accepted)
        task.give_up()
        return taken

    monkeypatch.setattr(shard, "snapshot", late)
    (key,) = accepted.shards
    assert task.take(key, shard).result().snapshot.cancelled


def test_an_order_that_has_ended_takes_no_snapshot(setup: OneHost) -> None:
    setup.run(0, {b"a": b"0"})
    accepted = AcceptedOrder(setup.order(1, 0))
    accepted.abort()
    task = SnapshotTask(accepted, setup.directory / "snapshots", threading.Lock())
    shard = setup.state_host.shards(setup.task(0))[0]
    for _ in range(2):
        with pytest.raises(CancelledError):
            task.take(accepted.shards[0], shard).result()
    assert shard.position == NO_BATCH


def test_checkpoints_that_overlap_have_each_their_own_state(tmp_path: Path) -> None:
    late = threading.Event()
    setup = OneHost(tmp_path, opened_after(late))
    for batch in range(4):
        setup.run(batch, {b"a": b"%d" % batch, b"%d" % batch: b""})
        setup.control.ahead[batch + 1] = (setup.order(batch + 1, batch),)
    setup.state_host.begin(setup.task(4))
    late.set()
    acks = {ack.checkpoint: ack for ack in [setup.acked() for _ in range(4)]}
    for checkpoint, ack in acks.items():
        cut = checkpoint - 1
        found = setup.state_of(ack, cut, [b"a", b"%d" % cut, b"%d" % checkpoint])
        assert found == [b"%d" % cut, b"", None]
    setup.state_host.close()


def test_an_order_that_failed_gives_up_the_snapshots_that_it_took(setup: OneHost) -> None:
    setup.run(0, {b"a": b"0"})
    setup.state_host.obey(setup.order(1, 0, (0, 7)))
    setup.declined()
    shard = setup.state_host.shards(setup.task(0))[0]
    eventually(lambda: not list((setup.directory / "host" / "snapshots").glob("*")))
    shard.levels.spill()
    assert not list((setup.directory / "host" / "snapshots").glob("*"))


def test_a_checkpoint_that_is_aborted_when_all_is_stored_is_not_acknowledged(tmp_path: Path) -> None:
    class AbortingStore(LocalStore):
        def write(self, key: str, data: bytes) -> None:
            super().write(key, data)
            if key.startswith("checkpoints/1/"):
                setup.state_host.obey(AbortOrder(1, None))

    setup = OneHost(tmp_path, lambda uri: AbortingStore(tmp_path / "store"))
    setup.run(0, {b"a": b"0"})
    setup.state_host.obey(setup.order(1, 0))
    eventually(lambda: (tmp_path / "store" / "checkpoints" / "1").exists())
    setup.state_host.obey(setup.order(2, 0))
    assert setup.acked().checkpoint == 2
    eventually(lambda: not list((tmp_path / "host" / "snapshots").glob("*")))
    assert setup.control.acks.empty()
    assert setup.control.declines.empty()
    setup.state_host.close()


def test_an_order_that_comes_after_its_abort_is_ignored(setup: OneHost) -> None:
    setup.run(0, {b"a": b"0"})
    setup.state_host.obey(AbortOrder(1, None))
    setup.control.ahead[1] = (setup.order(1, 0),)
    setup.run(1, {b"a": b"1"})
    setup.state_host.obey(setup.order(2, 1))
    assert setup.acked().checkpoint == 2


def test_a_shard_that_is_being_restored_is_waited_for(setup: OneHost) -> None:
    setup.control.ask_gate.clear()
    with ThreadPoolExecutor(1) as pool:
        task = pool.submit(setup.state_host.begin, setup.task(0))
        eventually(lambda: bool(setup.control.asked))
        setup.control.ask_gate.set()
        task.result(DEADLINE)
    setup.control.claim_gate.clear()
    with ThreadPoolExecutor(1) as pool:
        task = pool.submit(setup.state_host.begin, setup.task(0, (1,)))
        eventually(lambda: len(setup.control.claims) == 2)
        setup.state_host.obey(setup.order(1, -1, (0, 1)))
        setup.control.claim_gate.set()
        task.result(DEADLINE)
    assert len(setup.acked().snapshots) == 2


def test_a_local_snapshot_is_deleted_once_it_is_stored(setup: OneHost) -> None:
    setup.run(0, {b"a": b"0"})
    setup.state_host.obey(setup.order(1, 0))
    setup.acked()
    eventually(lambda: not list((setup.directory / "host" / "snapshots").glob("*")))


def test_a_batch_that_is_gone_is_refused(setup: OneHost) -> None:
    setup.run(0, {b"a": b"0"})
    setup.run(1, {b"a": b"1"})
    with pytest.raises(CannotGoBackError):
        setup.state_host.begin(setup.task(0))


def test_statistics_of_a_snapshot_say_how_long_and_how_much(setup: OneHost) -> None:
    setup.run(0, {b"a": big(b"0")})
    setup.state_host.obey(setup.order(1, 0, triggered_at=time.time() - 5))
    snapshot = setup.acked().snapshots[0]
    assert snapshot.start_delay >= 5
    assert 0 < snapshot.sync_seconds < snapshot.sync_seconds + snapshot.async_seconds
    assert snapshot.new_bytes == snapshot.handle.size


# --- changelogs -----------------------------------------------------------------------------------------------


@pytest.fixture
def logged(setup: OneHost) -> OneHost:
    for query_id in ("q", "next"):
        admit(setup.changelogs, query_id, setup.directory)
    return setup


def test_a_shard_whose_host_was_killed_comes_back_with_the_batches_since_the_checkpoint(
    logged: OneHost,
) -> None:
    setup = logged
    setup.run(0, {b"a": b"0", b"b": b"0"})
    setup.state_host.obey(setup.order(1, 0))
    ack = setup.acked()
    setup.state_host.obey(CompleteOrder(1))
    setup.run(1, {b"a": b"1"})
    setup.run(2, {b"b": None})
    # Nobody has heard of another batch when it is killed: this one has committed.
    (snapshot,) = ack.snapshots
    setup.control.sources[0] = RestoreSource(setup.store, 1, 0, snapshot.handle)
    setup.control.resume_point = ResumePoint("q", 0, 2)
    successor = setup.another("successor")
    successor.begin(setup.task(3, query_id="next"))
    shard = successor.shards(setup.task(3, query_id="next"))[0]
    assert shard.fetch([b"a", b"b"]) == [b"1", None]
    assert shard.position == 2
    # It goes on from there itself: the next one needs nothing of the first.
    shutil.rmtree(setup.changelogs / "q")
    assert not gap(shard_folder(setup.changelogs, "next", "op", 0), 0, 2)
    successor.close()


def test_a_shard_that_has_no_checkpoint_comes_back_from_its_changelog_alone(logged: OneHost) -> None:
    setup = logged
    setup.run(0, {b"a": b"0"})
    setup.run(1, {b"a": b"1"})
    setup.control.resume_point = ResumePoint("q", -1, 0)
    successor = setup.another("successor")
    # The newest batch had not committed: it runs again.
    begun = successor.begin(setup.task(1, query_id="next"))
    assert successor.shards(setup.task(1, query_id="next"))[0].fetch([b"a"]) == [b"0"]
    assert begun.fresh == ()
    successor.close()


def test_a_completed_checkpoint_shortens_the_changelogs_of_its_shards(logged: OneHost) -> None:
    setup = logged
    setup.run(0, {b"a": b"0"}, shards=(0, 1))
    setup.state_host.obey(setup.order(1, 0))
    setup.acked()
    setup.run(1, {b"a": b"1"}, shards=(0, 1))
    folders = [shard_folder(setup.changelogs, "q", "op", shard) for shard in (0, 1)]
    assert not any(gap(folder, -1, 1) for folder in folders)
    setup.state_host.obey(CompleteOrder(1))
    assert [gap(folder, -1, 1) is None for folder in folders] == [False, True]
    assert not any(gap(folder, 0, 1) for folder in folders)


def test_a_changelog_that_does_not_lead_there_fails_the_task(logged: OneHost) -> None:
    setup = logged
    setup.run(0, {b"a": b"0"})
    setup.control.resume_point = ResumePoint("q", -1, 1)
    successor = setup.another("successor")
    with pytest.raises(ChangelogBrokenError, match="batch 1"):
        successor.begin(setup.task(2, query_id="next"))
    given_up = setup.control.given_up.get(timeout=DEADLINE)
    assert (given_up.host, given_up.shard, given_up.code) == (
        "successor",
        ShardId("op", 0),
        FailureCode.STATE_UNUSABLE,
    )
    assert setup.control.given_up.empty(), "the first host has opened its own"
    successor.close()


def test_a_host_without_changelogs_cannot_go_on_from_any(setup: OneHost, tmp_path: Path) -> None:
    setup.control.resume_point = ResumePoint("q", -1, 0)
    cache = FileCache(tmp_path / "cache")
    state_host = StateHost("without", setup.control, tmp_path / "without", Memory(32 << 20), cache)
    with pytest.raises(ChangelogBrokenError, match="this state host keeps no changelogs"):
        state_host.begin(setup.task(1))
    state_host.close()


# --- the machine's cache ------------------------------------------------------------------------------------


def test_the_cache_stays_within_its_limit_while_checkpoints_go_on(tmp_path: Path) -> None:
    setup = OneHost(tmp_path, cache_bytes=250_000)
    for batch in range(6):
        setup.run(batch, {b"%d" % batch: random.Random(batch).randbytes(100_000)})
        setup.state_host.obey(setup.order(batch + 1, batch))
        setup.acked()
        eventually(lambda: size_of(setup.cache.files) <= 250_000)
    assert size_of(tmp_path / "store" / "shared") > 500_000, "all files together are within the limit"
    setup.state_host.close()


def test_an_order_that_is_declined_leaves_the_cache_within_its_limit(tmp_path: Path) -> None:
    setup = OneHost(tmp_path, lambda uri: UnreachableStore(tmp_path / "store"), cache_bytes=250_000)
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    for number in range(4):
        setup.cache.put(f"{number}" * 64, tmp_path / "file")
    setup.run(0, {b"a": b"0"})
    setup.state_host.obey(setup.order(1, 0))
    setup.declined()
    eventually(lambda: size_of(setup.cache.files) <= 250_000)
    setup.state_host.close()


def size_of(folder: Path) -> int:
    """Bytes of the files below a folder, from which somebody may delete meanwhile."""
    total = 0
    for path in folder.glob("*/*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total
