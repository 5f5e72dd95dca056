"""What a Spark task runs for a keyed operator: pass the barrier, then process its part of a micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Final, Protocol, Self

import attrs
import numpy as np
import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from ..state.errors import (
    AggregateOverflowError,
    ArrowResultError,
    DefinitionError,
    MisplacedTaskError,
    OutputTypeError,
    ProcessorError,
)
from ..state.failure_marks import mark
from ..state.format.arrow import to_numpy
from ..state.format.keys import KeyCodec
from ..state.format.rows import check_columns
from ..state.format.schema import from_json, to_json
from ..state.host.discovery import connect
from ..state.operators import engine, shard_ranges
from ..state.operators.dataframe import SHARD, Combiner, check_input, keyed
from ..state.operators.engine import OperatorSpec, Run
from ..state.operators.garbage_collection import fewer_collections
from ..state.operators.pickling import pickled
from ..state.rpc.access import StateAccess
from ..state.rpc.messages import BeginTask, Endpoint, TaskFailure
from ..storage.errors import ChandyError
from ..storage.logs import logger
from ..storage.manifest import StateRecord
from .operator_name import function_name

log = logger(__name__)

UserError = ProcessorError | OutputTypeError | ArrowResultError | AggregateOverflowError
"""What a user's code or data did; it would do it again."""
_USER_ERRORS: Final = (ProcessorError, OutputTypeError, ArrowResultError, AggregateOverflowError)


class BatchAccess(StateAccess, Protocol):
    """Access to the shards of one begun batch; leaving it without ``apply`` gives the batch up."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class StateClient(Protocol):
    """A connection to an executor's state host; the tasks of a process share it, so nobody closes it."""

    def begin(self, task: BeginTask) -> BatchAccess:
        """Make shards ready for a batch: they pass the barriers that stand ahead of it."""
        ...

    def report(self, failure: TaskFailure) -> None:
        """Tell the coordinator that a processor raised."""
        ...


@attrs.frozen
class Place:
    """Where a task runs: which partition of which batch of which query."""

    query_id: str
    run_id: str
    batch: int
    partition: int


def place(context: TaskContext | None, uid: str, parallelism: int) -> Place:
    """Return where the task with this context runs.

    Raises:
        MisplacedTaskError: not in a batch of a streaming query, or in a stage with other partitions than the
            operator's own.
    """
    batch = context.getLocalProperty("streaming.sql.batchId") if context else None
    query_id = context.getLocalProperty("sql.streaming.queryId") if context else None
    if context is None or batch is None or query_id is None:
        raise MisplacedTaskError(uid, "to run in a batch of a streaming query", "a task without one")
    partition = context.partitionId()
    if partition >= parallelism:
        raise MisplacedTaskError(uid, f"a partition below {parallelism}", f"partition {partition}")
    # Spark runs all jobs of a query's run in a job group of that name.
    run_id = context.getLocalProperty("spark.jobGroup.id") or ""
    return Place(query_id, run_id, int(batch), partition)


@attrs.frozen
class OperatorTask:
    """A keyed operator as a function for ``mapInArrow``, with all that a task needs to run it.

    A call begins the batch on the task's shards before it pulls any input: so a task without rows passes
    the barrier, too. Output leaves as it comes. The changes of state are applied at the very end, after the
    last output was taken and before the generator ends. So if Spark fails the task, or stops pulling (a
    limit), nothing is applied; and a task that Spark counts as done has applied.
    """

    uid: str
    key: str
    """Schema of the key columns as Spark's JSON."""
    shards: int
    parallelism: int
    spec: bytes
    """The ``OperatorSpec``, by cloudpickle; every task unpickles its own."""
    endpoint: Endpoint
    connect: Callable[[Endpoint], StateClient] = connect
    """How a task finds its state host."""

    @property
    def key_schema(self) -> StructType:
        """Schema of the key columns."""
        return from_json(self.key)

    def with_states(self, states: dict[str, StateRecord]) -> OperatorTask:
        """Return the same operator with other records of its states: those that know what was written before."""
        return attrs.evolve(self, spec=pickled(attrs.evolve(self._spec(), states=states)))  # type: ignore[misc]

    def over(self, df: DataFrame, combiner: Combiner | None = None) -> DataFrame:
        """Return the operator's output over ``df``, the DataFrame that it was defined for.

        Args:
            df: has the key columns.
            combiner: what makes rows fewer before they are sent to their partitions.
        """
        return keyed(
            df,
            self.key_schema.names,
            self.shards,
            self.parallelism,
            self,
            from_json(self._spec().output),
            function_name(self.uid),
            combiner,
        )

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the operator over one partition of a micro-batch.

        Raises:
            MisplacedTaskError: the task does not run where its shards are its own.
            ProcessorError: the user's code raised.
            OutputTypeError, ArrowResultError, AggregateOverflowError: what it gave does not fit.
            ChandyError: the state host could not begin the batch, give values or take changes.
        """
        here = place(TaskContext.get(), self.uid, self.parallelism)
        shards = shard_ranges.ranges(self.shards, self.parallelism)[here.partition]
        client = self.connect(self.endpoint)
        try:
            begin = BeginTask(here.query_id, here.batch, self.uid, tuple(shards))
            with fewer_collections(), client.begin(begin) as access:
                run = Run(
                    uid=self.uid,
                    query_id=here.query_id,
                    run_id=here.run_id,
                    batch=here.batch,
                    partition=here.partition,
                    shards=shards,
                    times=access.times,
                )
                # The context ends it at once: on an error here, nothing is left to the garbage collector.
                with self._spec().open(run) as operator:
                    own = self._own(batches, run)
                    output = engine.run(operator, own, KeyCodec(self.key_schema), SHARD, access)
                    yield from access.metrics.on_output(output)
        except _USER_ERRORS as error:
            self._report(client, here, error)
            raise
        except Exception as error:
            mark(error, self.endpoint.token)
            raise

    def _spec(self) -> OperatorSpec:
        spec: OperatorSpec = cloudpickle.loads(self.spec)
        return spec

    def _own(self, batches: Iterator[pa.RecordBatch], run: Run) -> Iterator[pa.RecordBatch]:
        """Pass on batches whose rows all belong to the task's shards."""
        for batch in batches:
            shards = to_numpy(batch.column(SHARD))
            if len(shards) and (shards.min() < run.shards.start or shards.max() >= run.shards.stop):
                foreign = [shard for shard in np.unique(shards).tolist() if shard not in run.shards]
                expected = (
                    f"rows of shards {run.shards.start} to {run.shards.stop - 1} in partition {run.partition}"
                )
                raise MisplacedTaskError(self.uid, expected, f"rows of shards {foreign}")
            yield batch

    def _report(self, client: StateClient, here: Place, error: UserError) -> None:
        where, trace = (
            (error.where, error.traceback) if isinstance(error, ProcessorError) else ("", str(error))
        )
        try:
            client.report(TaskFailure(here.query_id, here.batch, self.uid, where, trace))
        except ChandyError as unreported:
            # The task fails with the user's error in any case, and Spark tells the driver, only less clearly.
            log.warning("failure not reported", operator=self.uid, batch=here.batch, error=str(unreported))


def operator_task(
    df: DataFrame,
    *,
    uid: str,
    key: Sequence[str],
    spec: OperatorSpec,
    shards: int,
    parallelism: int,
    endpoint: Endpoint,
) -> OperatorTask:
    """Define a keyed operator over ``df``, on the driver. ``task.over(df)`` is its output.

    Raises:
        DefinitionError: ``uid``, ``key``, ``shards``, ``parallelism`` or ``spec`` cannot be used.
        KeyTypeError: rows cannot be grouped by a key column.
        SchemaError: the schema of the input or the output cannot be used.
    """
    if not isinstance(uid, str) or not uid:
        raise DefinitionError("uid", "a text that is not empty", repr(uid))
    key_schema = check_input(df, key)
    shard_ranges.check(shards, parallelism)
    check_columns(from_json(spec.output), f"the output of operator {uid!r}")
    return OperatorTask(
        uid=uid,
        key=to_json(key_schema),
        shards=shards,
        parallelism=parallelism,
        spec=pickled(spec),
        endpoint=endpoint,
    )
