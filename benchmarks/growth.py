"""What a key costs as the state grows, and what that cost is made of.

A running count on two cores. First every key of the state comes once; then batches of 100,000 rows fall on keys at
random, so that the larger the state, the fewer of them were used lately. Microseconds are those of a batch, or of the
tasks that ran it side by side, for each key that it had.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator

from . import keyed
from .chart import lines
from .report import Options, Report, console
from .stage import measured, stage

SIZES: Final = (100_000, 1_000_000, 10_000_000)
TOUCHED: Final = 100_000
"""Rows of a batch that is measured."""
BATCHES: Final = 12
WARM_UP: Final = 2
_FILLED: Final = 250_000
"""Keys in a file while the state grows."""


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
            written = _write(files, written, names[start : start + _FILLED])
        query.processAllAvailable()
        batches = len(query.recentProgress)
        for _ in range(WARM_UP * keyed.FILES_PER_BATCH):
            written = _write(files, written, random.choice(names, touched // keyed.FILES_PER_BATCH))
        query.processAllAvailable()
        before = coordinator.metrics("counts")
        for _ in range(BATCHES * keyed.FILES_PER_BATCH):
            written = _write(files, written, random.choice(names, touched // keyed.FILES_PER_BATCH))
        query.processAllAvailable()
        metrics = coordinator.metrics("counts").minus(before)
        stream = measured("growth", query.recentProgress[batches:], WARM_UP)
    # Files of the state host may be going at the same time.
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


def _write(files: Path, number: int, keys: np.ndarray[Any, np.dtype[np.int64]]) -> int:
    # Spark must not see a file that is not whole; it passes over names that begin with a dot.
    hidden, path = files / f".{number:06}", files / f"{number:06}.parquet"
    pq.write_table(pa.table({"k": keys, "v": np.zeros(len(keys), np.int64)}), hidden)
    os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))
    hidden.rename(path)
    return number + 1
