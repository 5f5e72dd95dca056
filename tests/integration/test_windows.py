"""Aggregates of windows of event time give batch for batch what Spark's own groupBy gives, through restores."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from chandy.coordinator import CheckpointCoordinator
from chandy.coordinator.errors import RestoreError
from chandy.state import read_state
from chandy.state.errors import DefinitionError

from ..effort import chance, rounds
from ..waiting import DEADLINE
from .support import Make

pytestmark = pytest.mark.spark

SCHEMA = "t timestamp, k string, v long"
DELAY = "7 seconds"
Batch = frozenset[tuple[Any, ...]]
KINDS = {
    "tumbling": lambda: F.window("t", "10 seconds"),
    "sliding": lambda: F.window("t", "10 seconds", "4 seconds"),
    "shifted": lambda: F.window("t", "10 seconds", "10 seconds", "3 seconds"),
}


class Rows:
    """A folder of input files, one a batch, whose event times go on with the files, some of them late."""

    def __init__(self, folder: Path, moments: random.Random) -> None:
        self.folder = folder
        self.files = 0
        self._moments = moments
        folder.mkdir()

    def add(self, files: int) -> None:
        for _ in range(files):
            self.files += 1
            now = datetime(2024, 3, 1, tzinfo=UTC) + timedelta(seconds=6 * self.files)
            lines = [self._row(now) for _ in range(self._moments.choice([0, 1, 30, 30]))]
            path = self.folder / f"{self.files:05}.json"
            path.write_text("\n".join(lines))
            os.utime(path, (1_600_000_000 + self.files,) * 2)

    def _row(self, now: datetime) -> str:
        behind = self._moments.choice([0, 1, 3, 10, 40]) * self._moments.random()
        at = now - timedelta(seconds=behind) if self._moments.random() < 0.95 else None
        key = self._moments.choice(["a", "b", "c", None])
        return json.dumps({"t": at and at.isoformat(), "k": key, "v": self._moments.randrange(100)})

    def stream(self, spark: SparkSession) -> DataFrame:
        rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(self.folder))
        return rows.withWatermark("t", DELAY)


def taking(found: list[Batch]) -> Callable[[DataFrame, int], None]:
    """Return a function for foreachBatch that keeps what each batch outputs, if it is anything."""

    def take(rows: DataFrame, batch: int) -> None:
        of_batch = [(row.window.start, row.window.end, row.k, row.n, row.total) for row in rows.collect()]
        assert len(set(of_batch)) == len(of_batch)
        if of_batch:
            found.append(frozenset(of_batch))

    return take


def windows(
    coordinator: CheckpointCoordinator, rows: DataFrame, window: Column, mode: str, **more: Any
) -> DataFrame:
    return coordinator.aggregate(
        rows,
        by=["k"],
        window=window,
        output_mode=mode,
        uid="windows",
        shards=4,
        n=("*", "count"),
        total=("v", "sum"),
        **more,
    )


@pytest.mark.compat
@pytest.mark.parametrize("mode", ["append", "update"])
@pytest.mark.parametrize("kind", KINDS)
def test_windows_are_output_as_by_sparks_own_group_by_through_restores(
    spark: SparkSession, make: Make, tmp_path: Path, kind: str, mode: str
) -> None:
    for number in range(rounds(1, full=6)):
        moments = chance("windows", kind, mode, number)
        rows = Rows(tmp_path / f"in{number}", moments)
        own: list[Batch] = []
        sparks: list[Batch] = []
        for _ in range(3):
            rows.add(moments.randrange(2, 6))
            stream = rows.stream(spark)
            native = stream.groupBy(KINDS[kind](), "k").agg(
                F.count("*").alias("n"), F.sum("v").alias("total")
            )
            writer = native.writeStream.foreachBatch(taking(sparks)).outputMode(mode)
            writer = writer.option("checkpointLocation", str(tmp_path / f"native{number}"))
            writer.trigger(availableNow=True).start().awaitTermination()
            coordinator = make(f"p{number}")
            combine = moments.choice(["auto", False])
            output = windows(coordinator, stream, KINDS[kind](), mode, combine=combine)
            query = coordinator.start(
                output.writeStream.foreachBatch(taking(own)).trigger(availableNow=True), name="q"
            )
            query.awaitTermination(DEADLINE)
            checkpoint = coordinator.checkpoint().result(timeout=DEADLINE)
            coordinator.stop()
        assert own == sparks
        assert len(own) > 3
        stored = read_state(spark, str(tmp_path / "store" / f"p{number}"), checkpoint.id, operator="windows")
        last = max(end for batch in sparks for _, end, *_ in batch)
        kept = {row.window.end for row in stored.collect()}
        # What is closed has left the state.
        assert all(end > last - timedelta(seconds=30) for end in kept)
