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
from chandy.coordinator.execution.locked_protocol import LockedProtocol
from chandy.coordinator.execution.recording import Recording
from chandy.coordinator.execution.service import listen
from chandy.coordinator.protocol import events
from chandy.coordinator.protocol.decisions import StateGivenUp
from chandy.state.format.arrow import BYTES
from chandy.state.host.discovery import connect
from chandy.state.local.processes import started_at
from chandy.state.rpc import client as client_module
from chandy.state.rpc.access import Entries
from chandy.state.rpc.client import RemoteBatchAccess
from chandy.state.rpc.messages import BatchTimes, BeginTask, Endpoint, HostHello
from chandy.state.shards import RestoreSource, ShardId
from chandy.storage.backends.local import LocalStore
from chandy.storage.backends.open import open_store
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.manifest import CheckpointKind, OperatorRecord
from chandy.storage.errors import ChandyError
from tests.builders import failover

from ...waiting import DEADLINE, eventually, freeze
from ..life_events import RUNS, going_back
from ..stand_ins import RecordedReports, watch_of
from ..strict_machine import StrictStateMachine
from .one_life import Queries

pytestmark = pytest.mark.kills

SHARDS = (0, 1)


class AnyRun(Queries):
    """The query, however often it has gone back."""

    def times(self, query_id: str, batch: int) -> BatchTimes:
        return BatchTimes(batch * 1000, batch * 10, batch * 10 - 10)


class TwoMachines:
    """A coordinator, and a state host for each of two executors, as if on two machines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = LocalStore(folder / "store")
        self.catalog = Catalog(self.store)
        self.queries = AnyRun(folder)
        self.runs = 0
        self.lead()

    def lead(self) -> None:
        """Start a life of the coordinator, which restores the latest checkpoint."""
        reports = RecordedReports()
        self.lost = reports.lost
        begin = time.time() - time.monotonic()

        def clock() -> float:
            return begin + time.monotonic()

        generation = self.catalog.take_over("driver", time.time())
        config = CheckpointConfig(interval=None, standbys=1)
        completed = tuple(self.catalog.completed())
        base = completed[-1].id if completed else None
        self.executor = CheckpointExecutor(
            LockedProtocol(
                StrictStateMachine(
                    pipeline="p",
                    generation=generation.generation,
                    root=self.store.uri,
                    limits=config.limits,
                    next_id=generation.next_id,
                    completed=completed,
                    base=base,
                    failover=failover(),
                ),
                clock,
            ),
            catalog=self.catalog,
            store=self.store,
            open_store=open_store,
            watch=watch_of(self.catalog, generation.generation),
            progress=self.queries,
            clock=clock,
            host_timeout=6.0,
            reports=reports,
            recording=Recording(),
        )
        token = f"secret {generation.generation}"
        self.service = listen("127.0.0.1", token, "p")
        # Unix sockets have short names.
        runtime = Path("/tmp") / f"c{os.getpid()}"
        self.endpoint = Endpoint(
            self.service.address,
            token,
            "p",
            32 << 20,
            str(self.folder / "cache"),
            str(runtime),
            patience=60.0,
        )
        right = self.executor.hosts.orders

        def orders(hello: HostHello) -> Iterator[object]:
            # Both are on this machine, but the protocol must not know it.
            yield from right(attrs.evolve(hello, machine=Path(hello.executor).name))

        self.executor.hosts.orders = orders  # type: ignore[assignment, method-assign]
        self.service.answer(self.executor.hosts)
        self.restore()

    def restore(self) -> None:
        """Have the query go on from the latest checkpoint, as the supervisor does."""
        self.executor.protocol.handle(going_back("a test"))
        self.executor.protocol.handle(StateGivenUp())
        self.executor.protocol.handle(events.Released((f"id {self.runs}",)))
        self.runs += 1
        manifest = self.catalog.latest()
        operators = (OperatorRecord("op", "q", "{}", {}, (None,) * len(SHARDS)),)
        self.batch, sources = -1, {}
        if manifest is not None:
            self.batch = manifest.queries[0].batch
            sources = {
                ShardId("op", shard): RestoreSource(self.store.uri, manifest.id, self.batch, handle)
                for shard, handle in enumerate(manifest.operators[0].shards)
                if handle is not None
            }
        self.queries.newest = self.queries.newest_committed = self.batch
        self.executor.protocol.handle(
            events.QueryAdded(
                "q", f"id {self.runs}", self.batch, operators=operators, restored=operators, sources=sources
            )
        )
        self.executor.protocol.handle(RUNS)
        self.executor.protocol.handle(events.PipelineRestored(manifest.id if manifest else None))

    def begin(self, machine: str, shards: tuple[int, ...] = SHARDS) -> RemoteBatchAccess:
        """Begin the running batch beside the host of a machine."""
        root = self.folder / machine
        root.mkdir(exist_ok=True)
        task = BeginTask(f"id {self.runs}", self.batch, "op", shards)
        _, access = begin_batch(lambda: connect(self.endpoint, str(root)), task, self.endpoint.patience)
        assert isinstance(access, RemoteBatchAccess)
        return access

    def count(self, access: RemoteBatchAccess, shard: int) -> None:
        """Add one to the value of a shard."""
        (value,) = self.values(access, shard)
        keys, new = pa.array([b"k"], BYTES), pa.array([str(int(value or b"0") + 1).encode()], BYTES)
        access.apply([Entries(np.array([shard], np.int32), keys, new)])

    def values(self, access: RemoteBatchAccess, shard: int) -> list[bytes | None]:
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
        self.run_again(*machines)

    def run_again(self, *machines: str) -> None:
        """Run the batch that has begun, to its end."""
        for shard, machine in zip(SHARDS, machines, strict=True):
            self.count(self.begin(machine, (shard,)), shard)
        self.queries.newest_committed = self.batch

    def stand_by(self) -> None:
        """Take checkpoints until all shards have standbys."""

        def are_in_sync() -> bool:
            self.executor.request(CheckpointKind.MANUAL).result(DEADLINE)
            return all(one.standby for one in self.executor.protocol.read(assigned_shards))

        eventually(are_in_sync, "the standbys")

    def begin_with_standbys(self) -> None:
        """Run batches until all shards have standbys, which have followed one batch, and begin another."""
        self.run("a", "b")
        self.stand_by()
        assert self.owners() == [("a", 1), ("b", 1)]
        self.run("a", "b")
        self.next_batch()

    def signal(self, machine: str, number: signal.Signals) -> int:
        pid = self._pid(machine)
        os.kill(pid, number)
        return pid

    def freeze(self, machine: str) -> int:
        pid = self._pid(machine)
        freeze(pid)
        return pid

    def _pid(self, machine: str) -> int:
        hellos = self.executor.protocol.read(lambda state: list(state.members.hosts.values()))
        (pid,) = [hello.pid for hello in hellos if hello.machine == machine]
        return pid

    def owners(self) -> list[tuple[str | None, int]]:
        return [(one.machine, one.term) for one in self.executor.protocol.read(assigned_shards)]

    def close(self) -> None:
        self.executor.close()
        self.service.shutdown()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoMachines]:
    monkeypatch.setattr(client_module, "_LOOK_SECONDS", 1.0)
    assert socket.gethostname() not in ("a", "b")
    made = TwoMachines(tmp_path)
    yield made
    made.close()
    shutil.rmtree(made.endpoint.runtime, ignore_errors=True)


def test_a_batch_goes_on_at_the_standby_when_its_host_is_killed(cluster: TwoMachines) -> None:
    cluster.begin_with_standbys()
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
    # Another host has joined, and no batch runs: shards move there, and get standbys.
    cluster.run_again("a", "b")
    cluster.stand_by()


def test_a_batch_goes_on_at_the_standby_when_its_host_is_frozen(cluster: TwoMachines) -> None:
    cluster.begin_with_standbys()
    half = cluster.begin("b", (0,))
    pid = cluster.freeze("a")
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


def test_a_task_replaces_the_frozen_host_beside_it(cluster: TwoMachines) -> None:
    cluster.begin_with_standbys()
    half = cluster.begin("a", (0,))
    pid = cluster.freeze("a")
    with pytest.raises(Exception, match="does not answer"):
        cluster.count(half, 0)
    cluster.endpoint = attrs.evolve(cluster.endpoint, patience=20.0)
    cluster.count(cluster.begin("a", (0,)), 0)
    cluster.count(cluster.begin("b", (1,)), 1)
    assert cluster.owners() == [("b", 2), ("b", 1)]
    assert [
        one.pid for one in cluster.executor.protocol.read(lambda state: list(state.members.hosts.values()))
    ].count(pid) == 0
    assert not cluster.lost


def test_an_owner_goes_on_when_its_standby_is_frozen(cluster: TwoMachines) -> None:
    cluster.run("a", "b")
    cluster.stand_by()
    pid = cluster.freeze("b")
    try:
        cluster.run("a", "a")
        assert not any(one.standby for one in cluster.executor.protocol.read(assigned_shards))
    finally:
        os.kill(pid, signal.SIGKILL)
    cluster.run("a", "a")
    assert cluster.owners() == [("a", 1), ("a", 2)]
    cluster.next_batch()
    access = cluster.begin("a")
    assert [cluster.values(access, shard) for shard in SHARDS] == [[b"3"], [b"3"]]
    access.close()
    assert not cluster.lost


# --- no standby is left -------------------------------------------------------------------------------------


def goes_on_from_the_checkpoint(cluster: TwoMachines) -> None:
    """See that batches 1 and 2 run again, beside other hosts, from what batch 0 has left, and count once."""
    assert cluster.batch == 0
    cluster.run("a", "b")
    cluster.run("a", "b")
    cluster.next_batch()
    access = cluster.begin("a")
    assert [cluster.values(access, shard) for shard in SHARDS] == [[b"3"], [b"3"]]
    access.close()
    cluster.run_again("a", "b")
    cluster.stand_by()


def in_a_batch(cluster: TwoMachines) -> None:
    """Run two batches with a checkpoint in between, and half of a third one."""
    cluster.run("a", "b")
    cluster.stand_by()
    cluster.run("a", "b")
    cluster.next_batch()
    cluster.count(cluster.begin("b", (1,)), 1)


def in_a_promotion(cluster: TwoMachines) -> int:
    """Kill the owner of a shard while the host of its standby, whose process id is returned, is frozen."""
    in_a_batch(cluster)
    pid = cluster.freeze("b")
    cluster.signal("a", signal.SIGKILL)
    eventually(
        lambda: cluster.executor.protocol.read(lambda state: state.placement.standbys.holds("q")),
        "the promotion",
    )
    return pid


def test_the_loss_of_a_shard_and_its_standby_in_one_batch_goes_back(cluster: TwoMachines) -> None:
    in_a_batch(cluster)
    for machine in ("a", "b"):
        cluster.signal(machine, signal.SIGKILL)
    eventually(lambda: bool(cluster.lost), "the loss")
    with pytest.raises(
        ChandyError, match="is gone; the pipeline goes back to its latest checkpoint by itself"
    ):
        cluster.begin("a", (0,))
    cluster.restore()
    goes_on_from_the_checkpoint(cluster)


def test_the_loss_of_a_host_that_is_being_promoted_goes_back(cluster: TwoMachines) -> None:
    pid = in_a_promotion(cluster)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: bool(cluster.lost), "the loss")
    cluster.restore()
    goes_on_from_the_checkpoint(cluster)


def test_what_is_promoted_for_a_driver_that_is_gone_counts_no_more(cluster: TwoMachines) -> None:
    pid = in_a_promotion(cluster)
    cluster.close()
    os.kill(pid, signal.SIGCONT)
    cluster.lead()
    goes_on_from_the_checkpoint(cluster)
    assert not cluster.lost
    eventually(lambda: started_at(pid) is None, "the end of the host that nobody leads")
