"""One driver of a pipeline: the product's catalog, watch, executor and decisions about failures, in a process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from chandy.coordinator.checkpoint import Checkpoint
from chandy.coordinator.execution.executor import CheckpointExecutor
from chandy.coordinator.execution.locked_protocol import LockedProtocol
from chandy.coordinator.execution.recording import Recording
from chandy.coordinator.execution.successor_watch import SuccessorWatch
from chandy.coordinator.graceful_stop import GracefulStop, end_growth
from chandy.coordinator.protocol import events
from chandy.coordinator.protocol.acts import ActKind
from chandy.coordinator.protocol.event_log import LoggedEvent
from chandy.coordinator.protocol.state_machine import Outcome
from chandy.coordinator.restore.local_recovery import LocalRecovery
from chandy.coordinator.restore.query_directories import QueryDirectories
from chandy.coordinator.restore.restore_point import LATEST, RestorePoint
from chandy.coordinator.sinks.two_phase.errors import TargetUnavailableError
from chandy.coordinator.user_acts import UserActs
from chandy.coordinator.wiring.taken_pipeline import StartRecord, is_chosen, look
from chandy.state.rpc.messages import AskBatch
from chandy.storage import runtime
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.manifest import CheckpointKind
from chandy.storage.errors import ChandyError, FencedError, StoreFailedError
from chandy.storage.ids import CheckpointId
from tests.builders import failover

from ..coordinator.limits import limits_of
from ..coordinator.strict_machine import StrictStateMachine
from .machines import Machine
from .queries import Session
from .records import SHARDS
from .scheduler import SimulatedProcess
from .state_hosts import WorldHost
from .supervising import WatchedRuns, definition_of, supervisor_of

if TYPE_CHECKING:
    from .world import World


class WatchedMachine(StrictStateMachine):
    """Keeps what it was told and has answered, and has the world look at it after each event."""

    driver: Driver | None = None

    def handle(self, event: events.Event[events.Answer], now: float) -> Outcome[events.Answer]:
        if self.driver is None:
            return super().handle(event, now)
        told, outcomes = self.driver.told, self.driver.outcomes
        told.append(LoggedEvent(len(told), now, event))
        # An event that is refused has no outcome.
        outcomes.append(None)
        outcome = super().handle(event, now)
        outcomes[-1] = outcome
        self.driver.world.promises.decided(self.driver, event, outcome.instructions)
        return outcome


class Driver:
    """A driver, from its start to its end.

    Args:
        world: where it is.
        machine: where it runs.
        number: of it.
        restore: "latest", the id of a checkpoint, or the URI of a savepoint.
    """

    def __init__(self, world: World, machine: Machine, number: int, restore: str | int = LATEST) -> None:
        self.world = world
        self.machine = machine
        self.number = number
        self.restore = restore
        self.process: SimulatedProcess = machine.start(f"driver-{number}")
        self.connected: dict[str, WorldHost] = {}
        self.requests: list[Future[Checkpoint]] = []
        self.asking = 0
        """How many requests of users have not ended."""
        self.stopping = 0
        """How many users wait for a stop."""
        self.emptied: set[str] = set()
        """Hosts whose machine has lost its power once it was drained."""
        self.generation = 0
        self.begins_at: RestorePoint | None = None
        """Where its queries begin."""
        self.has_begun = False
        self.begun_at = 0.0
        self._closing = ExitStack()
        self.told: list[LoggedEvent] = []
        """All events of its protocol."""
        self.outcomes: list[Outcome[Any] | None] = []
        """Of each."""
        self.fenced_by: FencedError | None = None
        self.failed: Exception | None = None
        world.scheduler.spawn(self.process, self._main, "main")

    # --- its start ------------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            self._start()
        except FencedError as error:
            self.fenced_by = error
        except (StoreFailedError, TargetUnavailableError) as error:
            self.failed = error
        except ChandyError as error:
            self.world.promises.refused(self, error)
            self.failed = error
        else:
            self.has_begun, self.begun_at = True, self.world.scheduler.now
            self.over.wait()
            self.supervisor.close()
            self.executor.close()
            self.watch.close()
            self._closing.close()
            self.closed.set()
            # Users hear of it, also those whose threads are held up.
            runtime.sleep(1.0)
            while self.stopping:
                runtime.sleep(1.0)
        self.world.scheduler.kill(self.process)

    def _start(self) -> None:
        world = self.world
        store = world.open(world.root)
        self.catalog = Catalog(store)
        offset = runtime.time() - runtime.monotonic()
        self.clock: Callable[[], float] = lambda: offset + runtime.monotonic()
        chosen = look(self.catalog, self.restore).point if is_chosen(self.restore) else None
        chose = world.promises.chosen
        claim = self.catalog.claim("driver", self.clock())
        started = self.catalog.start(claim, CheckpointId(chosen.manifest.id + 1 if chosen else 1))
        self.generation = started.generation
        # Only what is found after the claim is sure to be the latest.
        found = look(self.catalog, self.restore)
        point = self.begins_at = found.point
        world.promises.starts(self, point, chose)
        limits = limits_of(**world.config)
        self.new_machine: Callable[[], WatchedMachine] = lambda: WatchedMachine(
            pipeline="pipeline",
            generation=started.generation,
            root=world.root,
            limits=limits,
            next_id=started.next_id,
            completed=found.completed,
            base=point.manifest.id if point and not point.is_savepoint else None,
            failover=failover(),
        )
        self.state = self.new_machine()
        world.promises.counted.update(manifest.id for manifest in self.catalog.completed())
        self.state.driver = self
        self.watch = SuccessorWatch(
            self.catalog, started.generation, trusts_look=15.0, hold_lease=lambda: 0.0, within=None
        )
        self.record = StartRecord(self.catalog, started, self.watch.proof)
        self.over = runtime.flag()
        self.changing, self.closed = runtime.rlock(), runtime.flag()
        self.session = Session(world.scheduler, self.usable_hosts, world.promises)
        self.runs = WatchedRuns(self)
        protocol = LockedProtocol(self.state, self.clock)
        self.supervisor = supervisor_of(self, protocol, point)
        self.executor = CheckpointExecutor(
            protocol,
            catalog=self.catalog,
            store=store,
            open_store=world.open,
            watch=self.watch,
            progress=self.runs,
            clock=self.clock,
            host_timeout=10.0,
            reports=self.supervisor,
            recording=Recording(),
        )
        self.acts = UserActs(self.executor.protocol)
        self.hosts = self.executor.hosts
        ask = self.hosts.handlers[AskBatch]

        def asked(message: AskBatch) -> object:
            was_late = world.promises.is_late(self)
            answer = ask(message)
            world.promises.begins(self, was_late)
            return answer

        self.hosts.handlers[AskBatch] = asked
        self.watch.listen(self.fenced)
        self.watch.begin()
        self.supervisor.begin(self.executor)
        for query in SHARDS:
            self.supervisor.start(definition_of(self, query))
        self.session.is_steady = True
        self.executor.protocol.handle(events.ScheduleStarted(runtime.random()))

    def hold(self, directories: QueryDirectories, local_recovery: LocalRecovery) -> None:
        """Close what it has on its disk when it ends. The system releases locks when a process has ended anyhow."""
        self._closing.callback(self.process.at_end.clear)
        self._closing.callback(directories.close)
        self._closing.callback(local_recovery.close)
        places = local_recovery._leftovers.places
        self.process.at_end += [directories._workspace.release, *(lock.release for _, lock in places)]

    def keep_chosen(self) -> None:
        """Record what a user has named, before an output is changed for it."""
        if is_chosen(self.restore):
            self.record.chose(str(self.restore))
            self.world.promises.chose(self)

    def usable_hosts(self) -> list[WorldHost]:
        """Return the hosts that tasks find."""
        return [host for host in self.connected.values() if host.is_serving]

    def fenced(self, error: FencedError) -> None:
        """Take in that there is a successor."""
        self.fenced_by = error
        self.supervisor.fenced(error)

    # --- what users ask -------------------------------------------------------------------------------------

    def request(self, kind: CheckpointKind, target: str | None = None) -> Future[Checkpoint]:
        """Ask for a checkpoint."""
        future = self.executor.request(kind, target=target)
        if kind is CheckpointKind.MANUAL and self.world.targets:
            future.add_done_callback(partial(self.world.promises.answered, self, self.world.scheduler.now))
        self.requests.append(future)
        return future

    def stop(self, target: str | None, look: Callable[[Checkpoint], object] = lambda last: None) -> None:
        """Stop the pipeline with a savepoint, or with a last checkpoint, at which the world looks.

        Raises:
            ChandyError: it goes on, or has failed.
        """

        def body() -> None:
            end_growth(self.changing, self.supervisor.interrupt)
            if self.over.is_set():
                return
            stop = GracefulStop(self.executor, self.supervisor, self.world.root)
            taken = stop.stop(target, 60.0, checkpoint=True)
            if taken is not None and target is None:
                look(taken)
            self.over.set()
            self.closed.wait()

        self.stopping += 1
        try:
            self.acts.do(ActKind.STOP, "pipeline", lambda _: body())
        finally:
            self.stopping -= 1
