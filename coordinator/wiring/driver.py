"""What a driver has before it takes a pipeline over: its storage, its address, its directories and its JVM.

None of this needs a generation. A driver that cannot have it all must not fence one that runs.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from ...state.host.host_config import check_runtime
from ...state.host.versions import versions_of
from ...state.local import changelog
from ...state.rpc.messages import Endpoint
from ...storage import runtime
from ...storage.backends.open import open_store
from ...storage.backends.probe import probe_exclusive_create
from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.fencing import Claim
from ...storage.checkpoints.files import FileCache
from ...storage.disk.directories import (
    CACHE,
    HOST_CHANGELOGS,
    make_private_folder,
    private_directory,
    runtime_directory,
)
from ...storage.logs import logger
from ...storage.long_waits import told_if_slow
from ..config import CheckpointConfig
from ..errors import SessionStoppedError, SetupError
from ..execution.service import Service, listen
from ..hosts.local_host import is_here
from ..observer import Observer, Watch
from ..restore.query_directories import QueryDirectories
from ..restore.remote_directories import RemoteDirectories
from ..restore.restore_point import RestorePoint
from ..spark import session
from ..spark.executors import check_executors
from ..spark.hadoop_folder import HadoopFolder
from ..spark.java_watch import JavaWatch
from ..spark.local_path import is_local, local_path
from ..spark.quiet_log import hide_what_is_told
from ..spark.reachable_places import check_reach, for_hadoop
from .taken_pipeline import is_chosen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


log = logger(__name__)


@attrs.frozen
class Driver:
    """The means of one driver, for one pipeline."""

    spark: SparkSession
    pipeline: str
    config: CheckpointConfig
    clock: Callable[[], float]
    server: Service
    runtime: Path
    cache: Path
    files: FileCache
    work_dir: Path | HadoopFolder | None
    """``CheckpointConfig.work_dir``; None if it is not set."""
    directories: QueryDirectories
    java: JavaWatch
    observer: Observer

    @classmethod
    def prepare(
        cls, spark: SparkSession, pipeline: str, config: CheckpointConfig, watch: Watch, closing: ExitStack
    ) -> Driver:
        """Listen for state hosts, and make directories that this driver can write into.

        Args:
            spark: the session.
            pipeline: its name.
            config: how to checkpoint and restart.
            watch: begins to watch the pipeline from outside.
            closing: ends what was made, in the reverse order.

        Raises:
            ChandyError: the address or a directory is not as it must be.
        """
        # First, so that it ends last.
        observer = watch(closing)
        runtime = private_directory(runtime_directory())
        # Here and not in the first batch: a task could tell nobody but Spark.
        check_runtime(runtime)
        server = listen(
            session.driver_host(spark),
            secrets.token_hex(32),
            pipeline,
            bind=session.bind_address(spark),
            ports=config.port_range,
            runtime=runtime,
        )
        closing.callback(server.shutdown)
        cache = Path(config.cache_dir or runtime / CACHE)
        _make_cache(cache)
        work_dir = _open_work_dir(spark, config)
        directories = QueryDirectories(work_dir if isinstance(work_dir, Path) else None, pipeline)
        closing.callback(directories.close)
        java = JavaWatch.begin(spark, config.java_timeout_seconds)
        closing.callback(java.close)
        closing.callback(hide_what_is_told(spark))
        return cls(
            spark=spark,
            pipeline=pipeline,
            config=config,
            clock=_clock(),
            server=server,
            runtime=runtime,
            cache=cache,
            files=FileCache(cache),
            work_dir=work_dir,
            directories=directories,
            java=java,
            observer=observer,
        )

    @property
    def changelogs(self) -> Path:
        """Where changelogs of this machine are."""
        return self.cache / changelog.FOLDER

    def endpoint(self) -> Endpoint:
        """Return what state hosts and tasks are told of this driver."""
        here = is_here(self.spark)
        # Nobody takes up a working directory that is on a store.
        may_resume = self.config.changelog and here and not isinstance(self.work_dir, HadoopFolder)
        is_cluster = not session.is_local_mode(self.spark)
        return Endpoint(
            address=self.server.address,
            token=self.server.token,
            pipeline=self.pipeline,
            memory=self.config.host_memory_bytes,
            cache=str(self.cache),
            runtime=str(self.runtime),
            changelogs=str(self.changelogs) if may_resume else None,
            host_changelogs=str(self.cache / HOST_CHANGELOGS)
            if self.config.changelog and is_cluster
            else None,
            identity=self.server.identity,
            ports=self.config.port_range,
            versions={} if here else versions_of(),
            patience=self.config.patience_seconds if is_cluster else 0.0,
        )

    def place_directories(self, catalog: Catalog, claim: Claim) -> None:
        """Put the queries' working directories where ``work_dir`` says, if that is not on this machine."""
        if isinstance(self.work_dir, HadoopFolder):
            self.directories.place_on(RemoteDirectories.begin(self.work_dir, self.pipeline, catalog, claim))

    def on_this_machine(self, closing: ExitStack) -> Driver:
        """Return the same driver with working directories on this machine.

        Args:
            closing: deletes them.
        """
        if not isinstance(self.work_dir, HadoopFolder):
            return self
        directories = QueryDirectories(None, self.pipeline)
        closing.callback(directories.close)
        return attrs.evolve(self, work_dir=None, directories=directories)

    def check_session(self) -> None:
        """Check that the session can run queries.

        Raises:
            JavaEndedError: its JVM has ended.
            SessionStoppedError: it was stopped.
        """
        self.java.check()
        if session.is_stopped(self.spark):
            raise SessionStoppedError


def check_session(
    spark: SparkSession, uri: str, config: CheckpointConfig, restore: str | int | RestorePoint
) -> None:
    """Have executors run this Python, and check that they and the driver reach what both need.

    Args:
        spark: the session.
        uri: of the pipeline's store.
        config: how to checkpoint and restart.
        restore: as for ``CheckpointCoordinator``.

    Raises:
        ChandyError: they cannot.
    """
    session.use_this_python(spark)
    if not session.is_local_mode(spark):
        check_executors(spark)
    places = {"the checkpoints": uri}
    if isinstance(restore, str) and is_chosen(restore):
        places["the savepoint to restore"] = restore
    elif isinstance(restore, RestorePoint):
        places["the checkpoint to restore"] = restore.root
    check_reach(str(spark.sparkContext.master), places, shared=config.shared)


def open_catalog(uri: str, config: CheckpointConfig) -> Catalog:
    """Open the checkpoints of a pipeline, and check that its store can fence."""
    store = open_store(uri)
    if not config.allow_unfenced:
        probe_exclusive_create(store)
    return Catalog(store)


def _open_work_dir(spark: SparkSession, config: CheckpointConfig) -> Path | HadoopFolder | None:
    """Return ``CheckpointConfig.work_dir``, into which this driver can write; None if it is not set."""
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


def _clock() -> Callable[[], float]:
    """Return a clock of seconds since 1970 that never goes back, whatever is done to the machine's."""
    offset = runtime.time() - runtime.monotonic()
    return lambda: offset + runtime.monotonic()
