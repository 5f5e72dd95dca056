"""The methods of a coordinator that make keyed operators: a streaming DataFrame in, its output as one out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from ..state.aggregation.aggregate_operator import Combine
from ..state.aggregation.combining import Combining
from ..state.operators.arrow_expiry import Since
from ..state.operators.arrow_processor import ArrowProcessor
from ..state.operators.attempts import OnError
from ..state.processors.style import StyleName
from .batch_aggregate import BatchAggregate
from .durations import Duration
from .operator_arguments import KeyedStream, Lifetime, Processing, TtlTime, Windows
from .operators import Operators

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, GroupedData
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import StructType


class KeyedOperators(ABC):
    """What a coordinator makes keyed operators with."""

    _operators: Operators

    @abstractmethod
    def _growing(self) -> AbstractContextManager[None]:
        """Let one thread at a time add something to the pipeline, while the pipeline runs."""

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
            style=StyleName.ROWS,
            processor=processor,
            output=output,
            time_mode=time_mode,
            output_mode=output_mode,
            initial_state=initial_state,
            event_time_column=event_time_column,
        )
        with self._growing():
            return self._operators.with_processor(stream, given)

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
            style=StyleName.PANDAS,
            processor=processor,
            output=output,
            time_mode=time_mode,
            output_mode=output_mode,
            initial_state=initial_state,
            event_time_column=event_time_column,
        )
        with self._growing():
            return self._operators.with_processor(stream, given)

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
            return self._operators.with_arrow_processor(stream, processor, output)

    def aggregate(
        self,
        df: DataFrame,
        by: Sequence[str],
        *,
        uid: str,
        shards: int = 16,
        parallelism: int | None = None,
        combine: Combine = "auto",
        ttl: Duration | None = None,
        ttl_since: Since = "last",
        ttl_time: TtlTime = "processing",
        window: Column | None = None,
        output_mode: str = "update",
        **columns: tuple[str, str],
    ) -> DataFrame:
        """Keep running aggregates by key: ``aggregate(df, by=["carrier"], uid="delays", total=("delay", "sum"))``.

        Each batch outputs one row for every key that it has rows of: the key, and the aggregates of all rows of the
        key so far. Nulls, NaN and types are as in Spark SQL. The functions are count (of ``"*"``: all rows), sum,
        mean, min, max, first, last, variance, stddev, var_pop, stddev_pop and approx_distinct. First and last follow
        the order of the batches; the order of rows within a batch is undefined, as in Spark.

        Args:
            df: a streaming DataFrame.
            by: names of the columns to group by.
            uid, shards, parallelism: see ``transform_with_state``.
            combine: whether to combine the rows of a key before they are sent to the key's task, so that a frequent
                key does not slow that task down; "auto": as long as this reduces their number. False saves a stage
                of Python tasks, which makes small batches faster.
            ttl: how long the aggregates of a key live, such as ``"30 days"``; None: for ever. After that the key is
                removed, and nothing is output. If it comes again, it starts over.
            ttl_since: whether a key lives that long since its "last" row, or since its "first" one. A restored key
                keeps the expiry that it has, or none, until its next row.
            ttl_time: "processing": by when batches are planned; "event": from the event time of that row on, until the
                watermark has passed the end. ``df.withWatermark`` was given the column.
            window: aggregates are kept for each window of event time instead of for ever, as in
                ``df.groupBy(window, *by)``: ``window`` or ``session_window`` of ``pyspark.sql.functions``, over the
                column that ``df.withWatermark`` was given. The output has a column of that name before those of ``by``.
                Once the watermark has passed a window's end, its state is removed, and later rows of it are dropped.
            output_mode: "update": each batch outputs what it has changed. "append", for windows: a window is output
                once, when it is closed; sessions need that.
            columns: the output columns: each name with a pair of an input column and a function. If an output column
                must have the name of an argument, such as ``shards``, choose another name here and rename it in the
                result: ``.withColumnRenamed("total", "shards")``.

        Raises:
            ChandyError: see ``transform_with_state``. If a sum exceeds its type, the query fails with an
                ``AggregateOverflowError``.
        """
        with self._growing():
            stream = KeyedStream(df=df, key=by, uid=uid, shards=shards, parallelism=parallelism)
            return self._operators.with_aggregates(
                stream,
                columns=columns,
                combine=combine,
                lifetime=Lifetime(ttl, ttl_since, ttl_time),
                windows=Windows(window, output_mode),
            )

    def aggregate_batches(
        self,
        df: DataFrame,
        by: Sequence[str],
        *,
        uid: str,
        shards: int = 16,
        parallelism: int | None = None,
        combine: Combining = "auto",
        ttl: Duration | None = None,
        ttl_since: Since = "last",
        ttl_time: TtlTime = "processing",
        window: Column | None = None,
        output_mode: str = "update",
        **columns: tuple[str, str],
    ) -> BatchAggregate:
        """Keep the running aggregates of ``aggregate``, for a function of ``foreachBatch`` or a transactional sink.

        The rows, the state and its schema are those of ``aggregate``, and a pipeline may change from one to the other
        at any start. What differs is how a batch is computed: it is aggregated as a batch DataFrame, so that Spark's
        SQL can combine the rows of a key in the JVM, before they are sent to Python. It is meant for large batches
        whose keys repeat often. Each batch is planned when it comes. Small batches are not combined at all.

        Example::

            delays = coordinator.aggregate_batches(flights, by=["carrier"], uid="delays", total=("delay", "sum"))
            coordinator.start(delays.writeStream.foreachBatch(write), name="delays")

        Args:
            df, by, uid, shards, parallelism, columns: as for ``aggregate``.
            ttl, ttl_since, ttl_time, window, output_mode: as for ``aggregate``.
            combine: where the rows of a key are combined before they are sent to the key's task: "sql", "python",
                "none", or "auto": each batch chooses by how many rows the one before had, and how often their keys
                repeated.

        Returns:
            The aggregates, which are no DataFrame: ``writeStream`` says where they go, and ``transform`` changes them
            before, batch by batch.

        Raises:
            ChandyError: see ``aggregate``.
        """
        with self._growing():
            stream = KeyedStream(df=df, key=by, uid=uid, shards=shards, parallelism=parallelism)
            return self._operators.with_batch_aggregates(
                stream,
                columns=columns,
                combine=combine,
                lifetime=Lifetime(ttl, ttl_since, ttl_time),
                windows=Windows(window, output_mode),
            )
