"""What a key costs as the state grows, and what that cost consists of.

A running count on two cores. First every key arrives once. Then come batches of 100,000 rows on random keys. The
larger the state, the fewer of these keys were used recently. Times are microseconds for each key of a batch: of the
batch itself, or of its tasks, which run in parallel.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator

from . import keyed
from .chart import lines
from .file_source import write_file
from .report import Options, Report, console
from .stage import measured, stage

SIZES: Final = (100_000, 1_000_000, 10_000_000)
TOUCHED: Final = 100_000
"""Rows of a batch that is measured."""
BATCHES: Final = 12
WARM_UP: Final = 2
_FILLED: Final = 250_000
"""Keys in each file while the state is filled."""


def run(options: Options) -> Report:
    """Measure; see the module."""
    sizes = (10_000, 100_000) if options.quick else SIZES
    touched = 10_000 if options.quick else TOUCHED
    rows = []
    with stage() as (spark, folder):
        for size in sizes:
            rows.append(_measure(spark, size, touched, folder / str(size)))
            console().print(f"{size:,} keys: {rows[-1]['us_per_key']:.2f} microseconds a key")
    first, last = rows[0], rows[-1]
    name = f"cost of a key, {last['keys']:,} keys / {first['keys']:,} keys"
    return Report("growth", rows, {name: last["us_per_key"] / first["us_per_key"]})


def draw(report: Report, path: Path) -> None:
    """Draw the cost and its parts over the size of the state."""
    series = {
        "a batch, in all": "us_per_key",
        "task waits for the state host": "state_us",
        "RocksDB reads, in the host": "read_us",
        "task waits for Spark": "input_us",
        "task computes": "own_us",
    }
    points = {label: [(row["keys"], row[column]) for row in report.rows] for label, column in series.items()}
    lines(path, title="Cost of a key as the state grows", x="keys", y="microseconds a key", series=points)


def _measure(spark: SparkSession, size: int, touched: int, folder: Path) -> dict[str, Any]:
    files = folder / "files"
    files.mkdir(parents=True)
    config = CheckpointConfig(interval="10 s", cache_dir=str(folder / "cache"))
    with CheckpointCoordinator(
        spark, pipeline="growth", storage=str(folder / "storage"), config=config
    ) as coordinator:
        counts = coordinator.aggregate(
            keyed.stream(spark, files), by=["k"], uid="counts", n=("*", "count"), combine=False
        )
        query = coordinator.start(counts.writeStream.format("noop").outputMode("append"), name="counts")
        random = np.random.default_rng(1)
        names = random.permutation(size).astype(np.int64)
        written = 0
        for start in range(0, size, _FILLED):
            written = write_keys(files, written, names[start : start + _FILLED])
        query.processAllAvailable()
        batches = len(query.recentProgress)
        for _ in range(WARM_UP * keyed.FILES_PER_BATCH):
            written = write_keys(files, written, random.choice(names, touched // keyed.FILES_PER_BATCH))
        query.processAllAvailable()
        before = coordinator.metrics("counts")
        for _ in range(BATCHES * keyed.FILES_PER_BATCH):
            written = write_keys(files, written, random.choice(names, touched // keyed.FILES_PER_BATCH))
        query.processAllAvailable()
        metrics = coordinator.metrics("counts").minus(before)
        stream = measured("growth", query.recentProgress[batches:], WARM_UP)
    # The state host may still be deleting its own files.
    shutil.rmtree(folder, ignore_errors=True)
    per_key = 1e6 / metrics.keys
    seconds = median(stream.batch_seconds)
    return {
        "keys": size,
        "us_per_key": seconds * 1e6 / (metrics.keys / stream.batches),
        "input_us": metrics.input_seconds * per_key,
        "state_us": metrics.state_seconds * per_key,
        "own_us": metrics.own_seconds * per_key,
        "output_us": metrics.output_seconds * per_key,
        "read_us": metrics.read_seconds * per_key,
        "write_us": metrics.write_seconds * per_key,
        "read_part": metrics.read_keys / metrics.keys,
        "batch_ms": seconds * 1000,
    }


def write_keys(files: Path, number: int, keys: np.ndarray[Any, np.dtype[np.int64]]) -> int:
    """Write a file of rows with these keys, and return the number of the next one."""
    write_file(
        pa.table({"k": keys, "v": np.zeros(len(keys), np.int64)}), files / f"{number:06}.parquet", number
    )
    return number + 1
