"""What the tests of hosts share: a coordinator that is a real Flight server, and real host processes."""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import numpy as np
import pyarrow as pa
import pytest

from chandy.state.format.arrow import BYTES
from chandy.state.host.discovery import connect
from chandy.state.rpc.access import Entries, StateAccess
from chandy.state.rpc.calls import ActionServer, Call, Stream
from chandy.state.rpc.client import TaskClient
from chandy.state.rpc.messages import AskBatch, BatchAnswer, BeginTask, Endpoint, HostHello, HostPulse
from chandy.state.rpc.orders import Heartbeat, Order, SnapshotOrder
from chandy.storage.errors import ChandyError

from ..waiting import eventually
from .fake_control import FakeControl, order

Changed = dict[bytes, bytes | None]


class StaleQueryError(ChandyError):
    """Stands for an error class that a host does not know."""

    def __str__(self) -> str:
        return "expected query q, found another"


class FakeCoordinator(FakeControl):
    """``Control`` on a real Flight server, and the hosts that call it."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.query_id = "q"
        self.token = secrets.token_hex(16)
        self.hellos: list[HostHello] = []
        self.pulses: list[HostPulse] = []
        self.handlers[HostPulse] = self.pulses.append
        self.stale: set[str] = set()
        self.silent = threading.Event()
        self._streams: list[queue.Queue[Order | None]] = []
        self._server: ActionServer | None = None
        self._port = 0
        self.start()

    def begin_test(self) -> None:
        """Forget what an earlier test has set and seen. Its state stays with another query."""
        self.forget()
        self.pulses.clear()
        self.stale.clear()
        self.query_id = secrets.token_hex(4)

    @property
    def endpoint(self) -> Endpoint:
        cache = str(self.directory / "cache")
        return Endpoint(
            f"grpc://127.0.0.1:{self._port}",
            self.token,
            "pipeline",
            64 << 20,
            cache,
            str(self.directory / "run"),
            host_changelogs=f"{cache}/changelogs",
        )

    @property
    def store(self) -> str:
        return f"file://{self.directory / 'store'}"

    def start(self) -> None:
        actions: dict[str, Call | Stream] = {
            message.__name__: Call(message, handle) for message, handle in self.handlers.items()
        }
        actions["orders"] = Stream(HostHello, self.orders)
        self._server = ActionServer(f"grpc://127.0.0.1:{self._port}", self.token, actions)
        self._port = self._server.port

    def stop(self) -> None:
        """Stop answering, as a driver that died."""
        server, self._server = self._server, None
        if server is not None:
            for stream in self._streams:
                stream.put(None)
            server.shutdown()

    def _ask(self, ask: AskBatch) -> BatchAnswer:
        answer = super()._ask(ask)
        if ask.query_id in self.stale:
            raise StaleQueryError
        return answer

    def orders(self, hello: HostHello) -> Iterator[Order]:
        self.hellos.append(hello)
        stream: queue.Queue[Order | None] = queue.Queue()
        self._streams.append(stream)
        order: Order | None = Heartbeat()
        while order is not None:
            if not self.silent.is_set():
                yield order
            try:
                order = stream.get(timeout=0.2)
            except queue.Empty:
                order = Heartbeat()

    def push(self, order: Order) -> None:
        """Push an order to the newest host."""
        self._streams[-1].put(order)

    def order(
        self, checkpoint: int, cut: int, shards: tuple[int, ...] = (0, 1), **more: object
    ) -> SnapshotOrder:
        """An order for shards of operator "op" of the query, to this coordinator's store."""
        return attrs.evolve(order(self.store, checkpoint, cut, shards, **more), query_id=self.query_id)

    def connect(self, executor: str = "executor", lease_seconds: float = 10.0) -> TaskClient:
        """What a task does: find or start the host of its executor."""
        root = str(self.directory / executor)
        return connect(self.endpoint, root, lease_seconds)

    def kill_host(self) -> None:
        """SIGKILL the newest host and wait until it is gone."""
        pid = self.hellos[-1].pid
        os.kill(pid, signal.SIGKILL)
        self.wait_for_end(pid)

    def task(self, batch: int, shards: tuple[int, ...] = (0, 1), query_id: str | None = None) -> BeginTask:
        return BeginTask(query_id or self.query_id, batch, "op", shards)

    def run(self, client: TaskClient, batch: int, changes: Changed, shards: tuple[int, ...] = (0, 1)) -> None:
        """One whole task: a key is in the shard that its first byte names, modulo the number of shards."""
        with client.begin(self.task(batch, shards)) as access:
            rows = sorted((shards[key[0] % len(shards)], key) for key in changes)
            self.apply(
                access, [shard for shard, _ in rows], [key for _, key in rows], [changes[k] for _, k in rows]
            )

    def read(
        self, client: TaskClient, batch: int, keys: list[bytes], shards: tuple[int, ...] = (0, 1)
    ) -> Changed:
        """The state of some keys ahead of a batch, by a task that changes nothing."""
        with client.begin(self.task(batch, shards)) as access:
            rows = sorted((shards[key[0] % len(shards)], key) for key in keys)
            values = self.fetch(access, [shard for shard, _ in rows], [key for _, key in rows])
        return {key: value for (_, key), value in zip(rows, values, strict=True)}

    @staticmethod
    def entries(shards: Sequence[int], keys: Sequence[bytes], values: Sequence[bytes | None]) -> Entries:
        return Entries(np.asarray(shards, np.int32), pa.array(keys, BYTES), pa.array(values, BYTES))

    @staticmethod
    def fetch(access: StateAccess, shards: Sequence[int], keys: Sequence[bytes]) -> list[bytes | None]:
        """What an access fetches, as plain lists."""
        found = access.fetch(np.asarray(shards, np.int32), pa.array(keys, BYTES))
        assert found.type == BYTES
        values: list[bytes | None] = found.to_pylist()
        return values

    def apply(
        self,
        access: StateAccess,
        shards: Sequence[int],
        keys: Sequence[bytes],
        values: Sequence[bytes | None],
    ) -> None:
        """Let an access apply changes that are plain lists."""
        access.apply([self.entries(shards, keys, values)])

    def wait_for_end(self, pid: int) -> None:
        eventually(lambda: not running(pid), f"end of process {pid}")


def running(pid: int) -> bool:
    """Whether any thread of a child process runs."""
    try:
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False


@contextlib.contextmanager
def _started(directory: Path) -> Iterator[FakeCoordinator]:
    fake = FakeCoordinator(directory)
    yield fake
    for hello in fake.hellos:
        with contextlib.suppress(ProcessLookupError):
            os.kill(hello.pid, signal.SIGKILL)
    fake.stop()


@pytest.fixture
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCoordinator]:
    with _started(tmp_path_factory.mktemp("c")) as fake:
        yield fake


@pytest.fixture(scope="module")
def lasting_coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCoordinator]:
    """A coordinator whose hosts serve all tests of a module."""
    with _started(tmp_path_factory.mktemp("c")) as fake:
        yield fake
