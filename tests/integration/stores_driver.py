"""A driver of its own for each test of a store: credentials are in its environment before Spark starts.

Does what the command line says on the store that it names, and prints ``done`` if all answers were right. ``run``: runs
a pipeline, stops it, restores it from its latest checkpoint and from a savepoint whose pipeline is gone.
``write_state``: writes savepoints from rows, each from the one before, which is in another place and then deleted.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from chandy import Permit
from chandy.coordinator import CheckpointConfig, CheckpointCoordinator, NoRestart
from chandy.coordinator.query import CheckpointedQuery
from chandy.state import SavepointWriter, read_state
from chandy.storage.backends.open import open_store
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.layout import is_shared
from chandy.storage.checkpoints.savepoint import read_savepoint
from chandy.storage.checkpoints.verification import verify
from chandy.storage.uri import join_uri

from ..spark_settings import LOCAL
from ..waiting import DEADLINE
from .support import TOTALS, Events, Totals, last_totals


def session(folder: Path) -> SparkSession:
    return (
        SparkSession.builder.master("local[2]")
        .config(map=LOCAL)
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )


def run(spark: SparkSession, storage: str, folder: Path) -> None:
    config = CheckpointConfig(interval=None, restart=NoRestart(), cache_dir=str(folder / "cache"))
    events, out = Events(folder / "in"), folder / "out"

    def begin(
        pipeline: str, restore: str = "latest", permit: Permit | None = None
    ) -> tuple[CheckpointCoordinator, CheckpointedQuery]:
        made = CheckpointCoordinator(
            spark, pipeline=pipeline, storage=storage, config=config, restore=restore, permit=permit
        )
        totals = made.transform_with_state(
            events.stream(spark), key=["k"], processor=Totals(), output=TOTALS, uid="totals", shards=4
        )
        writer = (
            totals.writeStream.format("parquet").option("path", str(out)).trigger(processingTime="0 seconds")
        )
        return made, made.start(writer, name="totals")

    def check(query: CheckpointedQuery) -> None:
        query.processAllAvailable()
        found, expected = last_totals(spark.read.parquet(str(out))), events.totals(spark)
        assert found == expected, (found, expected)

    events.add(2)
    first, query = begin("p")
    check(query)
    assert first.checkpoint().result(DEADLINE).id == 1
    events.add(2)
    check(query)
    first.stop(checkpoint=False)

    second, query = begin("p")
    assert second.restored is not None
    assert second.restored.id == 1
    events.add(1)
    check(query)
    savepoint = second.stop(savepoint="by-name")
    assert savepoint is not None
    store = open_store(join_uri(storage, "p"))
    assert all(verify(store, manifest).ok for manifest in Catalog(store).completed())
    store.delete_all([key for key in store.list() if not key.startswith("savepoints/")])

    third, query = begin("q", savepoint.uri)
    events.add(1)
    check(query)
    assert third.checkpoint().result(DEADLINE).id == savepoint.id + 1
    third.stop()
    assert verify(open_store(savepoint.uri), read_savepoint(open_store(savepoint.uri))).ok

    fourth, query = begin("q", savepoint.uri, Permit(claim=savepoint.uri))
    check(query)
    fourth.checkpoint().result(DEADLINE)
    assert open_store(savepoint.uri).list() != []
    fourth.stop()
    assert open_store(savepoint.uri).list() == []


def write_state(spark: SparkSession, storage: str, folder: Path) -> None:
    # Enough of it that files of shards are objects of their own, which services copy.
    numbers = spark.range(8_000).selectExpr("id", "sha2(cast(id AS string), 512) AS text")
    first = (
        SavepointWriter.new(spark, "p")
        .with_operator("stays", query="q", key="id long", shards=2)
        .with_state("stays", "text", numbers)
        .with_operator("changes", query="q", key="id long", shards=2)
        .with_state("changes", "text", numbers.limit(0))
        .write(str(folder / "first"))
    )
    expected = dict[int, str]()
    places = [join_uri(storage, "second"), join_uri(storage, "third"), str(folder / "fourth")]
    for number, place in enumerate(places):
        rows = spark.createDataFrame([(number, place)], "id long, text string")
        expected[number] = place
        made = (
            SavepointWriter.from_existing(spark, first)
            .with_state("changes", "text", rows, mode="merge")
            .write(place)
        )
        before = open_store(first)
        assert any(is_shared(key) for key in before.list())
        before.delete_all(before.list())
        store = open_store(made)
        assert verify(store, read_savepoint(store)).ok
        stays = read_state(spark, made, operator="stays").select("id", "text")
        assert stays.exceptAll(numbers).isEmpty()
        assert stays.count() == numbers.count()
        changes = read_state(spark, made, operator="changes").select("id", "text")
        assert dict(map(tuple, changes.collect())) == expected
        first = made


if __name__ == "__main__":
    place, storage, what = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    spark = session(place)
    {"run": run, "write_state": write_state}[what](spark, storage, place)
    print("done", flush=True)
    spark.stop()
