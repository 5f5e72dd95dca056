"""The number of tasks that serve an operator may change, at a start and while it runs: its shards stay."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.streaming.readwriter import DataStreamWriter

from chandy.coordinator import CheckpointCoordinator
from chandy.coordinator.connectors.files.sink import FilesSink
from chandy.coordinator.errors import ArgumentError, NotRescaledError, PipelineNameError, WriterError
from chandy.coordinator.testing import PipelineTester
from chandy.state.errors import DefinitionError

from .. import insides
from ..waiting import DEADLINE, eventually
from .support import TOTALS, Events, Make, Totals, last_totals

# Workers do not have the tests' modules: what the tests define travels by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = [pytest.mark.spark, pytest.mark.compat]

SHARDS = 5


def totals(coordinator: CheckpointCoordinator, rows: DataFrame, parallelism: int | None = None) -> DataFrame:
    return coordinator.transform_with_state(
        rows,
        key=["k"],
        processor=Totals(),
        output=TOTALS,
        uid="totals",
        shards=SHARDS,
        parallelism=parallelism,
    )


@pytest.mark.full(
    "integration/test_parallelism.py::test_an_operator_is_rescaled_where_it_stands_and_nothing_is_lost_or_doubled"
)
def test_a_checkpoint_restores_with_any_other_number_of_tasks(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    # Fewer, more, one a shard, one for all, and the same again.
    out = str(tmp_path / "out")
    for parallelism in (2, 5, 3, 3, 1, 4):
        coordinator = make()
        rows = totals(coordinator, events.stream(spark), parallelism)
        query = coordinator.start(rows.writeStream.format("parquet").option("path", out), name="totals")
        events.add()
        query.processAllAvailable()
        assert f"], {parallelism}\n" in rows._jdf.queryExecution().analyzed().toString()
        assert coordinator.checkpoint().result(DEADLINE).shards == SHARDS
        coordinator.stop()
    assert last_totals(spark.read.parquet(out)) == events.totals(spark)


# --- while the query runs -----------------------------------------------------------------------------------


def test_an_operator_is_rescaled_where_it_stands_and_nothing_is_lost_or_doubled(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    coordinator = make()
    query = coordinator.start(
        build=lambda: totals(coordinator, events.stream(spark)).writeStream,
        name="totals",
        sink=FilesSink(str(tmp_path / "out")),
    )

    def tasks_of_a_batch() -> int:
        before = coordinator.metrics("totals").tasks
        events.add()
        query.processAllAvailable()
        return coordinator.metrics("totals").tasks - before

    default = min(SHARDS, spark.sparkContext.defaultParallelism)
    assert tasks_of_a_batch() == default
    for parallelism in (1, 5, None):
        # There is always work, and a batch may run when the query stops.
        events.add(2)
        coordinator.rescale("totals", parallelism)
        query.processAllAvailable()
        assert tasks_of_a_batch() == (parallelism or default)
    run = query.runId
    coordinator.rescale("totals", default)
    assert query.runId == run, "there is nothing to do, and the query restarts"
    assert [one.kind for one in coordinator.recoveries] == ["start", *["rescale"] * 3]
    assert (
        coordinator.recoveries[-1].cause
        == f"operator 'totals' of query 'totals' was rescaled to {default} tasks"
    )
    coordinator.stop()
    rows = spark.read.parquet(str(tmp_path / "out"))
    assert last_totals(rows) == events.totals(spark)
    assert rows.count() == rows.distinct().count(), "rows were given out twice"


def test_nobody_waits_for_a_query_that_waits_for_its_batch_to_be_rescaled(
    make: Make, spark: SparkSession, events: Events
) -> None:
    coordinator, rows, ends, runs = make(), events.stream(spark), threading.Event(), threading.Event()
    events.add()

    def run_for_long(rows: DataFrame, batch: int) -> None:
        rows.collect()
        runs.set()
        ends.wait(DEADLINE)

    first = coordinator.start(
        build=lambda: totals(coordinator, rows).writeStream.foreachBatch(run_for_long), name="totals"
    )
    assert runs.wait(DEADLINE)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(coordinator.rescale, "totals", 1, "10 h")
        try:
            eventually(
                lambda: (
                    "totals"
                    in insides.protocol(coordinator).read(lambda state: state.failover.rescalings._by_query)
                )
            )
            with pytest.raises(NotRescaledError, match="another request"):
                coordinator.rescale("totals", SHARDS)
            coordinator.start(events.stream(spark).writeStream.format("noop"), name="second", reads=())
            assert not waits.done()
        finally:
            ends.set()
        waits.result(DEADLINE)
    before = coordinator.metrics("totals").tasks
    events.add()
    first.processAllAvailable()
    assert coordinator.metrics("totals").tasks - before == 1


class Continued(Totals):
    """Goes on from a value of each key."""

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:  # noqa: N802, N803
        self.state.update((0, initialState.v))


def two_operators(coordinator: CheckpointCoordinator, rows: DataFrame) -> DataFrame:
    """Two operators, with ticks and an initial state: what else a query has besides tasks."""
    began = rows.sparkSession.createDataFrame([("a", 40)], "k string, v long")
    counted = coordinator.transform_with_state(
        rows.select("k", "v"),
        key=["k"],
        processor=Continued(),
        output=TOTALS,
        uid="first",
        shards=SHARDS,
        time_mode="ProcessingTime",
        initial_state=began,
    )
    return coordinator.aggregate(
        counted, by=["k"], uid="totals", shards=4, n=("*", "count"), most=("total", "max")
    )


@pytest.mark.kills
@pytest.mark.full(
    "integration/test_parallelism.py::test_an_operator_is_rescaled_where_it_stands_and_nothing_is_lost_or_doubled"
)
def test_a_rescaled_pipeline_survives_its_hosts_and_its_driver(spark: SparkSession, tmp_path: Path) -> None:
    with PipelineTester(spark, tmp_path / "tested", "k string, v long", two_operators) as pipeline:
        assert [(row.n, row.most) for row in pipeline.batch([("a", 1)])] == [(1, 41)]
        pipeline.checkpoint()
        for operator, parallelism in (("first", 1), ("totals", 1), ("first", 3)):
            pipeline.coordinator.rescale(operator, parallelism)
        assert [(row.n, row.most) for row in pipeline.batch([("a", 1)])] == [(2, 42)]
        pipeline.kill_hosts()
        assert [(row.n, row.most) for row in pipeline.batch([("a", 1)])] == [(3, 43)]
        pipeline.coordinator.rescale("totals", 4)
        assert [(row.n, row.most) for row in pipeline.batch([("a", 1)])] == [(4, 44)]
        # Only the checkpoint is left, and what the program says.
        pipeline.restart()
        assert [(row.n, row.most) for row in pipeline.batch([("a", 1)])] == [(5, 45)]


def test_aggregates_of_batches_are_rescaled_without_a_stop(spark: SparkSession, tmp_path: Path) -> None:
    def build(coordinator: CheckpointCoordinator, rows: DataFrame) -> Any:
        return coordinator.aggregate_batches(rows, by=["k"], uid="totals", shards=4, n=("*", "count"))

    with PipelineTester(spark, tmp_path / "tested", "k string", build) as pipeline:
        pipeline.batch([("a",), ("b",)])
        run, coordinator = pipeline.query.runId, pipeline.coordinator
        for parallelism in (4, 1):
            coordinator.rescale("totals", parallelism)
            before = coordinator.metrics("totals").tasks
            pipeline.batch([("a",), ("b",)])
            assert coordinator.metrics("totals").tasks - before == parallelism
        assert pipeline.query.runId == run
        assert sorted((row.k, row.n) for row in pipeline.batch([("a",), ("b",)])) == [("a", 4), ("b", 4)]


def test_what_cannot_be_rescaled_is_refused_and_the_query_goes_on(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    coordinator = make()
    events.add()
    made = totals(coordinator, events.stream(spark))

    def refused(error: type[Exception], match: str, operator: str = "totals", parallelism: int = 1) -> None:
        with pytest.raises(error, match=match):
            coordinator.rescale(operator, parallelism)

    def start(writer: Any = None, **arguments: Any) -> Any:
        return coordinator.start(writer, name="totals", **arguments)

    refused(ArgumentError, "'totals' cannot be rescaled.*no query with it yet")
    writer = made.writeStream.format("noop")
    with pytest.raises(ArgumentError, match=r"either a DataStreamWriter .* or build=.*found neither"):
        start()
    with pytest.raises(ArgumentError, match=r"either a DataStreamWriter .* or build=.*found both"):
        start(writer, build=lambda: writer)
    with pytest.raises(ArgumentError, match="operators which were made before: 'totals'"):
        start(build=lambda: writer)
    with pytest.raises(ArgumentError, match=r"expected a DataStreamWriter.*found a DataFrame"):
        start(build=lambda: made)
    query = start(writer)
    refused(ArgumentError, "expected query 'totals' to be started with build=")
    refused(PipelineNameError, "no operator 'other'", operator="other")
    query.stop()
    refused(ArgumentError, "query 'totals', which has ended")
    coordinator.stop()


def test_a_function_that_builds_something_else_is_refused_and_the_query_goes_on(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    coordinator, calls = make(), 0
    events.add()
    rows = events.stream(spark)

    def aggregate(**arguments: Any) -> DataFrame:
        wanted = {"by": ["k"], "uid": "totals", "shards": 4, "n": ("*", "count")} | arguments
        return coordinator.aggregate(rows, **wanted)

    def write(made: DataFrame, mode: str = "update") -> DataStreamWriter:
        return made.writeStream.format("noop").outputMode(mode)

    def fail() -> DataStreamWriter:
        raise ZeroDivisionError

    builds: list[tuple[Callable[[], DataStreamWriter], type[Exception], str]] = [
        (lambda: write(rows), DefinitionError, "expected operator 'totals' as it was.*no such operator"),
        (lambda: write(aggregate(by=["v"])), DefinitionError, "found another key"),
        (lambda: write(aggregate(shards=8)), DefinitionError, "found 8 shards instead of 4"),
        (lambda: write(aggregate(m=("v", "max"))), DefinitionError, "found other states"),
        (lambda: write(aggregate(uid="other")), DefinitionError, "no such operator"),
        (lambda: write(aggregate().withColumn("more", F.lit(1))), ArgumentError, "found columns .*more"),
        (lambda: write(aggregate(), "append"), ArgumentError, "expected output mode update, found .* append"),
        (fail, ZeroDivisionError, "^$"),
    ]

    def build() -> DataStreamWriter:
        nonlocal calls
        calls += 1
        return write(aggregate()) if calls == 1 else builds[calls - 2][0]()

    # What a start that fails has made, the next one may make again.
    with pytest.raises(WriterError, match="checkpointLocation"):
        coordinator.start(build=lambda: build().option("checkpointLocation", "/x"), name="totals")
    calls = 0
    query = coordinator.start(build=build, name="totals")
    run = query.runId
    for parallelism in (0, 5):
        with pytest.raises(
            DefinitionError, match="parallelism: expected a number from 1 to the number of shards, 4"
        ):
            coordinator.rescale("totals", parallelism)
    for _, error, match in builds:
        with pytest.raises(error, match=match):
            coordinator.rescale("totals", 1)
    with pytest.raises(PipelineNameError, match="'other'"):
        coordinator.rescale("other", 1)
    query.processAllAvailable()
    assert (query.runId, calls) == (run, 1 + len(builds))
    assert coordinator.metrics("totals").tasks % min(4, spark.sparkContext.defaultParallelism) == 0
