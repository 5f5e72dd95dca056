"""One driver of a pipeline: the product's catalog, watch, executor and decisions about failures, in a process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from chandy.coordinator.checkpoint import Checkpoint
from chandy.coordinator.errors import QueryFailedError
from chandy.coordinator.execution.executor import CheckpointExecutor
from chandy.coordinator.execution.successor_watch import SuccessorWatch
from chandy.coordinator.protocol import events as on
from chandy.coordinator.protocol.event_log import LoggedEvent
from chandy.coordinator.protocol.state_machine import Outcome
from chandy.coordinator.recovery import decisions, rollback
from chandy.coordinator.recovery.announcements import Announcements, tell_nobody
from chandy.coordinator.recovery.recovery_state import RecoveryStateMachine
from chandy.coordinator.recovery.restart import FixedDelay
from chandy.coordinator.restore.restore_point import RestorePoint, base_point, choose, known
from chandy.coordinator.sinks.two_phase.errors import TargetUnavailableError
from chandy.state.rpc.messages import AskBatch
from chandy.state.shards import RestoreSource, ShardId
from chandy.storage import runtime
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.manifest import CheckpointKind, Manifest, OperatorRecord
from chandy.storage.checkpoints.restore import restore_files
from chandy.storage.checkpoints.savepoint import read_savepoint
from chandy.storage.errors import ChandyError, FailureCode, FencedError, StoreFailedError

from ..coordinator.limits import limits_of
from ..coordinator.strict_machine import StrictStateMachine
from .machines import Machine
from .queries import Queries, Run
from .records import READS, SHARDS, operators_of
from .scheduler import SimulatedProcess
from .state_hosts import WorldHost
from .targets import QUERY, begin_sink

if TYPE_CHECKING:
    from .world import World


class WatchedMachine(StrictStateMachine):
    """Keeps what it was told and has answered, and has the world look at it after each event."""

    driver: Driver | None = None

    def handle(self, event: on.Event[on.Answer], now: float) -> Outcome[on.Answer]:
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
        restore: "latest", or the URI of a savepoint.
    """

    def __init__(self, world: World, machine: Machine, number: int, restore: str = "latest") -> None:
        self.world = world
        self.machine = machine
        self.number = number
        self.restore = restore
        self.process: SimulatedProcess = machine.start(f"driver-{number}")
        self.connected: dict[str, WorldHost] = {}
        self.requests: list[Future[Checkpoint]] = []
        self.has_begun = False
        self.begun_at = 0.0
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
        else:
            self.has_begun, self.begun_at = True, self.world.scheduler.now
            self._supervise()
            return
        self.world.scheduler.kill(self.process)

    def _start(self) -> None:
        world = self.world
        store = world.open(world.root)
        self.catalog = Catalog(store)
        offset = runtime.time() - runtime.monotonic()
        self.clock = lambda: offset + runtime.monotonic()
        claim = self.catalog.claim("driver", self.clock())
        point = self._chosen()
        first = point.manifest.id + 1 if point is not None and point.is_savepoint else 1
        started = self.catalog.start(claim, first)
        self.generation = started.generation
        point = self._chosen()
        self.initial = self.point = point
        self.folder = self.machine.folder / self.process.name
        self.folder.mkdir()
        limits = limits_of(**world.config)
        completed = known(self.catalog, point if self.restore != "latest" else None)
        self.new_machine = lambda: WatchedMachine(
            pipeline="pipeline",
            generation=started.generation,
            root=world.root,
            limits=limits,
            next_id=started.next_id,
            completed=completed,
            base=point.manifest.id if point and not point.is_savepoint else None,
        )
        self.state = self.new_machine()
        world.promises.counted.update(manifest.id for manifest in self.catalog.completed())
        self.state.driver = self
        self.watch = SuccessorWatch(
            self.catalog, started.generation, trusts_look=15.0, hold_lease=lambda: 0.0, within=None
        )
        self.events: runtime.Queue[Any] = runtime.simple_queue()
        self.news = Announcements(tell_nobody, self.clock)
        self.recovery = RecoveryStateMachine(FixedDelay("1 s", attempts=10**9).tracker(), runtime.random)
        self.queries = Queries(
            world.scheduler, self.folder, self.usable_hosts, self._run_ended, world.promises
        )
        self.executor = CheckpointExecutor(
            self.state,
            catalog=self.catalog,
            store=store,
            open_store=world.open,
            watch=self.watch,
            progress=self.queries,
            clock=self.clock,
            host_timeout=10.0,
            reports=self,
        )
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
        self.runs = 0
        for query in SHARDS:
            self.add(query, point)
        for run in self.queries.runs.values():
            self._started(run)
        self.executor.protocol.handle(on.ScheduleStarted(runtime.random()))

    def _chosen(self) -> RestorePoint | None:
        if self.restore == "latest":
            return choose(self.catalog, "latest")
        return RestorePoint(read_savepoint(self.world.open(self.restore)), self.restore)

    # --- queries --------------------------------------------------------------------------------------------

    def add(self, query: str, point: RestorePoint | None) -> None:
        """Have a query stand where it stood at a checkpoint."""
        batch, end = -1, 0
        sources: dict[ShardId, RestoreSource] = {}
        restored: tuple[OperatorRecord, ...] = ()
        operators = operators_of(query)
        if point is not None:
            record = next(one for one in point.manifest.queries if one.name == query)
            into = self.folder / f"restored-{runtime.token()[:8]}"
            restore_files(self.world.open(point.root), record.files, into)
            batch, end = record.batch, json.loads((into / "offsets").read_text())
            restored, sources = point.operators(query, operators), point.sources(query)
        if query == QUERY and self.world.targets:
            begin_sink(self, query, point)
        self.runs += 1
        query_id = f"{query}-{self.number}-{self.runs}"
        added = on.QueryAdded(
            query,
            query_id,
            batch=batch,
            operators=operators,
            restored=restored,
            sources=sources,
            reads=READS[query],
        )
        self.queries.runs[query] = Run(query, query_id, self.runs, {batch: end}, batch, batch)
        self.executor.protocol.handle(added)

    def _started(self, run: Run) -> None:
        self.decide(decisions.RunStarted(run.query, run.number, run.query_id))
        self.queries.start(run)

    def usable_hosts(self) -> list[WorldHost]:
        """Return the hosts that tasks find."""
        return [host for host in self.connected.values() if host.is_serving]

    def _run_ended(self, run: Run, error: Exception) -> None:
        codes: frozenset[FailureCode] = frozenset()
        if isinstance(error, ChandyError) and error.code is not None:
            codes = frozenset({error.code})
        failure = decisions.Failure(QueryFailedError(run.query, str(error)), codes)
        self.report(decisions.RunEnded(run.query, run.number, failure, self.clock()))

    # --- Reports --------------------------------------------------------------------------------------------

    def report(self, event: decisions.Event) -> None:
        self.events.put(event)

    def state_lost(self, why: str) -> None:
        self.report(decisions.HostLost(why, self.clock()))

    def must_fail(self, error: ChandyError) -> None:
        self.report(decisions.CheckpointsFailed(error, self.clock()))

    def processor_failed(self, failure: object) -> None:
        raise AssertionError("there are no processors")

    def shards_restored(self, restored: object) -> None:
        """Nobody counts them."""

    def shards_not_opened(self, query_id: str, why: str, code: FailureCode | None = None) -> None:
        self.report(decisions.ShardsNotOpened(query_id, why, self.clock()))

    def checkpoint_completed(self, manifest: Manifest, root: str) -> None:
        self.world.promises.completed(self, manifest, root)

    def fenced(self, error: FencedError) -> None:
        self.fenced_by = error
        self.events.put(error)

    # --- recovery -------------------------------------------------------------------------------------------

    def _supervise(self) -> None:
        """As ``Supervisor``: one event after the other, and what is decided once its delay is over."""
        waits_until: float | None = None
        while self.fenced_by is None:
            decision: decisions.Decision = decisions.DoNothing()
            try:
                pause = None if waits_until is None else max(0.0, waits_until - self.clock())
                event = self.events.get(timeout=pause)
                if isinstance(event, FencedError):
                    break
                decision = self.decide(event)
            except runtime.Empty:
                waits_until = None
                decision = self.decide(decisions.DelayOver())
            match decision:
                case decisions.WaitToRestart(until):
                    waits_until = until
                case decisions.RestartInPlace(queries):
                    for query in queries:
                        self._restart_in_place(query)
                case decisions.RollBack():
                    waits_until = self._go_back()
                case decisions.FailForGood(error):
                    self.failed = error
                    break
        for run in self.queries.runs.values():
            self.queries.stop(run)
        for sink in self.queries.sinks.values():
            sink.close()
        self.executor.close()
        self.watch.close()
        self.world.scheduler.kill(self.process)

    def decide(self, event: decisions.Event) -> decisions.Decision:
        """Decide about an event, and tell the protocol of what it changes, as ``Supervisor`` does."""
        before, decision = self.recovery.life, self.recovery.handle(event, self.clock())
        if self.recovery.life is not before:
            self.executor.protocol.handle(on.LifeChanged(self.recovery.life))
        return decision

    def _restart_in_place(self, query: str) -> None:
        before = self.queries.runs[query]
        self.queries.stop(before)
        self.runs += 1
        self.queries.runs[query] = run = attrs.evolve(
            before, number=self.runs, is_stopped=False, has_ended=False
        )
        self._started(run)
        self.decide(decisions.RestartedInPlace(query))

    def _go_back(self) -> float | None:
        try:
            rollback.go_back(WorldRollback(self), resume=False)
        except FencedError as error:
            self.fenced_by = error
        except (ChandyError, OSError) as error:
            decision = self.decide(decisions.RestartFailed(error, final=False))
            if isinstance(decision, decisions.WaitToRestart):
                return decision.until
            return self.clock() + 1.0
        else:
            self.decide(decisions.WentBack())
        return None

    # --- what users ask -------------------------------------------------------------------------------------

    def request(self, kind: CheckpointKind, target: str | None = None) -> Future[Checkpoint]:
        """Ask for a checkpoint."""
        future = self.executor.request(kind, target=target)
        if kind is CheckpointKind.MANUAL and self.world.targets:
            future.add_done_callback(partial(self.world.promises.answered, self, self.world.scheduler.now))
        self.requests.append(future)
        return future

    def stop(self, target: str) -> Future[Checkpoint]:
        """Stop the queries, and ask for the savepoint that they stop with."""
        for query in reversed(SHARDS):
            run = self.queries.runs[query]
            self.queries.stop(run)
            self.executor.protocol.handle(on.QueryStopped(query, run.committed))
        future = self.executor.request(CheckpointKind.SAVEPOINT, target=target, is_final=True)
        self.requests.append(future)
        return future


@attrs.define
class WorldRollback:
    """The steps back of one driver, as ``PipelineRollback`` takes them."""

    driver: Driver
    superseded: list[Run] = attrs.field(factory=list)

    def check_not_fenced(self) -> None:
        self.driver.watch.check_now()

    def stop_runs(self) -> None:
        for run in self.driver.queries.runs.values():
            self.driver.queries.stop(run)
            self.superseded.append(run)

    def suspend_checkpoints(self) -> None:
        self.driver.decide(decisions.GoingBack("state lost", self.driver.clock()))

    def settle_manifests(self) -> None:
        if not self.driver.executor.settle():
            raise StoreFailedError(self.driver.world.root, "", "settle", "it does not answer", transient=True)

    def choose_restore_point(self) -> RestorePoint | None:
        driver = self.driver
        driver.point = driver.executor.protocol.read(base_point) or driver.initial
        driver.decide(decisions.StateGivenUp())
        return driver.point

    def find_resumable(self, point: RestorePoint | None) -> Mapping[str, Any]:
        return {}

    def forget_resumable(self) -> None:
        """There are no records."""

    def queries(self) -> tuple[str, ...]:
        return tuple(SHARDS)

    def restore(self, query: str, point: RestorePoint | None, resumed: object) -> None:
        self.driver.add(query, point)

    def release_runs(self) -> None:
        ids = tuple(run.query_id for run in self.superseded)
        self.driver.executor.protocol.handle(on.Released(ids))

    def resume_checkpoints(self, point: RestorePoint | None) -> None:
        self.driver.executor.protocol.handle(on.PipelineRestored(point.manifest.id if point else None))

    def start_runs(self) -> None:
        for run in self.driver.queries.runs.values():
            self.driver._started(run)

    def clean_up(self) -> None:
        """Nothing is left."""
