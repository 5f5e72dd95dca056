"""Sessions of visitors that end after half a minute of silence: `python examples/sessions.py [FOLDER]`.

The processor is one for PySpark's own transformWithState. Its state and its timers are in the checkpoint: a visitor who
has not left when the program stops is still there when it starts again.
"""

import sys
from datetime import datetime, timedelta
from pathlib import Path

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from chandy import CheckpointConfig, CheckpointCoordinator, FilesSink

SILENCE = 30_000
"""Milliseconds without a page after which a session ends."""


class Sessions(StatefulProcessor):
    def init(self, handle):
        self.handle = handle
        self.session = handle.getValueState("session", "begin timestamp, pages long")

    def handleInputRows(self, key, rows, timerValues):
        times = sorted(row.at for row in rows)
        begin, pages = self.session.get() or (times[0], 0)
        self.session.update((begin, pages + len(times)))
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(int(times[-1].timestamp() * 1000) + SILENCE)
        return iter(())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        begin, pages = self.session.get()
        self.session.clear()
        yield Row(visitor=key[0], begin=begin, pages=pages)


def visit(spark: SparkSession, folder: Path) -> None:
    """Write the visits of one more minute: ann comes once, bob all the time."""
    minutes = len(list(folder.glob("*.done"))) if folder.exists() else 0
    begin = datetime(2026, 1, 1, 12) + timedelta(minutes=minutes)
    pages = [("ann", begin)] + [("bob", begin + timedelta(seconds=at)) for at in range(0, 60, 10)]
    spark.createDataFrame(pages, "visitor string, at timestamp").coalesce(1).write.mode("append").json(
        str(folder)
    )
    (folder / f"{minutes}.done").touch()


def main(folder: Path) -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    visit(spark, folder / "visits")

    with CheckpointCoordinator(
        spark,
        pipeline="sessions",
        storage=f"{folder}/checkpoints",
        config=CheckpointConfig(interval="10 s"),
    ) as coordinator:
        visits = (
            spark.readStream.schema("visitor string, at timestamp")
            .option("pathGlobFilter", "*.json")
            .json(f"{folder}/visits")
            .withWatermark("at", "5 seconds")
        )
        sessions = coordinator.transform_with_state(
            visits,
            key=["visitor"],
            processor=Sessions(),
            output="visitor string, begin timestamp, pages long",
            uid="sessions",
            time_mode="EventTime",
        )
        query = coordinator.start(
            sessions.writeStream.trigger(availableNow=True),
            name="sessions",
            sink=FilesSink(f"{folder}/sessions"),
        )
        query.awaitTermination()
        coordinator.checkpoint().result(timeout=60)

    for row in sorted(spark.read.parquet(f"{folder}/sessions").collect()):
        print(f"{row.visitor}: {row.pages} pages from {row.begin:%H:%M:%S}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "/tmp/chandy-examples/sessions"))
