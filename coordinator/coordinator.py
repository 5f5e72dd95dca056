"""The checkpoint coordinator: what a user makes on the driver, one for each pipeline."""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ..barrier.cut import downstream_first
from ..state.aggregation.aggregate_operator import Combine
from ..state.operators.arrow_processor import ArrowProcessor
from ..state.processors.style import StyleName
from ..state.rpc.metrics import OperatorMetrics
from ..storage.keys import validate_name
from ..storage.logs import logger
from ..storage.manifest import CheckpointKind
from ..storage.open import open_store
from ..storage.uri import join_uri
from .assembly import assemble
from .checkpoint import Checkpoint
from .config import CheckpointConfig
from .durations import Duration, seconds
from .errors import CoordinatorStoppedError, DuplicateNameError, SavepointTargetError, SharedDirectoryError
from .operators import KeyedStream
from .protocol.events import ScheduleStarted
from .protocol.statistics import Statistics
from .query import CheckpointedQuery, Definition
from .recovery import restore_point
from .recovery.metrics import RecoveryMetrics
from .sinks.recognition import sink_of
from .spark import plan, session
from .spark.environment import check_pyspark, check_session
from .spark.writer_facts import check

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, GroupedData, SparkSession
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
        restore: str | int = restore_point.LATEST,
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
        self._pipeline = validate_name("pipeline", pipeline)
        self._config = config or CheckpointConfig()
        self._names: set[str] = set()
        self._stopped = False
        # Held while operators are put together, queries started or the pipeline stopped: a name must not be taken
        # twice meanwhile, and no query may start that a stop has not seen.
        self._changing = threading.RLock()
        with ExitStack() as made:
            parts = assemble(spark, self._pipeline, storage, self._config, restore, made)
            self._made = made.pop_all()
        self._taken = parts.pipeline
        self._executor = parts.executor
        self._supervisor = parts.supervisor
        self._operators = parts.operators
        self._lookup = parts.lookup
        self._abandon = parts.abandon

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
        time_mode: str = "None",
        output_mode: str = "append",
        initial_state: DataFrame | GroupedData | None = None,
    ) -> DataFrame:
        """Run a PySpark ``StatefulProcessor`` of rows over a keyed stream, its state with this pipeline's checkpoints.

        A processor is written for one of PySpark's two methods, and so for one of these two: this is
        ``GroupedData.transformWithState``, the other is ``transform_with_state_in_pandas``.

        Args:
            df: a streaming DataFrame.
            key: names of the columns to group by.
            processor: as for ``GroupedData.transformWithState``.
            output: schema of the rows that it yields; DDL or a ``StructType``.
            uid: name of the operator, unique in the pipeline and stable across restarts.
            shards: slices of the key space; fixed for the operator's life.
            parallelism: tasks that run it, at most as many as shards; None: Spark's default parallelism.
            time_mode: "None", "ProcessingTime" (timers and times to live by the time of the batch) or "EventTime"
                (timers by the watermark, rows that are late are dropped).
            output_mode: "append" or "update"; it makes no difference here, for all rows that a processor yields
                go out.
            initial_state: rows that the operator's state begins with, a DataFrame that has the key columns; it may
                be grouped, as PySpark takes it. It is computed here and now, but only if the operator is not in
                the restored checkpoint; ``handleInitialState`` is called in the operator's first batch.

        Raises:
            ChandyError: one of its subclasses: an argument cannot be used, or the restored checkpoint's state of
                this uid does not fit.
        """
        with self._growing():
            return self._operators.with_processor(
                KeyedStream(df=df, key=key, uid=uid, shards=shards, parallelism=parallelism),
                style=StyleName.ROWS,
                processor=processor,
                output=output,
                time_mode=time_mode,
                output_mode=output_mode,
                initial_state=initial_state,
            )

    def transform_with_state_in_pandas(
        self,
        df: DataFrame,
        *,
        key: Sequence[str],
        processor: StatefulProcessor,
        output: str | StructType,
        uid: str,
        shards: int = 16,
        parallelism: int | None = None,
        time_mode: str = "None",
        output_mode: str = "append",
        initial_state: DataFrame | GroupedData | None = None,
    ) -> DataFrame:
        """Run a PySpark ``StatefulProcessor`` of pandas DataFrames: ``GroupedData.transformWithStateInPandas``.

        It gets the rows of a key as DataFrames of at most 10,000 rows and yields DataFrames with the columns of
        the output; ``chandy.state.processors.frames`` says which types the columns have.

        Args, Raises: as for ``transform_with_state``.
        """
        with self._growing():
            return self._operators.with_processor(
                KeyedStream(df=df, key=key, uid=uid, shards=shards, parallelism=parallelism),
                style=StyleName.PANDAS,
                processor=processor,
                output=output,
                time_mode=time_mode,
                output_mode=output_mode,
                initial_state=initial_state,
            )

    def transform_with_arrow(
        self,
        df: DataFrame,
        *,
        key: Sequence[str],
        processor: ArrowProcessor,
        output: str | StructType,
        uid: str,
        shards: int = 16,
        parallelism: int | None = None,
    ) -> DataFrame:
        """Run an ``ArrowProcessor`` over a keyed stream: many keys at a time, as whole columns.

        Args:
            df: a streaming DataFrame.
            key: names of the columns to group by.
            processor: gets keys, their rows and their states, returns output and new states.
            output: schema of its output; DDL or a ``StructType``.
            uid, shards, parallelism: as for ``transform_with_state``.

        Raises:
            ChandyError: as for ``transform_with_state``.
        """
        with self._growing():
            stream = KeyedStream(df=df, key=key, uid=uid, shards=shards, parallelism=parallelism)
            return self._operators.with_arrow_processor(stream, processor=processor, output=output)

    def aggregate(
        self,
        df: DataFrame,
        by: Sequence[str],
        *,
        uid: str,
        shards: int = 16,
        parallelism: int | None = None,
        combine: Combine = "auto",
        **columns: tuple[str, str],
    ) -> DataFrame:
        """Keep running aggregates by key: ``aggregate(df, by=["carrier"], uid="delays", total=("delay", "sum"))``.

        For each batch there is one row for every key that has rows in it: the key, and the totals of all its rows
        so far, with nulls, NaN and types as Spark SQL has them. The functions are count (of ``"*"`` all rows), sum,
        mean, min, max, first, last, variance, stddev, var_pop, stddev_pop and approx_distinct. First and last
        go by batches; inside of a batch it is open which row comes first, as in Spark.

        Args:
            df: a streaming DataFrame.
            by: names of the columns to group by.
            uid, shards, parallelism: as for ``transform_with_state``.
            combine: whether rows of one key are combined before they are sent to the key's task, so that a
                frequent key makes no slow task; "auto": as long as that makes them fewer. False saves a round of Python
                tasks, which makes batches of few rows shorter.
            columns: by name of the output's column the name of a column and a function. For an output column that
                is to be called as an argument is, ``shards`` for example, choose another name here, and rename it
                in what is returned: ``.withColumnRenamed("total", "shards")``.

        Raises:
            ChandyError: as for ``transform_with_state``. A sum that does not fit into its type any more fails the
                query with an ``AggregateOverflowError``.
        """
        with self._growing():
            stream = KeyedStream(df=df, key=by, uid=uid, shards=shards, parallelism=parallelism)
            return self._operators.with_aggregates(stream, columns=columns, combine=combine)

    def start(
        self, writer: DataStreamWriter, *, name: str, table: str | None = None, reads: Sequence[str] = ()
    ) -> CheckpointedQuery:
        """Start a query of the pipeline, from the restored checkpoint if it was there.

        As Spark does with queries that have state of its own, one with operators of this pipeline is not planned
        adaptively, unless the session sets ``spark.sql.adaptive.streaming.stateless.enabled``.

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
        with self._growing():
            return self._start(writer, name, table, tuple(reads))

    def _start(
        self, writer: DataStreamWriter, name: str, table: str | None, reads: tuple[str, ...]
    ) -> CheckpointedQuery:
        validate_name("query", name)
        if name in self._names:
            raise DuplicateNameError("query name", name)
        self._executor.read(lambda machine: machine.check_reads(name, reads))
        facts = plan.facts(writer, table=table)
        check(facts)
        sink = sink_of(writer, facts)
        if facts.native_state and self._config.work_dir is None and not session.is_local_mode(self._spark):
            raise SharedDirectoryError(name, str(self._spark.sparkContext.master))
        restore_point.check_query(self._taken.point, name, facts.operators, self._config.allow_non_restored)
        definition = Definition(
            name=name,
            writer=writer,
            table=table,
            facts=facts,
            sink=sink,
            operators=self._operators.of_query(name, facts.operators),
            reads=reads,
        )
        query = self._supervisor.start(definition)
        self._names.add(name)
        self._operators.started(definition.operators)
        self._executor.handle(ScheduleStarted(random.random()))
        log.info("query started", query=name, guarantee=str(query.guarantee))
        return query

    # --- checkpoints ----------------------------------------------------------------------------------------

    def checkpoint(self) -> Future[Checkpoint]:
        """Take a checkpoint now. The future has it, or raises the ``CheckpointError`` that ended it."""
        self._check_running()
        return self._executor.request(CheckpointKind.MANUAL)

    def savepoint(self, target: str | None = None) -> Future[Checkpoint]:
        """Take a savepoint: self-contained, never deleted by retention, movable as a folder.

        Args:
            target: URI or absolute path of a new or empty folder, or a plain name under
                ``CheckpointConfig.savepoints`` (by default ``<storage>/<pipeline>/savepoints``). None: a folder
                named by the time under ``CheckpointConfig.savepoints``, which must be set then.

        Raises:
            SavepointTargetError: neither a target nor a default.
            InvalidPlaceError: the target is no place that can be written.
        """
        self._check_running()
        return self._executor.request(CheckpointKind.SAVEPOINT, target=self._savepoint_uri(target))

    def _savepoint_uri(self, target: str | None) -> str:
        default = self._config.savepoints
        if target is None:
            if default is None:
                raise SavepointTargetError("none")
            target = time.strftime("%Y%m%dT%H%M%S", time.gmtime()) + f"-{secrets.token_hex(3)}"
        if "/" not in target:
            validate_name("savepoint", target)
            root = self._executor.read(lambda machine: machine.root)
            target = (
                join_uri(default, self._pipeline, target) if default else join_uri(root, "savepoints", target)
            )
        return open_store(target).uri

    def statistics(self) -> Statistics:
        """Counts, a bounded history with every shard's part, and percentiles over completed checkpoints."""
        return self._executor.statistics()

    @property
    def recoveries(self) -> tuple[RecoveryMetrics, ...]:
        """The starts and restarts of this coordinator's queries, and what their time went into."""
        return tuple(self._supervisor.recoveries)

    @property
    def restored(self) -> Checkpoint | None:
        """The checkpoint that this coordinator began from; None: from the beginning."""
        point = self._taken.point
        return Checkpoint.of(point.manifest, point.root) if point else None

    @property
    def queries(self) -> tuple[CheckpointedQuery, ...]:
        """The pipeline's queries, in the order in which they were started."""
        return self._supervisor.queries

    # --- state ----------------------------------------------------------------------------------------------

    def get(self, operator: str, key: Any, state: str | None = None) -> Any:
        """Return what a state variable holds for a key now: after the newest committed batch of its query.

        After a restore, before the first batch, that is what the checkpoint has.

        Args:
            operator: uid of an operator whose query runs.
            key: the values of the key columns as a tuple or as a dict by column, or the value itself if the key is
                one column.
            state: name of the state variable; None: the only one.

        Returns:
            A ``Row`` for value state, a list of them for list state, a dict of them by the map's keys (as tuples)
            for map state; None if there is none for the key, or it has expired.

        Raises:
            NoSuchOperatorError, UnknownStateError: there is no such operator or state.
            KeyShapeError: the key has other columns than the operator's.
            QueryNotRunningError: the operator's query has not been started, or has ended.
            StateLostError, StateUnreachableError: its state host is gone; the pipeline is about to go back.
        """
        self._check_running()
        return self._lookup.get(self._operators.record(operator), key, state)

    def metrics(self, operator: str) -> OperatorMetrics:
        """Return what an operator's tasks have spent their time on since its state hosts began with its query.

        Raises:
            NoSuchOperatorError: there is no such operator.
            QueryNotRunningError: the operator's query has not been started.
            StateLostError, StateUnreachableError: a state host is gone.
        """
        self._check_running()
        return self._lookup.metrics(self._operators.record(operator))

    # --- stopping -------------------------------------------------------------------------------------------

    def stop(self, savepoint: str | None = None, timeout: Duration = "1 min") -> Checkpoint | None:
        """Stop the pipeline gracefully: running batches commit first.

        An operator or a query that another thread is adding is waited for, and so is another thread's stop.

        Args:
            savepoint: where to take a savepoint of the stopped pipeline, as in ``savepoint``.
            timeout: how long to wait for running batches. One that takes longer is stopped; it counts for
                nothing and runs again after a restore.

        Returns:
            The savepoint, if one was asked for.

        Raises:
            CheckpointError: the savepoint failed. The queries run again then, and the coordinator with them.
            PipelineFailedError: the pipeline has failed for good meanwhile: it runs no more.
            SavepointTargetError, InvalidPlaceError: as for ``savepoint``; nothing was stopped.
            CoordinatorStoppedError: a savepoint was asked for, and the coordinator has stopped already.
        """
        with self._changing:
            if self._stopped:
                if savepoint is not None:
                    raise CoordinatorStoppedError(self._pipeline)
                return None
            taken = self._stop_queries(savepoint, timeout)
            self._stopped = True
            self._made.close()
            self._taken.drop_claimed(self._taken.generation.generation)
            return taken

    def _stop_queries(self, savepoint: str | None, timeout: Duration) -> Checkpoint | None:
        """Stop all queries and take a savepoint, if one was asked for; if it fails they run again."""
        target = None if savepoint is None else self._savepoint_uri(savepoint)
        order = self._executor.read(
            lambda machine: downstream_first({name: query.reads for name, query in machine.queries.items()})
        )
        stopped = self._supervisor.stop_gracefully(order, seconds(timeout))
        if target is None:
            return None
        try:
            return self._executor.request(CheckpointKind.SAVEPOINT, target=target).result()
        except BaseException:
            self._supervisor.resume(stopped)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @contextmanager
    def _growing(self) -> Iterator[None]:
        """Something is added to the pipeline, by one thread at a time."""
        with self._changing:
            self._check_running()
            yield

    def _check_running(self) -> None:
        if self._stopped:
            raise CoordinatorStoppedError(self._pipeline)
