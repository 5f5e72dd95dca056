"""What users test their pipelines with, on real Spark, with real state hosts that are killed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator, NoRestart
from chandy.coordinator.errors import ChandyError, RestoreError
from chandy.coordinator.testing import PipelineTester
from chandy.state.errors import DefinitionError

pytestmark = pytest.mark.spark

INPUT = "k string, v long"


def totals(coordinator: CheckpointCoordinator, rows: DataFrame) -> DataFrame:
    return coordinator.aggregate(rows, by=["k"], uid="totals", shards=4, n=("*", "count"), total=("v", "sum"))


@pytest.fixture
def pipeline(spark: SparkSession, tmp_path: Path) -> Iterator[PipelineTester]:
    with PipelineTester(spark, tmp_path / "tested", INPUT, totals) as made:
        yield made


def test_rows_go_in_and_out_batch_by_batch_through_kills_and_restarts(
    spark: SparkSession, tmp_path: Path, pipeline: PipelineTester
) -> None:
    assert sorted(pipeline.batch([("a", 1), {"k": "b"}, ("a", 2)])) == [
        Row(k="a", n=2, total=3),
        Row(k="b", n=1, total=None),
    ]
    assert pipeline.state("totals", "b") is not None
    assert pipeline.state("totals", "c") is None
    with pytest.raises(DefinitionError, match="argument folder: expected an empty directory"):
        PipelineTester(spark, tmp_path / "tested", INPUT, totals)
    savepoint = pipeline.savepoint("first")
    assert pipeline.batch([("a", 4)]) == [Row(k="a", n=3, total=7)]
    pipeline.checkpoint()
    assert pipeline.batch([("b", 8)]) == [Row(k="b", n=2, total=8)]
    pipeline.kill_hosts()
    assert pipeline.batch([("b", 1)]) == [Row(k="b", n=3, total=9)]
    assert pipeline.coordinator.recoveries[-1].kind != "start"
    # Two batches have no checkpoint. They run again, and what goes out of them is not seen twice.
    pipeline.restart()
    assert pipeline.batch([("a", 1)]) == [Row(k="a", n=4, total=8)]
    assert len(pipeline.output()) == 6
    # Back to the savepoint: all batches since run again, in the same batches of the same files.
    pipeline.restart(restore=savepoint.uri)
    assert pipeline.batch([("a", 0)]) == [Row(k="a", n=5, total=8)]
    assert len(pipeline.output()) == 7


def test_a_session_of_a_cluster_is_refused(tmp_path: Path) -> None:
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="spark://far:7077"))
    with pytest.raises(
        DefinitionError, match="expected a session in local mode, found master spark://far:7077"
    ):
        PipelineTester(session, tmp_path / "tested", INPUT, totals)


def test_a_new_version_goes_on_or_is_refused(pipeline: PipelineTester) -> None:
    pipeline.batch([("a", 1)])
    pipeline.checkpoint()

    def newer(coordinator: CheckpointCoordinator, rows: DataFrame) -> DataFrame:
        columns = {"n": ("*", "count"), "total": ("v", "sum"), "most": ("v", "max")}
        return coordinator.aggregate(rows, by=["k"], uid="totals", shards=4, **columns)

    pipeline.restart(newer)
    assert pipeline.batch([("a", 6)]) == [Row(k="a", n=2, total=7, most=6)]

    def other(coordinator: CheckpointCoordinator, rows: DataFrame) -> DataFrame:
        return coordinator.aggregate(rows, by=["v"], uid="totals", shards=4, n=("*", "count"))

    with pytest.raises(RestoreError, match="the key columns"):
        pipeline.restart(other)
    pipeline.restart(newer)
    assert pipeline.batch([("a", 1)]) == [Row(k="a", n=3, total=8, most=6)]


@pytest.mark.full("integration/test_windows.py::test_windows_of_unit_tests_are_those_of_spark")
def test_windows_close_with_the_watermark_of_the_rows(spark: SparkSession, tmp_path: Path) -> None:
    def build(coordinator: CheckpointCoordinator, rows: DataFrame) -> DataFrame:
        stamped = rows.withWatermark("at", "0 seconds")
        window = F.window("at", "10 seconds")
        return coordinator.aggregate(
            stamped, by=[], window=window, output_mode="append", uid="w", shards=2, n=("*", "count")
        )

    def at(second: int) -> datetime:
        return datetime.fromtimestamp(second, UTC)

    with PipelineTester(spark, tmp_path / "tested", "at timestamp", build) as pipeline:
        assert pipeline.batch([(at(1),), (at(9),)]) == []
        (row,) = pipeline.batch([(at(25),)])
        assert (row.window.end.replace(tzinfo=UTC), row.n) == (at(10), 2)


def test_a_query_that_fails_for_good_says_why_and_bad_rows_are_refused_before(
    spark: SparkSession, tmp_path: Path
) -> None:
    def build(coordinator: CheckpointCoordinator, rows: DataFrame) -> DataFrame:
        return totals(coordinator, rows.where("v < 9 or raise_error('nine') is null"))

    config = CheckpointConfig(interval=None, restart=NoRestart())
    with PipelineTester(spark, tmp_path / "tested", INPUT, build, config=config) as pipeline:
        wrong: list[tuple[Any, ...]] = [("a",), ("a", "b")]
        for row in wrong:
            with pytest.raises(DefinitionError, match="argument rows: expected"):
                pipeline.batch([row])
        assert pipeline.batch([("a", 8)]) == [Row(k="a", n=1, total=8)]
        with pytest.raises((ChandyError, PySparkException), match="nine"):
            pipeline.batch([("a", 9)])
