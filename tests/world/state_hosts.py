"""State hosts of a world: the product's own, each in a process of a machine, without sockets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import attrs

from chandy.state.errors import CoordinatorLostError, HostLostError
from chandy.state.format.columns import Columns
from chandy.state.host.changelogs import HostChangelogs, RunChangelogs
from chandy.state.host.changes import Changes
from chandy.state.host.database import Databases
from chandy.state.host.life import live
from chandy.state.host.memory import Memory
from chandy.state.host.state_host import StateHost
from chandy.state.rpc.calls import pack_error, unpack_error
from chandy.state.rpc.messages import Forward, HandOver, HostHello, Message, Reply
from chandy.state.rpc.orders import Order
from chandy.state.rpc.wire import HandedOver
from chandy.storage.checkpoints.files import FileCache
from chandy.storage.disk.directories import HOST_CHANGELOGS, HOSTS
from chandy.storage.disk.owners import OwnerRecord
from chandy.storage.disk.workspace import Workspace
from chandy.storage.store import Store

from .machines import Machine
from .memory_databases import MemoryDatabases
from .network import Network
from .scheduler import Scheduler, SimulatedProcess

T = TypeVar("T")

MEMORY: Final = 4 << 20
"""Bytes of memory of a host."""
LITTLE_MEMORY: Final = 2000
"""Bytes with which it writes to its databases in the midst of batches."""
LEASE_SECONDS: Final = 10.0
FORWARD_SECONDS: Final = 5.0
HAND_OVER_SECONDS: Final = 30.0


class Answering(Protocol):
    """What a driver answers hosts with: ``ConnectedHosts``."""

    @property
    def handlers(self) -> Mapping[type[Message[Any]], Callable[[Any], Any]]: ...

    def orders(self, hello: HostHello) -> Iterator[Order]: ...


@attrs.frozen
class DriverAt:
    """Where a host finds its driver."""

    process: SimulatedProcess
    answering: Answering


@attrs.frozen
class HostSetup:
    """What hosts of a world are started with."""

    open_store: Callable[[str], Store]
    """Opens the store at a URI, for the process that asks."""
    databases: Callable[[int], Databases] = MemoryDatabases
    memory: int = MEMORY
    """Bytes of memory of a host."""
    run_changelogs: Path | None = None
    """The folder of changelogs of runs, which the driver makes: all are on one machine. None: hosts have their own."""
    token: str = "secret"
    """Tells the hosts of one driver from those of others."""
    lease_seconds: float = LEASE_SECONDS


class WorldHost:
    """A state host in a process of a machine."""

    def __init__(
        self,
        hosts: WorldHosts,
        machine: Machine,
        driver: DriverAt,
        setup: HostSetup,
        executor: str,
        number: int,
    ) -> None:
        self.name = f"host-{number}"
        self.machine = machine
        self.executor = executor
        self.driver = driver
        self.setup = setup
        self.state_host: StateHost | None = None
        """None: it has not begun."""
        self.code: int | None = None
        """None: it has not ended by itself."""
        self.hosts = hosts
        self._must_end = False
        shared = f"{self._changelogs} on {machine.name}, start {machine.starts}"
        self.hello = HostHello(
            self.name,
            f"unix:{executor}",
            machine.name,
            executor,
            number,
            pid_of=machine.name,
            place=machine.name,
            network=f"net:{self.name}",
            spark_executor=executor,
            changelogs=None if setup.run_changelogs else shared,
        )
        self.process = machine.start(self.name)
        hosts.scheduler.spawn(self.process, self._run, "main")

    @property
    def is_serving(self) -> bool:
        """Whether tasks find it."""
        return self.process.is_alive and self.hosts.at.get(self.hello.address) is self

    def end(self) -> None:
        """Tell its process to end, as SIGTERM does."""
        self._must_end = True

    @property
    def _changelogs(self) -> Path:
        return self.machine.folder / HOST_CHANGELOGS

    def left(self, query_ids: Collection[str]) -> list[str]:
        """Return what it has that no run of these needs, for people."""
        if (host := self.state_host) is None:
            return []
        table = host._table
        keys = [*table._shards, *(host._arrivals._wanted.values() if host._arrivals else ())]
        found = [f"{key} of {key.query_id}" for key in keys if key.query_id not in query_ids]
        found += [f"{key}, set aside" for key in table._aside]
        found += [f"order {accepted.order.checkpoint}" for accepted in host._snapshots._running]
        found += [str(path) for path in host._snapshots._directory.glob("*") if not host._snapshots._running]
        return [f"{one} at {self.name}" for one in found]

    def _run(self) -> None:
        setup, cache = self.setup, self.machine.folder
        workspace = Workspace.create(cache / HOSTS, self.name, OwnerRecord(HOSTS, self.name))
        # The system releases locks of files when a process has ended. Removed, the directory has none.
        self.process.at_end.append(lambda: workspace.release() if self.code is None else None)
        changelogs: RunChangelogs | HostChangelogs
        if setup.run_changelogs is not None:
            changelogs = RunChangelogs(setup.run_changelogs)
        else:
            changelogs = HostChangelogs.begin(self._changelogs, setup.token, self.name)
            self.process.at_end.append(changelogs.workspace.release)
        link = _Link(self.hosts.network, self.driver)
        self.state_host = StateHost(
            self.name,
            link,
            workspace.path,
            Memory(setup.memory, setup.databases),
            FileCache(cache),
            setup.open_store,
            changelogs,
            _WorldPeers(self.hosts),
        )
        self.hosts.at[f"net:{self.name}"] = self
        self.code = live(
            self.hello,
            link,
            self.state_host,
            directory=workspace.path,
            lease_seconds=setup.lease_seconds,
            announce=self._announce,
            must_end=lambda: self._must_end,
        )
        workspace.remove()
        self.hosts.scheduler.kill(self.process)

    def _announce(self) -> None:
        self.hosts.at[self.hello.address] = self


class WorldHosts:
    """All state hosts of a world, by their addresses.

    Args:
        scheduler: of the threads.
        network: between processes.
    """

    def __init__(self, scheduler: Scheduler, network: Network) -> None:
        self.scheduler = scheduler
        self.network = network
        self.at: dict[str, WorldHost] = {}
        """Who listens at each address, or has listened there last."""
        self.all: list[WorldHost] = []
        self._numbers = itertools.count(1)

    def start(self, machine: Machine, driver: DriverAt, setup: HostSetup, executor: str) -> WorldHost:
        """Start the state host of an executor on a machine."""
        host = WorldHost(self, machine, driver, setup, executor, next(self._numbers))
        self.all.append(host)
        return host

    @property
    def living(self) -> list[WorldHost]:
        """Those that serve."""
        return [host for host in self.all if host.is_serving]

    def call(
        self,
        address: str,
        function: Callable[[StateHost], T],
        what: str,
        timeout: float = float("inf"),
    ) -> T:
        """Have the host at an address do something, and return what it returns.

        Raises:
            HostLostError: nobody answers there.
            ChandyError: what it raises.
        """
        lost = partial(HostLostError, address)
        if (host := self.at.get(address)) is None:
            raise lost("nobody listens there")

        def serve() -> T:
            assert host.state_host is not None
            return function(host.state_host)

        return self.network.call(host.process, packed(serve), what, lost, timeout)


def packed(function: Callable[[], T]) -> Callable[[], T]:
    """Return a function that raises what a caller in another process gets of its errors."""

    def serve() -> T:
        try:
            return function()
        except Exception as error:
            found = unpack_error(pack_error(error))
            assert found is not None
            raise found from error

    return serve


@attrs.frozen
class _Link:
    """``CoordinatorLink`` over the network."""

    network: Network
    driver: DriverAt
    address: str = "driver"

    def send(self, message: Message[Reply]) -> Reply:
        answering = self.driver.answering
        return self.network.call(  # type: ignore[no-any-return]
            self.driver.process,
            packed(lambda: answering.handlers[type(message)](message)),
            type(message).__name__,
            partial(CoordinatorLostError, self.address),
        )

    def orders(self, hello: HostHello) -> Iterator[Order]:
        answering = self.driver.answering
        return self.network.stream(
            self.driver.process,
            lambda: answering.orders(hello),
            "orders",
            partial(CoordinatorLostError, self.address),
        )


@attrs.frozen
class _WorldPeers:
    """``Peers`` over the network."""

    hosts: WorldHosts

    def hand_over(self, address: str, request: HandOver) -> HandedOver:
        def serve(host: StateHost) -> HandedOver:
            return HandedOver.unpack(*host.hand_over(request).pack())

        return self.hosts.call(address, serve, "hand_over", HAND_OVER_SECONDS)

    def forward(self, address: str, request: Forward, changes: Mapping[int, Columns]) -> None:
        def serve(host: StateHost) -> None:
            received: dict[int, Changes] = {}
            for shard, columns in changes.items():
                received[shard] = Changes(f"{request.uid}/{shard}")
                received[shard].add_packed(columns)
            host.follow(request, received)

        self.hosts.call(address, serve, "forward", FORWARD_SECONDS)
