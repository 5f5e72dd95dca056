"""Two queries with one cut: `python examples/two_queries.py [FOLDER]`.

The first cleans orders and writes them to files; the second reads these files and adds up. A checkpoint has both at one
moment, so a savepoint of the pipeline never has a sum without its orders.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from chandy import CheckpointConfig, CheckpointCoordinator, FilesSink


def main(folder: Path) -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    orders = spark.range(100).selectExpr("id % 4 AS customer", "IF(id % 10 = 0, NULL, id) AS cents")
    orders.write.mode("append").json(f"{folder}/orders")

    with CheckpointCoordinator(
        spark,
        pipeline="orders",
        storage=f"{folder}/checkpoints",
        config=CheckpointConfig(interval="10 s"),
    ) as coordinator:
        raw = spark.readStream.schema("customer long, cents long").json(f"{folder}/orders")
        cleaned = coordinator.start(
            raw.where("cents IS NOT NULL").writeStream, name="clean", sink=FilesSink(f"{folder}/clean")
        )
        (folder / "clean").mkdir(exist_ok=True)
        clean = spark.readStream.schema("customer long, cents long").parquet(f"{folder}/clean")
        sums = coordinator.aggregate(clean, by=["customer"], uid="sums", cents=("cents", "sum"))
        summed = coordinator.start(
            sums.writeStream, name="sums", sink=FilesSink(f"{folder}/sums"), reads=["clean"]
        )
        # A query sees what the other one has written once a checkpoint has published it.
        for query in (cleaned, summed):
            query.processAllAvailable()
            coordinator.checkpoint().result(timeout=60)

        latest = spark.read.parquet(f"{folder}/sums").groupBy("customer").max("cents")
        for customer, cents in sorted(latest.collect()):
            print(f"customer {customer}: {cents} cents")
        target = f"{folder}/savepoints/{len(list(folder.glob('savepoints/*')))}"
        savepoint = coordinator.savepoint(target).result(timeout=60)
        print("a savepoint of", " and ".join(sorted(savepoint.batches)))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "/tmp/chandy-examples/two-queries"))
