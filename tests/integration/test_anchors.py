"""Rows that are joined with anchors come out as they would without, and jobs on executors end."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import attrs
import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from chandy.coordinator.errors import CoordinatorStoppedError
from chandy.coordinator.protocol.balance import wanted_owners
from chandy.coordinator.spark.anchors import Anchors
from chandy.coordinator.spark.own_jobs import OwnJobs
from chandy.coordinator.wiring import ground

from ..effort import sampled
from ..waiting import DEADLINE, eventually
from .seconds import Seconds, check_that_the_watermark_is_carried_on
from .seconds import seconds as seconds
from .support import Events, Make

# Workers do not have the tests' modules: what the tests define travels by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.spark


def never() -> bool:
    return False


@pytest.fixture
def anchors(spark: SparkSession) -> Iterator[Anchors]:
    made = Anchors(spark, "p", partial(wanted_owners, sizes={}), never)
    yield made
    made.close()


def where_it_runs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    context = TaskContext.get()
    assert context is not None
    yield pa.record_batch({"partition": pa.array([context.partitionId()], pa.int32())})


def test_every_row_stays_and_is_in_its_partition(anchors: Anchors, spark: SparkSession) -> None:
    rows = spark.range(1000).select(
        F.col("id"),
        F.when(F.col("id") % 7 == 0, None).otherwise(F.col("id")).alias("v"),
        F.lit("x").alias("a.b"),
    )
    placed = anchors.partition(rows, 5, (F.col("id") % 5).cast("int"))
    assert placed.columns == rows.columns
    assert sorted(placed.collect()) == sorted(rows.collect())
    where = placed.select((F.col("id") % 5).alias("wanted"), F.spark_partition_id().alias("found")).distinct()
    assert sorted(where.collect()) == [Row(wanted=n, found=n) for n in range(5)]


def test_a_partition_without_rows_has_its_task(anchors: Anchors, spark: SparkSession) -> None:
    placed = anchors.partition(spark.range(1), 5, (F.col("id") % 5).cast("int"))
    ran = placed.mapInArrow(where_it_runs, "partition int").collect()
    assert sorted(row.partition for row in ran) == [0, 1, 2, 3, 4]


def test_no_second_shuffle_is_planned(
    anchors: Anchors, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    anchors.partition(spark.range(10), 5, (F.col("id") % 5).cast("int")).explain()
    plan = capsys.readouterr().out
    assert "InMemoryTableScan" in plan
    # The other one is within what is cached.
    assert plan.split("InMemoryRelation")[0].count("Exchange") == 1


@pytest.mark.parametrize("partition", sampled(["by id", "with anchors"], 1))
def test_operators_of_event_time_pass_the_watermark_on_to_later_ones_of_chandy_and_of_spark(
    anchors: Anchors,
    make: Make,
    spark: SparkSession,
    seconds: Seconds,
    monkeypatch: pytest.MonkeyPatch,
    partition: str,
) -> None:
    if partition == "with anchors":
        monkeypatch.setattr(ground, "by_id", anchors.partition)
    check_that_the_watermark_is_carried_on(make, spark, seconds)


@attrs.frozen
class Blocking:
    """The work of tasks that wait, as if there were no executors left for others."""

    begun: Path
    ended: Path

    def __call__(self, numbers: Iterable[int]) -> Iterator[int]:
        for number in numbers:
            (self.begun / str(number)).touch()
            eventually(self.ended.exists, "the end of the test")
            yield number

    def await_all(self, tasks: int) -> None:
        eventually(lambda: len(list(self.begun.iterdir())) == tasks, "all tasks")


@pytest.fixture
def blocking(tmp_path: Path) -> Iterator[Blocking]:
    made = Blocking(tmp_path / "begun", tmp_path / "ended")
    made.begun.mkdir()
    yield made
    made.ended.touch()


def test_jobs_of_the_coordinators_own_end_when_nobody_needs_them_any_more(
    spark: SparkSession, blocking: Blocking
) -> None:
    is_over = threading.Event()
    jobs, tasks = OwnJobs(spark, "p", "test", is_over.is_set), spark.sparkContext.defaultParallelism
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(jobs.on_executors, blocking)
        blocking.await_all(tasks)
        jobs.end()
        with pytest.raises(CoordinatorStoppedError):
            running.result(DEADLINE)
        # Another job of the same thread is none of them.
        assert set(pool.submit(spark.sparkContext.getJobTags).result(DEADLINE)) == set()
    assert sorted(jobs.on_executors(iter)) == list(range(tasks))
    # And none begins after the end.
    is_over.set()
    with pytest.raises(CoordinatorStoppedError):
        jobs.on_executors(iter)


def test_a_stop_waits_for_no_tasks_that_find_no_executor(
    spark: SparkSession,
    make: Make,
    events: Events,
    anchors: Anchors,
    blocking: Blocking,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As on a cluster.
    monkeypatch.setattr(ground, "_anchors", lambda *about: anchors)
    coordinator = make()
    totals = partial(coordinator.aggregate, events.stream(spark), by=["k"], uid="totals", n=("*", "count"))
    with ThreadPoolExecutor(2) as pool:
        pool.submit(OwnJobs(spark, "other", "others", never).on_executors, blocking)
        blocking.await_all(spark.sparkContext.defaultParallelism)
        adding = pool.submit(totals)
        eventually(anchors._lock.locked, "that tasks are placed")
        coordinator.stop()
        with pytest.raises(CoordinatorStoppedError):
            adding.result(DEADLINE)
        blocking.ended.touch()
