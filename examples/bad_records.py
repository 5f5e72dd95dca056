"""One bad record does not end the pipeline: `python examples/bad_records.py [FOLDER]`.

A processor cannot read some temperatures. The sensors that sent them are given up in that batch, and their rows are
kept as dead letters. Then the code is mended, and the rows are fed back.
"""

import sys
from pathlib import Path

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from chandy import CheckpointConfig, CheckpointCoordinator, DeadLetters, dead_letter_rows, read_state

ROWS = "sensor string, celsius string"


class Highest(StatefulProcessor):
    def init(self, handle):
        self.highest = handle.getValueState("highest", "celsius double")

    def handleInputRows(self, key, rows, timerValues):
        highest = max(self.read(row.celsius) for row in rows)
        if self.highest.exists():
            highest = max(highest, self.highest.get()[0])
        self.highest.update((highest,))
        yield Row(sensor=key[0], celsius=highest)

    def read(self, celsius):
        return float(celsius)


class Mended(Highest):
    def read(self, celsius):
        return float(celsius.removesuffix(" °C"))


def run(spark: SparkSession, folder: Path, processor: StatefulProcessor) -> None:
    with CheckpointCoordinator(
        spark,
        pipeline="sensors",
        storage=f"{folder}/checkpoints",
        config=CheckpointConfig(interval="10 s"),
    ) as coordinator:
        highest = coordinator.transform_with_state(
            spark.readStream.schema(ROWS).json(f"{folder}/readings"),
            key=["sensor"],
            processor=processor,
            output="sensor string, celsius double",
            uid="highest",
            on_error=DeadLetters(max_per_batch=10),
        )
        query = coordinator.start(highest.writeStream.format("noop"), name="sensors")
        query.processAllAvailable()
        coordinator.checkpoint().result(timeout=60)
        for sensor in ("attic", "cellar"):
            value = coordinator.get("highest", sensor)
            print(f"{sensor}: {'unknown' if value is None else value.celsius}")


def main(folder: Path) -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    readings = [("cellar", "12.5"), ("attic", "31.0 °C"), ("attic", "29.5")]
    spark.createDataFrame(readings, ROWS).write.mode("append").json(f"{folder}/readings")
    run(spark, folder, Highest())

    letters = read_state(spark, f"{folder}/checkpoints", operator="highest", state="$dead_letters")
    for letter in letters.collect():
        print(f"given up: {letter.sensor}, {letter.error.partition(', at ')[0]}")
    dead_letter_rows(letters, ROWS).write.mode("append").json(f"{folder}/readings")
    run(spark, folder, Mended())


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "/tmp/chandy-examples/bad-records"))
