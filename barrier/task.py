"""A keyed operator as Spark runs it: each task passes the barrier, then processes its part of a micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Final, Protocol, Self

import attrs
import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from ..state.errors import (
    HostDismissedError,
    HostLostError,
    MisplacedTaskError,
    ProcessorError,
    ShardMovingError,
    UserError,
    invalid_argument,
)
from ..state.failure_marks import mark
from ..state.format.arrow import to_numpy
from ..state.format.keys import KeyCodec
from ..state.format.rows import check_columns
from ..state.format.schema import from_json, to_json
from ..state.host.discovery import connect, end_silent_host
from ..state.operators import engine, shard_ranges
from ..state.operators.attempts import OnError
from ..state.operators.dataframe import SHARD, Combiner, KeyedFunction, check_input, keyed_function
from ..state.operators.dead_letters import check_on_error
from ..state.operators.engine import OperatorSpec, RuntimeContext
from ..state.operators.garbage_collection import infrequent_garbage_collection
from ..state.operators.partitioning import Partitioning, by_id
from ..state.operators.pickling import Pickled
from ..state.rpc.access import StateAccess
from ..state.rpc.messages import BeginTask, Endpoint, TaskFailure
from ..storage import runtime
from ..storage.errors import ChandyError
from ..storage.ids import BatchId
from ..storage.logs import logger
from .operator_name import function_name

log = logger(__name__)

_PAUSE: Final = 0.2
"""Seconds between two attempts to begin a batch whose shards have no owner."""
_RESTART_SECONDS: Final = 10.0
"""How long before the end of its patience a task replaces a host beside it that does not answer. By then, the
coordinator has taken it for lost."""


class BatchAccess(StateAccess, Protocol):
    """Access to the shards of a batch that has begun. To leave it without ``apply`` gives the batch up."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class StateClient(Protocol):
    """A connection to an executor's state host. The tasks of a process share it, so no task closes it."""

    def begin(self, task: BeginTask) -> BatchAccess:
        """Begin a batch on shards: they first pass the barriers that stand ahead of it."""
        ...

    def report(self, failure: TaskFailure) -> None:
        """Tell the coordinator that a user's code or data made a task fail."""
        ...


def begin_batch(
    connect: Callable[[], StateClient],
    task: BeginTask,
    patience: float,
    end_silent: Callable[[str], None] = end_silent_host,
) -> tuple[StateClient, BatchAccess]:
    """Begin a batch, and wait for its shards to get another owner if a host is gone.

    A task that fails at once would fail again at once, and its query after it, before a standby has taken the place of
    the shard. So it waits here, and Spark's retries are left for what comes after.

    Args:
        connect: connects to the executor's state host, which another process may be by then.
        patience: how many seconds to wait.
        end_silent: kills a host on this machine that does not answer, by its address.

    Raises:
        ChandyError: the batch cannot begin, or the shards have no owner when the time is up.
    """
    deadline = runtime.monotonic() + patience
    while True:
        try:
            client = connect()
            return client, client.begin(task)
        except (HostLostError, HostDismissedError, ShardMovingError) as error:
            now = runtime.monotonic()
            if now >= deadline:
                raise
            # A host that is frozen cannot end by itself, and the driver is on another machine.
            if isinstance(error, HostLostError) and now >= deadline - _RESTART_SECONDS:
                end_silent(error.address)
        runtime.sleep(_PAUSE)


@attrs.frozen
class TaskLocation:
    """Where a task runs: the query, its run, the batch and the partition."""

    query_id: str
    run_id: str
    batch: BatchId
    partition: int


def task_location(context: TaskContext | None, uid: str, parallelism: int) -> TaskLocation:
    """Return where the task with this context runs.

    Raises:
        MisplacedTaskError: the task is not part of a streaming query's batch, or its stage has more partitions than
            the operator.
    """
    batch = context.getLocalProperty("streaming.sql.batchId") if context else None
    query_id = context.getLocalProperty("sql.streaming.queryId") if context else None
    if context is None or batch is None or query_id is None:
        raise MisplacedTaskError(
            f"operator {uid!r} runs outside of its batch",
            "a job of the thread that runs the batch",
            "a job of another thread, or of a query that Chandy has not started",
            "start the query with coordinator.start. For threads in a foreachBatch function, call rows.persist() and "
            "rows.count() before them, or begin each with a function that knows the batch: "
            "pyspark.util.inheritable_thread_target(rows.sparkSession)(function)",
        )
    partition = context.partitionId()
    if partition >= parallelism:
        raise _misplaced(uid, f"a partition below {parallelism}", f"partition {partition}")
    # Spark names the job group of a query's jobs after the id of the query's run.
    run_id = context.getLocalProperty("spark.jobGroup.id") or ""
    return TaskLocation(query_id, run_id, BatchId(int(batch)), partition)


@attrs.frozen
class OperatorTask:
    """A keyed operator as a function for ``mapInArrow``, with everything a task needs to run it.

    A call does three things, in this order:

    1. It begins the batch on the task's shards, before it pulls any input. So a task without rows passes the barrier
       too.
    2. It runs the operator and yields the output as it comes.
    3. It applies the changes of state, after Spark has taken the last output.

    So nothing is applied if the task fails, or if Spark stops pulling (a limit). A task that Spark counts as
    successful has applied its changes.
    """

    uid: str
    key: str
    """Schema of the key columns as Spark's JSON."""
    shards: int
    parallelism: int
    spec: Pickled[OperatorSpec]
    """Every task loads its own."""
    endpoint: Endpoint
    on_error: OnError = "fail"
    """What becomes of an error of the user's code."""
    watermark_lag_ms: int = 0
    """By how many milliseconds the watermark of the operator's input lags behind that of the query."""
    connect: Callable[[Endpoint], StateClient] = connect
    """Finds or starts the state host of the task's executor."""

    @property
    def key_schema(self) -> StructType:
        """Schema of the key columns."""
        return from_json(self.key)

    def with_spec(self, spec: OperatorSpec) -> OperatorTask:
        """Return the same operator by another definition, such as one that knows the schemas of older values."""
        return attrs.evolve(self, spec=Pickled.of(spec, self.uid))

    def over(
        self, df: DataFrame, combiner: Combiner | None = None, partitioning: Partitioning = by_id
    ) -> DataFrame:
        """Return the operator's output over ``df``, the DataFrame that it was defined for.

        Args:
            df: has the key columns.
            combiner: combines rows before they are sent to their partitions.
            partitioning: brings rows to their partitions.
        """
        return self.prepared(df, combiner, partitioning).over(df)

    def prepared(
        self, df: DataFrame, combiner: Combiner | None = None, partitioning: Partitioning = by_id
    ) -> KeyedFunction:
        """Return the operator, ready to be put over any number of DataFrames like ``df``.

        Args:
            df, combiner, partitioning: as for ``over``.
        """
        return keyed_function(
            df,
            self.key_schema.names,
            self.shards,
            self.parallelism,
            self,
            from_json(self.spec.load().output),
            function_name(self.uid),
            combiner,
            partitioning,
        )

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the operator over one partition of a micro-batch.

        Raises:
            MisplacedTaskError: the task does not run where its shards are served.
            UserError: the user's code raised an exception, or its result does not fit.
            ChandyError: the state host could not begin the batch, read values or take changes.
        """
        location = task_location(TaskContext.get(), self.uid, self.parallelism)
        shards = shard_ranges.ranges(self.shards, self.parallelism)[location.partition]
        begin = BeginTask(location.query_id, location.batch, self.uid, tuple(shards))
        try:
            client, access = begin_batch(lambda: self.connect(self.endpoint), begin, self.endpoint.patience)
        except Exception as error:
            mark(error, self.endpoint.token)
            raise
        try:
            yield from self._run(batches, location, shards, access)
        except Exception as error:
            if isinstance(error, UserError):
                self._report(client, location, error)
            mark(error, self.endpoint.token)
            raise

    def _run(
        self,
        batches: Iterator[pa.RecordBatch],
        location: TaskLocation,
        shards: range,
        begun: BatchAccess,
    ) -> Iterator[pa.RecordBatch]:
        with infrequent_garbage_collection(), begun as access:
            context = RuntimeContext(
                uid=self.uid,
                query_id=location.query_id,
                run_id=location.run_id,
                batch=location.batch,
                partition=location.partition,
                shards=shards,
                times=access.times.lagging(self.watermark_lag_ms),
            )
            # The context closes the operator even after an error, without waiting for the garbage collector.
            with self.spec.load().open(context) as operator:
                rows = self._checked(batches, context)
                codec = KeyCodec(self.key_schema)
                output = engine.run(operator, context, rows, codec, SHARD, access, self.on_error)
                yield from access.metrics.on_output(output)

    def _checked(
        self, batches: Iterator[pa.RecordBatch], context: RuntimeContext
    ) -> Iterator[pa.RecordBatch]:
        """Pass the batches on, and refuse rows of shards that the task does not serve."""
        own = context.shards
        for batch in batches:
            shards = to_numpy(batch.column(SHARD))
            if len(shards) and (shards.min() < own.start or shards.max() >= own.stop):
                foreign = [shard for shard in np.unique(shards).tolist() if shard not in own]
                expected = f"rows of shards {own.start} to {own.stop - 1} in partition {context.partition}"
                raise _misplaced(self.uid, expected, f"rows of shards {foreign}")
            yield batch

    def _report(self, client: StateClient, location: TaskLocation, error: UserError) -> None:
        """Tell the coordinator which operator and key failed, and how."""
        if isinstance(error, ProcessorError):
            where, summary, trace = error.where, error.summary, error.traceback
        else:
            where, summary, trace = "", str(error).splitlines()[0], str(error)
        failure = TaskFailure(location.query_id, location.batch, self.uid, where, summary, trace)
        try:
            client.report(failure)
        except ChandyError as unreported:
            # The task fails with the user's error in any case, and Spark tells the driver, only less clearly.
            log.warning(
                "failure not reported",
                pipeline=self.endpoint.pipeline,
                operator=self.uid,
                batch=location.batch,
                error=str(unreported),
            )


def _misplaced(uid: str, expected: str, found: str) -> MisplacedTaskError:
    return MisplacedTaskError(
        f"operator {uid!r} runs in the wrong place",
        expected,
        found,
        "put a repartition between the operator and a union or coalesce after it",
    )


def operator_task(
    df: DataFrame,
    *,
    uid: str,
    key: Sequence[str],
    spec: OperatorSpec,
    shards: int,
    parallelism: int,
    endpoint: Endpoint,
    on_error: OnError = "fail",
    watermark_lag_ms: int = 0,
) -> OperatorTask:
    """Define a keyed operator over ``df``, on the driver. ``task.over(df)`` is its output.

    Raises:
        DefinitionError: an argument, or the schema of the input or the output, cannot be used.
    """
    if not isinstance(uid, str) or not uid:
        raise invalid_argument("uid", "a text that is not empty", repr(uid))
    key_schema = check_input(df, key)
    shard_ranges.check(shards, parallelism)
    check_columns(from_json(spec.output), f"the output of operator {uid!r}")
    check_on_error(on_error)
    return OperatorTask(
        uid=uid,
        key=to_json(key_schema),
        shards=shards,
        parallelism=parallelism,
        spec=Pickled.of(spec, uid),
        endpoint=endpoint,
        on_error=on_error,
        watermark_lag_ms=watermark_lag_ms,
    )
