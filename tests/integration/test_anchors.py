"""Rows that are joined with anchors come out as they would without."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from chandy.coordinator.protocol.balance import wanted_owners
from chandy.coordinator.spark.anchors import Anchors
from chandy.coordinator.wiring import assembly

from .seconds import Seconds, check_that_the_watermark_is_carried_on
from .seconds import seconds as seconds
from .support import Make

# Workers do not have the tests' modules: what the tests define travels by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.spark


@pytest.fixture
def anchors(spark: SparkSession) -> Iterator[Anchors]:
    made = Anchors(spark, partial(wanted_owners, sizes={}))
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


def test_operators_of_event_time_pass_the_watermark_on(
    anchors: Anchors, make: Make, spark: SparkSession, seconds: Seconds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "by_id", anchors.partition)
    check_that_the_watermark_is_carried_on(make, spark, seconds)
