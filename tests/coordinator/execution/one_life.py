"""One life of a coordinator: the real executor, a store that can fail, and a query and a host that the test drives."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chandy.coordinator.checkpoint import Checkpoint
from chandy.coordinator.config import CheckpointConfig
from chandy.coordinator.errors import CheckpointError, StaleQueryError
from chandy.coordinator.execution.executor import CheckpointExecutor
from chandy.coordinator.execution.locked_protocol import LockedProtocol
from chandy.coordinator.execution.recording import Recording
from chandy.coordinator.protocol import events
from chandy.state.rpc.messages import Ack, BatchTimes, ClaimShards, HostHello, ShardSnapshot
from chandy.state.rpc.orders import Heartbeat, Order, SnapshotOrder
from chandy.storage.backends.local import LocalStore
from chandy.storage.backends.open import open_store
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.manifest import (
    ChannelRecord,
    CheckpointKind,
    Handle,
    Manifest,
    OperatorRecord,
    OutputRecord,
)
from chandy.storage.errors import OutcomeUnknownError, StoreFailedError
from chandy.storage.store import Store
from tests.builders import failover

from ...waiting import DEADLINE, eventually
from ..stand_ins import RecordedReports, watch_of
from ..strict_machine import StrictStateMachine


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
        self.pre_committed: list[int] = []
        self.is_holding, self.may_hold = threading.Event(), threading.Event()
        self.may_hold.set()
        self.on_times: Callable[[], object] = lambda: None
        self.is_planning, self.may_plan = threading.Event(), threading.Event()
        self.may_plan.set()

    def begun(self, query: str) -> int:
        self.is_planning.set()
        assert self.may_plan.wait(DEADLINE)
        return self.newest

    def current_batch(self, query: str) -> int | None:
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
        self.pre_committed.append(checkpoint)
        return ()

    def commit(self, query: str, checkpoint: int) -> None:
        pass

    def channels(self, manifest: Manifest) -> tuple[ChannelRecord, ...]:
        return ()

    @contextmanager
    def hold(self, query: str, batch: int) -> Iterator[Mapping[str, Path]]:
        self.is_holding.set()
        assert self.may_hold.wait(DEADLINE)
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
        stream = self.executor.hosts.orders(hello)
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
        snapshots = (ShardSnapshot(shard, Handle(), 1, 0.0, 0.0, 0.0, entries=1) for shard in order.shards)
        return Ack(self.name, order.checkpoint, order.query_id, tuple(snapshots))

    def acknowledge(self, checkpoint: int) -> None:
        self.executor.hosts.ack(self.ack_of(self.ordered(checkpoint)))


class OneLife:
    """One coordinator life on a store, one query, one host that owns its two shards."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.folder = folder
        self.store = TroubledStore(folder / "store")
        self.store.open, self.store.waiting = threading.Event(), threading.Event()
        self.store.open.set()
        self.catalog = Catalog(self.store)
        self.queries = Queries(folder)
        self.elsewhere: dict[str, HeldStore] = {}
        """Stores for savepoints that the test has made, by their URIs."""
        self.now = 1000.0
        self.reports = RecordedReports()
        self.lost, self.failures = self.reports.lost, self.reports.failures
        generation = self.catalog.take_over("driver", self.now)
        self.generation = generation.generation
        limits = CheckpointConfig(**{"interval": None, **config}).limits
        self.machine = lambda: StrictStateMachine(
            pipeline="p",
            generation=generation.generation,
            root=self.store.uri,
            limits=limits,
            next_id=1,
            failover=failover(),
        )
        self.recording = Recording(store=self.store)
        self.watch = watch_of(self.catalog, generation.generation)
        self.watch.listen(self.failures.append)
        self.watch.begin()
        self.executor = CheckpointExecutor(
            LockedProtocol(self.machine(), lambda: self.now),
            catalog=self.catalog,
            store=self.store,
            open_store=lambda uri: self.elsewhere.get(uri) or open_store(uri),
            watch=self.watch,
            progress=self.queries,
            clock=lambda: self.now,
            host_timeout=60.0,
            reports=self.reports,
            recording=self.recording,
        )
        operators = (OperatorRecord("op", "q", "{}", {}, (None, None)),)
        self.executor.protocol.handle(
            events.QueryAdded("q", "id", batch=4, operators=operators, restored=operators, sources={})
        )
        self.host = FakeHost(self.executor)
        self.executor.hosts.claim(ClaimShards("host", "id", "op", (0, 1)))

    def store_elsewhere(self, *held: str) -> HeldStore:
        """Make a store for a savepoint, by what it does not answer."""
        store = HeldStore(self.folder / f"elsewhere{len(self.elsewhere)}", *held)
        self.elsewhere[store.uri] = store
        return store

    def request(
        self, kind: CheckpointKind = CheckpointKind.MANUAL, target: str | None = None
    ) -> Future[Checkpoint]:
        return self.executor.request(kind, target=target)

    def request_held(self) -> Future[Checkpoint]:
        """Ask for the first checkpoint, and wait until its manifest is being written: for as long as a test likes."""
        self.store.open.clear()
        future = self.request()
        self.host.acknowledge(1)
        assert self.store.waiting.wait(DEADLINE)
        return future

    def completed(self) -> Checkpoint:
        future = self.request()
        self.host.acknowledge(self.executor.protocol.read(lambda p: p.checkpoints.next_id) - 1)
        return future.result(DEADLINE)

    def error(self, future: Future[Checkpoint]) -> CheckpointError:
        error = future.exception(DEADLINE)
        assert isinstance(error, CheckpointError)
        return error

    def close(self) -> None:
        self.store.open.set()
        for store in self.elsewhere.values():
            store.let_go.set()
        self.queries.may_plan.set()
        self.queries.may_hold.set()
        self.watch.close()
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
