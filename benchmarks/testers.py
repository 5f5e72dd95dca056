"""Tests a second: the same test of a processor with each tester, and on Spark.

The test makes a tester, gives three batches with rows of two keys to a counter, and checks what each gives out.
``OperatorTester`` runs the operator that runs in production, with its encoding of states and its checks. PySpark's
``TwsTester`` calls the processor's methods for one key at a time, on states that are dicts. The other two run the
processor in a query, in a session that has started before: Chandy's ``PipelineTester`` in a pipeline with a state host,
and plain Spark in ``transformWithState``.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from pyspark.sql.streaming.tws_tester import TwsTester
from pyspark.sql.types import LongType, StructType

from chandy.coordinator import CheckpointCoordinator
from chandy.coordinator.testing import PipelineTester
from chandy.state.testing import OperatorTester

from .chart import bars
from .counters import OUTPUT, RowCounter
from .file_source import write_file
from .report import Options, Report, console, paired_ratio, spread
from .stage import balanced, stage

OWN: Final = "OperatorTester"
PYSPARK: Final = "PySpark's TwsTester"
PIPELINE: Final = "PipelineTester, on Spark"
SPARK: Final = "a query of Spark's own"
CONTESTANTS: Final = (OWN, PYSPARK, PIPELINE, SPARK)

_INPUT: Final = StructType().add("k", LongType()).add("v", LongType())
_OUTPUT: Final = StructType().add("k", LongType()).add("n", LongType())
_BATCHES: Final = ([(1, 0), (2, 0), (1, 0)], [(2, 0)], [(1, 0), (1, 0)])
_EXPECTED: Final = ([(1, 2), (2, 1)], [(2, 2)], [(1, 4)])
_LEAST_SECONDS: Final = 2.0
"""How long tests without Spark are repeated in a turn."""


class Counter(RowCounter):
    """Declares its state by types, which need no JVM, instead of by DDL."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("count", StructType().add("n", LongType()))


def run(options: Options) -> Report:
    """Measure; see the module."""
    repetitions = options.repetitions or (1 if options.quick else 3)
    rates: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    alone = {OWN: _in_memory, PYSPARK: _with_dicts}
    with stage() as (spark, folder):
        on_spark: dict[str, Callable[[Path], None]] = {
            PIPELINE: partial(_on_a_pipeline, spark),
            SPARK: partial(_on_spark, spark),
        }
        for name, test in on_spark.items():
            _rate_on_spark(test, folder)
            console().print(f"{name}: warm")
        for turn in range(repetitions):
            for name in balanced(CONTESTANTS, turn):
                rate = _rate_on_spark(on_spark[name], folder) if name in on_spark else _rate(alone[name])
                rates[name].append(rate)
                console().print(f"{name}: {rate:,.2f} tests/s")
    rows: list[dict[str, Any]] = [
        {"tester": name, **spread(found), "turns": len(found)} for name, found in rates.items()
    ]
    ratios = {
        f"{one} / {peer}": paired_ratio(rates[one], rates[peer], lambda rate: rate)
        for one, peer in ((OWN, PYSPARK), (OWN, SPARK), (PIPELINE, SPARK))
    }
    return Report("testers", rows, ratios, {"repetitions": repetitions})


def draw(report: Report, path: Path) -> None:
    """Draw the tests a second."""
    rounds = {row["tester"]: [row["least"], row["median"], row["greatest"]] for row in report.rows}
    bars(path, title="A test of three batches", axis="tests a second", rounds=rounds)


def _rate(test: Callable[[], None]) -> float:
    test()
    tests, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < _LEAST_SECONDS:
        test()
        tests += 1
    return tests / passed


def _rate_on_spark(test: Callable[[Path], None], folder: Path) -> float:
    place = Path(tempfile.mkdtemp(dir=folder))
    began = time.perf_counter()
    test(place / "test")
    passed = time.perf_counter() - began
    shutil.rmtree(place, ignore_errors=True)
    return 1 / passed


def _check(batch: int, rows: list[Row]) -> None:
    found = sorted(tuple(row) for row in rows)
    if found != _EXPECTED[batch]:
        raise AssertionError(f"batch {batch}: {found} instead of {_EXPECTED[batch]}")


def _in_memory() -> None:
    tester = OperatorTester.of_processor(Counter(), key=["k"], input=_INPUT, output=_OUTPUT)
    for number, rows in enumerate(_BATCHES):
        _check(number, tester.batch(rows))


def _with_dicts() -> None:
    tester = TwsTester(Counter())
    for number, rows in enumerate(_BATCHES):
        found: list[Row] = []
        for key in sorted({k for k, _ in rows}):
            found += tester.test(key, [Row(k=k, v=v) for k, v in rows if k == key])
        _check(number, found)


def _on_a_pipeline(spark: SparkSession, folder: Path) -> None:
    def build(coordinator: CheckpointCoordinator, rows: DataFrame) -> DataFrame:
        return coordinator.transform_with_state(
            rows, key=["k"], processor=Counter(), output=OUTPUT, uid="counts", shards=2
        )

    with PipelineTester(spark, folder, _INPUT, build) as pipeline:
        for number, rows in enumerate(_BATCHES):
            _check(number, pipeline.batch(rows))


def _on_spark(spark: SparkSession, folder: Path) -> None:
    files = folder / "files"
    files.mkdir(parents=True)
    found: dict[int, list[Row]] = {}

    def take(rows: DataFrame, batch: int) -> None:
        found[batch] = rows.collect()

    source = spark.readStream.schema(_INPUT).option("maxFilesPerTrigger", 1).parquet(str(files))
    counts = source.groupBy("k").transformWithState(Counter(), OUTPUT, "Update", "None")
    writer = counts.writeStream.outputMode("update").foreachBatch(take)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        for number, rows in enumerate(_BATCHES):
            columns = {name: [row[at] for row in rows] for at, name in enumerate(_INPUT.names)}
            write_file(pa.table(columns), files / f"{number}.parquet", number)
            query.processAllAvailable()
            _check(number, found[number])
    finally:
        query.stop()
