"""The composition root: takes a pipeline over, and makes and wires all the parts that a coordinator runs."""

from __future__ import annotations

import atexit
import os
import platform
import random
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from ..state.local import changelog
from ..state.local.directories import CACHE, runtime_directory
from ..state.rpc.messages import Endpoint
from ..storage.catalog import Catalog
from ..storage.errors import ChandyError
from ..storage.fencing import Generation
from ..storage.files import FileCache
from ..storage.logs import logger
from ..storage.long_waits import told_if_slow
from ..storage.open import open_store, pipeline_uri
from ..storage.probe import probe_exclusive_create
from ..storage.savepoint_claim import claim_restored, drop_claimed
from .config import CheckpointConfig
from .execution.executor import CheckpointExecutor
from .execution.service import Service, listen
from .lookup import Lookup
from .operators import Operators
from .protocol.events import Restored
from .protocol.state_machine import CheckpointStateMachine
from .recovery import restore_point
from .recovery.decisions import RecoveryStateMachine
from .recovery.launcher import Launcher
from .recovery.local_host import is_here, leave_to_tasks, local_host
from .recovery.local_recovery import LocalRecovery
from .recovery.query_directories import QueryDirectories
from .recovery.restore_point import RestorePoint
from .recovery.runs import Runs
from .recovery.supervisor import Supervisor
from .spark import session
from .spark.ticks import Ticks
from .version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logger(__name__)


@attrs.frozen
class TakenPipeline:
    """A pipeline that this process has taken over: every earlier coordinator on it is fenced."""

    name: str
    catalog: Catalog
    generation: Generation
    point: RestorePoint | None
    """The checkpoint to begin from; None: from the beginning."""
    is_chosen: bool
    """Whether the user named that checkpoint, so that it need not be the latest."""
    may_resume: bool
    """Whether queries may go on behind that checkpoint, and sinks with batches are this pipeline's own."""

    @property
    def base(self) -> int | None:
        """The checkpoint of the pipeline's own chain that its state grows from."""
        return self.point.manifest.id if self.point and not self.point.is_savepoint else None

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
    abandon: Callable[[], None]
    """Ends the streams to the hosts, and with them the hosts; waits for nothing."""


def assemble(
    spark: SparkSession,
    name: str,
    storage: str,
    config: CheckpointConfig,
    restore: str | int,
    made: ExitStack,
) -> Assembly:
    """Take a pipeline over and make all that runs.

    Args:
        spark: the session.
        name: of the pipeline.
        storage: URI where checkpoints go.
        config: how to checkpoint and restart.
        restore: as for ``CheckpointCoordinator``.
        made: ends what was made, in the reverse order.

    Raises:
        ChandyError: the storage, the driver's address or the checkpoint to restore is not as it must be.
    """
    clock = _clock()
    session.use_this_python(spark)
    token = secrets.token_hex(32)
    # A driver that nobody can reach must not fence one that runs: so it listens first.
    with told_if_slow(log, "the storage to answer", storage=storage):
        catalog = _open_catalog(name, storage, config)
    server = listen(session.driver_host(spark), token, name)
    made.callback(server.shutdown)
    with told_if_slow(log, "the take-over of the pipeline, and the checkpoint to restore", storage=storage):
        pipeline = _take_over(name, catalog, config, restore, clock)
    point = pipeline.point

    cache = Path(config.cache_dir or runtime_directory() / CACHE)
    file_cache, changelogs = FileCache(cache), cache / changelog.FOLDER
    endpoint = Endpoint(
        address=server.address,
        token=token,
        pipeline=name,
        memory=config.host_memory_bytes,
        cache=str(cache),
        runtime=str(runtime_directory()),
        changelogs=str(changelogs) if config.changelog and is_here(spark) else None,
    )
    directories = QueryDirectories(Path(config.work_dir) if config.work_dir else None, name)
    made.callback(directories.close)
    local_recovery = LocalRecovery.begin(
        directories.base,
        changelogs,
        root=catalog.store.uri,
        generation=pipeline.generation.generation,
        point=point,
        enabled=endpoint.changelogs is not None,
        resume=pipeline.may_resume,
        java=session.java_process(spark),
    )
    made.callback(local_recovery.close)
    host = local_host(spark, endpoint)
    ticks = Ticks(directories.ticks(), max(1, round(config.timer_period_seconds * 1000)))
    runs = Runs()
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
            resets_sinks=pipeline.may_resume and pipeline.generation.generation > 1,
        ),
        runs=runs,
        local_recovery=local_recovery,
        find_damage=find_damage,
        clock=clock,
        restored=point,
        token=token,
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
        on_not_opened=supervisor.shards_not_opened,
    )
    made.callback(executor.close)
    if point is not None:
        executor.handle(Restored(point.manifest.id))
    if host:
        made.callback(host.close)
    supervisor.begin(executor)
    made.callback(supervisor.close)
    server.answer(executor)
    abandon = partial(_abandon, executor, server)
    # A driver that ends without stop must not hang on the hosts' open streams.
    atexit.register(abandon)
    made.callback(atexit.unregister, abandon)
    assembly = Assembly(
        pipeline=pipeline,
        executor=executor,
        supervisor=supervisor,
        operators=Operators(endpoint, point, directories, ticks),
        lookup=Lookup(spark, executor, runs, token, file_cache, changelogs, clock),
        abandon=abandon,
    )
    log.info(
        "coordinator started",
        storage=catalog.store.uri,
        generation=pipeline.generation.generation,
        restores=point.manifest.id if point else None,
    )
    return assembly


def _open_catalog(name: str, storage: str, config: CheckpointConfig) -> Catalog:
    store = open_store(pipeline_uri(storage, name))
    if not config.allow_unfenced:
        probe_exclusive_create(store)
    return Catalog(store)


def _take_over(
    name: str, catalog: Catalog, config: CheckpointConfig, restore: str | int, clock: Callable[[], float]
) -> TakenPipeline:
    """Begin a generation, and choose the checkpoint that it restores."""
    # A savepoint's id may be above all of this pipeline's.
    is_chosen = restore not in (restore_point.LATEST, restore_point.NONE)
    wanted = restore_point.choose(catalog, restore) if is_chosen else None
    owner = f"{socket.gethostname()}, process {os.getpid()}"
    generation = catalog.take_over(owner, clock(), first_id=wanted.manifest.id + 1 if wanted else 1)
    # Only what is found after the take-over is sure to be the latest.
    point = wanted or restore_point.choose(catalog, restore)
    if config.claim and point is not None and point.is_savepoint:
        claim_restored(catalog, open_store(point.root), generation.generation)
    taken = TakenPipeline(
        name, catalog, generation, point, is_chosen=is_chosen, may_resume=restore == restore_point.LATEST
    )
    taken.drop_claimed(generation.generation - 1)
    return taken


def _state_machine(pipeline: TakenPipeline, config: CheckpointConfig) -> CheckpointStateMachine:
    """Make the protocol of a pipeline's checkpoints, which goes on after the restored one."""
    point = pipeline.point
    chosen = point if pipeline.is_chosen else None
    restored = frozenset(query.name for query in point.manifest.queries) if point else frozenset()
    return CheckpointStateMachine(
        pipeline=pipeline.name,
        generation=pipeline.generation.generation,
        root=pipeline.catalog.store.uri,
        limits=config.limits,
        next_id=pipeline.generation.next_id,
        completed=restore_point.known(pipeline.catalog, chosen),
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
