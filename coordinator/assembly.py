"""The composition root: takes a pipeline over, and makes and wires all the parts that a coordinator runs."""

from __future__ import annotations

import atexit
import os
import platform
import random
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from ..state.host.versions import versions_of
from ..state.local import changelog
from ..state.local.directories import CACHE, private_directory, runtime_directory
from ..state.local.processes import lives, started_at
from ..state.operators.partitioning import Partitioning, by_id
from ..state.rpc.addresses import place
from ..state.rpc.messages import Endpoint
from ..storage.catalog import Catalog
from ..storage.files import FileCache
from ..storage.logs import logger
from ..storage.long_waits import told_if_slow
from ..storage.open import open_store, pipeline_uri
from ..storage.private import make_private_folder
from ..storage.probe import probe_exclusive_create
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
from .recovery.local_host import is_here, leave_to_tasks, local_host
from .recovery.local_recovery import LocalRecovery
from .recovery.query_directories import QueryDirectories
from .recovery.remote_directories import RemoteDirectories
from .recovery.remote_hosts import RemoteHosts
from .recovery.runs import Runs
from .recovery.standby import Standby
from .recovery.supervisor import Supervisor
from .sinks.owner import SinkOwner
from .spark import session
from .spark.anchors import Anchors, can_place
from .spark.executors import check_executors
from .spark.hadoop_folder import HadoopFolder
from .spark.local_path import is_local, local_path
from .spark.reach import check_reach, for_hadoop
from .spark.ticks import Ticks
from .taken_pipeline import TakenPipeline, TakeOver, is_chosen, look
from .version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logger(__name__)


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
    if isinstance(restore, str) and is_chosen(restore):
        places["the savepoint to restore"] = restore
    check_reach(str(spark.sparkContext.master), places, shared=config.shared)
    with told_if_slow(log, "the storage to answer", storage=storage):
        catalog = _open_catalog(name, storage, config)
        found = look(catalog, restore)
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
    take_over = TakeOver(name, catalog, config, restore, clock, java, runs)
    if stand_by is None:
        with told_if_slow(log, "the take-over of the pipeline", storage=storage):
            pipeline = take_over.now(found, made)
    else:
        check = partial(_check_java, java, started_at(java))
        standby = Standby(catalog, config.takeover_timeout_seconds, file_cache, stand_by, clock, check)
        pipeline = take_over.in_turn(standby, found, made)
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
        versions={} if is_here(spark) else versions_of(),
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
    anchors = Anchors(spark) if not session.is_local_mode(spark) and can_place(spark) else None
    executor = CheckpointExecutor(
        _state_machine(pipeline, config, follows_tasks=anchors is not None),
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
    if anchors is not None:
        made.callback(anchors.close)
        partitioning = anchors.partition
    if not session.is_local_mode(spark):
        made.callback(RemoteHosts.begin(spark, endpoint).close)
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
            storage,
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


def _state_machine(
    pipeline: TakenPipeline, config: CheckpointConfig, *, follows_tasks: bool
) -> CheckpointStateMachine:
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
        follows_tasks=follows_tasks,
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
