"""The arguments of operators, as users give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import attrs

from ..state.errors import invalid_argument
from ..state.operators import shard_ranges
from ..state.operators.arrow_expiry import Since, TimeToLive
from ..state.operators.attempts import OnError
from ..state.operators.partitioning import default_tasks
from ..state.operators.time_mode import EventTime
from .durations import Duration, seconds
from .errors import ConfigError
from .spark.plan import has_watermark
from .spark.watermarks import watermark_lag

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, GroupedData
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import StructType

    from ..state.processors.style import StyleName


@attrs.frozen(kw_only=True)
class KeyedStream:
    """The input of an operator, with the arguments that all kinds of operators have."""

    df: DataFrame
    key: Sequence[str]
    """Names of the key columns."""
    uid: str
    shards: int
    parallelism: int | None
    """Number of tasks that run the operator; None: Spark's default parallelism, at most ``shards``."""
    on_error: OnError = "fail"
    """What becomes of what the user's code raises."""

    @property
    def tasks(self) -> int:
        """Number of tasks that run the operator.

        Raises:
            DefinitionError: ``parallelism`` is None and ``shards`` is not a valid number of shards.
        """
        return self.default_tasks if self.parallelism is None else self.parallelism

    @property
    def default_tasks(self) -> int:
        """Spark's default parallelism, at most ``shards``."""
        shard_ranges.check(self.shards, parallelism=1)
        return default_tasks(self.df.sparkSession, self.shards)


@attrs.frozen(kw_only=True)
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


def event_time_lag(df: DataFrame, needed_by: str | None = None) -> int:
    """Return by how many milliseconds the watermark of an operator's input lags behind that of its query.

    The column with the watermark need not be among those of the input.

    Args:
        df: the input.
        needed_by: the argument by which the operator runs in event time; None: it does not.

    Raises:
        DefinitionError: the operator runs in event time, and its input has no watermark.
    """
    lag = watermark_lag(df) if has_watermark(df) else None
    if lag is not None or needed_by is None:
        return lag or 0
    expected = "an input with a watermark for event time, as df.withWatermark(column, delay) gives it"
    if not has_watermark(df):
        raise invalid_argument(needed_by, expected, "one without")
    raise invalid_argument(
        needed_by,
        expected,
        "one whose watermark ends at an operator that may emit rows of any event time",
        "put this operator before the applyInPandasWithState or the transformWithState in processing time; or write "
        "the output of that to a table, and read it by a query with a watermark of its own",
    )
