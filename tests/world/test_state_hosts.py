"""State hosts live in a world as they do in processes: what they hold outlives them as far as it is promised."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from chandy.state.errors import HostLostError
from chandy.state.host.cache import Value
from chandy.state.host.shard_key import ShardKey
from chandy.state.rpc.messages import (
    Ack,
    BeginTask,
    CopyReport,
    HostHello,
    HostPulse,
)
from chandy.state.rpc.orders import (
    ConfirmOwner,
    Heartbeat,
    OpenAhead,
    Order,
    Reopen,
    StopHost,
    TakeOver,
)
from chandy.state.shards import RestoreSource, ShardId
from chandy.storage import runtime

from ..state.fake_control import FakeControl, order
from .choices import Choices
from .machines import Machine
from .network import Network
from .runtime import SimulatedRuntime
from .scheduler import Scheduler
from .state_hosts import DriverAt, HostSetup, WorldHost, WorldHosts
from .store import Bucket, ScriptedStore
from .tasks import run_task, task_client

STORE = "world://store"
KEYS = {0: [b"a", b"c"], 1: [b"b"]}


class ScriptedDriver(FakeControl):
    """Answers hosts what a test says, and sends them what a test orders."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self.scheduler = scheduler
        self.streams: dict[str, runtime.Queue[Order]] = {}
        self.hellos: list[HostHello] = []
        self.handlers[HostPulse] = lambda pulse: None

    def orders(self, hello: HostHello) -> Iterator[Order]:
        self.hellos.append(hello)
        stream = self.streams[hello.host] = runtime.simple_queue()
        yield Heartbeat()
        while True:
            try:
                yield stream.get(timeout=0.5)
            except runtime.Empty:
                yield Heartbeat()


class SmallWorld:
    """Two machines with a host each, a scripted driver, a store."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.scheduler = Scheduler(Choices(seed))
        self.network = Network(self.scheduler)
        self.hosts = WorldHosts(self.scheduler, self.network)
        self.bucket = Bucket(STORE)
        self.driver = ScriptedDriver(self.scheduler)
        self.at = DriverAt(self.scheduler.process("driver"), self.driver)
        self.setup = HostSetup(lambda uri: ScriptedStore(self.scheduler, self.bucket))
        self.machines = [Machine(self.scheduler, name, folder / name) for name in "ab"]
        for machine in self.machines:
            machine.folder.mkdir()
        self.batch = -1

    def start(self, machine: int, executor: str) -> WorldHost:
        host = self.hosts.start(self.machines[machine], self.at, self.setup, executor)
        self.scheduler.run(lambda: host.is_serving)
        return host

    def run(self, host: WorldHost, batch: int, keys: dict[int, list[bytes]] = KEYS) -> None:
        """A batch that appends its number to the value of each key."""
        client = task_client(host)
        task = BeginTask("q", batch, "op", tuple(keys))

        def update(shard: int, key: bytes, value: Value) -> Value:
            return (value or b"") + b"%d" % batch

        self.scheduler.call(self.scheduler.world, lambda: run_task(client, task, keys, update))

    def values(self, host: WorldHost, batch: int, keys: dict[int, list[bytes]] = KEYS) -> dict[bytes, Value]:
        """What tasks of a batch find, which change nothing."""
        found: dict[bytes, Value] = {}
        client = task_client(host)

        def keep(shard: int, key: bytes, value: Value) -> Value:
            found[key] = value
            return value

        task = BeginTask("q", batch, "op", tuple(keys))
        self.scheduler.call(self.scheduler.world, lambda: run_task(client, task, keys, keep))
        return found

    def order(self, host: WorldHost, order: Order) -> None:
        self.driver.streams[host.name].put(order)

    def checkpoint(self, host: WorldHost, checkpoint: int, cut: int) -> Ack:
        self.order(host, order(STORE, checkpoint, cut, (0, 1), follow=(ShardId("op", 0),)))
        self.scheduler.run(lambda: not self.driver.acks.empty())
        return self.driver.acks.get_nowait()

    def confirm_owner(self, shard: ShardId, owner: WorldHost, others: list[WorldHost]) -> None:
        """Say whose a shard is, and wait until its owner knows."""
        for host in (owner, *others):
            self.order(host, ConfirmOwner("q", shard, owner.name, 2))
        assert owner.state_host is not None
        table = owner.state_host._table
        self.scheduler.run(lambda: ShardKey("q", "op", shard.shard) in table._shards)

    def reported(self) -> CopyReport:
        self.scheduler.run(lambda: not self.driver.moves.empty())
        return self.driver.moves.get_nowait()


@pytest.fixture(params=range(3))
def world(request: pytest.FixtureRequest) -> Iterator[SmallWorld]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        made = SmallWorld(Path(folder), request.param)
        with runtime.used(SimulatedRuntime(made.scheduler)):
            yield made
            made.scheduler.end()


def test_the_next_host_has_the_state_of_the_checkpoint_that_a_killed_one_has_acknowledged(
    world: SmallWorld,
) -> None:
    host = world.start(0, "x")
    for batch in range(3):
        world.run(host, batch)
    ack = world.checkpoint(host, 1, 2)
    world.run(host, 3)
    world.scheduler.kill(host.process)
    with pytest.raises(HostLostError):
        world.run(host, 4)
    world.driver.restore_from(ack, STORE, 2)
    again = world.start(1, "y")
    assert world.values(again, 3) == {b"a": b"012", b"b": b"012", b"c": b"012"}
    world.run(again, 3)


def test_a_shard_moves_with_what_came_after_its_checkpoint(world: SmallWorld) -> None:
    owner, target = world.start(0, "x"), world.start(1, "y")
    world.run(owner, 0)
    ack = world.checkpoint(owner, 1, 0)
    world.run(owner, 1)
    (handle,) = [one.handle for one in ack.snapshots if one.shard.shard == 0]
    shard, address = ShardId("op", 0), owner.hello.network or ""
    world.order(target, OpenAhead(1, "q", shard, RestoreSource(STORE, 1, 0, handle), address, 1))
    assert world.reported().step == "opened"
    world.run(owner, 2)
    world.order(target, TakeOver(1, 2, 2))
    assert world.reported().step == "taken"
    world.confirm_owner(shard, target, [owner])
    world.driver.elsewhere = {0: target.hello.address}
    assert world.values(owner, 3) == {b"a": b"012", b"b": b"012", b"c": b"012"}


def test_a_host_opens_the_shards_of_one_that_was_killed_on_its_machine(world: SmallWorld) -> None:
    lost, other = world.start(0, "x"), world.start(0, "y")
    for batch in range(3):
        world.run(lost, batch)
    world.scheduler.kill(lost.process)
    for number in (0, 1):
        world.order(
            other, Reopen(number, "q", ShardId("op", number), None, -1, lost.name, cut=1, begun=2, term=2)
        )
        assert world.reported().step == "taken"
        world.confirm_owner(ShardId("op", number), other, [])
    assert world.values(other, 3) == {b"a": b"012", b"b": b"012", b"c": b"012"}


def test_a_host_without_its_driver_ends_and_leaves_nothing(world: SmallWorld) -> None:
    host = world.start(0, "x")
    world.run(host, 0)
    world.scheduler.kill(world.at.process)
    world.scheduler.run(lambda: not host.process.is_alive)
    assert host.code == 1
    assert [path for path in world.machines[0].folder.rglob("*") if path.name.startswith("host-")] == []


def test_a_host_that_is_told_to_stop_ends(world: SmallWorld) -> None:
    host = world.start(0, "x")
    world.order(host, StopHost())
    world.scheduler.run(lambda: not host.process.is_alive)
    assert host.code == 0 and not host.is_serving
