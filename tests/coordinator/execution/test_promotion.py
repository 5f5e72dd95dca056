"""Standbys take the place of shards whose host is killed or frozen: real processes, and a real coordinator.

Only Spark is missing, and the name of the machine that a host says it is on.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import numpy as np
import pyarrow as pa
import pytest

from chandy.barrier.task import begin_batch
from chandy.coordinator.assigned_shard import assigned_shards
from chandy.coordinator.config import CheckpointConfig
from chandy.coordinator.execution.executor import CheckpointExecutor
from chandy.coordinator.execution.service import listen
from chandy.coordinator.protocol import events as on
from chandy.coordinator.protocol.state_machine import CheckpointStateMachine
from chandy.state.format.arrow import BYTES
from chandy.state.host.discovery import connect
from chandy.state.rpc import client as client_module
from chandy.state.rpc.access import Entries
from chandy.state.rpc.client import BatchAccess
from chandy.state.rpc.messages import BeginTask, Endpoint, HostHello
from chandy.storage.catalog import Catalog
from chandy.storage.local import LocalStore
from chandy.storage.manifest import CheckpointKind, OperatorRecord

from ...waiting import DEADLINE, eventually
from .one_life import Queries

SHARDS = (0, 1)


class Cluster:
    """A coordinator, and a state host for each of two executors, as if on two machines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        store = LocalStore(folder / "store")
        catalog = Catalog(store)
        begin = time.time() - time.monotonic()
        generation = catalog.take_over("driver", time.time())
        self.queries = Queries(folder)
        self.queries.newest = self.queries.newest_committed = -1
        self.lost: list[str] = []
        config = CheckpointConfig(interval=None, standbys=1)
        self.executor = CheckpointExecutor(
            CheckpointStateMachine(
                pipeline="p",
                generation=generation.generation,
                root=store.uri,
                limits=config.limits,
                next_id=1,
            ),
            catalog=catalog,
            store=store,
            progress=self.queries,
            clock=lambda: begin + time.monotonic(),
            host_timeout=3.0,
            on_state_lost=self.lost.append,
            on_failure=lambda error: None,
            on_processor_failure=lambda failure: None,
            on_restored=lambda restored: None,
            on_not_opened=lambda query_id, why, code: None,
        )
        self.service = listen("127.0.0.1", "secret", "p")
        runtime = folder / "runtime"
        self.endpoint = Endpoint(
            self.service.address, "secret", "p", 32 << 20, str(folder / "cache"), str(runtime), patience=60.0
        )
        right = self.executor.hosts.orders

        def orders(hello: HostHello) -> Iterator[object]:
            # Both are on this machine, but the protocol must not know it.
            yield from right(attrs.evolve(hello, machine=Path(hello.executor).name))

        self.executor.hosts.orders = orders  # type: ignore[assignment, method-assign]
        self.service.answer(self.executor.hosts)
        operators = (OperatorRecord("op", "q", "{}", {}, (None,) * len(SHARDS)),)
        self.executor.machine.handle(
            on.QueryAdded("q", "id", batch=-1, operators=operators, restored=operators, sources={})
        )
        self.batch = -1

    def begin(self, machine: str, shards: tuple[int, ...] = SHARDS) -> BatchAccess:
        """Begin the running batch beside the host of a machine."""
        root = self.folder / machine
        root.mkdir(exist_ok=True)
        task = BeginTask("id", self.batch, "op", shards)
        _, access = begin_batch(lambda: connect(self.endpoint, str(root)), task, self.endpoint.patience)
        assert isinstance(access, BatchAccess)
        return access

    def count(self, access: BatchAccess, shard: int) -> None:
        """Add one to the value of a shard."""
        (value,) = self.values(access, shard)
        keys, new = pa.array([b"k"], BYTES), pa.array([str(int(value or b"0") + 1).encode()], BYTES)
        access.apply([Entries(np.array([shard], np.int32), keys, new)])

    def values(self, access: BatchAccess, shard: int) -> list[bytes | None]:
        found: list[bytes | None] = access.fetch(
            np.array([shard], np.int32), pa.array([b"k"], BYTES)
        ).to_pylist()
        return found

    def next_batch(self) -> None:
        self.queries.newest_committed = self.batch
        self.batch += 1
        self.queries.newest = self.batch

    def run(self, *machines: str) -> None:
        """Run a batch, the task of each shard beside the host of a machine."""
        self.next_batch()
        for shard, machine in zip(SHARDS, machines, strict=True):
            self.count(self.begin(machine, (shard,)), shard)
        self.queries.newest_committed = self.batch

    def stand_by(self) -> None:
        """Take checkpoints until all shards have standbys."""

        def are_in_sync() -> bool:
            self.executor.request(CheckpointKind.MANUAL).result(DEADLINE)
            return all(one.standby for one in self.executor.machine.read(assigned_shards))

        eventually(are_in_sync, "the standbys")

    def signal(self, machine: str, number: signal.Signals) -> int:
        hellos = self.executor.machine.read(lambda state: list(state.hosts.values()))
        (pid,) = [hello.pid for hello in hellos if hello.machine == machine]
        os.kill(pid, number)
        return pid

    def owners(self) -> list[tuple[str | None, int]]:
        return [(one.machine, one.term) for one in self.executor.machine.read(assigned_shards)]

    def close(self) -> None:
        self.executor.close()
        self.service.shutdown()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(client_module, "_LOOK_SECONDS", 1.0)
    # Unix sockets have short names.
    folder = Path("/tmp") / f"c{os.getpid()}"
    assert socket.gethostname() not in ("a", "b")
    made = Cluster(tmp_path)
    made.endpoint = attrs.evolve(made.endpoint, runtime=str(folder))
    yield made
    made.close()
    shutil.rmtree(folder, ignore_errors=True)


def test_a_batch_goes_on_at_the_standby_when_its_host_is_killed(cluster: Cluster) -> None:
    cluster.run("a", "b")
    cluster.stand_by()
    assert cluster.owners() == [("a", 1), ("b", 1)]
    cluster.run("a", "b")
    cluster.next_batch()
    half = cluster.begin("a", (0,))
    cluster.count(cluster.begin("b", (1,)), 1)
    cluster.signal("a", signal.SIGKILL)
    with pytest.raises(Exception, match="does not answer"):
        cluster.count(half, 0)
    # As Spark runs the task again, beside a host that is started for it.
    cluster.count(cluster.begin("a", (0,)), 0)
    cluster.queries.newest_committed = cluster.batch
    assert cluster.owners() == [("b", 2), ("b", 1)]
    cluster.next_batch()
    access = cluster.begin("b")
    assert [cluster.values(access, shard) for shard in SHARDS] == [[b"3"], [b"3"]]
    access.close()
    assert not cluster.lost


def test_a_batch_goes_on_at_the_standby_when_its_host_is_frozen(cluster: Cluster) -> None:
    cluster.run("a", "b")
    cluster.stand_by()
    cluster.run("a", "b")
    cluster.next_batch()
    half = cluster.begin("b", (0,))
    pid = cluster.signal("a", signal.SIGSTOP)
    try:
        with pytest.raises(Exception, match="does not answer"):
            cluster.count(half, 0)
        cluster.count(cluster.begin("b", (0,)), 0)
        cluster.count(cluster.begin("b", (1,)), 1)
        assert cluster.owners() == [("b", 2), ("b", 1)]
    finally:
        os.kill(pid, signal.SIGCONT)
    cluster.run("b", "b")
    cluster.next_batch()
    access = cluster.begin("b")
    assert [cluster.values(access, shard) for shard in SHARDS] == [[b"4"], [b"4"]]
    access.close()
    assert not cluster.lost


def test_a_task_replaces_the_frozen_host_beside_it(cluster: Cluster) -> None:
    cluster.run("a", "b")
    cluster.stand_by()
    cluster.run("a", "b")
    cluster.next_batch()
    half = cluster.begin("a", (0,))
    pid = cluster.signal("a", signal.SIGSTOP)
    with pytest.raises(Exception, match="does not answer"):
        cluster.count(half, 0)
    cluster.endpoint = attrs.evolve(cluster.endpoint, patience=15.0)
    cluster.count(cluster.begin("a", (0,)), 0)
    cluster.count(cluster.begin("b", (1,)), 1)
    assert cluster.owners() == [("b", 2), ("b", 1)]
    assert [one.pid for one in cluster.executor.machine.read(lambda state: list(state.hosts.values()))].count(
        pid
    ) == 0
    assert not cluster.lost


def test_an_owner_goes_on_when_its_standby_is_frozen(cluster: Cluster) -> None:
    cluster.run("a", "b")
    cluster.stand_by()
    pid = cluster.signal("b", signal.SIGSTOP)
    try:
        cluster.run("a", "a")
        assert not any(one.standby for one in cluster.executor.machine.read(assigned_shards))
    finally:
        os.kill(pid, signal.SIGKILL)
    cluster.run("a", "a")
    assert cluster.owners() == [("a", 1), ("a", 2)]
    cluster.next_batch()
    access = cluster.begin("a")
    assert [cluster.values(access, shard) for shard in SHARDS] == [[b"3"], [b"3"]]
    access.close()
    assert not cluster.lost
