"""Where the time of ``coordinator.aggregate`` goes, beside Spark's own ``groupBy().count()``.

A count by key on two cores, measured after a warm-up, in turns. Further streams do only a part of the work and show
what it costs: they read the source, give every row to Python as Arrow, or combine the rows in Python and shuffle the
partial results. The rest of the time of a Chandy batch is its operator: state and output.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator
from chandy.state.aggregation.aggregate_operator import aggregation
from chandy.state.operators.dataframe import keyed as send

from . import keyed
from .keyed import Workload
from .report import Options, Report
from .stage import Stream, measured, stage
from .turns import Turns, draw_first

SOURCE: Final = "source alone"
TO_PYTHON: Final = "source, rows to Python"
COMBINED: Final = "source, rows to Python, combined, shuffled"
AGGREGATE: Final = "Chandy aggregate"
UNCOMBINED: Final = "Chandy aggregate, combine=False"
COUNT: Final = "Spark groupBy().count()"
CONTESTANTS: Final = (SOURCE, TO_PYTHON, COMBINED, AGGREGATE, UNCOMBINED, COUNT)

GOAL: Final = 3.0
"""The goal of the aggregate: rows a second, as a multiple of Spark's."""
WARM_UP: Final = 4
BATCHES: Final = 10
WORKLOADS: Final = (
    Workload("200k rows, 20k keys", 200_000, 20_000),
    Workload("1M rows, 100k keys", 1_000_000, 100_000),
    Workload("200k rows, 20k keys, Zipf", 200_000, 20_000, zipf=True),
    Workload("1M rows, 100k keys, Zipf", 1_000_000, 100_000, zipf=True),
    Workload("1M rows, 1M keys", 1_000_000, 1_000_000),
)
_QUICK: Final = (Workload("20k rows, 2k keys", 20_000, 2_000),)


def run(options: Options) -> Report:
    """Measure; see the module."""
    workloads = _QUICK if options.quick else WORKLOADS
    batches = 4 if options.quick else BATCHES
    repetitions = options.repetitions or (1 if options.quick else 3)
    rows: list[dict[str, Any]] = []
    ratios: dict[str, float] = {}
    with stage() as (spark, folder):
        for workload in workloads:
            files = keyed.write(workload, WARM_UP + batches, folder / "files")
            stream = partial(_stream, spark, files, folder / "stream")
            turns = Turns.run(workload, CONTESTANTS, repetitions, stream, _batch_ms)
            shutil.rmtree(files)
            rows += turns.rows()
            ratios |= turns.ratios((name, COUNT) for name in (AGGREGATE, UNCOMBINED, TO_PYTHON))
    return Report("aggregate", rows, ratios, {"repetitions": repetitions, "goal": GOAL})


def draw(report: Report, path: Path) -> None:
    """Draw the first workload's figures."""
    draw_first(report, path, "A count by key")


def _batch_ms(stream: Stream) -> float:
    return median(stream.batch_seconds) * 1000


def _stream(spark: SparkSession, files: Path, folder: Path, name: str) -> Stream:
    folder.mkdir()
    source = keyed.stream(spark, files).select("k")
    try:
        if name in (AGGREGATE, UNCOMBINED):
            return _chandy(spark, name, source, folder)
        frame = _part(name, source)
        writer = frame.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
        query.awaitTermination()
        return measured(name, query.recentProgress, WARM_UP)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _part(name: str, source: DataFrame) -> DataFrame:
    if name == COUNT:
        return source.groupBy("k").count()
    if name == TO_PYTHON:
        return source.mapInArrow(_drain, "n long")
    if name == COMBINED:
        plan = aggregation(source.schema, ["k"], {"n": ("*", "count")}, uid="counts")
        output = source.sparkSession.createDataFrame([], "n long").schema
        return send(plan.rows(source), ["k"], 16, 2, _drain, output, "drain", plan.combiner)
    return source


def _drain(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"n": pa.array([sum(map(len, batches))], pa.int64())})


def _chandy(spark: SparkSession, name: str, source: DataFrame, folder: Path) -> Stream:
    config = CheckpointConfig(interval="10 s", cache_dir=str(folder / "cache"))
    with CheckpointCoordinator(
        spark, pipeline="benchmark", storage=str(folder / "storage"), config=config
    ) as coordinator:
        frame = coordinator.aggregate(
            source, by=["k"], uid="counts", combine="auto" if name == AGGREGATE else False, n=("*", "count")
        )
        writer = frame.writeStream.format("noop").outputMode("append").trigger(availableNow=True)
        query = coordinator.start(writer, name="counts")
        query.awaitTermination()
        return measured(name, query.recentProgress, WARM_UP)
