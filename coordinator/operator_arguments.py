"""The arguments that all kinds of operators have, as users give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from ..state.errors import invalid_argument
from ..state.operators import shard_ranges
from ..state.operators.attempts import OnError
from ..state.operators.partitioning import default_tasks
from .spark.plan import has_watermark
from .spark.watermarks import watermark_lag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
