"""What users ask of the drivers of a world, and what must hold of the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs

from chandy.coordinator.errors import NotSwitchedError, PipelineFailedError, RescaledError
from chandy.coordinator.graceful_stop import QueriesAtRest
from chandy.coordinator.protocol import events
from chandy.coordinator.protocol.acts import ActKind
from chandy.coordinator.protocol.errors import DrainError, NotCarriedOutError
from chandy.coordinator.protocol.life import LifePhase
from chandy.coordinator.protocol.user_requests import RequestPhase
from chandy.coordinator.spark.progress import newest_committed
from chandy.coordinator.upgrade.own_pins import OwnPins
from chandy.coordinator.user_acts import Wanted
from chandy.storage import runtime
from chandy.storage.checkpoints.manifest import CheckpointKind
from chandy.storage.errors import ChandyError, FencedError, ObjectMissingError
from chandy.storage.ids import CheckpointId

from .driver import Driver
from .events import WorldEvent
from .machines import Machine
from .queries import SparkQuery, Writer
from .records import SHARDS, uid_of

if TYPE_CHECKING:
    from .world import World

SECONDS = 60.0
"""How long users wait for a batch."""


@attrs.define
class Users:
    """Have events happen that are requests."""

    world: World
    savepoints: int = 0

    def _now_and_later(self, event: WorldEvent, later: Callable[[], object]) -> None:
        scheduler = self.world.scheduler

        def end() -> None:
            runtime.sleep(event.seconds)
            if not self.world.is_healed:
                later()

        scheduler.spawn(scheduler.world, end, f"end of {event.kind}")

    def _pick(self, event: WorldEvent, some: list[Any]) -> Any:
        return some[int(event.which * len(some))] if some else None

    @property
    def _executors(self) -> list[Machine]:
        """The machines that have an executor."""
        return [self.world.machines[name] for name in self.world.executors]

    def _lose_power(self, event: WorldEvent, machine: Machine) -> None:
        """Take a machine's power for a while. A driver that it had is started again."""
        if not machine.is_on:
            return
        if any(one.process.is_alive and one.machine is machine for one in self.world.drivers):
            self.world.start_again(event.seconds)
        machine.lose_power()
        self._now_and_later(event, machine.start_again)

    def _driver(self, event: WorldEvent) -> Driver | None:
        alive = [one for one in self.world.drivers if one.process.is_alive and one.has_begun]
        if not alive:
            return None
        # Mostly the newest; now and then one that has a successor.
        return alive[-1] if event.which < 0.8 else alive[0]

    def _ask(self, driver: Driver, what: Callable[[], object]) -> None:
        """Have a user of a driver do something, which must end while the driver lives."""

        def asked() -> None:
            what()
            driver.asking -= 1

        # From now on: the thread may be held up before it begins.
        driver.asking += 1
        self.world.scheduler.spawn(driver.process, asked, "user")

    def _target(self) -> str:
        self.savepoints += 1
        return f"memory://savepoint-{self.savepoints}"

    # --- checkpoints ----------------------------------------------------------------------------------------

    def checkpoint(self, event: WorldEvent) -> None:
        """A user asks for a checkpoint."""
        if driver := self._driver(event):
            self._ask(driver, lambda: driver.request(CheckpointKind.MANUAL))

    def savepoint(self, event: WorldEvent) -> None:
        """A user asks for a savepoint."""
        if driver := self._driver(event):
            target = self._target()
            self._ask(driver, lambda: driver.request(CheckpointKind.SAVEPOINT, target))

    # --- machines and tasks ---------------------------------------------------------------------------------

    def machine_is_drained(self, event: WorldEvent) -> None:
        """A user drains a machine, and takes its power once it is empty."""
        machine = self._pick(event, self._executors)
        if driver := self._driver(event):
            self._ask(driver, lambda: self._drain(driver, machine, event))

    def _drain(self, driver: Driver, machine: Machine, event: WorldEvent) -> None:
        protocol = driver.executor.protocol
        try:
            protocol.await_outcome(protocol.handle(events.DrainRequested(machine.name, 60.0)))
        except DrainError:
            return
        kept = protocol.read(lambda state: state.placement.shards_on(machine.name))
        self.world.promises.check(not kept, f"{machine.name} is drained, and it has {kept}")
        if machine.is_on and not self.world.is_healed:
            there = [host for host in driver.connected.values() if host.machine is machine]
            driver.emptied.update(host.name for host in there)
            self._lose_power(event, machine)

    def operator_is_rescaled(self, event: WorldEvent) -> None:
        """A user has another number of tasks run an operator."""
        query = self._pick(event, list(SHARDS))
        if driver := self._driver(event):
            tasks = 1 + int(event.which * 1000) % SHARDS[query]
            self._ask(driver, lambda: self._rescale(driver, query, tasks, event.seconds))

    def _rescale(self, driver: Driver, query: str, tasks: int, seconds: float) -> None:
        writer: Any = Writer(driver.session, query, tasks)
        cause = RescaledError(query, uid_of(query), tasks)
        request = driver.supervisor.replanning.go_on_with(query, writer, cause, seconds)

        def look() -> None:
            runtime.sleep(seconds)
            # A driver that was frozen goes on with all its threads.
            for _ in range(10):
                runtime.sleep(1.0)
            self.world.promises.check(
                request.phase is not RequestPhase.ADMITTED, f"{query} waits for its batch beyond the timeout"
            )

        self.world.scheduler.spawn(driver.process, look, "a user who looks at the clock")
        driver.supervisor.replanning.await_outcome(query, request)
        is_done = request.phase is RequestPhase.DONE
        self.world.promises.check(
            not is_done or writer in driver.session.writers,
            f"{query} is rescaled, and has not been started so",
        )

    # --- stops ----------------------------------------------------------------------------------------------

    def pipeline_rests(self, event: WorldEvent) -> None:
        """The batches of a pipeline end for a while, as they do when it is to be handed over."""
        if driver := self._driver(event):
            self._ask(driver, lambda: self._rest(driver, event.seconds))

    def _rest(self, driver: Driver, seconds: float) -> None:
        pins = OwnPins(self.world.catalog().store, "shadow-old")
        rest = QueriesAtRest(driver.executor, driver.supervisor, pins, follow=None)
        with driver.acts.between_stops(driver.changing):
            if driver.supervisor.life.is_ending:
                return
            running = {query: query.planned for query in driver.session.started if query.isActive}
            began = runtime.monotonic()
            try:
                last = rest.begin()
                if runtime.monotonic() < began + SECONDS:
                    self._has_waited(driver, rest, running)
                else:
                    self.world.promises.check(not self.world.is_at_peace, "a rest has waited for nothing")
                self._has_all(driver, last)
                before = self._committed(driver)
                runtime.sleep(seconds)
                rests = self._committed(driver) == before or driver.supervisor.life.is_over
                self.world.promises.check(rests, "batches commit while the pipeline rests")
            except FencedError as error:
                rest.give_up(error)
                return
            except ChandyError as error:
                is_needless = self.world.is_at_peace and isinstance(error, NotSwitchedError)
                self.world.promises.check(not is_needless, f"a rest has no checkpoint: {error}")
            try:
                rest.end()
            except PipelineFailedError:
                return

    def _has_waited(self, driver: Driver, rest: QueriesAtRest, running: Mapping[SparkQuery, int]) -> None:
        """Look at whether batches that ran have committed. Those of failed queries may not, nor those of a failover."""
        if driver.supervisor.life.phase not in (LifePhase.STOPPING, LifePhase.RUNNING):
            return
        stopped: list[Any] = [run.spark for run in rest._stopped]
        for query in stopped:
            if query is not None and query.error is None:
                self.world.promises.check(
                    query.committed >= running.get(query, -1),
                    f"a batch of {query.name} is cut short by a rest",
                )

    def _has_all(self, driver: Driver, checkpoint: int) -> None:
        """Look at whether a checkpoint has all that queries have committed that were stopped."""
        if self.world.promises.announced.get(checkpoint) != driver.generation:
            return
        try:
            manifest = self.world.catalog().read(CheckpointId(checkpoint))
        except ObjectMissingError:
            # It is answered for once its output is published, which may take longer than retention keeps it.
            is_newest = checkpoint == max(self.world.promises.announced)
            self.world.promises.check(
                driver is not self.world.driver or not is_newest,
                f"{checkpoint} is gone, and nobody else leads",
            )
            return
        cuts = {query.name: query.batch for query in manifest.queries}
        committed = self._committed(driver)
        self.world.promises.check(
            cuts == committed, f"the last checkpoint has {cuts}, and {committed} have committed"
        )
        running = [one.name for one in driver.session.started if one.isActive]
        self.world.promises.check(not running, f"{running} run on after a graceful stop")

    def _committed(self, driver: Driver) -> dict[str, int]:
        return {run.definition.name: newest_committed(run.directory) for run in driver.runs.all()}

    def pipeline_is_stopped(self, event: WorldEvent) -> None:
        """A user stops a pipeline, and starts it again a little later."""
        if driver := self._driver(event):
            is_newest = driver is self.world.driver
            self._ask(driver, lambda: self._stop(driver, event.which < 0.3))
            self._now_and_later(
                attrs.evolve(event, seconds=event.seconds + SECONDS),
                lambda: self.world.start_driver() if is_newest and not driver.process.is_alive else None,
            )

    def _stop(self, driver: Driver, takes_savepoint: bool) -> None:
        # The pipeline goes on, or has failed.
        with suppress(ChandyError):
            driver.stop(
                self._target() if takes_savepoint else None, lambda last: self._has_all(driver, last.id)
            )

    def replica_is_asked_for(self, event: WorldEvent) -> None:
        """A user begins or drops a replica, or orders a switch, which takes its time."""
        kind = self._pick(event, [ActKind.REPLICATE, ActKind.DROP, ActKind.SWITCH])
        if driver := self._driver(event):
            name = "pipeline" if kind is ActKind.SWITCH else f"replica {int(event.which * 1000) % 2}"
            self._ask(driver, lambda: self._act(driver, kind, name, event.seconds))

    def _act(self, driver: Driver, kind: ActKind, name: str, seconds: float) -> None:
        was_over = driver.supervisor.life.is_over or driver.over.is_set()
        interrupted = runtime.flag()

        def body(act: Wanted) -> None:
            self.world.promises.check(not was_over or kind is ActKind.DROP, f"{kind} after the end")
            act.interrupt = interrupted.set
            interrupted.wait(seconds * 4)

        try:
            driver.acts.do(kind, name, body)
        except (NotCarriedOutError, FencedError):
            return
        self.world.promises.check(not interrupted.is_set(), f"{kind} is done, and was interrupted")

    def user_goes_back(self, event: WorldEvent) -> None:
        """A user starts the pipeline from an older checkpoint or a savepoint, beside the driver or in its place."""
        world, promises = self.world, self.world.promises
        older: list[str | int] = [manifest.id for manifest in world.catalog().readable()]
        if (choice := self._pick(event, [*older, *promises.savepoints])) is None:
            return
        alive = [driver for driver in world.drivers if driver.process.is_alive]
        if event.seconds > len(alive):
            for driver in alive:
                world.scheduler.kill(driver.process)
        world.start_driver(choice)
        # It may be refused.
        world.start_again(event.seconds + SECONDS)
