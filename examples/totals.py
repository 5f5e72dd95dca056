"""Running totals by key into files, each row once: `python examples/totals.py [FOLDER]`.

Run it again and again. Each run brings new sales, goes on where the last one has stopped, and ends when all are read.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from chandy import CheckpointConfig, CheckpointCoordinator, FilesSink


def main(folder: Path) -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    spark.range(1000).selectExpr("id % 5 AS shop", "id AS cents").write.mode("append").json(f"{folder}/sales")

    with CheckpointCoordinator(
        spark,
        pipeline="totals",
        storage=f"{folder}/checkpoints",
        config=CheckpointConfig(interval="10 s"),
    ) as coordinator:
        sales = spark.readStream.schema("shop long, cents long").json(f"{folder}/sales")
        totals = coordinator.aggregate(
            sales, by=["shop"], uid="totals", sales=("*", "count"), cents=("cents", "sum")
        )
        query = coordinator.start(
            totals.writeStream.trigger(availableNow=True),
            name="totals",
            sink=FilesSink(f"{folder}/totals"),
        )
        query.awaitTermination()
        coordinator.checkpoint().result(timeout=60)
        print("goes on from a checkpoint" if coordinator.restored else "begins")

    # Each run has added the totals of all runs so far.
    latest = spark.read.parquet(f"{folder}/totals").groupBy("shop").agg({"sales": "max", "cents": "max"})
    for row in sorted(latest.collect()):
        print(f"shop {row['shop']}: {row['max(sales)']} sales, {row['max(cents)']} cents")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "/tmp/chandy-examples/totals"))
