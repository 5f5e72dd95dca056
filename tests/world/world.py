"""A world: machines, stores and the drivers of one pipeline, what happens to them, and whether promises are kept."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import attrs

from chandy.coordinator.checkpoint import Checkpoint
from chandy.coordinator.errors import CheckpointError
from chandy.coordinator.protocol.reasons import Reason
from chandy.coordinator.restore.restore_point import LATEST
from chandy.coordinator.spark.progress import newest_committed
from chandy.state.host.database import Databases
from chandy.state.host.rocksdb import RocksDatabases
from chandy.state.local import changelog
from chandy.storage import runtime
from chandy.storage.backends.retrying import RetryingStore
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.manifest import CheckpointKind
from chandy.storage.checkpoints.pins import Pins
from chandy.storage.checkpoints.proof import Unshared
from chandy.storage.checkpoints.snapshots import PACK_BELOW
from chandy.storage.errors import ChandyError, StorageError
from chandy.storage.store import Store

from .choices import Choices
from .driver import Driver
from .events import WorldEvent
from .machines import Machine
from .memory_databases import MemoryDatabases
from .network import Loss, Network
from .promises import Promises, catalog_of
from .scheduler import Scheduler, SimulatedProcess
from .state_hosts import LITTLE_MEMORY, MEMORY, DriverAt, HostSetup, WorldHost, WorldHosts
from .store import Bucket, Fault, ScriptedStore, Trouble
from .targets import NAMES, Target
from .users import Users

ROOT: Final = "memory://pipeline"
CONFIG: Final[dict[str, Any]] = {
    "interval": "4 s",
    "initial_delay": 2.0,
    "retained": 2,
    "max_concurrent": 3,
    "tolerable_failures": 1,
    "timeout": "30 s",
    "savepoint_timeout": "60 s",
    "max_queued": 20,
    "max_unpublished": 3,
}
TIDY_SECONDS: Final = 60.0
"""Seconds in which what nobody needs is gone."""
DISK_SECONDS: Final = 2.0
"""Seconds that a disk takes at most to write what a database has."""
STEPS: Final = 2_000_000
"""More than any run needs: who takes so many goes round in circles."""
PEACEFUL: Final = frozenset({"checkpoint", "savepoint", "pipeline_rests", "operator_is_rescaled"})
"""Events that stand in nobody's way."""
BOUND: Final = 900.0
"""Seconds in which everything that was asked for has ended once nothing is in the way any more."""


_STOPPED: Final = (
    Reason.NOT_ALL_REQUIRED_TASKS_RUNNING,
    Reason.SUBSUMED,
    Reason.COORDINATOR_SHUTDOWN,
)
"""What a checkpoint may end with that was under way when its pipeline was stopped."""


class World:
    """Everything there is.

    Args:
        seed: of all choices.
        folder: for the disks of machines.
        has_rocksdb: whether hosts have the databases of production.
        publishes: whether a query has transactional sinks.
        is_local: whether driver and executor are on one machine.
    """

    def __init__(
        self,
        seed: object,
        folder: Path,
        *,
        has_rocksdb: bool = False,
        publishes: bool = False,
        is_local: bool = False,
    ) -> None:
        self.scheduler = Scheduler(Choices(seed))
        self.is_local = is_local
        self.has_rocksdb = has_rocksdb
        self.network = Network(self.scheduler)
        self.folder = folder
        self.root = ROOT
        self.buckets: dict[str, Bucket] = {}
        self.promises = Promises(self)
        self.machines = {
            name: Machine(self.scheduler, name, folder / name) for name in ("driver", "a", "b", "c")
        }
        for machine in self.machines.values():
            machine.folder.mkdir()
        self.drivers: list[Driver] = []
        self.executors = ["driver"] if is_local else ["a", "b"]
        """The machines that have an executor."""
        self.is_healed = False
        """Whether nothing is in the way any more."""
        self.refuses_starts = True
        """Whether Spark cannot start a query now and then."""
        self.named = 0
        """The checkpoint that the next start is to name; 0: none."""
        self.met: list[str] = []
        """The kinds of what has happened, in their order."""
        chance = self.scheduler.choices.stream("world")
        self.config = CONFIG | {"standbys": int(chance.random() < 0.7 and not is_local)}
        self.host_memory = MEMORY if chance.random() < 0.7 else LITTLE_MEMORY
        self.smallest_table = chance.choice((0, PACK_BELOW))
        self.eagerness = 1.0 if chance.random() < 0.3 else 0.05
        """How likely an executor starts a host at a moment at which it could."""
        self.state_hosts = WorldHosts(self.scheduler, self.network)
        self.last_error: BaseException | None = None
        self.bucket(self.root)
        can_rewind = self.scheduler.choices.stream("targets").random() < 0.5
        self.targets = {name: Target(self, name, can_rewind) for name in (NAMES if publishes else ())}

    # --- stores ---------------------------------------------------------------------------------------------

    def bucket(self, uri: str) -> Bucket:
        """Return what a store has."""
        if uri not in self.buckets:
            self.buckets[uri] = Bucket(uri)
            self.buckets[uri].changing = lambda act: self.promises.changing(uri, act)
        return self.buckets[uri]

    def open(self, uri: str) -> Store:
        """Open a store, as a process does."""
        return RetryingStore(ScriptedStore(self.scheduler, self.bucket(uri)))

    def catalog(self) -> Catalog:
        """Return the pipeline's catalog as it is now, for the world to look at."""
        return catalog_of(self.buckets[self.root])

    # --- drivers and hosts ----------------------------------------------------------------------------------

    @property
    def driver(self) -> Driver:
        """The newest driver."""
        return self.drivers[-1]

    def newest_begun(self) -> Driver | None:
        """Return the driver of the highest generation that has begun."""
        begun = [driver for driver in self.drivers if driver.has_begun]
        return max(begun, key=lambda driver: driver.generation, default=None)

    def start_driver(self, restore: str | int = LATEST) -> Driver:
        """Start a driver, whatever others do. After a refusal its user names the newest checkpoint."""
        if restore == LATEST and self.named:
            restore = self.named
        # The user who starts it next was not told.
        self.named = 0
        machine = self.machines["driver"]
        machine.start_again()
        driver = Driver(self, machine, len(self.drivers) + 1, restore)
        self.drivers.append(driver)
        self.scheduler.spawn(
            self.scheduler.world, lambda: self._keep_hosts(driver), f"executors {driver.number}"
        )
        return driver

    def start_again(self, seconds: float = 10.0) -> None:
        """Have somebody start a driver in a while, unless there is one or everything heals."""

        def start() -> None:
            runtime.sleep(seconds)
            if not self.is_healed and not any(one.process.is_alive for one in self.drivers):
                self.start_driver()

        self.scheduler.spawn(self.scheduler.world, start, "starts it again")

    def _keep_hosts(self, driver: Driver) -> None:
        """Have each executor start a state host for a driver, and another one in the place of one that has ended."""
        while driver.process.is_alive:
            runtime.sleep(0.5)
            if not driver.has_begun or driver.process.is_frozen:
                continue
            for name in self.executors:
                there = [host for host in driver.connected.values() if host.machine.name == name]
                if any(host.process.is_alive for host in there) or not self.machines[name].is_on:
                    continue
                if self.scheduler.choices.stream("executors").random() > self.eagerness:
                    continue
                host = self.state_hosts.start(
                    self.machines[name],
                    DriverAt(driver.process, driver.hosts),
                    HostSetup(
                        self.open,
                        self._databases(name),
                        self.host_memory,
                        run_changelogs=driver.machine.folder / changelog.FOLDER if self.is_local else None,
                        token=driver.process.name,
                    ),
                    f"{driver.process.name}-{name}",
                )
                driver.connected[host.name] = host

    def _databases(self, name: str) -> Callable[[int], Databases]:
        """Return what makes the databases of a host on a machine."""
        if self.has_rocksdb:
            return RocksDatabases
        machine = self.machines[name]
        return lambda memory: MemoryDatabases(
            memory, lambda what: self._use_disk(machine, what), self.smallest_table
        )

    def _use_disk(self, machine: Machine, what: str) -> None:
        if what in ("read", "scan"):
            self.scheduler.point()
        else:
            chance = self.scheduler.choices.stream("disks")
            self.scheduler.sleep(DISK_SECONDS * chance.random() ** 3, f"{machine.name} to {what}")
        if machine.is_full and what in ("write", "checkpoint"):
            raise OSError(errno.ENOSPC, "No space left on device")

    @property
    def hosts(self) -> list[WorldHost]:
        """The hosts that live."""
        return [
            host for driver in self.drivers for host in driver.connected.values() if host.process.is_alive
        ]

    @property
    def is_at_peace(self) -> bool:
        """Whether nothing has happened but requests of users."""
        return all(kind in PEACEFUL for kind in self.met)

    # --- runs -----------------------------------------------------------------------------------------------

    def run(self, events: Sequence[WorldEvent]) -> None:
        """Have events happen, and then everything come to its end.

        Raises:
            AssertionError: a promise is broken, somebody waits for ever, or a thread has ended by an error.
        """
        scheduler = self.scheduler
        self.start_driver()
        over: list[bool] = []
        director = Director(self)

        def direct() -> None:
            for event in events:
                runtime.sleep(max(0.0, event.at - scheduler.now))
                self.met.append(f"{event.kind} {event.what}".strip())
                getattr(director, event.kind)(event)
            director.heal()
            over.append(True)

        scheduler.spawn(scheduler.world, direct, "director")
        scheduler.run(lambda: bool(over), steps=STEPS)
        self.promises.whole()
        scheduler.run(self._is_at_rest, steps=STEPS, seconds=BOUND)
        self._takes_a_checkpoint()
        self._all_go_on()
        newest = self.promises.epoch_ends.get(max(self.promises.announced), 0)
        scheduler.run(
            lambda: all(len(target.rows) >= newest for target in self.targets.values()),
            steps=STEPS,
            seconds=BOUND,
        )
        self.promises.whole()
        self._tidies_up()
        if self.is_local:
            self._resumes()
        self._stops()

    def _committed(self) -> dict[str, tuple[str, int]]:
        """Return the id of each query's run, and what it has committed."""
        leader = self.newest_begun()
        runs = [] if leader is None else leader.runs.all()
        return {run.definition.name: (run.query_id, newest_committed(run.directory)) for run in runs}

    def _all_go_on(self) -> None:
        """Each query commits further batches. An input is never at its end."""
        before = self._committed()

        def go_on() -> bool:
            now = self._committed()
            return all(now.get(name) != was for name, was in before.items())

        self.scheduler.run(go_on, steps=STEPS, seconds=BOUND)

    def _resumes(self) -> None:
        """No batch runs again after the host was killed, or the driver. Nothing else is in the way."""
        self.refuses_starts = False
        self._resumes_after(self._kill_host)
        self._resumes_after(self._kill_driver)
        self._takes_a_checkpoint()

    def _resumes_after(self, kill: Callable[[], None]) -> None:
        before, restored = self._committed(), self.promises.met["Restored"]
        kill()

        def are_new() -> bool:
            now = self._committed()
            return now.keys() == before.keys() and all(now[name][0] != id for name, (id, _) in before.items())

        self.scheduler.run(are_new, steps=STEPS, seconds=BOUND)
        assert self.promises.met["Restored"] == restored, f"batches run again after {kill.__name__}"
        self._all_go_on()

    def _kill_host(self) -> None:
        [host] = self.hosts
        self.scheduler.kill(host.process)

    def _kill_driver(self) -> None:
        leader = self.newest_begun()
        assert leader is not None
        self.scheduler.kill(leader.process)
        # Whatever the user of a driver that was refused has been told.
        self.named = 0
        self.start_driver()

    def _tidies_up(self) -> None:
        """Nothing is left at hosts that nobody needs, and nobody is left without a driver."""
        scheduler, until = self.scheduler, self.scheduler.now + TIDY_SECONDS
        dropped = self._dropped()
        while left := self._left() + sorted(dropped & self._dropped()):
            if scheduler.now > until:
                raise AssertionError(f"what nobody needs is left: {left}")
            scheduler.call(scheduler.world, lambda: runtime.sleep(1.0), steps=STEPS)

    def _dropped(self) -> set[str]:
        """The checkpoints that are being deleted."""
        leader = self.newest_begun()
        if leader is None:
            return set()
        deleting = leader.state.checkpoints.retained._deleting
        return {f"checkpoints {ids} of driver {leader.number}, dropped" for ids in deleting}

    def _left(self) -> list[str]:
        found: list[str] = []
        for driver in self.drivers:
            for host in driver.connected.values():
                if host.process.is_alive and driver.process.is_alive:
                    found += host.left({run.query_id for run in driver.runs.all()})
                elif host.process.is_alive:
                    found.append(f"{host.name}, whose driver is gone")
        return found

    def _stops(self) -> None:
        """A user asks for a checkpoint, and for a stop a moment later. Nothing is in the way of either."""
        scheduler, leader = self.scheduler, self.newest_begun()
        assert leader is not None
        wait = scheduler.choices.stream("world").random() ** 2
        asked: list[Future[Checkpoint]] = []
        ended: list[Exception | None] = []

        def ask() -> None:
            asked.append(leader.request(CheckpointKind.MANUAL))
            runtime.sleep(wait)
            try:
                leader.stop("memory://stopped")
            except ChandyError as error:
                ended.append(error)
            else:
                ended.append(None)

        scheduler.spawn(leader.process, ask, "user")
        scheduler.run(lambda: bool(ended) and asked[0].done(), steps=STEPS, seconds=BOUND)
        checkpoint, savepoint = asked[0].exception(), ended[0]
        # A stop may come before the batch of a cut has committed or the checkpoint has completed, or a newer one may
        # complete first.
        if savepoint is not None or (
            checkpoint is not None
            and not (isinstance(checkpoint, CheckpointError) and checkpoint.reason in _STOPPED)
        ):
            raise AssertionError(f"nothing was in the way: {checkpoint}, {savepoint}")
        self.promises.whole()
        self.promises.replays(leader)

    def _is_at_rest(self) -> bool:
        """Whether a driver leads, and every request has ended."""
        alive = [driver for driver in self.drivers if driver.process.is_alive]
        if not alive:
            self.start_driver()
        leader = self.newest_begun()
        if (
            leader is None
            or alive != [leader]
            or leader.fenced_by is not None
            or leader.over.is_set()
            or self.catalog().newest_generation() != leader.generation
        ):
            return False
        return leader.asking == 0 and all(future.done() for future in leader.requests)

    def _takes_a_checkpoint(self) -> None:
        """A checkpoint completes. Something may still be in the way of the first ones."""
        if not any(self._completes() for _ in range(5)):
            raise AssertionError(
                f"no checkpoint completes any more: {self.last_error}\n{self.scheduler.whereabouts()}"
            )

    def _completes(self) -> bool:
        """Whether a checkpoint completes. A driver may be about to end, or find out only now of its successor."""
        scheduler, leader = self.scheduler, self.newest_begun()
        assert leader is not None
        asked: list[Future[Checkpoint]] = []
        scheduler.spawn(leader.process, lambda: asked.append(leader.request(CheckpointKind.MANUAL)), "caller")
        scheduler.run(
            lambda: not leader.process.is_alive or any(one.done() for one in asked),
            steps=STEPS,
            seconds=BOUND,
        )
        ended = [one.exception() for one in asked if one.done()]
        self.last_error = ended[0] if ended else None
        if ended == [None]:
            return True
        scheduler.call(scheduler.world, lambda: runtime.sleep(20.0), steps=STEPS)
        scheduler.run(self._is_at_rest, steps=STEPS, seconds=BOUND)
        return False


class Director(Users):
    """Has events happen."""

    def store_fails(self, event: WorldEvent) -> None:
        """A store's next calls of a kind go wrong."""
        operation, trouble, *part = event.what.split(" ")
        bucket = (
            self.world.buckets[self.world.root]
            if event.which < 0.8
            else self._pick(event, [*self.world.buckets.values()])
        )
        times = 1 + int(event.which * 10) % 3
        bucket.faults.append(
            Fault(operation, part[0] if part else "", Trouble[trouble], times, event.seconds)
        )

    def store_slows_down(self, event: WorldEvent) -> None:
        """A store takes its time with everything."""
        bucket = self._pick(event, [*self.world.buckets.values()])
        bucket.longest = 2.0
        self._now_and_later(event, lambda: setattr(bucket, "longest", 0.05))

    def connection_breaks(self, event: WorldEvent) -> None:
        """The connection of a call breaks before it arrives, or before its answer does."""
        self.world.network.losses.append(Loss(event.what, event.which < 0.5))

    def host_dies(self, event: WorldEvent) -> None:
        """A state host is killed."""
        if host := self._pick(event, self.world.hosts):
            self.world.scheduler.kill(host.process)

    def host_ends(self, event: WorldEvent) -> None:
        """The process of a state host is told to end."""
        if host := self._pick(event, self.world.hosts):
            host.end()

    def power_fails(self, event: WorldEvent) -> None:
        """A machine with state hosts loses its power for a while."""
        self._lose_power(event, self._pick(event, self._executors))

    def disk_fills(self, event: WorldEvent) -> None:
        """The disk of a machine with state hosts is full for a while."""
        machine = self._pick(event, self._executors)
        machine.is_full = True
        self._now_and_later(event, lambda: setattr(machine, "is_full", False))

    def host_freezes(self, event: WorldEvent) -> None:
        """A state host stands still."""
        if host := self._pick(event, self.world.hosts):
            self._freeze(event, host.process)

    def host_joins(self, event: WorldEvent) -> None:
        """Another executor starts; if it has, it ends."""
        if self.world.is_local:
            return
        if "c" not in self.world.executors:
            self.world.executors.append("c")
            return
        self.world.executors.remove("c")
        for host in self.world.hosts:
            if host.machine.name == "c":
                host.end()

    def driver_dies(self, event: WorldEvent) -> None:
        """The driver is killed, and started again a little later."""
        if driver := self._driver(event):
            self.world.scheduler.kill(driver.process)
            is_newest = driver is self.world.driver
            self._now_and_later(event, lambda: self.world.start_driver() if is_newest else None)

    def driver_freezes(self, event: WorldEvent) -> None:
        """A driver stands still."""
        if driver := self._driver(event):
            self._freeze(event, driver.process)

    def successor_starts(self, event: WorldEvent) -> None:
        """Another driver is started beside the one that there is."""
        if len([one for one in self.world.drivers if one.process.is_alive]) < 3:
            self.world.start_driver()

    def successor_starts_in_a_commit(self, event: WorldEvent) -> None:
        """Another driver is started while a manifest is on its way to a store that takes its time."""
        if driver := self._driver(event):
            fault = Fault("create", "manifest", Trouble.SLOW, seconds=event.seconds + 2.0)
            faults = self.world.buckets[self.world.root].faults
            faults.insert(0, fault)
            self._ask(driver, lambda: driver.request(CheckpointKind.MANUAL))

            def start() -> None:
                for _ in range(60):
                    runtime.sleep(0.5)
                    if self.world.is_healed:
                        return
                    if fault not in faults:
                        self.successor_starts(event)
                        return

            self.world.scheduler.spawn(self.world.scheduler.world, start, "successor")

    def driver_is_taken_over(self, event: WorldEvent) -> None:
        """A driver stands still for so long that another one is started, and goes on beside it."""
        if driver := self._driver(event):
            self.world.scheduler.freeze(driver.process)
            self.world.start_driver()
            longer = attrs.evolve(event, seconds=event.seconds * 2 + 20.0)
            self._now_and_later(longer, lambda: self.world.scheduler.thaw(driver.process))

    def machines_are_cut_off(self, event: WorldEvent) -> None:
        """Nothing arrives between two machines for a while."""
        names = [frozenset(pair) for pair in (("a", "b"), ("driver", "a"), ("driver", "b"), ("a", "c"))]
        pair = self._pick(event, names)
        self.world.network.cut.add(pair)
        self._now_and_later(event, lambda: self.world.network.cut.discard(pair))

    def clock_jumps(self, event: WorldEvent) -> None:
        """Somebody sets the clock of a process's machine."""
        processes = [process for process in self.world.scheduler.processes[1:] if process.is_alive]
        if processes:
            self._pick(event, processes).offset += (event.which - 0.5) * 1e6

    def reader_pins(self, event: WorldEvent) -> None:
        """A reader keeps the latest checkpoint for a while."""
        world, name = self.world, f"reader-{len(self.world.met)}"
        store = world.open(world.root)

        def read() -> None:
            try:
                latest = Catalog(store).latest()
                if latest is None:
                    return
                manifest = Pins(store, name).hold(latest.id, runtime.time())
            except StorageError:
                return
            world.promises.pinned[name] = manifest
            runtime.sleep(event.seconds * 4)
            del world.promises.pinned[name]
            with suppress(StorageError):
                Pins(store, name).release(Unshared())

        world.scheduler.spawn(world.scheduler.world, read, name)

    def object_is_damaged(self, event: WorldEvent) -> None:
        """An object of the latest checkpoint is damaged, until somebody puts it back when the run heals."""
        bucket, latest = self.world.buckets[self.world.root], self.world.catalog().latest()
        if latest is not None and not bucket.damaged:
            bucket.damage(self._pick(event, sorted(latest.keys())))

    def _freeze(self, event: WorldEvent, process: SimulatedProcess) -> None:
        self.world.scheduler.freeze(process)
        self._now_and_later(event, lambda: self.world.scheduler.thaw(process))

    def target_goes_away(self, event: WorldEvent) -> None:
        """A target of a sink is not reached for a while."""
        if target := self._pick(event, list(self.world.targets.values())):
            target.away_until = self.world.scheduler.now + event.seconds

    def target_loses_answers(self, event: WorldEvent) -> None:
        """A target does what it is asked for, and nobody hears of it."""
        if target := self._pick(event, list(self.world.targets.values())):
            target.lost += 1

    def target_is_late(self, event: WorldEvent) -> None:
        """A target does what it is asked for when its caller has given up, or never."""
        if target := self._pick(event, list(self.world.targets.values())):
            target.late += 1
            self._now_and_later(event, target.land)

    def heal(self) -> None:
        """Nothing is in the way any more."""
        world = self.world
        world.is_healed = True
        for bucket in world.buckets.values():
            bucket.faults.clear()
            bucket.put_back()
            bucket.longest = 0.05
            world.scheduler.wake(bucket.hanging)
        for machine in world.machines.values():
            machine.is_full = False
            if not machine.is_on:
                machine.start_again()
        for target in world.targets.values():
            target.away_until = target.lost = target.late = 0
        world.network.cut.clear()
        world.network.losses.clear()
        for process in world.scheduler.processes:
            if process.is_frozen:
                world.scheduler.thaw(process)
