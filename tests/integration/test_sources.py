"""Sources are added to a query and removed from it, and its state stays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession

from chandy import FilesSink
from chandy.coordinator import CheckpointCoordinator, FixedDelay
from chandy.coordinator.errors import RestoreError
from chandy.coordinator.sources.errors import SourceLostError

from ..waiting import DEADLINE
from .support import EVENTS, PLANS_IN_PYTHON, Make

pytestmark = pytest.mark.spark

EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


class SourceFolders:
    """Folders with files, each a source."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder, self._files = spark, folder, 0

    def add(self, source: str, *values: int) -> None:
        (self._folder / source).mkdir(exist_ok=True)
        self._files += 1
        rows = "".join(json.dumps({"k": source, "v": value}) + "\n" for value in values)
        (self._folder / source / f"{self._files}.json").write_text(rows)

    def read(self, *sources: str, named: bool = True) -> DataFrame:
        """The rows of several sources."""
        frames = []
        for source in sources:
            reader = self._spark.readStream.schema(EVENTS).format("json")
            frames.append((reader.name(source) if named else reader).load(str(self._folder / source)))
        first, *others = frames
        for other in others:
            first = first.union(other)
        return first


def life(coordinator: CheckpointCoordinator, rows: DataFrame) -> dict[str, int]:
    """Run the pipeline until all is read, and return the new totals of what has changed."""
    totals = coordinator.aggregate(rows, by=["k"], uid="totals", total=("v", "sum"))
    found: dict[str, int] = {}
    query = coordinator.start(
        totals.writeStream.foreachBatch(lambda rows, _: found.update(map(tuple, rows.collect()))),
        name="totals",
    )
    query.processAllAvailable()
    coordinator.checkpoint().result(DEADLINE)
    coordinator.stop()
    return found


@pytest.fixture
def evolving(spark: SparkSession) -> Iterator[None]:
    if pyspark.__version__ < "4.2":
        pytest.skip("PySpark 4.1 has no names for sources")
    spark.conf.set(EVOLUTION, "true")
    yield
    spark.conf.unset(EVOLUTION)


@pytest.mark.usefixtures("evolving")
def test_sources_with_names_come_and_go_and_the_state_stays(
    make: Make, spark: SparkSession, tmp_path: Path
) -> None:
    rows = SourceFolders(spark, tmp_path)
    rows.add("a", 1, 2)
    assert life(make(), rows.read("a")) == {"a": 3}
    rows.add("a", 3)
    rows.add("b", 10)
    # Where it stands in the query does not matter, either.
    assert life(make(), rows.read("b", "a")) == {"a": 6, "b": 10}
    rows.add("b", 20)
    rows.add("c", 100)
    assert life(make(), rows.read("b", "c")) == {"b": 30, "c": 100}


@pytest.mark.usefixtures("evolving")
@pytest.mark.full("integration/test_changes.py::test_a_replica_follows_a_pipeline_over_its_lives")
def test_a_replica_stands_where_its_source_stands_that_has_a_name(
    make: Make, spark: SparkSession, tmp_path: Path
) -> None:
    rows = SourceFolders(spark, tmp_path)
    rows.add("a", 1, 2)
    coordinator = make(restart=PLANS_IN_PYTHON)
    totals = coordinator.aggregate(rows.read("a"), by=["k"], uid="totals", total=("v", "sum"))
    query = coordinator.start(totals.writeStream.outputMode("update").format("noop"), name="totals")
    replica = coordinator.replicate("totals", to=FilesSink(str(tmp_path / "out")), name="copy")
    query.processAllAvailable()
    last = coordinator.checkpoint().result(DEADLINE)
    assert replica.catch_up(f"{DEADLINE} s") == last.id
    assert {row.total for row in spark.read.parquet(str(tmp_path / "out")).collect()} == {3}


def test_sources_without_names_neither_come_nor_go(make: Make, spark: SparkSession, tmp_path: Path) -> None:
    rows = SourceFolders(spark, tmp_path)
    rows.add("a", 1, 2)
    rows.add("b", 10)
    assert life(make(), rows.read("a", named=False)) == {"a": 3}
    with pytest.raises(RestoreError, match=r"expected 1 sources, .*found 2: json, json; .*readStream\.name"):
        life(make(), rows.read("a", "b", named=False))
    rows.add("a", 3)
    assert life(make(), rows.read("a", named=False)) == {"a": 6}


def test_a_file_that_is_gone_when_its_batch_runs_again_is_named_until_it_is_back(
    make: Make, spark: SparkSession, tmp_path: Path
) -> None:
    rows = SourceFolders(spark, tmp_path)
    rows.add("a", 1)
    file, away = tmp_path / "a" / "1.json", tmp_path / "away"

    def lose(df: DataFrame, batch: int) -> None:
        file.rename(away)
        df.collect()

    coordinator = make(restart=FixedDelay("0 s"))
    totals = coordinator.aggregate(rows.read("a", named=False), by=["k"], uid="totals", total=("v", "sum"))
    query = coordinator.start(totals.writeStream.foreachBatch(lose), name="totals")
    with pytest.raises(SourceLostError, match=r"1\.json"):
        query.awaitTermination(DEADLINE)
    coordinator.stop()
    with pytest.raises(SourceLostError, match=r"1\.json"):
        life(make(), rows.read("a", named=False))
    away.rename(file)
    assert life(make(), rows.read("a", named=False)) == {"a": 1}
