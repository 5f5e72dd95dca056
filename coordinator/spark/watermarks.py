"""How far the watermark of an operator's input lags behind that of its query.

Spark gives each of its stateful operators the watermark that the operators before it still keep to
(``PropagateWatermarkSimulator``): a stream-stream join emits rows as late as the interval in its condition allows, so
whatever comes after the join has a watermark that lags by this interval. Spark's rules are applied here to the same
optimized plan, with Spark's own function for the bounds of a join.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError

from ...state.errors import invalid_argument

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ANY_WATERMARK: Final = 1 << 40
"""Some watermark in milliseconds. The lag is the same for every watermark."""
_WATERMARKS: Final = frozenset({"EventTimeWatermark", "UpdateEventTimeWatermarkColumn"})
_ANY_TIME: Final = frozenset(
    {"FlatMapGroupsWithState", "FlatMapGroupsInPandasWithState", "FlatMapGroupsInRWithState"}
)
"""Operators whose functions may emit rows of any event time; Spark permits no stateful operator after them."""
_JOINS: Final = (
    "org.apache.spark.sql.execution.streaming.operators.stateful.join.StreamingSymmetricHashJoinHelper"
)


def watermark_lag(df: DataFrame) -> int | None:
    """Return by how many milliseconds the watermark of a streaming DataFrame's rows lags behind the query's.

    None: there is no bound, because no watermark reaches the rows, or an operator on their way may emit rows of any
    event time.
    """
    jvm = df.sparkSession._jvm
    state = df.sparkSession._jsparkSession.sessionState()
    # The query's execution offers no optimized plan of a stream before it is started.
    plan = state.optimizer().execute(df._jdf.queryExecution().analyzed().clone())
    return _lag(plan, jvm)


def _lag(node: Any, jvm: Any) -> int | None:
    if not node.isStreaming():
        return None
    kind = str(node.getClass().getSimpleName())
    if kind in _WATERMARKS:
        return 0
    children = node.children()
    found = [_lag(children.apply(at), jvm) for at in range(children.size())]
    # Of several inputs the one that lags most counts.
    lag = max((each for each in found if each is not None), default=None)
    if lag is None or kind in _ANY_TIME:
        return None
    if kind.startswith("TransformWithState") and "ProcessingTime" in str(node.timeMode().toString()):
        return None
    if kind == "Join" and node.left().isStreaming() and node.right().isStreaming():
        return _lag_after_join(node, lag, jvm)
    return lag


def _lag_after_join(join: Any, lag: int, jvm: Any) -> int:
    """Return the lag after a join of two streams: it emits a row no later than it removes it from its state."""
    option = jvm.scala.Option
    try:
        parts = getattr(jvm, "org.apache.spark.sql.catalyst.planning.ExtractEquiJoinKeys").unapply(join).get()
        watermark = _ANY_WATERMARK - lag
        bounds = getattr(jvm, _JOINS).getStateWatermark(
            join.left().output(),
            join.right().output(),
            parts._2(),
            parts._3(),
            parts._4(),
            option.apply(jvm.java.lang.Long.valueOf(watermark)),
            False,
        )
    except Py4JError as error:
        raise invalid_argument(
            "df",
            "joins of streams whose output has a watermark that Spark can tell",
            f"one of which it cannot: {error}",
            "join by equal columns and a range of event times, or write the join's output to a table, and read that",
        ) from error
    # A semi join emits rows of its left side alone.
    is_semi = str(join.joinType().toString()) == "LeftSemi"
    sides = (bounds._1(),) if is_semi else (bounds._1(), bounds._2())
    known = [int(bound.get()) for bound in sides if bound.isDefined()]
    return _ANY_WATERMARK - min([*known, watermark])
