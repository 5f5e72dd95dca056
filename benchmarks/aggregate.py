"""Where the time of ``coordinator.aggregate`` goes, beside Spark's own ``groupBy().count()``.

A count by key on two cores, measured after a warm-up, in turns. Further streams do only a part of the work and show
what it costs: they read the source, give every row to Python as Arrow, or combine the rows in Python and shuffle the
partial results. The rest of the time of a Chandy batch is its operator: state and output.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator
from chandy.state.aggregation.aggregate_operator import aggregation
from chandy.state.operators.dataframe import keyed as send

from . import keyed
from .chart import bars
from .keyed import Workload
from .report import Options, Report, console, paired_ratio
from .stage import Stream, balanced, measured, stage

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
    rows, ratios = [], {}
    with stage() as (spark, folder):
        for workload in workloads:
            files = keyed.write(workload, WARM_UP + batches, folder / "files")
            found: dict[str, list[Stream]] = {name: [] for name in CONTESTANTS}
            for turn in range(repetitions):
                for name in balanced(CONTESTANTS, turn):
                    found[name].append(_stream(spark, name, files, folder / "stream"))
                    console().print(f"{workload.name}: {name}: {_batch_ms(found[name][-1]):,.0f} ms a batch")
            shutil.rmtree(files)
            rows += [
                {
                    "workload": workload.name,
                    "stream": name,
                    "ms_per_batch": median(map(_batch_ms, streams)),
                    "rows_per_second": workload.rows / median(map(_batch_ms, streams)) * 1000,
                    "turns": len(streams),
                }
                for name, streams in found.items()
            ]
            for name in (AGGREGATE, UNCOMBINED, TO_PYTHON):
                # The ratio is of rows a second, so the times are divided the other way round.
                ratios[f"{workload.name}: {name} / {COUNT}"] = paired_ratio(
                    found[COUNT], found[name], _batch_ms
                )
    return Report("aggregate", rows, ratios, {"repetitions": repetitions, "goal": GOAL})


def draw(report: Report, path: Path) -> None:
    """Draw the first workload's figures."""
    first = report.rows[0]["workload"]
    rounds = {row["stream"]: [row["ms_per_batch"]] for row in report.rows if row["workload"] == first}
    bars(
        path, title=f"A count by key, {first} a batch, two cores", axis="milliseconds a batch", rounds=rounds
    )


def _batch_ms(stream: Stream) -> float:
    return median(stream.batch_seconds) * 1000


def _stream(spark: SparkSession, name: str, files: Path, folder: Path) -> Stream:
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
