"""The watermark of an operator's input is the one that Spark would give its own operator in the same place."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from chandy import CheckpointCoordinator
from chandy.coordinator.spark.watermarks import watermark_lag
from chandy.state.errors import DefinitionError

from ..effort import examples
from .pyspark_cases import RunningCount

pytestmark = pytest.mark.spark

WATERMARK = 1 << 41
SPARK = "org.apache.spark.sql.execution.streaming."


def lag_in_spark(df: DataFrame) -> int:
    """Return how far the watermark of a deduplication of the rows lags behind the query's."""
    jvm: Any = df.sparkSession._jvm
    execution = getattr(jvm, f"{SPARK}runtime.IncrementalExecution")
    metadata = getattr(jvm, f"{SPARK}checkpointing.OffsetSeqMetadata")
    planned = execution(
        df.sparkSession._jsparkSession,
        df.dropDuplicates()._jdf.queryExecution().analyzed(),
        jvm.org.apache.spark.sql.streaming.OutputMode.Append(),
        "<unknown>",
        jvm.java.util.UUID.randomUUID(),
        jvm.java.util.UUID.randomUUID(),
        5,
        jvm.scala.Option.apply(None),
        metadata.apply(WATERMARK, 0, metadata.apply("{}").conf()),
        getattr(jvm, f"{SPARK}runtime.PropagateWatermarkSimulator")(),
        False,
        *(getattr(execution, f"$lessinit$greater$default${at}")() for at in range(12, 17)),
    ).executedPlan()
    (step,) = (
        node for node in nodes(planned) if node.getClass().getSimpleName() == "StreamingDeduplicateExec"
    )
    return WATERMARK - int(step.eventTimeWatermarkForEviction().get())


def nodes(plan: Any) -> Iterator[Any]:
    # The outermost deduplication is the one that was added.
    found = [plan]
    while found:
        node = found.pop(0)
        yield node
        if node.getClass().getSimpleName() == "StreamingDeduplicateExec":
            return
        found += [node.children().apply(at) for at in range(node.children().size())]


def built(spark: SparkSession, plan: Any, names: Iterator[int]) -> DataFrame:
    """Return a stream with a key ``k`` and an event time ``t``, whose names no other stream has."""
    at, (kind, *parts) = next(names), plan
    if kind == "source":
        (delay,) = parts
        rows = spark.readStream.format("rate").load()
        return rows.selectExpr(f"value % 3 as k{at}", f"timestamp as t{at}").withWatermark(
            f"t{at}", f"{delay} seconds"
        )
    made = [built(spark, part, names) for part in parts if isinstance(part, tuple)]
    k, t = made[0].columns
    if kind in ("join", "where"):
        *_, how, low, high = parts
        other, until = made[1].columns
        bounds = [f"{until} >= {t} + interval {low} minutes"] if low is not None else []
        bounds += [f"{until} <= {t} + interval {high} minutes"] if high is not None else []
        if kind == "where":
            both = made[0].join(made[1], F.expr(f"{k} = {other}"))
            both = both.where(" and ".join(bounds)) if bounds else both
        else:
            both = made[0].join(made[1], F.expr(" and ".join([f"{k} = {other}", *bounds])), how)
        return both.select(other, until) if how == "rightOuter" else both.select(k, t)
    if kind == "same time":
        other, until = made[1].columns
        return made[0].join(made[1], F.expr(f"{k} = {other} and {t} = {until}")).select(k, t)
    if kind == "union":
        return made[0].union(made[1])
    if kind == "window":
        return made[0].groupBy(k, F.window(t, "10 seconds").alias(f"w{at}")).agg(F.max(t).alias(f"t{at}"))
    return made[0].dropDuplicates([k, t])


bound = st.none() | st.integers(-90, 90)
ways = st.sampled_from(["inner", "leftOuter", "rightOuter", "leftSemi"])
plans = st.recursive(
    st.tuples(st.just("source"), st.integers(0, 100)),
    lambda streams: st.one_of(
        st.tuples(st.just("join"), streams, streams, st.just("inner"), bound, bound),
        # Spark refuses an outer join that never gives a row up, so both bounds are there.
        st.tuples(st.just("join"), streams, streams, ways, st.integers(-90, 0), st.integers(1, 90)),
        st.tuples(st.just("where"), streams, streams, st.just("inner"), bound, bound),
        st.tuples(st.just("same time"), streams, streams),
        st.tuples(st.just("union"), streams, streams),
        st.tuples(st.just("distinct"), streams),
    ),
    max_leaves=4,
)


@settings(max_examples=examples(8), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=plans)
@example(plan=("join", ("source", 0), ("source", 0), "leftSemi", -2, 1))
@example(plan=("join", ("source", 7), ("source", 0), "leftSemi", -1, 2))
def test_the_watermark_lags_as_behind_sparks_own_operators(spark: SparkSession, plan: Any) -> None:
    df = built(spark, plan, count())
    assert watermark_lag(df) == lag_in_spark(df)


def test_windows_sessions_and_functions_with_state_of_spark_are_as_in_spark(spark: SparkSession) -> None:
    late = built(spark, ("join", ("source", 5), ("source", 0), "inner", 0, 60), count())
    k, t = late.columns
    hour = 3_600_000
    for windows in (F.window(t, "10 seconds"), F.session_window(t, "10 seconds")):
        counted = late.groupBy(k, windows).count()
        assert watermark_lag(counted) == lag_in_spark(counted) == hour + 1
    grouped = late.groupBy(k)
    in_event_time = grouped.transformWithState(RunningCount(), "k long, what string", "Append", "EventTime")
    assert watermark_lag(in_event_time) == lag_in_spark(in_event_time) == hour + 1
    # Spark gives no watermark to an operator after these.
    in_processing_time = grouped.transformWithState(
        RunningCount(), "k long, what string", "Append", "ProcessingTime"
    )
    groups = grouped.applyInPandasWithState(
        lambda key, frames, state: iter(()), "k long", "n long", "Append", "NoTimeout"
    )
    unmarked = spark.readStream.format("rate").load()
    assert [watermark_lag(df) for df in (in_processing_time, groups, unmarked)] == [None] * 3


def test_event_time_is_refused_where_no_watermark_reaches_the_operator_or_two_do(
    spark: SparkSession, make: Any
) -> None:
    coordinator: CheckpointCoordinator = make()
    left, right = (built(spark, ("source", 0), iter([at])) for at in (1, 2))

    def define(df: DataFrame) -> None:
        coordinator.transform_with_state(
            df,
            key=["k1"],
            processor=RunningCount(),
            output="k long, what string",
            uid="n",
            time_mode="EventTime",
        )

    groups = left.groupBy("k1").applyInPandasWithState(
        lambda key, frames, state: iter(()), "k1 long", "n long", "Append", "NoTimeout"
    )
    with pytest.raises(
        DefinitionError, match="whose watermark ends at an operator that may emit rows of any"
    ):
        define(groups)
    both = left.join(right, F.expr("k1 = k2 and t2 between t1 and t1 + interval 1 hour"))
    with pytest.raises(DefinitionError, match=r"one column with a watermark .* found the columns t1, t2"):
        define(both)
    define(both.drop("t2"))
