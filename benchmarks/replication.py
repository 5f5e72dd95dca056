"""What a replica costs and how fast it is: the first copy, a step to the next checkpoint, and the batches beside it.

A running count on two cores, replicated into a log of changes in local files. First every key arrives once, and is
copied. Then come batches of rows on random keys, some while the replica is stopped and some while it runs, in turns.
After each turn with it, a checkpoint is taken and the replica catches up. Spark writes as many rows into Parquet files.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
from pyspark.sql import SparkSession

from chandy import CheckpointConfig, CheckpointCoordinator, FilesSink

from . import keyed
from .chart import lines
from .growth import write_keys
from .report import Options, Report, console
from .stage import stage

SIZES: Final = (100_000, 1_000_000)
TOUCHED: Final = 100_000
"""Rows of a batch."""
TURNS: Final = 4
BATCHES: Final = 4
"""Batches of a turn. The first one is not measured."""
_FILLED: Final = 250_000
"""Keys in each file while the state is filled."""
_WAIT: Final = "10 min"


def run(options: Options) -> Report:
    """Measure; see the module."""
    sizes = (10_000, 50_000) if options.quick else SIZES
    touched = 10_000 if options.quick else TOUCHED
    rows = []
    with stage() as (spark, folder):
        for size in sizes:
            rows.append(_measure(spark, size, touched, folder / str(size)))
            console().print(
                f"{size:,} keys: {rows[-1]['copied_per_s']:,.0f} keys copied a second, "
                f"{rows[-1]['changes_per_s']:,.0f} changes a second"
            )
    last = rows[-1]
    ratios = {
        "batch beside a replica / batch without": last["batch_ms_with"] / last["batch_ms_without"],
        "changes replicated / rows that Spark writes, a second": last["changes_per_s"]
        / last["spark_rows_per_s"],
    }
    return Report("replication", rows, ratios)


def draw(report: Report, path: Path) -> None:
    """Draw the speeds over the size of the state."""
    series = {
        "first copy": "copied_per_s",
        "changes": "changes_per_s",
        "Spark writes Parquet": "spark_rows_per_s",
    }
    points = {label: [(row["keys"], row[column]) for row in report.rows] for label, column in series.items()}
    lines(path, title="Replication", x="keys", y="rows a second", series=points)


def _measure(spark: SparkSession, size: int, touched: int, folder: Path) -> dict[str, Any]:
    files = folder / "files"
    files.mkdir(parents=True)
    random = np.random.default_rng(1)
    names = random.permutation(size).astype(np.int64)
    config = CheckpointConfig(interval=None, cache_dir=str(folder / "cache"))
    with CheckpointCoordinator(
        spark, pipeline="replication", storage=str(folder / "storage"), config=config
    ) as coordinator:
        counts = coordinator.aggregate(
            keyed.stream(spark, files), by=["k"], uid="counts", n=("*", "count"), combine=False
        )
        query = coordinator.start(counts.writeStream.format("noop").outputMode("append"), name="counts")
        written = 0
        for start in range(0, size, _FILLED):
            written = write_keys(files, written, names[start : start + _FILLED])
        query.processAllAvailable()
        coordinator.checkpoint().result()
        sink = FilesSink(str(folder / "log"))
        begun = time.perf_counter()
        replica = coordinator.replicate("counts", to=sink, name="log")
        replica.catch_up(_WAIT)
        copied = time.perf_counter() - begun

        def batches() -> list[float]:
            nonlocal written
            done = len(query.recentProgress)
            for _ in range(BATCHES * keyed.FILES_PER_BATCH):
                written = write_keys(files, written, random.choice(names, touched // keyed.FILES_PER_BATCH))
            query.processAllAvailable()
            counted = [one for one in query.recentProgress[done:] if one["numInputRows"]]
            return [one["durationMs"]["triggerExecution"] for one in counted[1:]]

        without, beside, steps = [], [], dict[int, float]()
        for _ in range(TURNS):
            replica.stop()
            without += batches()
            replica = coordinator.replicate("counts", to=sink, name="log")
            # It has something to do while the next batches run.
            coordinator.checkpoint().result()
            beside += batches()
            replica.catch_up(_WAIT)
            batches()
            checkpoint = coordinator.checkpoint().result().id
            begun = time.perf_counter()
            replica.catch_up(_WAIT)
            steps[checkpoint] = time.perf_counter() - begun
        written_down = spark.read.parquet(str(folder / "log"))
        changes = written_down.where(written_down["_checkpoint"].isin(list(steps))).count()
        spark_rate = _write_by_spark(spark, folder, touched)
    # The state host may still be deleting its own files.
    shutil.rmtree(folder, ignore_errors=True)
    return {
        "keys": size,
        "copied_per_s": size / copied,
        "changes": changes,
        "step_s": median(steps.values()),
        "changes_per_s": changes / sum(steps.values()),
        "spark_rows_per_s": spark_rate,
        "batch_ms_without": median(without),
        "batch_ms_with": median(beside),
    }


def _write_by_spark(spark: SparkSession, folder: Path, rows: int) -> float:
    """Return how many rows a second Spark writes, which are as wide as changes and come from files, too."""
    given = folder / "given"
    given.mkdir()
    write_keys(given, 0, np.arange(rows))
    seconds = []
    for turn in range(TURNS + 1):
        begun = time.perf_counter()
        changes = spark.read.parquet(str(given)).selectExpr(
            "k", "v", "'update' AS c", "1L AS n", "now() AS at"
        )
        changes.write.parquet(str(folder / f"plain-{turn}"))
        seconds.append(time.perf_counter() - begun)
    return rows / median(seconds[1:])
