"""Two state hosts between which a shard goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chandy.state.host.changes import Changes
from chandy.state.host.memory import Memory
from chandy.state.host.serving import HostServer
from chandy.state.host.state_host import StateHost
from chandy.state.rpc.client import HostClient
from chandy.state.rpc.messages import BeginTask, CopyReport, ReadValues
from chandy.state.rpc.orders import ConfirmOwner, OpenAhead, TakeOver
from chandy.state.shards import RestoreSource, ShardId
from chandy.storage.checkpoints.files import FileCache

from ...waiting import DEADLINE
from ..fake_control import FakeControl, order

SHARD = ShardId("op", 0)
TOKEN = "secret"


class Pair:
    """The owner of a shard and the host that it moves to."""

    def __init__(self, directory: Path) -> None:
        self.store = f"file://{directory / 'store'}"
        self.controls = {name: FakeControl() for name in ("owner", "target")}
        self.hosts = {
            name: StateHost(
                name,
                control,
                directory / name,
                Memory(32 << 20),
                FileCache(directory / name / "cache"),
                peers=HostClient(TOKEN, None),
            )
            for name, control in self.controls.items()
        }
        self.addresses = {name: f"grpc+unix://{directory}/{name}.sock" for name in self.hosts}
        self.servers = {
            name: HostServer(self.addresses[name], TOKEN, host) for name, host in self.hosts.items()
        }

    def run(self, name: str, batch: int, values: dict[bytes, bytes | None], term: int = 1) -> None:
        """Run a batch on a host, whose term of the shard must be this one."""
        begun = self.hosts[name].begin(BeginTask("q", batch, "op", (0,)))
        assert begun.terms == ({0: term} if term > 1 else {})
        task = BeginTask("q", batch, "op", (0,), begun.terms)
        changes = {0: Changes.of("op/0", values)} if values else {}
        self.hosts[name].stage(task, self.hosts[name].shards(task), changes)

    def value(self, name: str, key: bytes) -> str | None:
        return self.hosts[name].read(ReadValues("q", "op", (key.hex(),), 10**6)).entries.get(key.hex())

    def checkpoint(self, checkpoint: int, cut: int) -> RestoreSource:
        """Take a checkpoint on the owner, which keeps what follows."""
        taken = order(self.store, checkpoint, cut, (0,), follow=(SHARD,))
        self.hosts["owner"].obey(taken)
        (snapshot,) = self.controls["owner"].acked().snapshots
        return RestoreSource(self.store, checkpoint, cut, snapshot.handle)

    def open_ahead(self, source: RestoreSource) -> CopyReport:
        self.hosts["target"].obey(OpenAhead(1, "q", SHARD, source, self.addresses["owner"], 1))
        return self.reported()

    def take_over(self, cut: int, term: int = 2) -> CopyReport:
        self.hosts["target"].obey(TakeOver(1, cut, term))
        return self.reported()

    def reported(self) -> CopyReport:
        return self.controls["target"].moves.get(timeout=DEADLINE)

    def confirm_owner(self, owner: str, term: int) -> None:
        for host in self.hosts.values():
            host.obey(ConfirmOwner("q", SHARD, owner, term))

    def run_three(self) -> RestoreSource:
        """Run batches 0 to 2 on the owner, with a checkpoint after the first."""
        self.run("owner", 0, {b"a": b"0", b"b": b"0"})
        source = self.checkpoint(1, 0)
        self.run("owner", 1, {b"a": b"1", b"c": b"1"})
        self.run("owner", 2, {b"b": None, b"c": b"2"})
        return source

    def close(self) -> None:
        for server in self.servers.values():
            server.shutdown()
        for host in self.hosts.values():
            host.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()
