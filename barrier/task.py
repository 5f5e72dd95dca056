"""What a Spark task runs for a keyed operator: pass the barrier, then process its part of a micro-batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Protocol, Self

import attrs
import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import IntegerType, StructField, StructType

from ..state import keygroups
from ..state.collector import unhurried
from ..state.dataframe import SHARD, check_input, keyed
from ..state.errors import DefinitionError, MisplacedTaskError, OutputTypeError, ProcessorError
from ..state.grouping import group
from ..state.handle import StateHandle, declared_states
from ..state.keys import KeyCodec
from ..state.messages import BeginTask, Endpoint, TaskFailure
from ..state.processor import ProcessorRun, StateAccess
from ..state.rendezvous import connect
from ..state.rows import RowReader, RowWriter, check_columns
from ..state.schema import Schemas, from_json, to_json
from ..storage.errors import ChandyError
from ..storage.logs import logger
from .operator_name import function_name

log = logger(__name__)


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
    return Place(query_id, int(batch), partition)


@attrs.frozen
class OperatorTask:
    """A keyed operator as a function for ``mapInArrow``, with all that a task needs to run it.

    A call begins the batch on the task's shards before it pulls any input: so a task without rows passes
    the barrier, too. Then it holds its whole partition of the micro-batch in memory as Arrow, sorted by
    key; of the rows as Python objects only some ten thousand at a time. Output leaves as it comes. The
    changes of state are applied at the very end, after the last output was taken and before the generator
    ends. So if Spark fails the task, or stops pulling (a limit), nothing is applied; and a task that Spark
    counts as done has applied.
    """

    uid: str
    key: tuple[str, ...]
    input_schema: str
    """Schema of the rows as Spark's JSON, without the shard column."""
    output_schema: str
    states: dict[str, str]
    """Schema of each declared state by its name, as Spark's JSON."""
    ddl: dict[str, str]
    """What the processor's DDL texts mean, as Spark's JSON by text: a task has no parser."""
    shards: int
    parallelism: int
    processor: bytes
    """The StatefulProcessor, by cloudpickle; every task unpickles its own."""
    endpoint: Endpoint
    connect: Callable[[Endpoint], StateClient] = connect
    """How a task finds its state host."""

    @property
    def key_schema(self) -> StructType:
        """Schema of the key columns."""
        schema = from_json(self.input_schema)
        return StructType([schema[name] for name in self.key])

    def over(self, df: DataFrame) -> DataFrame:
        """Return the operator's output over ``df``, the DataFrame that it was defined for."""
        output = from_json(self.output_schema)
        return keyed(df, self.key, self.shards, self.parallelism, self, output, function_name(self.uid))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the operator over one partition of a micro-batch.

        Raises:
            MisplacedTaskError: the task does not run where its shards are its own.
            ProcessorError: the processor raised.
            OutputTypeError: it yielded a row that does not fit the output schema.
            ChandyError: the state host could not begin the batch, give values or take changes.
        """
        here = place(TaskContext.get(), self.uid, self.parallelism)
        shards = keygroups.ranges(self.shards, self.parallelism)[here.partition]
        client = self.connect(self.endpoint)
        try:
            begin = BeginTask(here.query_id, here.batch, self.uid, tuple(shards))
            with unhurried(), client.begin(begin) as access:
                yield from self._run(batches, here, shards, access)
        except (ProcessorError, OutputTypeError) as error:
            self._report(client, here, error)
            raise

    def _run(
        self, batches: Iterator[pa.RecordBatch], here: Place, shards: range, access: BatchAccess
    ) -> Iterator[pa.RecordBatch]:
        schema = from_json(self.input_schema)
        codec, writer = KeyCodec(self.key_schema), RowWriter(from_json(self.output_schema), self.uid)
        run = ProcessorRun(
            processor=cloudpickle.loads(self.processor),
            handle=StateHandle(self.uid, Schemas(parse=None, known=dict(self.ddl))),
            operator=self.uid,
            batch=here.batch,
            states=self.states,
        )
        groups = group(_table(batches, schema), codec, SHARD)
        foreign = set(groups.shards) - set(shards)
        if foreign:
            expected = f"rows of shards {shards.start} to {shards.stop - 1} in partition {here.partition}"
            raise MisplacedTaskError(self.uid, expected, f"rows of shards {sorted(foreign)}")
        # Closing at once: on an error here, the processor's close is not left to the garbage collector.
        with contextlib.closing(run.outputs(groups, RowReader(schema.names), access)) as outputs:
            for rows in outputs:
                yield writer.batch(rows)
        access.apply(run.changes.shards, run.changes.keys, run.changes.values)

    def _report(self, client: StateClient, here: Place, error: ProcessorError | OutputTypeError) -> None:
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
    processor: StatefulProcessor,
    output: StructType | str,
    shards: int,
    parallelism: int,
    endpoint: Endpoint,
) -> OperatorTask:
    """Define a keyed operator over ``df``, on the driver. ``task.over(df)`` is its output.

    Raises:
        DefinitionError: ``uid``, ``key``, ``shards``, ``parallelism`` or ``processor`` cannot be used.
        KeyTypeError: rows cannot be grouped by a key column.
        SchemaError: the schema of the input, the output or a state cannot be used.
        DeclarationError, UnsupportedStateError: the processor declares states that cannot be had.
    """
    if not isinstance(uid, str) or not uid:
        raise DefinitionError("uid", "a text that is not empty", repr(uid))
    check_input(df, key)
    keygroups.check(shards, parallelism)
    output_schema = Schemas().resolve(output, f"the output of operator {uid!r}")
    check_columns(output_schema, f"the output of operator {uid!r}")
    pickled = _pickled(processor)
    schemas = Schemas()
    states = declared_states(cloudpickle.loads(pickled), uid, schemas)
    return OperatorTask(
        uid=uid,
        key=tuple(key),
        input_schema=to_json(df.schema),
        output_schema=to_json(output_schema),
        states=states,
        ddl=dict(schemas.known),
        shards=shards,
        parallelism=parallelism,
        processor=pickled,
        endpoint=endpoint,
    )


def _pickled(processor: object) -> bytes:
    if not isinstance(processor, StatefulProcessor):
        found = f"the class {processor.__name__}" if isinstance(processor, type) else type(processor).__name__
        raise DefinitionError("processor", "an instance of pyspark.sql.streaming.StatefulProcessor", found)
    try:
        pickled: bytes = cloudpickle.dumps(processor)  # type: ignore[no-untyped-call]
    except Exception as error:
        found = f"one that cannot: {type(error).__name__}: {error}"
        raise DefinitionError("processor", "an object that can be pickled", found) from error
    return pickled


def _table(batches: Iterator[pa.RecordBatch], schema: StructType) -> pa.Table:
    """Return all batches as a table with the columns of ``schema`` and the shard, also if there are none."""
    held = list(batches)
    if held:
        return pa.Table.from_batches(held)
    with_shard = StructType([*schema.fields, StructField(SHARD, IntegerType())])
    return to_arrow_schema(with_shard, timezone="UTC").empty_table()
