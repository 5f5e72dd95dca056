"""State hosts: the product's own, in a process of a machine, connected by the world's network."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, cast

import attrs

from chandy.coordinator.execution.connected_hosts import ConnectedHosts
from chandy.state.errors import CoordinatorLostError, HostLostError
from chandy.state.format.columns import Columns
from chandy.state.host.changes import Changes
from chandy.state.host.coordinator_client import CoordinatorClient, Lease, OrderStream, Pulse
from chandy.state.host.memory import Memory
from chandy.state.host.state_host import StateHost
from chandy.state.rpc.calls import ActionClient
from chandy.state.rpc.messages import BeginTask, Begun, Forward, HandOver, HostHello, Message, Reply
from chandy.state.rpc.orders import Order
from chandy.state.rpc.wire import HandedOver
from chandy.storage import runtime
from chandy.storage.checkpoints.files import FileCache
from chandy.storage.store import Store

from .machines import Machine
from .memory_databases import MemoryDatabases
from .network import Network
from .records import records_of
from .scheduler import SimulatedProcess

LEASE_SECONDS = 10.0


class Coordinator(Protocol):
    """A driver as its hosts know it."""

    process: SimulatedProcess
    hosts: ConnectedHosts
    connected: dict[str, WorldHost]
    """Its hosts, by their addresses; also those that have ended."""


@attrs.frozen
class WorldControl:
    """``Control`` over the world's network, and the ``ActionClient`` of the stream of orders."""

    network: Network
    driver: Coordinator

    def send(self, message: Message[Reply]) -> Reply:
        handle = self.driver.hosts.handlers[type(message)]
        answer = self.network.call(
            self.driver.process, lambda: handle(message), type(message).__name__, self.lost
        )
        return cast(Reply, answer)

    def stream(self, name: str, hello: HostHello, _: object) -> Iterator[Order]:
        return self.network.stream(
            self.driver.process, lambda: self.driver.hosts.orders(hello), name, self.lost
        )

    def lost(self, why: str) -> CoordinatorLostError:
        return CoordinatorLostError(self.driver.process.name, why)


@attrs.frozen
class WorldPeers:
    """``Peers`` over the world's network."""

    network: Network
    driver: Coordinator

    def hand_over(self, address: str, request: HandOver) -> HandedOver:
        other = self.driver.connected[address]
        return other.call(lambda: other.state.hand_over(request), "hand_over")

    def forward(self, address: str, request: Forward, changes: Mapping[int, Columns]) -> None:
        def follow() -> None:
            found = {shard: Changes(f"{request.uid}/{shard}") for shard in changes}
            for shard, columns in changes.items():
                found[shard].add(columns)
            other.state.follow(request, found)

        other = self.driver.connected[address]
        other.call(follow, "forward")


class WorldHost:
    """A state host, from its start to its end.

    Args:
        network: connects it.
        driver: whose host it is.
        machine: where it runs.
        name: its id, which nobody else has.
        open_store: opens stores.
    """

    def __init__(
        self,
        network: Network,
        driver: Coordinator,
        machine: Machine,
        name: str,
        open_store: Callable[[str], Store],
    ) -> None:
        self.network = network
        self.machine = machine
        self.hello = HostHello(
            name,
            name,
            machine.name,
            machine.name,
            1,
            pid_of="another machine",
            place=machine.name,
            network=name,
            spark_executor=machine.name,
        )
        self.process = machine.start(name)
        self.directory = machine.folder / name
        self.is_ready = False
        self.state: StateHost
        driver.connected[name] = self
        self._control: Any = WorldControl(network, driver)
        self._peers = WorldPeers(network, driver)
        self._open_store = open_store
        machine.scheduler.spawn(self.process, self._run, "main")

    def call(self, function: Callable[[], Any], what: str) -> Any:
        """Have it carry a function out.

        Raises:
            HostLostError: there is no answer.
        """
        return self.network.call(
            self.process, function, what, lambda why: HostLostError(self.hello.address, why)
        )

    def _run(self) -> None:
        """As ``chandy.state.host.process`` does, without a process."""
        self.directory.mkdir(parents=True)
        self.state = StateHost(
            self.hello.host,
            self._control,
            self.directory,
            Memory(1 << 20, MemoryDatabases),
            FileCache(self.machine.folder / "cache"),
            self._open_store,
            peers=self._peers,
        )
        with Pulse(cast(CoordinatorClient, self._control), self.hello.host, self.directory).beating():
            lease = Lease(LEASE_SECONDS)
            orders = OrderStream(cast(ActionClient, self._control), self.hello, self.state.obey, lease)
            runtime.thread(orders.follow, "orders").start()
            while not orders.welcomed.wait(0.1):
                if lease.expired:
                    break
            self.is_ready = orders.welcomed.is_set()
            while not (self.state.stopped.wait(1.0) or lease.expired):
                pass
        self.is_ready = False
        self.machine.scheduler.kill(self.process)


# --- what a task does ---------------------------------------------------------------------------------------


def begin(host: WorldHost, task: BeginTask) -> list[tuple[WorldHost, BeginTask]]:
    """Begin a task's batch at a host; return who has which of its shards."""
    begun: Begun = host.call(lambda: host.state.begin(task), "begin")
    here = tuple(shard for shard in task.shards if shard not in begun.elsewhere)
    parts = [(host, attrs.evolve(task, shards=here, terms=begun.terms))] if here else []
    for address in sorted(set(begun.elsewhere.values())):
        there = tuple(shard for shard in task.shards if begun.elsewhere.get(shard) == address)
        other = host._peers.driver.connected[address]
        found: Begun = other.call(
            lambda other=other, there=there: other.state.begin(attrs.evolve(task, shards=there)), "begin"
        )
        if found.elsewhere:
            raise HostLostError(address, "it has not the shards either")
        parts.append((other, attrs.evolve(task, shards=there, terms=found.terms)))
    return parts


def apply(host: WorldHost, task: BeginTask, query: str, start: int, end: int) -> None:
    """Add the records from ``start`` to before ``end`` to a task's shards at a host."""

    def exchange() -> None:
        shards = host.state.shards(task)
        changes: dict[int, Changes] = {}
        for number, shard in shards.items():
            new = records_of(query, number, start, end)
            keys = [str(key).encode() for key in new]
            old = [json.loads(value) if value else [] for value in shard.fetch(keys)]
            entries = {
                key: json.dumps([*before, *records]).encode()
                for key, before, records in zip(keys, old, new.values(), strict=True)
            }
            if entries:
                changes[number] = Changes.of(shard.name, entries)
        host.state.stage(task, shards, changes)

    host.call(exchange, "apply")
