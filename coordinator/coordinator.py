"""The checkpoint coordinator: what a user makes on the driver, one for each pipeline."""

from __future__ import annotations

import atexit
import os
import platform
import random
import re
import secrets
import socket
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import attrs

from ..barrier.cut import downstream_first
from ..barrier.task import operator_task
from ..state.messages import Endpoint
from ..state.rendezvous import runtime_directory
from ..storage.catalog import Catalog
from ..storage.files import FileCache
from ..storage.keys import validate_name
from ..storage.logs import logger
from ..storage.manifest import CheckpointKind, OperatorRecord
from ..storage.open import open_store, pipeline_uri
from ..storage.probe import probe_exclusive_create
from . import recovery, spark_plan
from .checkpoint import Checkpoint
from .checkpointing import Checkpointing
from .config import CheckpointConfig
from .durations import Duration, seconds
from .environment import check_pyspark, check_session
from .errors import (
    CoordinatorStoppedError,
    DuplicateNameError,
    OperatorMovedError,
    SavepointTargetError,
    SharedDirectoryError,
    UnknownOperatorError,
)
from .failures import FailureCounter
from .protocol import Protocol
from .query import CheckpointedQuery, Definition
from .query_directories import QueryDirectories
from .recoveries import Recovery
from .requests import RequestQueue
from .runs import Runs
from .schedule import Schedule
from .service import serve
from .statistics import History, Statistics
from .supervisor import Supervisor
from .writer_facts import check

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import StructType

log = logger(__name__)


class CheckpointCoordinator:
    """Checkpoints the queries of one pipeline together, and restores them together.

    Make one per pipeline on the driver, build operators with ``transform_with_state``, start queries with
    ``start``. It is a context manager that stops on leaving. Its methods may be called from any thread.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        pipeline: str,
        storage: str,
        config: CheckpointConfig | None = None,
        restore: str | int = recovery.LATEST,
    ) -> None:
        """Take the pipeline over: any earlier coordinator on it is fenced from here on.

        Args:
            spark: the session; classic, not Spark Connect.
            pipeline: name of the pipeline; stable across restarts, a safe file name.
            storage: URI where checkpoints go; ``file:///...`` or a plain path, or a backend's.
            config: how to checkpoint and restart.
            restore: "latest" (from the beginning if there is no checkpoint), "none", the id of a checkpoint, or
                the URI of a savepoint.

        Raises:
            ChandyError: one of its subclasses: the machine, the session, the storage or the checkpoint to
                restore is not as it must be. Nothing has been started then.
        """
        # Not the whole environment: a session that runs has its Java, and asking for it takes half a second.
        check_session(spark)
        check_pyspark(spark.version)
        self._spark = spark
        _use_this_python(spark)
        self._pipeline = validate_name("pipeline", pipeline)
        self._config = config or CheckpointConfig()
        store = open_store(pipeline_uri(storage, pipeline))
        if not self._config.allow_unfenced:
            probe_exclusive_create(store)
        catalog = Catalog(store)
        # A savepoint's id may be above all of this pipeline's.
        wanted = (
            recovery.choose(catalog, restore) if restore not in (recovery.LATEST, recovery.NONE) else None
        )
        self._clock = _clock()
        owner = f"{socket.gethostname()}, process {os.getpid()}"
        generation = catalog.take_over(owner, self._clock(), first_id=wanted.manifest.id + 1 if wanted else 1)
        # Only what is found after the take-over is sure to be the latest.
        self._point = wanted or recovery.choose(catalog, restore)
        self._operators: dict[str, OperatorRecord] = {}
        self._names: set[str] = set()
        self._stopped = False

        protocol = Protocol(
            pipeline=pipeline,
            generation=generation.generation,
            root=store.uri,
            config=self._config,
            schedule=Schedule(
                self._config.interval_seconds,
                self._config.min_pause_seconds,
                self._config.initial_delay_seconds,
            ),
            history=History(self._config.history),
            failures=FailureCounter(self._config.tolerable_failures),
            queue=RequestQueue(self._config.max_queued),
            next_id=generation.next_id,
            completed=tuple(catalog.completed()),
            base=self._point.manifest.id if self._point and not self._point.is_savepoint else None,
            required=set() if self._config.allow_non_restored else self._restored_queries(),
            versions=_versions(),
        )
        if self._point is not None:
            protocol.history.restored(self._point.manifest.id)
        cache = Path(self._config.cache_dir or runtime_directory() / "cache")
        work = Path(self._config.work_dir) if self._config.work_dir else None
        self._directories = QueryDirectories(work, pipeline)
        self._runs = Runs()
        self._supervisor = Supervisor(
            directories=self._directories,
            runs=self._runs,
            tracker=self._config.restart.tracker(),
            clock=self._clock,
            cache=FileCache(cache),
            restored=self._point,
            resets_sinks=restore == recovery.LATEST and generation.generation > 1,
        )
        self._checkpointing = Checkpointing(
            protocol,
            catalog=catalog,
            store=store,
            progress=self._runs,
            clock=self._clock,
            on_state_lost=self._supervisor.state_lost,
            on_failure=self._supervisor.must_fail,
            on_processor_failure=self._supervisor.processor_failed,
        )
        self._supervisor.begin(self._checkpointing)
        token = secrets.token_hex(32)
        self._server = serve(self._checkpointing, _driver_host(spark), token)
        self._endpoint = Endpoint(
            address=self._server.address,
            token=token,
            pipeline=pipeline,
            memory=self._config.host_memory,
            cache=str(cache),
        )
        # A driver that ends without stop must not hang on the hosts' open streams.
        atexit.register(self._abandon)
        log.info(
            "coordinator started",
            pipeline=pipeline,
            storage=store.uri,
            generation=generation.generation,
            restores=self._point.manifest.id if self._point else None,
        )

    # --- building and starting ------------------------------------------------------------------------------

    def transform_with_state(
        self,
        df: DataFrame,
        *,
        key: Sequence[str],
        processor: StatefulProcessor,
        output: str | StructType,
        uid: str,
        shards: int = 16,
        parallelism: int | None = None,
    ) -> DataFrame:
        """Run a PySpark ``StatefulProcessor`` over a keyed stream, its state with this pipeline's checkpoints.

        Args:
            df: a streaming DataFrame.
            key: names of the columns to group by.
            processor: as for ``GroupedData.transformWithState`` (rows, not pandas).
            output: schema of the rows that it yields; DDL or a ``StructType``.
            uid: name of the operator, unique in the pipeline and stable across restarts.
            shards: slices of the key space; fixed for the operator's life.
            parallelism: tasks that run it, at most as many as shards; None: Spark's default parallelism.

        Raises:
            ChandyError: one of its subclasses: an argument cannot be used, or the restored checkpoint's state of
                this uid does not fit.
        """
        self._check_running()
        validate_name("operator uid", uid)
        if uid in self._operators:
            raise DuplicateNameError("operator uid", uid)
        task = operator_task(
            df,
            uid=uid,
            key=key,
            processor=processor,
            output=output,
            shards=shards,
            parallelism=parallelism or min(self._spark.sparkContext.defaultParallelism, shards),
            endpoint=self._endpoint,
        )
        record = OperatorRecord(
            uid=uid, query="", key_schema=task.key_schema.json(), states=task.states, shards=(None,) * shards
        )
        recovery.check_operator(self._point, record)
        self._operators[uid] = record
        return task.over(df)

    def start(
        self, writer: DataStreamWriter, *, name: str, table: str | None = None, reads: Sequence[str] = ()
    ) -> CheckpointedQuery:
        """Start a query of the pipeline, from the restored checkpoint if it was there.

        Args:
            writer: any writer of a streaming DataFrame, not started; it must not set ``checkpointLocation``.
            name: unique in the pipeline and stable across restarts.
            table: start by ``toTable`` with this name instead of ``start``.
            reads: names of queries of this pipeline whose output this one reads; they must have been started.
                The cut of a checkpoint is then consistent across them. Queries for which nothing is said are
                taken to read from those started before them.

        Raises:
            ChandyError: one of its subclasses: the query cannot be checkpointed, or the restored state of it
                does not fit. Nothing has been started then.
        """
        self._check_running()
        validate_name("query", name)
        if name in self._names:
            raise DuplicateNameError("query name", name)
        self._checkpointing.look(lambda protocol: protocol.check_reads(name, tuple(reads)))
        facts = spark_plan.facts(writer, table=table)
        check(facts)
        if facts.native_state and self._config.work_dir is None and not _is_local(self._spark):
            raise SharedDirectoryError(name, str(self._spark.sparkContext.master))
        recovery.check_query(self._point, name, facts.operators, self._config.allow_non_restored)
        definition = Definition(
            name=name,
            writer=writer,
            table=table,
            facts=facts,
            operators=tuple(self._operator_of(uid, name) for uid in facts.operators),
            reads=tuple(reads),
        )
        query = self._supervisor.start(definition)
        self._names.add(name)
        for operator in definition.operators:
            self._operators[operator.uid] = operator
        self._checkpointing.start_schedule(random.random)
        log.info("query started", query=name, guarantee=str(query.guarantee))
        return query

    def _operator_of(self, uid: str, query: str) -> OperatorRecord:
        """The operator as part of a query."""
        record = self._operators.get(uid)
        if record is None:
            raise UnknownOperatorError(uid, query)
        if record.query:
            raise DuplicateNameError("operator uid", uid)
        was = self._point.operator(uid) if self._point else None
        if was is not None and was.query != query:
            raise OperatorMovedError(uid, was.query, query)
        return attrs.evolve(record, query=query)

    # --- checkpoints ----------------------------------------------------------------------------------------

    def checkpoint(self) -> Future[Checkpoint]:
        """Take a checkpoint now. The future has it, or raises the ``CheckpointError`` that ended it."""
        self._check_running()
        return self._checkpointing.request(CheckpointKind.MANUAL)

    def savepoint(self, target: str | None = None) -> Future[Checkpoint]:
        """Take a savepoint: self-contained, never deleted by retention, movable as a folder.

        Args:
            target: URI or absolute path of a new or empty folder, or a plain name under
                ``CheckpointConfig.savepoints`` (by default ``<storage>/<pipeline>/savepoints``). None: a folder
                named by the time under ``CheckpointConfig.savepoints``, which must be set then.

        Raises:
            SavepointTargetError: neither a target nor a default.
            UnknownStoreError, InvalidUriError: the target is no place that can be written.
        """
        self._check_running()
        return self._checkpointing.request(CheckpointKind.SAVEPOINT, target=self._savepoint_uri(target))

    def _savepoint_uri(self, target: str | None) -> str:
        default = self._config.savepoints
        if target is None:
            if default is None:
                raise SavepointTargetError("none")
            target = time.strftime("%Y%m%dT%H%M%S", time.gmtime()) + f"-{secrets.token_hex(3)}"
        if "/" not in target:
            validate_name("savepoint", target)
            folder = default or f"{self._checkpointing.look(lambda p: p.root)}/savepoints"
            target = f"{folder.rstrip('/')}/{self._pipeline}/{target}" if default else f"{folder}/{target}"
        return open_store(target).uri

    def statistics(self) -> Statistics:
        """Counts, a bounded history with every shard's part, and percentiles over completed checkpoints."""
        return self._checkpointing.statistics()

    @property
    def recoveries(self) -> tuple[Recovery, ...]:
        """The starts and restarts of this coordinator's queries, and what their time went into."""
        return tuple(self._supervisor.recoveries)

    @property
    def restored(self) -> Checkpoint | None:
        """The checkpoint that this coordinator began from; None: from the beginning."""
        return Checkpoint.of(self._point.manifest, self._point.root) if self._point else None

    @property
    def queries(self) -> tuple[CheckpointedQuery, ...]:
        """The pipeline's queries, in the order in which they were started."""
        return self._supervisor.queries

    # --- stopping -------------------------------------------------------------------------------------------

    def stop(self, savepoint: str | None = None, timeout: Duration = "1 min") -> Checkpoint | None:
        """Stop the pipeline gracefully: running batches commit first.

        Args:
            savepoint: where to take a savepoint of the stopped pipeline, as in ``savepoint``.
            timeout: how long to wait for running batches. One that takes longer is stopped; it counts for
                nothing and runs again after a restore.

        Returns:
            The savepoint, if one was asked for.

        Raises:
            CheckpointError: the savepoint failed. The queries run again then, and the coordinator with them.
            SavepointTargetError, UnknownStoreError, InvalidUriError: as for ``savepoint``; nothing was stopped.
        """
        if self._stopped:
            if savepoint is not None:
                raise CoordinatorStoppedError(self._pipeline)
            return None
        target = None if savepoint is None else self._savepoint_uri(savepoint)
        order = self._checkpointing.look(
            lambda p: downstream_first({name: query.reads for name, query in p.queries.items()})
        )
        stopped = self._supervisor.stop_gracefully(order, seconds(timeout))
        taken: Checkpoint | None = None
        if target is not None:
            try:
                taken = self._checkpointing.request(CheckpointKind.SAVEPOINT, target=target).result()
            except BaseException:
                self._supervisor.resume(stopped)
                raise
        self._stopped = True
        atexit.unregister(self._abandon)
        self._supervisor.close()
        self._checkpointing.close()
        self._server.shutdown()
        self._directories.close()
        return taken

    def _abandon(self) -> None:
        """End the streams to the hosts, and with them the hosts; nothing is waited for."""
        self._checkpointing.abandon()
        self._server.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _check_running(self) -> None:
        if self._stopped:
            raise CoordinatorStoppedError(self._pipeline)

    def _restored_queries(self) -> set[str]:
        return {query.name for query in self._point.manifest.queries} if self._point else set()


def _clock() -> Callable[[], float]:
    """A clock that tells seconds since 1970 and never goes back, whatever is done to the machine's."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()


def _driver_host(spark: SparkSession) -> str:
    """The address at which executors reach this driver; loopback in local mode."""
    if _is_local(spark):
        return "127.0.0.1"
    return str(spark.sparkContext.getConf().get("spark.driver.host", socket.gethostname()))


def _is_local(spark: SparkSession) -> bool:
    """Whether driver and executor are one process; ``local-cluster`` has executors of its own."""
    return re.fullmatch(r"local(\[.*\])?", str(spark.sparkContext.master)) is not None


def _use_this_python(spark: SparkSession) -> None:
    """Have local workers run by this interpreter, unless the user has chosen one.

    PySpark takes the ``python3`` of the PATH, which is another one, without Chandy, wherever a virtual
    environment is used without being activated.
    """
    if _is_local(spark) and "PYSPARK_PYTHON" not in os.environ:
        spark.sparkContext.pythonExec = sys.executable


def _versions() -> dict[str, str]:
    found = {name: metadata.version(name) for name in ("pyspark", "rocksdict")}
    return {"chandy": metadata.version("chandy"), "python": platform.python_version(), **found}
