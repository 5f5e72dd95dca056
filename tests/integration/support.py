"""What the tests of whole pipelines share: input files and a processor."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.streaming import StatefulProcessor

from chandy.coordinator import CheckpointCoordinator, FixedDelay
from chandy.coordinator.testing import pids as pids

# Workers do not have the tests' modules: what the tests define travels by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

Make = Callable[..., CheckpointCoordinator]
"""Makes a coordinator on the test's storage."""
RESUMES = pytest.param(True, id="resumes")
"""A pipeline keeps changelogs, so that it resumes where a killed process has left it."""
GOES_BACK = pytest.param(False, id="goes back")
"""It keeps none, and goes back to its latest checkpoint."""
PLANS_IN_PYTHON: Final = FixedDelay("100 ms", attempts=3)
"""The restart strategy of a pipeline whose query reads a data source in Python. Spark starts a process for it with each
query, and fails the query if the process has not reported in ten seconds, which a busy machine may need."""
EVENTS = "k string, v long"
TOTALS = "k string, n long, total long"


class Totals(StatefulProcessor):
    """Counts the rows of a key and adds up their values."""

    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("totals", "n long, total long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        n, total = self.state.get() or (0, 0)
        for row in rows:
            n, total = n + 1, total + row.v
        self.state.update((n, total))
        yield Row(k=key[0], n=n, total=total)


class Events:
    """A folder of input files, one a batch."""

    def __init__(self, folder: Path, keys: int = 7) -> None:
        self.folder = folder
        self.keys = keys
        self.files = 0
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, files: int = 1, rows: int = 40) -> None:
        """Add files; a file appears whole."""
        for _ in range(files):
            lines = [
                json.dumps({"k": f"k{(self.files * 3 + row) % self.keys}", "v": row}) for row in range(rows)
            ]
            hidden = self.folder / f".{self.files:05}"
            hidden.write_text("\n".join(lines))
            # Spark takes the oldest first, and several may be written within a millisecond.
            os.utime(hidden, (1_600_000_000 + self.files, 1_600_000_000 + self.files))
            hidden.rename(self.folder / f"{self.files:05}.json")
            self.files += 1

    def stream(self, spark: SparkSession) -> DataFrame:
        """The files as a stream, one a batch."""
        return spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1).json(str(self.folder))

    def totals(self, spark: SparkSession) -> dict[str, tuple[int, int]]:
        """The answer, by a batch job: by key the rows and the sum of values."""
        rows = spark.read.schema(EVENTS).json(str(self.folder)).groupBy("k").agg(F.count("*"), F.sum("v"))
        return {row[0]: (row[1], row[2]) for row in rows.collect()}


def last_totals(output: DataFrame) -> dict[str, tuple[int, int]]:
    """The last row of each key in the output of ``Totals``, whose counts grow."""
    rows = output.groupBy("k").agg(F.max("n"), F.max("total")).collect()
    return {row[0]: (row[1], row[2]) for row in rows}


def in_place(coordinator: CheckpointCoordinator) -> list[bool]:
    """Return of each recovery whether the state hosts lived on."""
    return [recovery.in_place for recovery in coordinator.recoveries]
