"""A driver whose state is replicated, which tests run as a process of its own and kill.

It counts the rows of small files, whose keys come and go; or those of a large table of keys, given by ``add_keys``.

``python -m tests.integration.replica_driver <options as JSON>``: events go to stdout. The end of stdin stops it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from chandy import FilesSink, PostgresSink, Replica, TwoPhaseSink
from chandy.coordinator import CheckpointConfig, CheckpointCoordinator, CheckpointedQuery

from ..waiting import DEADLINE, pause
from . import drivers
from .drivers import say, session
from .support import PLANS_IN_PYTHON

KEYS = 9
PIPELINE = "replicated"
NAME = "copy"
INPUT = "k string, v long"


def add_file(folder: Path, file: int) -> None:
    """Put an input file there: each key once, a key of the file's own, and the end of the key of the file before."""
    rows = [(f"k{number}", 1) for number in range(KEYS)] + [(f"m{file}", 1)]
    rows += [(f"m{file - 1}", -1)] if file else []
    hidden = folder / f".{file:04}"
    hidden.write_text("\n".join(json.dumps({"k": key, "v": value}) for key, value in rows))
    os.utime(hidden, (1_600_000_000 + file, 1_600_000_000 + file))
    hidden.rename(folder / f"{file:04}.json")


def add_keys(folder: Path, keys: int, files: int) -> None:
    """Put each of the numbers below ``keys`` there once, in files of the same size."""
    for file, numbers in enumerate(np.array_split(np.arange(keys), files)):
        pq.write_table(pa.table({"k": numbers}), folder / f"{file:04}.parquet")


def check_table(table: dict[str, int]) -> int:
    """Check that a table is the state after a number of files, and return that number; 0 if it is empty."""
    if not table:
        return 0
    (files,) = {table[f"k{number}"] for number in range(KEYS)}
    assert table == {f"k{number}": files for number in range(KEYS)} | {f"m{files - 1}": 1}
    return files


class CountsUntilNegative(StatefulProcessor):
    """Counts the rows of a key, and forgets it at a row below zero."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for row in rows:
            if row.v < 0:
                self.count.clear()
            else:
                (n,) = self.count.get() or (0,)
                self.count.update((n + 1,))
        return iter(())


def run(options: dict[str, Any]) -> None:
    """Count, and replicate the counts; tells what happens until it is killed or told to stop."""
    folder = Path(options["folder"])
    cloudpickle.register_pickle_by_value(drivers)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    logging.basicConfig(level="INFO", stream=sys.stderr)
    spark = session("local[2]", folder)
    say("warm")
    coordinator = CheckpointCoordinator(
        spark,
        pipeline=PIPELINE,
        storage=str(folder / "store"),
        config=CheckpointConfig(
            interval=options["interval"],
            restart=PLANS_IN_PYTHON,
            retained=4,
            takeover_timeout="60 s",
        ),
        restore=options.get("restore", "latest"),
    )
    say("restored", coordinator.restored.id if coordinator.restored else 0)
    counts = (
        count_keys(coordinator, spark, folder)
        if options.get("large")
        else count_rows(coordinator, spark, folder)
    )
    query = coordinator.start(counts.writeStream.outputMode("append").format("noop"), name="counts")
    if options.get("large") and coordinator.restored is None:
        query.processAllAvailable()
        coordinator.checkpoint().result(DEADLINE)
    replica = coordinator.replicate("counts", to=target(folder, options), name=NAME, shards_per_batch=2)
    say("runs")

    threading.Thread(target=tell, args=(query, replica), daemon=True).start()
    sys.stdin.readline()
    query.processAllAvailable()
    coordinator.checkpoint().result(DEADLINE)
    replica.catch_up("2 min")
    say("caught up")
    coordinator.stop()
    say("stopped")


def count_rows(coordinator: CheckpointCoordinator, spark: SparkSession, folder: Path) -> DataFrame:
    """Count the rows of small files."""
    rows = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    return coordinator.transform_with_state(
        rows, key=["k"], processor=CountsUntilNegative(), output="k string", uid="counts", shards=4
    )


def count_keys(coordinator: CheckpointCoordinator, spark: SparkSession, folder: Path) -> DataFrame:
    """Count the rows of the files of ``add_keys``."""
    rows = spark.readStream.schema("k long").parquet(str(folder / "in"))
    return coordinator.aggregate(rows, by=["k"], uid="counts", n=("*", "count"), shards=32)


def target(folder: Path, options: dict[str, Any]) -> TwoPhaseSink:
    """A table of PostgreSQL, or else a log of changes."""
    if conninfo := options.get("conninfo"):
        return PostgresSink(
            conninfo=conninfo, table="copy", mode="upsert", key="k", deleted="_deleted", create_table=True
        )
    return FilesSink(str(folder / "log"))


def tell(query: CheckpointedQuery, replica: Replica) -> None:
    """Tell how far the replica has come, by batches of its query and by checkpoints, and what has failed."""
    told: int | None = None
    copied: int | None = None
    looked = time.monotonic()
    while (error := query.exception() or replica.query.exception()) is None:
        progress = replica.query.lastProgress
        if progress and (batch := progress["batchId"]) != copied:
            copied = batch
            say("batch", batch)
        if (at := replica.status.checkpoint) != told:
            told = at
            say("replicated", at)
        pause(looked)
        looked = time.monotonic()
    say("failed", repr(str(error)))


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
