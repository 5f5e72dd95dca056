"""The composition root: takes a pipeline over, and makes and wires all the parts that a coordinator runs."""

from __future__ import annotations

import atexit
import os
import platform
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from ..state.local import changelog
from ..state.local.directories import CACHE, private_directory, runtime_directory
from ..state.local.processes import lives, started_at
from ..state.operators.partitioning import Partitioning, by_id
from ..state.rpc.addresses import place
from ..state.rpc.messages import Endpoint
from ..storage.catalog import Catalog
from ..storage.errors import ChandyError, FencedError, StoreFailedError
from ..storage.fencing import Claim, Generation
from ..storage.files import FileCache
from ..storage.logs import logger
from ..storage.long_waits import told_if_slow
from ..storage.manifest import Manifest
from ..storage.open import open_store, pipeline_uri
from ..storage.private import make_private_folder
from ..storage.probe import probe_exclusive_create
from ..storage.savepoint_claim import claim_restored, drop_claimed
from .adopt.adopted_store import Life
from .adopt.adopter import Adopter
from .channels.observer import Channels
from .config import CheckpointConfig
from .errors import SetupError
from .execution.executor import CheckpointExecutor
from .execution.service import Service, listen
from .lookup import Lookup
from .operators import Operators
from .protocol.events import Restored
from .protocol.state_machine import CheckpointStateMachine
from .recovery import restore_point
from .recovery.adoptions import Adoptions
from .recovery.decisions import RecoveryStateMachine
from .recovery.launcher import Launcher
from .recovery.leadership import Leadership, await_predecessors
from .recovery.local_host import is_here, leave_to_tasks, local_host
from .recovery.local_recovery import LocalRecovery
from .recovery.query_directories import QueryDirectories
from .recovery.remote_directories import RemoteDirectories
from .recovery.remote_hosts import start_remote_hosts
from .recovery.restore_point import RestorePoint
from .recovery.runs import Runs
from .recovery.standby import Standby, Won
from .recovery.supervisor import Supervisor
from .sinks.owner import SinkOwner
from .sinks.two_phase.contract import Fence
from .spark import session
from .spark.anchors import Anchors, can_place
from .spark.executors import check_executors
from .spark.hadoop_folder import HadoopFolder
from .spark.local_path import is_local, local_path
from .spark.reach import check_reach, for_hadoop
from .spark.ticks import Ticks
from .version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logger(__name__)

_SHORTEST_LEASE_SECONDS: Final = 1.0
"""A lease is renewed ten times in its time. It must not be renewed all the time."""


@attrs.frozen
class TakenPipeline:
    """A pipeline that this process has taken over: every earlier coordinator on it is fenced."""

    name: str
    catalog: Catalog
    claim: Claim
    generation: Generation
    point: RestorePoint | None
    """The checkpoint to begin from; None: from the beginning."""
    may_resume: bool
    """Whether queries may go on behind that checkpoint, and without one may begin anew in sinks that they wrote."""
    completed: tuple[Manifest, ...]
    """The completed checkpoints that can be read, ascending."""
    leadership: Leadership
    """Given up once the pipeline's queries have ended."""

    @property
    def base(self) -> int | None:
        """The checkpoint of the pipeline's own chain that its state grows from."""
        return self.point.manifest.id if self.point and not self.point.is_savepoint else None

    def fence(self, query: str, *, may_take_over: bool) -> Fence:
        """Return who publishes the output of a query."""
        return Fence(
            self.name,
            query,
            "",
            self.catalog.store.uri,
            self.generation.generation,
            may_take_over=may_take_over,
        )

    def life(self, versions: Mapping[str, str]) -> Life:
        """Return what names this life of the pipeline in what it adopts."""
        return Life(self.catalog.store.uri, self.name, self.generation.generation, versions)

    def drop_claimed(self, ended: int) -> None:
        """Delete savepoints of this pipeline's own that nothing needs once the generations up to ``ended`` are over."""
        in_use = [self.point.root] if self.point and ended < self.generation.generation else []
        try:
            self.catalog.check_not_fenced(self.generation.generation)
            drop_claimed(self.catalog, open_store, ended, in_use)
        except (OSError, ChandyError) as error:
            log.warning("cannot delete a claimed savepoint; the next coordinator will", error=str(error))


@attrs.frozen
class Assembly:
    """The parts of a coordinator, wired and running."""

    pipeline: TakenPipeline
    executor: CheckpointExecutor
    supervisor: Supervisor
    operators: Operators
    lookup: Lookup
    adopter: Adopter
    channels: Channels
    abandon: Callable[[], None]
    """Ends the streams to the hosts, and with them the hosts; waits for nothing."""


def assemble(
    spark: SparkSession,
    name: str,
    storage: str,
    config: CheckpointConfig,
    restore: str | int,
    made: ExitStack,
    stand_by: Callable[[threading.Event], object] | None = None,
) -> Assembly:
    """Take a pipeline over and make all that runs.

    Args:
        spark: the session.
        name: of the pipeline.
        storage: URI where checkpoints go.
        config: how to checkpoint and restart.
        restore: as for ``CheckpointCoordinator``.
        made: ends what was made, in the reverse order.
        stand_by: warms this process up while another driver leads, until the event is set; None: do not wait for that.

    Raises:
        ChandyError: the storage, the driver's address or the checkpoint to restore is not as it must be.
    """
    clock = _clock()
    session.use_this_python(spark)
    if not session.is_local_mode(spark):
        check_executors(spark)
    token = secrets.token_hex(32)
    # A driver that cannot run must not fence one that does. So whatever can be checked or made by itself comes first.
    places = {"the checkpoints": storage}
    if isinstance(restore, str) and _is_chosen(restore):
        places["the savepoint to restore"] = restore
    check_reach(str(spark.sparkContext.master), places, shared=config.shared)
    with told_if_slow(log, "the storage to answer", storage=storage):
        catalog = _open_catalog(name, storage, config)
        found = _look(catalog, restore)
    runtime = private_directory(runtime_directory())
    server = listen(
        session.driver_host(spark),
        token,
        name,
        bind=session.bind_address(spark),
        ports=config.port_range,
        runtime=runtime,
    )
    made.callback(server.shutdown)
    cache = Path(config.cache_dir or runtime / CACHE)
    _make_cache(cache)
    work_dir = _open_work_dir(spark, config)
    directories = QueryDirectories(work_dir if isinstance(work_dir, Path) else None, name)
    made.callback(directories.close)
    java = session.java_process(spark)
    channels = Channels()
    runs = Runs(channels)
    file_cache = FileCache(cache)
    if stand_by is None:
        with told_if_slow(log, "the take-over of the pipeline", storage=storage):
            pipeline = _take_over(name, catalog, config, restore, found, clock, java, runs, made)
    else:
        check = partial(_check_java, java, started_at(java))
        standby = Standby(catalog, config.takeover_timeout_seconds, file_cache, stand_by, clock, check)
        pipeline = _take_over_in_turn(standby, name, catalog, config, restore, found, clock, java, runs, made)
    if isinstance(work_dir, HadoopFolder):
        directories.place_on(RemoteDirectories.begin(work_dir, name, catalog, pipeline.claim))
    point = pipeline.point
    leave = partial(pipeline.leadership.step_down_after, runs.await_ends)

    changelogs, adoptions = cache / changelog.FOLDER, Adoptions()
    # Nobody takes up a working directory that is on a store.
    may_go_on = config.changelog and is_here(spark) and not isinstance(work_dir, HadoopFolder)
    endpoint = Endpoint(
        address=server.address,
        token=token,
        pipeline=name,
        memory=config.host_memory_bytes,
        cache=str(cache),
        runtime=str(runtime),
        changelogs=str(changelogs) if may_go_on else None,
        identity=server.identity,
        ports=config.port_range,
    )
    local_recovery = LocalRecovery.begin(
        directories.base,
        changelogs,
        root=catalog.store.uri,
        generation=pipeline.generation.generation,
        point=point,
        enabled=endpoint.changelogs is not None,
        resume=pipeline.may_resume,
        java=java,
        adoptions=adoptions,
    )
    made.callback(local_recovery.close)
    host = local_host(spark, endpoint)
    ticks = Ticks(directories.ticks(), max(1, round(config.timer_period_seconds * 1000)))
    find_damage = partial(restore_point.find_damage, catalog)
    supervisor = Supervisor(
        machine=RecoveryStateMachine(config.restart.tracker(), random.random),
        launcher=Launcher(
            directories=directories,
            runs=runs,
            cache=file_cache,
            ticks=ticks,
            local_recovery=local_recovery,
            open_ahead=host.open if host else leave_to_tasks,
            find_damage=find_damage,
            owner=SinkOwner(pipeline.catalog.store.uri, name),
            may_begin_anew=pipeline.may_resume,
            allow_new_output=config.allow_new_output,
            adoptions=adoptions,
        ),
        runs=runs,
        local_recovery=local_recovery,
        find_damage=find_damage,
        clock=clock,
        restored=point,
        token=token,
        on_failed=leave,
    )
    executor = CheckpointExecutor(
        _state_machine(pipeline, config),
        catalog=catalog,
        store=catalog.store,
        progress=runs,
        clock=clock,
        host_timeout=config.host_timeout_seconds,
        on_state_lost=supervisor.host_lost,
        on_failure=supervisor.must_fail,
        on_processor_failure=supervisor.processor_failed,
        on_restored=supervisor.shards_restored,
        trusts_look=config.takeover_timeout_seconds / 2,
        hold_lease=pipeline.leadership.hold_lease,
        on_not_opened=supervisor.shards_not_opened,
        on_completed=runs.completed,
    )
    made.callback(executor.close)
    if point is not None:
        executor.handle(Restored(point.manifest.id))
    if host:
        made.callback(host.close)
    supervisor.begin(executor)
    made.callback(supervisor.close)
    pipeline.leadership.listen(supervisor.must_fail)
    server.answer(executor)
    partitioning: Partitioning = by_id
    if not session.is_local_mode(spark):
        start_remote_hosts(spark, endpoint)
        if can_place(spark):
            anchors = Anchors(spark)
            made.callback(anchors.close)
            partitioning = anchors.partition
    abandon = partial(_abandon, executor, server)
    # A driver that ends without stop must not hang on the hosts' open streams.
    atexit.register(abandon)
    made.callback(atexit.unregister, abandon)
    operators = Operators(endpoint, point, directories, ticks, config.shared, partitioning)
    assembly = Assembly(
        pipeline=pipeline,
        executor=executor,
        supervisor=supervisor,
        operators=operators,
        lookup=Lookup(
            spark=spark,
            executor=executor,
            runs=runs,
            token=token,
            identity=server.identity,
            place=place(runtime),
            cache=file_cache,
            changelogs=changelogs,
            clock=clock,
        ),
        adopter=Adopter(
            spark,
            pipeline.life(executor.read(lambda machine: machine.versions)),
            point,
            adoptions,
            executor.check_not_fenced,
            directories.adopted,
            operators.of_query,
            ticks.mode,
            config.allow_non_restored,
        ),
        channels=channels,
        abandon=abandon,
    )
    log.info(
        "coordinator started",
        storage=catalog.store.uri,
        generation=pipeline.generation.generation,
        restores=point.manifest.id if point else None,
    )
    return assembly


def _check_java(java: int, started: int | None) -> None:
    if started is not None and not lives(java, started):
        raise SetupError(
            "this standby cannot take the pipeline over",
            f"the JVM of its Spark session, process {java}",
            "it has ended",
            "start the program again",
        )


def _open_catalog(name: str, storage: str, config: CheckpointConfig) -> Catalog:
    store = open_store(pipeline_uri(storage, name))
    if not config.allow_unfenced:
        probe_exclusive_create(store)
    return Catalog(store)


def _open_work_dir(spark: SparkSession, config: CheckpointConfig) -> Path | HadoopFolder | None:
    """Return ``CheckpointConfig.work_dir``, into which this driver can write; None: it is not set."""
    if config.work_dir is None:
        return None
    if is_local(config.work_dir):
        return local_path(config.work_dir, role="work_dir")
    with told_if_slow(log, "the file system of work_dir to answer", work_dir=config.work_dir):
        folder = HadoopFolder(spark, for_hadoop(config.work_dir))
        folder.probe()
    return folder


def _make_cache(cache: Path) -> None:
    make_private_folder(cache)
    if not cache.is_dir() or not os.access(cache, os.W_OK | os.X_OK):
        raise SetupError(
            "state cannot be kept on this machine",
            "a directory for the cache that this user can write into",
            str(cache),
            "choose another one by CheckpointConfig.cache_dir",
        )


@attrs.frozen
class _Found:
    """What a storage has."""

    ids: list[int]
    point: RestorePoint | None
    """The checkpoint to restore."""
    completed: tuple[Manifest, ...]


def _look(catalog: Catalog, restore: str | int) -> _Found:
    """Choose the checkpoint to restore, and read what else there is."""
    ids = catalog.list_ids()
    point = restore_point.choose(catalog, restore)
    return _Found(ids, point, restore_point.known(catalog, point if _is_chosen(restore) else None))


def _is_chosen(restore: str | int) -> bool:
    return restore not in (restore_point.LATEST, restore_point.NONE)


def _take_over_in_turn(
    standby: Standby,
    name: str,
    catalog: Catalog,
    config: CheckpointConfig,
    restore: str | int,
    found: _Found,
    clock: Callable[[], float],
    java: int,
    runs: Runs,
    made: ExitStack,
) -> TakenPipeline:
    """Wait until this driver is needed, and take over; if another one is faster, wait again."""
    while True:
        won = standby.wait()
        with ExitStack() as attempt:
            try:
                chosen = (
                    restore if won.followed is None else _restored_in_turn(catalog, restore, won.followed)
                )
                now = found if chosen == restore else attrs.evolve(found, ids=[])
                pipeline = _take_over(name, catalog, config, chosen, now, clock, java, runs, attempt, won)
            except FencedError as error:
                log.info("another driver has taken over; the standby goes on waiting", error=str(error))
                continue
            except StoreFailedError as error:
                log.warning(
                    "the storage has failed in a take-over; the standby tries again", error=str(error)
                )
                continue
            made.push(attempt.pop_all())
            return pipeline


def _restored_in_turn(catalog: Catalog, restore: str | int, followed: int) -> str | int:
    """Return what a standby restores: what it was told to, unless those that it has followed have got further."""
    latest = catalog.latest()
    return restore if latest is None or latest.generation < followed else restore_point.LATEST


def _take_over(
    name: str,
    catalog: Catalog,
    config: CheckpointConfig,
    restore: str | int,
    found: _Found,
    clock: Callable[[], float],
    java: int,
    runs: Runs,
    made: ExitStack,
    won: Won | None = None,
) -> TakenPipeline:
    """Claim the next generation, wait until no predecessor writes into the sinks any more, and begin.

    Args:
        won: the claim of a standby, which keeps a lease from now on; None: claim now.
    """
    patience = config.takeover_timeout_seconds
    claim = won.claim if won else catalog.claim(f"{socket.gethostname()}, process {os.getpid()}", clock())
    lease = max(patience, _SHORTEST_LEASE_SECONDS) if won else None
    leadership = Leadership.take(catalog, claim, java, lease, clock)
    made.callback(leadership.step_down_after, runs.await_ends)
    await_predecessors(catalog, claim, patience, won.silence if won else None)
    # A savepoint's id may be above all of this pipeline's.
    chosen = found.point if _is_chosen(restore) else None
    generation = catalog.start(claim, first_id=chosen.manifest.id + 1 if chosen else 1)
    # Only what is found after the take-over is sure to be the latest.
    if catalog.list_ids() != found.ids:
        found = _look(catalog, restore)
    point = found.point
    if config.claim and point is not None and point.is_savepoint:
        claim_restored(catalog, open_store(point.root), generation.generation)
    taken = TakenPipeline(
        name,
        catalog,
        claim,
        generation,
        point,
        may_resume=restore == restore_point.LATEST,
        completed=found.completed,
        leadership=leadership,
    )
    taken.drop_claimed(generation.generation - 1)
    return taken


def _state_machine(pipeline: TakenPipeline, config: CheckpointConfig) -> CheckpointStateMachine:
    """Make the protocol of a pipeline's checkpoints, which goes on after the restored one."""
    point = pipeline.point
    restored = frozenset(query.name for query in point.manifest.queries) if point else frozenset()
    return CheckpointStateMachine(
        pipeline=pipeline.name,
        generation=pipeline.generation.generation,
        root=pipeline.catalog.store.uri,
        limits=config.limits,
        next_id=pipeline.generation.next_id,
        completed=pipeline.completed,
        base=pipeline.base,
        required=frozenset() if config.allow_non_restored else restored,
        versions=_versions(),
    )


def _abandon(executor: CheckpointExecutor, server: Service) -> None:
    executor.abandon()
    server.shutdown()


def _clock() -> Callable[[], float]:
    """Return a clock of seconds since 1970 that never goes back, whatever is done to the machine's."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()


def _versions() -> dict[str, str]:
    found = {name: metadata.version(name) for name in ("pyspark", "rocksdict")}
    return {"chandy": __version__, "python": platform.python_version(), **found}
