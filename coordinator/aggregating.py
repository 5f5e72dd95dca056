"""Running aggregates as operators of a pipeline, and the methods of a coordinator that compute them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

import attrs

from ..state.aggregation.aggregate_operator import STATE as AGGREGATES
from ..state.aggregation.aggregate_operator import Combine
from ..state.aggregation.batch_aggregation import Define, Tally, batch_aggregation
from ..state.aggregation.combining import Combining, PreAggregation
from ..state.aggregation.windowing import Scope, aggregation_in, key_columns
from ..state.aggregation.windows import windowed_stream
from ..state.errors import invalid_argument
from ..state.format.evolution import BOOKKEEPING
from ..state.format.schema import from_json
from ..state.operators.arrow_expiry import Since, TimeToLive
from ..state.operators.dataframe import check_input, check_streaming
from ..state.operators.time_mode import EventTime, TimeMode
from ..storage.logs import logger
from .batch_aggregate import BatchAggregate, BatchOperator
from .durations import Duration, seconds
from .errors import ConfigError, RestoreError
from .operator_arguments import KeyedStream, event_time_lag
from .operators import AddsOperators, Operators

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

log = logger(__name__)

TtlTime = Literal["processing", "event"]
"""The time by which the keys of aggregates live."""


@attrs.frozen
class Lifetime:
    """How long the keys of aggregates live, as users say it."""

    ttl: Duration | None = None
    """None: for ever."""
    since: Since = "last"
    time: TtlTime = "processing"

    @property
    def by_event_time(self) -> bool:
        """Whether keys live until the watermark says that their time has ended."""
        return self.ttl is not None and self.time == "event"

    def checked(self, df: DataFrame) -> TimeToLive | None:
        """Return it as an operator over a stream takes it.

        Raises:
            DefinitionError: it is no time to live, or the stream has no event time to live by.
        """
        if self.time not in ("processing", "event"):
            raise invalid_argument("ttl_time", "'processing' or 'event'", repr(self.time))
        if self.since not in ("last", "first"):
            raise invalid_argument("ttl_since", "'last' or 'first'", repr(self.since))
        if self.ttl is None:
            return None
        try:
            length = seconds(self.ttl)
        except ConfigError as error:
            raise invalid_argument("ttl", error.expected, error.found) from None
        if length < 0.001:
            raise invalid_argument("ttl", "a millisecond or more", repr(self.ttl))
        column = _event_time(df) if self.time == "event" else None
        return TimeToLive(round(length * 1000), self.since, column)


def _event_time(df: DataFrame) -> str:
    """Return the column with the event time of a stream."""
    found = EventTime.of(df.schema)
    if found is None or found.window:
        is_one = "a window" if found else "none"
        expected = "a timestamp column of df that df.withWatermark(column, delay) was given"
        raise invalid_argument("ttl_time", expected, is_one, "select it beside the others")
    return found.column


@attrs.frozen
class Windows:
    """The windows of event time that aggregates are of, as users say it."""

    window: Column | None = None
    """What ``pyspark.sql.functions.window`` or ``session_window`` returns; None if aggregates are of all rows."""
    output_mode: str = "update"


def check_no_column(stream: KeyedStream, combine: object, lifetime: Lifetime, windows: Windows) -> None:
    """Refuse an output column with the name of an argument: Python passes it as that argument."""
    arguments = {
        "uid": stream.uid,
        "shards": stream.shards,
        "parallelism": stream.parallelism,
        "combine": combine,
        "ttl": lifetime.ttl,
        "ttl_since": lifetime.since,
        "ttl_time": lifetime.time,
        "window": windows.window,
        "output_mode": windows.output_mode,
    }
    for name, given in arguments.items():
        if isinstance(given, tuple):
            expected = (
                "names other than the arguments of aggregate; "
                f"write other=(...) and .withColumnRenamed('other', {name!r}) on what it returns"
            )
            raise invalid_argument("columns", expected, f"{name}={given!r}")


class KeyedAggregates(AddsOperators):
    """The methods of a coordinator that compute running aggregates."""

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
            return with_aggregates(
                self._operators,
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
            return with_batch_aggregates(
                self._operators,
                stream,
                columns=columns,
                combine=combine,
                lifetime=Lifetime(ttl, ttl_since, ttl_time),
                windows=Windows(window, output_mode),
            )


def with_aggregates(
    operators: Operators,
    stream: KeyedStream,
    *,
    columns: Mapping[str, tuple[str, str]],
    combine: Combine,
    lifetime: Lifetime,
    windows: Windows,
) -> DataFrame:
    """Return running aggregates of a stream.

    Args:
        operators: those of the pipeline.
        columns, combine: as for ``CheckpointCoordinator.aggregate``.
        lifetime: how long a key lives.
        windows: the windows of event time; a key is one of them with the key columns of the stream.

    Raises:
        ChandyError: one of its subclasses, as there.
    """
    given = _aggregating(operators, stream, columns, combine, lifetime, windows)
    made = given.define(combine=combine)
    needed = attrs.evolve(given.keyed, df=made.rows(given.keyed.df))
    output = operators.put_in(
        needed, made.spec, made.combiner, time_mode=given.mode, watermark_lag_ms=given.lag_ms
    )
    _tell_of_new_aggregates(operators, stream.uid)
    return output


def with_batch_aggregates(
    operators: Operators,
    stream: KeyedStream,
    *,
    columns: Mapping[str, tuple[str, str]],
    combine: Combining,
    lifetime: Lifetime,
    windows: Windows,
) -> BatchAggregate:
    """Return running aggregates of a stream that are computed within each of its batches.

    Args:
        operators: those of the pipeline.
        columns, combine: as for ``CheckpointCoordinator.aggregate_batches``.
        lifetime, windows: as for ``with_aggregates``.

    Raises:
        ChandyError: one of its subclasses, as there.
    """
    given = _aggregating(operators, stream, columns, combine, lifetime, windows)
    ticking = operators.ticks.attach(given.keyed.df, stream.uid, given.mode)
    tally = Tally.begin(ticking.sparkSession.sparkContext)
    made = batch_aggregation(ticking, given.define, combine=combine, tally=tally)
    task, record = operators.add(
        attrs.evolve(given.keyed, df=made.rows),
        made.specs[PreAggregation.NOWHERE],
        watermark_lag_ms=given.lag_ms,
    )
    _tell_of_new_aggregates(operators, stream.uid)
    tasks = {place: task.with_spec(spec.taking_up(record)) for place, spec in made.specs.items()}
    return BatchAggregate(
        made.rows, BatchOperator(stream.uid, made, tasks, combine, operators.partitioning, task.parallelism)
    )


def _aggregating(
    operators: Operators,
    stream: KeyedStream,
    columns: Mapping[str, tuple[str, str]],
    combine: object,
    lifetime: Lifetime,
    windows: Windows,
) -> Aggregating:
    check_no_column(stream, combine, lifetime, windows)
    operators.free(stream.uid)
    found = aggregating(stream, columns, lifetime, windows)
    was = operators.before(stream.uid)
    if was is not None and not found.scope.takes_up(stored := Scope.stored(was)):
        raise RestoreError(
            f"operator {stream.uid!r} does not fit the checkpoint",
            f"aggregates of {stored}, as they were",
            f"aggregates of {found.scope}",
            "give the operator another uid, or its window= as it was",
        )
    return found


def _tell_of_new_aggregates(operators: Operators, uid: str) -> None:
    """Say of which aggregates the restored keys have nothing: their output looks like that of all rows."""
    was = operators.before(uid)
    if was is None or operators.replaced(uid) is not None:
        return
    now = operators.record(uid)
    if AGGREGATES not in was.states or AGGREGATES not in now.states:
        # Sessions are kept in another form.
        return
    known = {name for version in was.states[AGGREGATES].versions for name in from_json(version).names}
    names = from_json(now.states[AGGREGATES].versions[-1]).names
    if new := [name for name in names if name not in known | BOOKKEEPING]:
        log.warning(
            "aggregates are new to restored state: of a key that it has, they cover the rows from now on alone",
            operator=now.uid,
            aggregates=new,
        )


@attrs.frozen
class Aggregating:
    """Running aggregates that are about to be made."""

    keyed: KeyedStream
    """The stream, with a row for each window that a row is in, and the key of the state."""
    scope: Scope
    mode: TimeMode
    """By which clock batches without rows run: windows close in them."""
    lag_ms: int
    """By how many milliseconds the watermark of the stream lags behind that of its query."""
    define: Define


def aggregating(
    stream: KeyedStream, columns: Mapping[str, tuple[str, str]], lifetime: Lifetime, windows: Windows
) -> Aggregating:
    """Return what running aggregates of a stream are made of.

    Args:
        columns: the input column and the function, by name of the output column.
        lifetime: how long a key lives.
        windows: the windows of event time; a key is one of them with the key columns of the stream.

    Raises:
        DefinitionError: an argument cannot be used.
    """
    df, window, mode, lag = stream.df, None, TimeMode.NONE, 0
    check_streaming(df)
    # A window alone is a key, too.
    is_alone = windows.window is not None and isinstance(stream.key, list | tuple) and not stream.key
    if not is_alone:
        check_input(df, stream.key, argument="by")
    if windows.window is not None:
        mode, lag = TimeMode.EVENT, event_time_lag(df, "window")
        df, window = windowed_stream(df, windows.window, stream.key)
    elif lifetime.by_event_time:
        # Nothing is output when a key goes, so that no batch need run for it.
        lag = event_time_lag(df, "ttl_time")
    keyed = attrs.evolve(stream, df=df, key=key_columns(stream.key, window))
    if is_alone:
        check_input(df, keyed.key, argument="by")
    define = partial(
        aggregation_in,
        window,
        df.schema,
        stream.key,
        columns,
        uid=stream.uid,
        output_mode=windows.output_mode,
        ttl=lifetime.checked(stream.df),
    )
    return Aggregating(keyed, Scope.of(window), mode, lag, define)
