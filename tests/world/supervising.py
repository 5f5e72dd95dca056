"""The parts that keep a driver's queries running, and what a world looks at in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from chandy.coordinator.channels.contract import Channels
from chandy.coordinator.execution.locked_protocol import LockedProtocol
from chandy.coordinator.execution.recording import Recording
from chandy.coordinator.permit import NOTHING_PERMITTED
from chandy.coordinator.query import Definition
from chandy.coordinator.recovery.launcher import Launcher
from chandy.coordinator.recovery.runs import Run, Runs
from chandy.coordinator.recovery.supervisor import Supervisor
from chandy.coordinator.restore import restore_point
from chandy.coordinator.restore.local_recovery import LocalRecovery
from chandy.coordinator.restore.query_directories import QueryDirectories
from chandy.coordinator.restore.restore_point import LATEST, RestorePoint
from chandy.coordinator.restore.resume import ResumableRun
from chandy.coordinator.sinks.owner import SinkOwner
from chandy.coordinator.spark.ticks import Ticks
from chandy.coordinator.spark.writer_facts import SinkFacts, SourceFacts, Trigger, WriterFacts
from chandy.state.local import changelog
from chandy.storage import runtime
from chandy.storage.checkpoints.files import FileCache
from chandy.storage.checkpoints.manifest import Manifest, OutputRecord
from chandy.storage.disk.directories import QUERIES
from chandy.storage.errors import ChandyError, DamagedError
from chandy.storage.ids import BatchId, CheckpointId

from .queries import TOKEN, ReadableSink, Writer, end_at
from .records import READS, operators_of
from .targets import QUERY, transactional_sink

if TYPE_CHECKING:
    from .driver import Driver

FACTS = WriterFacts(
    SinkFacts("noop"), "append", Trigger.PROCESSING_TIME, sources=(SourceFacts("numbers", True),)
)
"""Of each query."""


def definition_of(driver: Driver, query: str) -> Definition:
    """Return what a query of a driver consists of."""
    publishes = query == QUERY and bool(driver.world.targets)
    sink = driver.session.sinks[query] = transactional_sink(driver) if publishes else ReadableSink()
    writer: Any = Writer(driver.session, query)
    return Definition(query, writer, None, FACTS, sink, operators_of(query), READS[query])


class WatchedRuns(Runs):
    """The driver's disk takes its time, and the world knows which epochs are closed."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(Channels(), Recording())
        self._driver = driver
        self._closed: set[tuple[str, int]] = set()

    def _disk(self) -> None:
        """Take time, now and then much."""
        scheduler = self._driver.world.scheduler
        scheduler.sleep(4.0 * scheduler.choices.stream("disk").random() ** 6, "the driver's disk")

    @override
    def begun(self, query: str) -> BatchId:
        self._disk()
        return super().begun(query)

    @override
    def current_batch(self, query: str) -> BatchId | None:
        self._disk()
        return super().current_batch(query)

    @override
    @contextmanager
    def hold(self, query: str, batch: BatchId) -> Iterator[Mapping[str, Path]]:
        self._disk()
        with super().hold(query, batch) as held:
            yield held

    @override
    def close_epoch(self, query: str, checkpoint: CheckpointId, cut: BatchId) -> None:
        self._disk()
        self._closed.add((query, checkpoint))
        run = self.get(query)
        if query == QUERY and run is not None:
            self._driver.world.promises.epoch_ends[checkpoint] = end_at(run.directory, cut)
        super().close_epoch(query, checkpoint, cut)

    @override
    def pre_commit(self, query: str, checkpoint: CheckpointId) -> tuple[OutputRecord, ...]:
        self._driver.world.scheduler.point()
        is_closed = (query, checkpoint) in self._closed
        self._driver.world.promises.check(is_closed, "a sink is asked for an epoch that is open")
        return super().pre_commit(query, checkpoint)


class WatchedLauncher(Launcher):
    """Has the world look at where queries begin."""

    driver: Driver

    @override
    def _restore(
        self,
        definition: Definition,
        base: RestorePoint | None,
        resumed: ResumableRun | None,
        round: int,
        replaced: Iterable[Path],
    ) -> Run:
        self.driver.world.promises.restoring(self.driver, base)
        self.driver.world.promises.met["Restored" if resumed is None else "Resumed"] += 1
        return super()._restore(definition, base, resumed, round, replaced)


class WatchedSupervisor(Supervisor):
    """Has the world look at what is announced, and at errors that nobody expects."""

    driver: Driver

    @override
    def checkpoint_completed(self, manifest: Manifest, root: str) -> None:
        self.driver.world.promises.completed(self.driver, manifest, root)
        super().checkpoint_completed(manifest, root)

    @override
    def _fail_for_good(self, noticed: Exception, because: str = "") -> Exception:
        is_known = isinstance(noticed, ChandyError | OSError)
        self.driver.world.promises.check(is_known, f"a pipeline ends by {noticed!r}")
        if isinstance(noticed, DamagedError):
            self.driver.world.promises.found_damage(noticed)
        return super()._fail_for_good(noticed, because)


def supervisor_of(driver: Driver, protocol: LockedProtocol, point: RestorePoint | None) -> WatchedSupervisor:
    """Return what keeps the queries of a driver running, which begin from a checkpoint."""
    disk = driver.machine.folder
    directories = QueryDirectories(disk / QUERIES, "pipeline")
    local_recovery = LocalRecovery.begin(
        directories.base,
        disk / changelog.FOLDER,
        root=driver.world.root,
        generation=driver.generation,
        workspace=directories.path,
        point=point,
        enabled=driver.world.is_local,
        resume=driver.restore == LATEST,
        java=0,
    )
    driver.hold(directories, local_recovery)
    ending = runtime.flag()
    find_damage = partial(restore_point.find_damage, driver.catalog, ending)
    launcher = WatchedLauncher(
        directories=directories,
        runs=driver.runs,
        cache=FileCache(disk),
        ticks=Ticks(directories.ticks(), 1000),
        local_recovery=local_recovery,
        open_ahead=lambda query_id, operators, failed: None,
        find_damage=find_damage,
        ending=ending,
        owner=SinkOwner(driver.world.root, "pipeline"),
        may_begin_anew=True,
        permits=NOTHING_PERMITTED,
        keep_chosen=driver.keep_chosen,
    )
    supervisor = WatchedSupervisor(
        protocol=protocol,
        launcher=launcher,
        runs=driver.runs,
        local_recovery=local_recovery,
        find_damage=find_damage,
        ending=ending,
        clock=driver.clock,
        restored=point,
        token=TOKEN,
        on_failed=driver.over.set,
    )
    launcher.driver = supervisor.driver = driver
    return supervisor
