"""A stream whose event times are seconds."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.streaming import StatefulProcessor

from chandy.coordinator import CheckpointCoordinator

from .support import Make

cloudpickle.register_pickle_by_value(sys.modules[__name__])


START = 1_700_000_000
"""Seconds since 1970."""

OUTPUT = "k string, what string, watermark long"


class Timed(StatefulProcessor):
    """Tells of every key its rows, and sets a timer five seconds of event time after the latest."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.seen = handle.getValueState("seen", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        times = [int(row.t.timestamp()) for row in rows]
        (n,) = self.seen.get() or (0,)
        self.seen.update((n + len(times),))
        self.handle.registerTimer((max(times) + 5) * 1000)
        yield Row(k=key[0], what=f"{len(times)} rows", watermark=timerValues.getCurrentWatermarkInMs())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        due = expiredTimerInfo.getExpiryTimeInMs() // 1000 - START
        what = f"timer {due} after {self.seen.get()[0]} rows"
        yield Row(k=key[0], what=what, watermark=timerValues.getCurrentWatermarkInMs())


class Alarm(StatefulProcessor):
    """Sets a timer a moment of processing time after every row."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        yield Row(k=key[0], what=f"{len(list(rows))} rows", watermark=0)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        yield Row(k=key[0], what="timer", watermark=0)


class Seconds:
    """Input files, one a batch: rows of a key and a second of event time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = 0
        folder.mkdir(parents=True)

    def add(self, *rows: tuple[str, int]) -> None:
        hidden = self.folder / f".{self.files:05}"
        hidden.write_text("\n".join(json.dumps({"k": k, "t": START + second}) for k, second in rows))
        # Spark takes the oldest file first.
        os.utime(hidden, (START + self.files, START + self.files))
        hidden.rename(self.folder / f"{self.files:05}.json")
        self.files += 1

    def stream(self, spark: SparkSession) -> DataFrame:
        files = spark.readStream.schema("k string, t long").option("maxFilesPerTrigger", 1)
        timed = files.json(str(self.folder)).selectExpr("k", "timestamp_seconds(t) as t")
        return timed.withWatermark("t", "10 seconds")


@pytest.fixture
def seconds(tmp_path: Path) -> Seconds:
    return Seconds(tmp_path / "seconds")


def timed(coordinator: CheckpointCoordinator, df: DataFrame, mode: str, **options: Any) -> DataFrame:
    processor = Timed() if mode == "EventTime" else Alarm()
    return coordinator.transform_with_state(
        df, key=["k"], processor=processor, output=OUTPUT, uid="timed", shards=4, time_mode=mode, **options
    )


AVAILABLE_NOW = {"availableNow": True}


class NumbersRows(StatefulProcessor):
    """Numbers the rows of a key."""

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        (n,) = self.n.get() or (0,)
        for row in rows:
            n += 1
            yield Row(k=key[0], n=n, t=row.t)
        self.n.update((n,))


class RowsByBatch:
    """What a query has put out, as ``foreachBatch`` gets it."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, str, str, int]] = []

    def __call__(self, batch: DataFrame, number: int) -> None:
        self.rows += sorted((number, *row) for row in batch.collect())


def check_that_the_watermark_is_carried_on(make: Make, spark: SparkSession, seconds: Seconds) -> None:
    """Check that operators of Chandy and of Spark behind one with an event time column have its watermark."""
    seconds.add(("a", 0), ("b", 3))
    seconds.add(("b", 100), ("late by its own watermark only", 40))
    seconds.add(("c", 50), ("a", 130))
    seconds.add(("late", 60), ("d", 200))
    coordinator = make()

    def run(df: DataFrame, name: str) -> RowsByBatch:
        out = RowsByBatch()
        writer = df.writeStream.foreachBatch(out).trigger(**AVAILABLE_NOW)
        coordinator.start(writer, name=name).awaitTermination()
        return out

    def numbered(uid: str) -> DataFrame:
        return coordinator.transform_with_state(
            seconds.stream(spark),
            key=["k"],
            processor=NumbersRows(),
            output="k string, n long, t timestamp",
            uid=uid,
            shards=4,
            time_mode="EventTime",
            event_time_column="t",
        )

    def windows(df: DataFrame) -> DataFrame:
        counts = df.groupBy(F.window("t", "10 seconds")).count()
        return counts.selectExpr("string(window.start) as k", "string(count) as what", "0L as watermark")

    def again(df: DataFrame, uid: str) -> DataFrame:
        return coordinator.transform_with_state(
            df, key=["k"], processor=Timed(), output=OUTPUT, uid=uid, shards=4, time_mode="EventTime"
        )

    direct, chained = (
        run(again(seconds.stream(spark), "direct"), "direct"),
        run(again(numbered("n1"), "chained"), "chained"),
    )
    assert chained.rows == direct.rows
    assert any("timer" in what for _, _, what, _ in direct.rows)
    native, after = run(windows(seconds.stream(spark)), "native"), run(windows(numbered("n2")), "after")
    assert after.rows == native.rows
    assert len(native.rows) > 2
