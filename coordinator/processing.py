"""Processors as operators of a pipeline: the methods of a coordinator that run user code over keys and their state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from ..state.operators import shard_ranges
from ..state.operators.arrow_processor import ArrowProcessor, arrow_spec
from ..state.operators.attempts import OnError
from ..state.operators.dataframe import check_input, check_streaming
from ..state.operators.time_mode import TimeMode, check_output_mode
from ..state.processors.initial_state import initial_rows, write_initial_state
from ..state.processors.processor import ProcessorSpec, processor_spec
from ..state.processors.style import PandasSettings, StyleName
from .errors import SetupError
from .operator_arguments import KeyedStream, event_time_lag
from .operators import AddsOperators, Operators
from .spark.reachable_places import has_other_machines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, GroupedData
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import StructType


@attrs.frozen
class Processing:
    """What a ``StatefulProcessor`` does with a stream, as ``CheckpointCoordinator.transform_with_state`` is told."""

    style: StyleName
    """Whether the processor takes rows or pandas DataFrames."""
    processor: StatefulProcessor
    output: str | StructType
    time_mode: str
    output_mode: str
    initial_state: DataFrame | GroupedData | None
    event_time_column: str | None


class KeyedProcessors(AddsOperators):
    """The methods of a coordinator that run processors."""

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
        event_time_column: str | None = None,
        on_error: OnError = "fail",
    ) -> DataFrame:
        """Run a PySpark ``StatefulProcessor`` that takes rows. Checkpoints of the pipeline contain its state.

        It corresponds to ``GroupedData.transformWithState``. For a processor that takes pandas DataFrames use
        ``transform_with_state_in_pandas``.

        Args:
            df: a streaming DataFrame.
            key: names of the columns to group by.
            processor: the same as for ``GroupedData.transformWithState``.
            output: schema of the rows that the processor yields: DDL or a ``StructType``.
            uid: name of the operator, unique in the pipeline. State is restored by it: keep it across restarts.
            shards: number of slices of the key space. It cannot be changed while the operator has state.
            parallelism: number of tasks that run the operator, at most ``shards``; None: Spark's default parallelism.
            time_mode: "None", "ProcessingTime" (timers and times to live by the time of the batch) or "EventTime"
                (timers by the watermark; late rows are dropped).
            output_mode: "append" or "update". Both mean the same: all rows that the processor yields are output.
            initial_state: rows with which the operator's state begins: a DataFrame with the key columns, which may be
                grouped as for PySpark. It is computed by this call, and only if the operator is not in the
                restored checkpoint. The operator's first batch calls ``handleInitialState``.
            event_time_column: the column of the output that has the event time of its rows, as PySpark's
                ``eventTimeColumnName``. It carries the watermark of ``df`` on to the operators after this one, also to
                those of Spark. A row that is late for them is an error. None: the output has no watermark.
            on_error: what becomes of an exception of the processor, of output that does not fit, and of state that is
                too large: "fail" (the batch fails, and after three failures at one place the pipeline), or
                ``DeadLetters``: the key is given up in this batch, and its rows are kept with the exception.

        Raises:
            ChandyError: an argument cannot be used, or the operator does not fit the restored checkpoint; a subclass
                says which.
        """
        stream = KeyedStream(
            df=df, key=key, uid=uid, shards=shards, parallelism=parallelism, on_error=on_error
        )
        given = Processing(
            StyleName.ROWS, processor, output, time_mode, output_mode, initial_state, event_time_column
        )
        with self._growing():
            return with_processor(self._operators, stream, given)

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
        event_time_column: str | None = None,
        on_error: OnError = "fail",
    ) -> DataFrame:
        """Run a PySpark ``StatefulProcessor`` that takes pandas DataFrames.

        It corresponds to ``GroupedData.transformWithStateInPandas``. The processor gets the rows of a key as
        DataFrames, whose size ``spark.sql.execution.arrow.maxRecordsPerBatch`` and ``maxBytesPerBatch`` bound, and
        yields DataFrames with the columns of the output. The types of the columns are described in
        ``chandy.state.processors.frames``.

        The arguments and errors are those of ``transform_with_state``.
        """
        stream = KeyedStream(
            df=df, key=key, uid=uid, shards=shards, parallelism=parallelism, on_error=on_error
        )
        given = Processing(
            StyleName.PANDAS, processor, output, time_mode, output_mode, initial_state, event_time_column
        )
        with self._growing():
            return with_processor(self._operators, stream, given)

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
        on_error: OnError = "fail",
    ) -> DataFrame:
        """Run an ``ArrowProcessor``, which processes many keys at a time as whole columns.

        Args:
            df: a streaming DataFrame.
            key: names of the columns to group by.
            processor: takes keys, their rows and their states; returns output and new states.
            output: schema of the output: DDL or a ``StructType``.
            uid, shards, parallelism, on_error: see ``transform_with_state``.

        Raises:
            ChandyError: see ``transform_with_state``.
        """
        stream = KeyedStream(
            df=df, key=key, uid=uid, shards=shards, parallelism=parallelism, on_error=on_error
        )
        with self._growing():
            return with_arrow_processor(self._operators, stream, processor, output)


def with_processor(operators: Operators, stream: KeyedStream, given: Processing) -> DataFrame:
    """Return the output of a ``StatefulProcessor`` over a stream.

    Raises:
        ChandyError: one of its subclasses, as for ``CheckpointCoordinator.transform_with_state``.
    """
    df, uid = stream.df, operators.free(stream.uid)
    mode = TimeMode.read(given.time_mode)
    check_output_mode(given.output_mode)
    check_streaming(df)
    check_input(df, stream.key)
    lag = event_time_lag(df, "time_mode" if mode is TimeMode.EVENT else None)
    shard_ranges.check(stream.shards, parallelism=1)
    spec = processor_spec(
        df.schema,
        uid=uid,
        key=stream.key,
        processor=given.processor,
        output=given.output,
        style=given.style,
        mode=mode,
        event_time_column=given.event_time_column,
        settings=PandasSettings.read(df.sparkSession.conf),
    )
    if given.initial_state is not None:
        spec = _with_initial_state(operators, stream, spec, given.initial_state)
    return operators.put_in(stream, spec, time_mode=mode, dropped=spec.dropped, watermark_lag_ms=lag)


def with_arrow_processor(
    operators: Operators, stream: KeyedStream, processor: ArrowProcessor, output: str | StructType
) -> DataFrame:
    """Return the output of an ``ArrowProcessor`` over a stream.

    Args:
        operators: those of the pipeline.
        processor, output: as for ``CheckpointCoordinator.transform_with_arrow``.

    Raises:
        ChandyError: one of its subclasses, as there.
    """
    uid = operators.free(stream.uid)
    check_streaming(stream.df)
    check_input(stream.df, stream.key)
    spec = arrow_spec(stream.df.schema, uid=uid, processor=processor, output=output)
    return operators.put_in(stream, spec, watermark_lag_ms=event_time_lag(stream.df))


def _with_initial_state(
    operators: Operators, stream: KeyedStream, spec: ProcessorSpec, initial_state: DataFrame | GroupedData
) -> ProcessorSpec:
    """Store the rows of an initial state, unless the operator's state is restored."""
    rows = initial_rows(initial_state, stream.key, stream.df)
    if operators.before(stream.uid) is not None:
        return spec
    master = str(stream.df.sparkSession.sparkContext.master)
    if has_other_machines(master) and not operators.shared:
        raise SetupError(
            f"the initial state of operator {stream.uid!r} cannot be given to tasks",
            f"a directory that the driver and all machines of {master} reach, for its rows",
            f"a directory of the driver's machine ({operators.directories.base})",
            "set CheckpointConfig(work_dir=..., shared=True) with a directory that is mounted on all machines; or "
            "write the state into a savepoint by a SavepointWriter",
        )
    if (was := operators.replaced(stream.uid)) is not None:
        return attrs.evolve(spec, initial=was.spec.initial if isinstance(was.spec, ProcessorSpec) else None)
    folder = operators.directories.initial_state(stream.uid)
    initial = write_initial_state(rows, stream.key, stream.shards, stream.default_tasks, folder)
    return attrs.evolve(spec, initial=initial)
