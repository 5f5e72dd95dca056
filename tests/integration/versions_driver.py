"""A pipeline's life under the PySpark of the Python that runs it: ``versions_driver.py take|go_on <folder>``.

``take`` begins the pipeline and stops it with a savepoint. ``go_on`` restores that, with other numbers of tasks. Each
checks the answers and prints ``done``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator, NoRestart
from chandy.coordinator.query import CheckpointedQuery

from ..spark_settings import LOCAL
from ..waiting import DEADLINE
from .support import TOTALS, Events, Totals, last_totals

SAVEPOINT = "savepoint"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def session(folder: Path) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return (
        SparkSession.builder.master("local[2]")
        .config(map=LOCAL)
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        .getOrCreate()
    )


def begin(
    coordinator: CheckpointCoordinator, spark: SparkSession, events: Events, folder: Path, parallelism: int
) -> list[CheckpointedQuery]:
    def write(df: DataFrame, batch: int) -> None:
        df.coalesce(1).write.mode("overwrite").parquet(str(folder / "counts"))

    totals = coordinator.transform_with_state(
        events.stream(spark),
        key=["k"],
        processor=Totals(),
        output=TOTALS,
        uid="totals",
        shards=5,
        parallelism=parallelism,
        # It sets no timer, but so it has a source of ticks.
        time_mode="ProcessingTime",
    )
    counts = events.stream(spark).groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("total"))
    return [
        coordinator.start(
            totals.writeStream.format("parquet").option("path", str(folder / "totals")), name="totals"
        ),
        coordinator.start(counts.writeStream.outputMode("complete").foreachBatch(write), name="counts"),
    ]


def check(spark: SparkSession, events: Events, folder: Path) -> None:
    expected = events.totals(spark)
    written = spark.read.parquet(str(folder / "totals"))
    assert last_totals(written) == expected, written.collect()
    # A row for each key in each file: the sink has every batch, and none twice.
    assert written.count() == len(expected) * events.files, written.collect()
    counted = {row.k: (row.n, row.total) for row in spark.read.parquet(str(folder / "counts")).collect()}
    assert counted == expected, counted


def live(folder: Path, *, goes_on: bool) -> None:
    spark, events = session(folder), Events(folder / "in")
    events.files = len(list(events.folder.iterdir()))
    coordinator = CheckpointCoordinator(
        spark,
        pipeline="upgraded",
        storage=str(folder / "store"),
        config=CheckpointConfig(interval=None, restart=NoRestart()),
        restore=(folder / SAVEPOINT).as_uri() if goes_on else "latest",
    )
    queries = begin(coordinator, spark, events, folder, parallelism=3 if goes_on else 2)
    events.add(3)
    for query in queries:
        query.processAllAvailable()
    check(spark, events, folder)
    if goes_on:
        coordinator.checkpoint().result(DEADLINE)
        coordinator.stop()
    else:
        coordinator.stop(savepoint=str(folder / SAVEPOINT))
    spark.stop()


if __name__ == "__main__":
    live(Path(sys.argv[2]), goes_on=sys.argv[1] == "go_on")
    print("done", flush=True)
