"""The composition root: takes a pipeline over, and makes and wires all the parts that a coordinator runs."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs

from ...state.host.discovery import end_host
from ...state.rpc.addresses import place
from ...storage import runtime
from ...storage.backends.open import open_store, pipeline_uri
from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.manifest import CheckpointKind
from ...storage.checkpoints.proof import FenceProof
from ...storage.logs import logger
from ...storage.long_waits import told_if_slow
from ...storage.store import Store
from ..adopt.adopted_store import AdoptingPipeline
from ..adopt.adopter import Adopter
from ..channels.contract import Channels
from ..channels.observer import ObservedChannels
from ..checkpoint import Checkpoint
from ..config import CheckpointConfig
from ..durations import Duration, seconds
from ..execution.backlog import Backlog
from ..execution.executor import CheckpointExecutor
from ..execution.locked_protocol import LockedProtocol
from ..execution.polls import Poll, Polls
from ..execution.recording import Recording
from ..execution.savepoint_schedule import LOOK_SECONDS, SavepointSchedule
from ..execution.service import Service
from ..hosts.decommissioning import Decommissioning
from ..hosts.executor_losses import ExecutorLosses
from ..hosts.local_host import LocalHost, executor_root, is_here, leave_to_tasks, local_host
from ..hosts.remote_hosts import RemoteHosts
from ..leadership.heir import Inheritance
from ..leadership.waiting_driver import WaitingDriver
from ..lookup import Lookup
from ..observer import Orders, Running, Watch
from ..operators import Operators
from ..permit import Permit
from ..protocol.events import PipelineRestored
from ..recovery.given_batches import BatchLauncher, BatchSupervisor
from ..recovery.launcher import Launcher
from ..recovery.runs import Runs
from ..recovery.supervisor import Supervisor
from ..restore import restore_point
from ..restore.adoptions import Adoptions
from ..restore.local_recovery import LocalRecovery
from ..restore.restore_point import RestorePoint
from ..savepoint_target import SavepointTargets
from ..sinks.owner import SinkOwner
from ..spark import session
from ..spark.anchors import Anchors
from ..spark.ticks import Ticks
from .driver import Driver, check_session, open_catalog
from .ground import Ground
from .state_machine import state_machine
from .taken_pipeline import FoundPipeline, PipelineTakeover, TakenPipeline, look

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logger(__name__)

_EXECUTORS_SECONDS: Final = 0.5
"""How often to look for executors that come or go. One that is decommissioned and has nothing to do is there for one
more second."""
_BACKLOG_SECONDS: Final = 1.0
"""How often to ask whether queries are behind their sources."""
StandBy = Callable[[runtime.Flag], object]
"""Warms this process up while another driver leads, until the event is set."""


@attrs.frozen
class Assembly:
    """The parts of a coordinator, wired and running."""

    ground: Ground
    closing: ExitStack
    """Ends all but the ground."""
    pipeline: TakenPipeline
    executor: CheckpointExecutor
    supervisor: Supervisor
    recording: Recording
    operators: Operators
    lookup: Lookup
    adopter: Adopter
    channels: Channels
    savepoints: SavepointTargets
    monitor_url: str | None
    """Where the driver answers for its metrics; None: nowhere."""
    observe: Callable[[Orders], None]
    """Lets the driver answer for the pipeline, given what does as it is told."""
    interrupt: Callable[[], None]
    """Ends what a start may wait for long: it then fails."""
    abandon: Callable[[], None]
    """Ends the streams to the hosts, and with them the hosts; waits for nothing."""


def assemble(
    spark: SparkSession,
    name: str,
    storage: str,
    config: CheckpointConfig,
    restore: str | int | RestorePoint,
    permit: Permit,
    watch: Watch,
    closing: ExitStack,
    stand_by: StandBy | None,
    within: FenceProof | None,
    *,
    shadow: str = "",
    followed: Store | None = None,
) -> Assembly:
    """Take a pipeline over and make all that runs.

    Args:
        spark: the session.
        name: of the pipeline.
        storage: URI where checkpoints go.
        config: how to checkpoint and restart.
        restore, permit: as for ``CheckpointCoordinator``; or a checkpoint of another storage to restore.
        watch: begins to watch the pipeline from outside.
        closing: ends what was made, in the reverse order.
        stand_by: what to do while another driver leads; None: do not wait for the end of its lead.
        within: the proof of the pipeline that this one is a part of; None: it is part of no other.
        shadow: as for ``Claim``.
        followed: the store of the pipeline whose batches its queries are given; None: they run their own.

    Raises:
        ChandyError: the storage, the driver's address or the checkpoint to restore is not as it must be.
    """
    # A driver that cannot run must not fence one that does. So whatever can be checked or made by itself comes first.
    uri = pipeline_uri(storage, name)
    check_session(spark, uri, config, restore)
    with told_if_slow(log, "the storage to answer", storage=storage):
        catalog = open_catalog(uri, config)
        found = look(catalog, restore)
    driver = Driver.prepare(spark, name, config, watch, closing)
    # Only a pipeline that stands for itself is followed.
    followable = None if followed or within is not None else catalog.store
    start = _Start(storage, closing, followed, Recording(config.record_batches, followable))
    with start.parts:
        pipeline = _take_over(driver, catalog, found, restore, permit, start, stand_by, within, shadow)
        ground = Ground.lay(driver, closing)
        operators = Operators(
            ground.endpoint,
            pipeline.point,
            driver.directories,
            ground.ticks,
            config.shared,
            ground.partitioning,
        )
        return _wired(start, ground, pipeline, operators)


def assemble_again(
    before: Assembly,
    name: str,
    storage: str,
    config: CheckpointConfig,
    restore: str | int | RestorePoint,
    permit: Permit,
    built: Collection[str],
    closing: ExitStack,
    *,
    inherited: Inheritance | None = None,
    followed: Store | None = None,
) -> Assembly:
    """End what runs, and make all that runs on the other side of a switch: on the same ground, so plans stay valid.

    Args:
        before: what runs. If this fails, it has ended all the same.
        name, storage, config, restore, permit, followed: as for ``assemble``.
        built: the queries that make their operators again.
        closing: ends what was made, before it ends the ground.
        inherited: what a shadow leads on with; None: it follows from now on.

    Raises:
        ChandyError: the pipeline cannot be led, or followed.
    """
    before.closing.close()
    driver = attrs.evolve(before.ground.driver, pipeline=name, config=config)
    if inherited is None:
        driver = driver.on_this_machine(closing)
    ground = attrs.evolve(before.ground, driver=driver)
    if is_here(driver.spark):
        end_host(ground.endpoint, executor_root())
    catalog = Catalog(open_store(pipeline_uri(storage, name)))
    followable = None if followed else catalog.store
    start = _Start(storage, closing, followed, Recording(config.record_batches, followable))
    with start.parts:
        take_over = PipelineTakeover(
            name,
            catalog,
            config,
            restore,
            driver.clock,
            driver.java.process,
            permit,
            start.runs,
            None,
        )
        with told_if_slow(log, "the take-over of the pipeline", storage=catalog.store.uri):
            if inherited is None:
                pipeline = take_over.now(look(catalog, restore), start.parts)
            else:
                pipeline = take_over.inherit(inherited, FoundPipeline([], None, ()), start.parts)
        driver.place_directories(catalog, pipeline.claim)
        operators = before.operators.taken_over(pipeline.point, built)
        return _wired(start, ground, pipeline, operators)


@attrs.frozen
class _Start:
    """What there is of a pipeline before it is taken over."""

    storage: str
    closing: ExitStack
    """Ends the ground. Once the pipeline is wired, it ends ``parts`` before."""
    followed: Store | None
    recording: Recording
    channels: ObservedChannels = attrs.field(factory=ObservedChannels, init=False)
    runs: Runs = attrs.field(
        default=attrs.Factory(lambda self: Runs(self.channels, self.recording), takes_self=True), init=False
    )
    parts: ExitStack = attrs.field(factory=ExitStack, init=False)
    """Ends the take-over, and what is made for the pipeline."""


def _wired(start: _Start, ground: Ground, pipeline: TakenPipeline, operators: Operators) -> Assembly:
    """Make and wire what runs a pipeline that this process has taken over, with the operators of the plans."""
    parts, runs, recording, followed = start.parts.pop_all(), start.runs, start.recording, start.followed
    driver, anchors, endpoint, ticks = ground.driver, ground.anchors, ground.endpoint, ground.ticks
    spark, config, catalog, name = driver.spark, driver.config, pipeline.catalog, pipeline.name
    start.closing.enter_context(parts)
    adoptions = Adoptions()
    # Each life of a shadow begins at a checkpoint. Hosts keep changelogs only of runs that this admits.
    enabled = endpoint.changelogs is not None and followed is None
    local_recovery = _local_recovery(driver, pipeline, adoptions, enabled=enabled)
    parts.callback(local_recovery.close)
    host = local_host(spark, endpoint)
    driver.observer.lead(catalog.store, pipeline.generation.generation, driver.clock)
    state = state_machine(pipeline, config, follows_tasks=anchors is not None)
    # One that has come before does not wait for a checkpoint of this life.
    recording.look()
    protocol = LockedProtocol(state, driver.clock)
    supervisor = _supervisor(
        driver, pipeline, protocol, runs, local_recovery, host, ticks, adoptions, followed
    )
    ground.led.supervisor = supervisor
    executor = _executor(driver, pipeline, protocol, runs, supervisor, recording)
    _begin(driver, pipeline, executor, supervisor, host, parts)
    looks: dict[str, Poll] = {}
    if config.interval_during_backlog is not None:
        backlog = Backlog(executor.protocol, lambda: supervisor.queries)
        looks["tell whether queries are behind their sources"] = Poll(backlog.look, _BACKLOG_SECONDS)
    if not session.is_local_mode(spark):
        spread = anchors.spread if anchors else _nothing_to_spread
        remote_hosts = RemoteHosts.of(
            spark,
            endpoint,
            executor.protocol,
            lambda: operators.need_hosts,
            spread,
            supervisor.is_interrupted,
        )
        parts.callback(remote_hosts.close)
        decommissioning = Decommissioning.of(spark, executor)
        losses = ExecutorLosses.of(spark, executor.protocol)
        looks |= {
            "take executors in that have joined": Poll(remote_hosts.look, _EXECUTORS_SECONDS),
            "have shards leave executors that are decommissioned": Poll(
                decommissioning.look, _EXECUTORS_SECONDS
            ),
            "tell which executors are gone": Poll(losses.look, _EXECUTORS_SECONDS),
        }
    savepoints = SavepointTargets(
        name, catalog.store.uri, config.savepoints.place, str(spark.sparkContext.master), config.shared
    )
    if (every := config.savepoints.every) is not None:
        schedule = _savepoint_schedule(every, config.savepoints.keep, driver, pipeline, executor, savepoints)
        looks["take a scheduled savepoint"] = Poll(schedule.look, LOOK_SECONDS)
    parts.callback(Polls.begin(looks).close)
    abandon = partial(_abandon, os.getpid(), executor, driver.server)
    # A driver that ends without stop must not hang on the hosts' open streams.
    atexit.register(abandon)
    parts.callback(atexit.unregister, abandon)

    lookup = _lookup(driver, executor, runs)
    running = Running(
        executor=executor,
        supervisor=supervisor,
        metrics_by_host=lookup.metrics_by_host,
        store=catalog.store,
        application=spark.sparkContext.applicationId,
        spark_ui=spark.sparkContext.uiWebUrl or "",
        followed=followed,
    )
    parts.callback(driver.observer.follow(running))
    adopter = _adopter(driver, pipeline, start.storage, executor, operators, ticks, adoptions)
    log.info(
        "coordinator started",
        storage=catalog.store.uri,
        generation=pipeline.generation.generation,
        restores=pipeline.point.manifest.id if pipeline.point else None,
    )
    return Assembly(
        ground=ground,
        closing=parts,
        pipeline=pipeline,
        executor=executor,
        supervisor=supervisor,
        recording=recording,
        operators=operators,
        lookup=lookup,
        adopter=adopter,
        channels=start.channels,
        savepoints=savepoints,
        monitor_url=driver.observer.url,
        observe=driver.observer.pass_orders_to,
        interrupt=partial(_interrupt, supervisor, anchors),
        abandon=abandon,
    )


def _interrupt(supervisor: Supervisor, anchors: Anchors | None) -> None:
    supervisor.interrupt()
    if anchors is not None:
        anchors.interrupt()


def _take_over(
    driver: Driver,
    catalog: Catalog,
    found: FoundPipeline,
    restore: str | int | RestorePoint,
    permit: Permit,
    start: _Start,
    stand_by: StandBy | None,
    within: FenceProof | None,
    shadow: str,
) -> TakenPipeline:
    """Fence earlier coordinators, at once or when it is this standby's turn."""
    patience = driver.config.takeover_timeout_seconds
    java = driver.java.process
    take_over = PipelineTakeover(
        driver.pipeline,
        catalog,
        driver.config,
        restore,
        driver.clock,
        java,
        permit,
        start.runs,
        within,
        shadow,
    )
    if stand_by is None:
        with told_if_slow(log, "the take-over of the pipeline", storage=catalog.store.uri):
            pipeline = take_over.now(found, start.parts)
    else:
        standby = WaitingDriver(
            catalog, patience, driver.files, stand_by, driver.clock, driver.check_session, shadow
        )
        pipeline = take_over.in_turn(standby, found, start.parts)
    driver.place_directories(catalog, pipeline.claim)
    return pipeline


def _nothing_to_spread() -> bool:
    return True


def _local_recovery(
    driver: Driver, pipeline: TakenPipeline, adoptions: Adoptions, *, enabled: bool
) -> LocalRecovery:
    return LocalRecovery.begin(
        driver.directories.base,
        driver.changelogs,
        root=pipeline.catalog.store.uri,
        generation=pipeline.generation.generation,
        workspace=driver.directories.path,
        point=pipeline.point,
        enabled=enabled,
        resume=pipeline.may_resume,
        java=driver.java.process.pid,
        adoptions=adoptions,
    )


def _supervisor(
    driver: Driver,
    pipeline: TakenPipeline,
    protocol: LockedProtocol,
    runs: Runs,
    local_recovery: LocalRecovery,
    host: LocalHost | None,
    ticks: Ticks,
    adoptions: Adoptions,
    followed: Store | None,
) -> Supervisor:
    """Make what keeps the queries running; it needs the executor to begin."""
    supervisors, launchers = (BatchSupervisor, BatchLauncher) if followed else (Supervisor, Launcher)
    ending = runtime.flag()
    find_damage = partial(restore_point.find_damage, pipeline.catalog, ending)
    return supervisors(
        protocol=protocol,
        launcher=launchers(
            directories=driver.directories,
            runs=runs,
            cache=driver.files,
            ticks=ticks,
            local_recovery=local_recovery,
            open_ahead=host.open if host else leave_to_tasks,
            find_damage=find_damage,
            ending=ending,
            owner=SinkOwner(pipeline.catalog.store.uri, pipeline.name),
            may_begin_anew=pipeline.may_resume,
            permits=pipeline.permits,
            keep_chosen=pipeline.keep_chosen,
            adoptions=adoptions,
        ),
        runs=runs,
        local_recovery=local_recovery,
        find_damage=find_damage,
        ending=ending,
        clock=driver.clock,
        restored=pipeline.point,
        token=driver.server.token,
        check_session=driver.check_session,
        on_failed=partial(pipeline.leadership.step_down_after, runs.await_ends),
        tell=driver.observer.tell,
    )


def _executor(
    driver: Driver,
    pipeline: TakenPipeline,
    protocol: LockedProtocol,
    runs: Runs,
    supervisor: Supervisor,
    recording: Recording,
) -> CheckpointExecutor:
    """Make what carries checkpoints out, and tells the supervisor of what happens to hosts and tasks."""
    return CheckpointExecutor(
        protocol,
        catalog=pipeline.catalog,
        store=pipeline.catalog.store,
        open_store=open_store,
        watch=pipeline.watch,
        progress=runs,
        clock=driver.clock,
        host_timeout=driver.config.host_timeout_seconds,
        reports=supervisor,
        recording=recording,
    )


def _begin(
    driver: Driver,
    pipeline: TakenPipeline,
    executor: CheckpointExecutor,
    supervisor: Supervisor,
    host: LocalHost | None,
    closing: ExitStack,
) -> None:
    """Let the parts know each other, and then the state hosts in."""
    closing.callback(executor.close)
    if pipeline.point is not None:
        executor.protocol.handle(PipelineRestored(pipeline.point.manifest.id))
    if host:
        closing.callback(host.close)
    supervisor.begin(executor)
    closing.callback(supervisor.close)
    pipeline.watch.listen(supervisor.fenced)
    driver.server.answer(executor.hosts)


def _lookup(driver: Driver, executor: CheckpointExecutor, runs: Runs) -> Lookup:
    return Lookup(
        spark=driver.spark,
        protocol=executor.protocol,
        runs=runs,
        token=driver.server.token,
        identity=driver.server.identity,
        place=place(driver.runtime),
        cache=driver.files,
        changelogs=driver.changelogs,
        clock=driver.clock,
    )


def _adopter(
    driver: Driver,
    pipeline: TakenPipeline,
    storage: str,
    executor: CheckpointExecutor,
    operators: Operators,
    ticks: Ticks,
    adoptions: Adoptions,
) -> Adopter:
    return Adopter(
        driver.spark,
        storage,
        AdoptingPipeline(
            pipeline.catalog.store.uri,
            pipeline.name,
            pipeline.generation.generation,
            executor.protocol.versions,
        ),
        pipeline.point,
        adoptions,
        executor.watch.proof,
        driver.directories.adopted,
        operators.of_query,
        ticks.mode,
        pipeline.permits,
    )


def _savepoint_schedule(
    every: Duration,
    keep: int,
    driver: Driver,
    pipeline: TakenPipeline,
    executor: CheckpointExecutor,
    targets: SavepointTargets,
) -> SavepointSchedule:
    def take() -> Future[Checkpoint]:
        return executor.request(CheckpointKind.SAVEPOINT, target=targets.scheduled(driver.clock()))

    return SavepointSchedule(
        every=seconds(every),
        keep=keep,
        store=pipeline.catalog.store,
        open_store=open_store,
        is_ready=lambda: executor.protocol.read(lambda state: state.checkpoints.has_something_to_keep),
        take=take,
        clock=driver.clock,
        proof=pipeline.watch.proof,
        in_use=() if pipeline.point is None else (pipeline.point.root,),
    )


def _abandon(driver: int, executor: CheckpointExecutor, server: Service) -> None:
    # A child that the driver has forked ends with the handlers of its parent.
    if os.getpid() == driver:
        executor.abandon()
        server.shutdown()
