"""Counts by key and window of event time, beside Spark's own ``groupBy(window, "k").count()`` and the running count.

Each batch has the rows of one minute, and windows have five. So every fifth batch closes the windows of all keys. A
stream in mode "append" outputs the windows that close, one in mode "update" those that change. Sessions have a gap of
ten seconds, and a key has ten rows a minute. The running count ``coordinator.aggregate(rows, by=["k"])`` has no
windows; it shows what they cost.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator

from .file_source import write_file
from .keyed import FILES_PER_BATCH, Workload
from .report import Options, Report
from .stage import Stream, measured, stage
from .turns import Turns, draw_first

CHANDY: Final = "Chandy aggregate, window"
CHANDY_APPEND: Final = "Chandy aggregate, window, append"
SPARK: Final = "Spark groupBy(window)"
SPARK_APPEND: Final = "Spark groupBy(window), append"
CHANDY_BATCHES: Final = "Chandy aggregate_batches, window"
CHANDY_SESSIONS: Final = "Chandy aggregate, sessions"
SPARK_SESSIONS: Final = "Spark groupBy(session_window)"
RUNNING: Final = "Chandy aggregate, no window"
CONTESTANTS: Final = (
    CHANDY,
    CHANDY_BATCHES,
    CHANDY_APPEND,
    CHANDY_SESSIONS,
    SPARK,
    SPARK_APPEND,
    SPARK_SESSIONS,
    RUNNING,
)
PAIRS: Final = (
    (CHANDY, SPARK),
    (CHANDY_APPEND, SPARK_APPEND),
    (CHANDY_SESSIONS, SPARK_SESSIONS),
    (CHANDY, RUNNING),
    (CHANDY_BATCHES, SPARK),
    (CHANDY_BATCHES, RUNNING),
)

WARM_UP: Final = 5
BATCHES: Final = 10
WORKLOADS: Final = (
    Workload("200k rows, 20k keys", 200_000, 20_000),
    Workload("1M rows, 100k keys", 1_000_000, 100_000),
)
_QUICK: Final = (Workload("20k rows, 2k keys", 20_000, 2_000),)
_MINUTE: Final = 60_000_000
_BEGIN: Final = 1_700_000_100_000_000
"""Microseconds; a whole number of windows."""


def run(options: Options) -> Report:
    """Measure; see the module."""
    workloads = _QUICK if options.quick else WORKLOADS
    batches = 5 if options.quick else BATCHES
    repetitions = options.repetitions or (1 if options.quick else 3)
    rows: list[dict[str, Any]] = []
    ratios: dict[str, float] = {}
    with stage() as (spark, folder):
        for workload in workloads:
            files = _write(workload, WARM_UP + batches, folder / "files")
            stream = partial(_stream, spark, files, folder / "stream")
            turns = Turns.run(workload, CONTESTANTS, repetitions, stream, _batch_ms)
            shutil.rmtree(files)
            rows += turns.rows()
            ratios |= turns.ratios(PAIRS)
    return Report("windows", rows, ratios, {"repetitions": repetitions})


def draw(report: Report, path: Path) -> None:
    """Draw the first workload's figures."""
    draw_first(report, path, "A count by key and window")


def _batch_ms(stream: Stream) -> float:
    # The mean: few batches close windows, and these take longest.
    return stream.seconds / stream.batches * 1000


def _write(workload: Workload, batches: int, folder: Path) -> Path:
    """Write the files of a stream of ``k long, t timestamp``; each batch has the rows of one minute."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(1)
    names = random.permutation(workload.keys).astype(np.int64) * 2_654_435_761 % 2**40
    count = workload.rows // FILES_PER_BATCH
    for number in range(batches * FILES_PER_BATCH):
        begin = _BEGIN + number // FILES_PER_BATCH * _MINUTE
        times = pa.array(begin + random.integers(0, _MINUTE, count)).cast(pa.timestamp("us", "UTC"))
        table = pa.table({"k": names[random.integers(0, workload.keys, count)], "t": times})
        write_file(table, folder / f"{number:05}.parquet", number)
    return folder


def _stream(spark: SparkSession, files: Path, folder: Path, name: str) -> Stream:
    folder.mkdir()
    reader = spark.readStream.schema("k long, t timestamp").option("maxFilesPerTrigger", FILES_PER_BATCH)
    source = reader.parquet(str(files)).withWatermark("t", "30 seconds")
    mode = "update" if name in (CHANDY, CHANDY_BATCHES, SPARK, RUNNING) else "append"
    sessions = name in (CHANDY_SESSIONS, SPARK_SESSIONS)
    window = F.session_window("t", "10 seconds") if sessions else F.window("t", "5 minutes")
    try:
        if name not in (SPARK, SPARK_APPEND, SPARK_SESSIONS):
            return _chandy(name, None if name == RUNNING else window, source, folder, mode)
        frame = source.groupBy(window, "k").count()
        writer = frame.writeStream.format("noop").outputMode(mode).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
        query.awaitTermination()
        return measured(name, query.recentProgress, WARM_UP)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _chandy(name: str, window: Column | None, source: DataFrame, folder: Path, mode: str) -> Stream:
    config = CheckpointConfig(interval="10 s", cache_dir=str(folder / "cache"))
    with CheckpointCoordinator(
        source.sparkSession, pipeline="benchmark", storage=str(folder / "storage"), config=config
    ) as coordinator:
        of: Any = coordinator.aggregate_batches if name == CHANDY_BATCHES else coordinator.aggregate
        made = of(
            source, by=["k"], window=window, output_mode=mode, uid="counts", n=("*", "count")
        ).writeStream
        writer = made.foreachBatch(_take_all) if name == CHANDY_BATCHES else made.format("noop")
        query = coordinator.start(
            writer.outputMode("append").trigger(availableNow=True),
            name="counts",
        )
        query.awaitTermination()
        return measured("Chandy", query.recentProgress, WARM_UP)


def _take_all(rows: DataFrame, batch: int) -> None:
    rows.write.format("noop").mode("append").save()
