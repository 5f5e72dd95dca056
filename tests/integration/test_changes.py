"""What has changed of a state, as DataFrames: at once, as a stream of plain Spark, and replicated by Chandy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from chandy import FilesSink, Replica
from chandy.coordinator import CheckpointCoordinator
from chandy.state import read_changes, read_state, stream_changes
from chandy.storage.backends.open import open_store, pipeline_uri
from chandy.storage.checkpoints.pins import pinned

from ..waiting import DEADLINE
from .support import PLANS_IN_PYTHON, Events, Make

pytestmark = [pytest.mark.spark, pytest.mark.compat]


@pytest.fixture
def counts(make: Make, spark: SparkSession, events: Events) -> CheckpointCoordinator:
    """A pipeline that counts and adds up values by key."""
    coordinator = make()
    totals = coordinator.aggregate(
        events.stream(spark), by=["k"], uid="totals", shards=4, n=("*", "count"), total=("v", "sum")
    )
    events.add(1)
    coordinator.start(totals.writeStream.outputMode("update").format("noop"), name="q").processAllAvailable()
    return coordinator


def checkpoint(counts: CheckpointCoordinator) -> int:
    counts.queries[0].processAllAvailable()
    return counts.checkpoint().result(DEADLINE).id


def state_at(spark: SparkSession, uri: str, id: int) -> set[tuple[Any, ...]]:
    return {tuple(row) for row in read_state(spark, uri, id, "totals").collect()}


def test_the_changes_between_two_checkpoints_lead_from_one_state_to_the_other(
    spark: SparkSession, counts: CheckpointCoordinator, events: Events, tmp_path: Path
) -> None:
    uri = pipeline_uri(str(tmp_path / "store"), "p")
    first = checkpoint(counts)
    before = state_at(spark, uri, first)
    events.add(1)
    second = checkpoint(counts)
    after = state_at(spark, uri, second)
    changes = read_changes(spark, uri, first, second, "totals", before=True)
    own = [name for name in changes.columns if not name.startswith("_")]
    rows = changes.collect()
    assert {tuple(row[name] for name in own) for row in rows} == after - before
    assert {row._change for row in rows} <= {"insert", "update"}
    assert all((row._before is None) == (row._change == "insert") for row in rows)
    assert {row._checkpoint for row in rows} == {second}
    back = read_changes(spark, uri, second, first, "totals")
    assert back.count() == len(rows)


@pytest.mark.full("integration/test_changes.py::test_a_replica_follows_a_pipeline_over_its_lives")
def test_plain_spark_follows_a_pipeline(
    spark: SparkSession, counts: CheckpointCoordinator, events: Events, tmp_path: Path
) -> None:
    uri = pipeline_uri(str(tmp_path / "store"), "p")
    table: dict[str, tuple[Any, ...]] = {}
    seen: list[int] = []

    def apply(batch: DataFrame, number: int) -> None:
        for row in batch.collect():
            assert (row._change in ("insert", "read")) == (row.k not in table)
            table[row.k] = tuple(row[name] for name in batch.columns if not name.startswith("_"))
            seen.append(row._checkpoint)

    def follow() -> None:
        """Take what is there, as a job does that runs now and then."""
        changes = stream_changes(spark, uri, reader="plain", operator="totals")
        writer = changes.writeStream.option("checkpointLocation", str(tmp_path / "plain"))
        query = writer.trigger(availableNow=True).foreachBatch(apply).start()
        assert query.awaitTermination(int(DEADLINE))

    first = checkpoint(counts)
    follow()
    assert set(table.values()) == state_at(spark, uri, first)
    for _ in range(4):
        events.add(1)
        newest = checkpoint(counts)
    follow()
    assert set(table.values()) == state_at(spark, uri, newest)
    assert set(seen) == {first, newest}
    follow()
    assert pinned(open_store(uri)) == {newest}


def latest(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """What a log of all changes makes of each key."""
    found: dict[str, Any] = {}
    rows = spark.read.parquet(str(folder)).orderBy("_checkpoint").collect()
    for row in rows:
        found.pop(row.k, None)
        if row._change != "delete":
            found[row.k] = (row.n, row.total)
    return found


def test_a_replica_follows_a_pipeline_over_its_lives(
    spark: SparkSession, make: Make, events: Events, tmp_path: Path
) -> None:
    target = tmp_path / "log"

    def begin(**options: Any) -> tuple[CheckpointCoordinator, Replica]:
        coordinator = make(restart=PLANS_IN_PYTHON, **options)
        totals = coordinator.aggregate(
            events.stream(spark), by=["k"], uid="totals", shards=4, n=("*", "count"), total=("v", "avg")
        )
        coordinator.start(totals.writeStream.outputMode("update").format("noop"), name="q")
        return coordinator, coordinator.replicate("totals", to=FilesSink(str(target)), name="log")

    events.add(1)
    coordinator, replica = begin()
    assert coordinator.replicas == (replica,)
    first = checkpoint(coordinator)
    assert replica.catch_up(f"{DEADLINE:g} s") == first
    events.add(2)
    second = checkpoint(coordinator)
    assert replica.catch_up(f"{DEADLINE:g} s") == second
    rows = spark.read.json(str(events.folder)).groupBy("k").agg({"*": "count", "v": "avg"}).collect()
    assert latest(spark, target) == {row.k: (row["count(1)"], row["avg(v)"]) for row in rows}
    coordinator.stop()
    assert not replica.status.is_active
