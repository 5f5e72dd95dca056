"""The pause of a running query while the parallelism of its operator changes, in place and by a stop and a start.

A count by key on two cores that always has input: a million keys have arrived, and small batches follow. The pause is
from the call until the first batch with the other number of tasks has committed, a batch included. ``rescale`` leaves
the query and its state where they are. A stop takes a last checkpoint, and a new coordinator in the same session
restores it: what users did before there was ``rescale``. Spark has no such change: the number of partitions of its
state is fixed. A batch that nothing disturbs shows what a pause takes at least.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator

from . import keyed
from .chart import bars
from .cluster.standalone import wait_for
from .growth import write_keys
from .report import Options, Report, console, paired_ratio, spread
from .stage import stage

IN_PLACE: Final = "rescale"
ANEW: Final = "stop and start"
BATCH: Final = "an undisturbed batch"
KEYS: Final = 1_000_000
ROWS: Final = 2_000
"""Rows of a file; a batch takes two of them."""
SHARDS: Final = 16
_AHEAD: Final = 3
"""How many batches of input lie ready."""
_POLL: Final = 0.005
_PATIENCE: Final = 300.0
"""Seconds after which a pipeline that does not go on ends the benchmark."""


class Flow:
    """A pipeline under way, whose input never ends."""

    def __init__(self, spark: SparkSession, folder: Path, keys: int) -> None:
        self._spark = spark
        self._folder = folder
        self._random = np.random.default_rng(1)
        self._files = folder / "files"
        self._files.mkdir(parents=True)
        self._written = write_keys(self._files, 0, np.arange(keys))
        self._keys = keys
        self._tasks = 2
        self._start()

    def _start(self) -> None:
        config = CheckpointConfig(interval="10 s", cache_dir=str(self._folder / "cache"))
        self.coordinator = CheckpointCoordinator(
            self._spark, pipeline="rescaling", storage=str(self._folder / "storage"), config=config
        )
        self.query = self.coordinator.start(build=self._build, name="counts")

    def _build(self) -> DataStreamWriter:
        counts = self.coordinator.aggregate(
            keyed.stream(self._spark, self._files),
            by=["k"],
            uid="counts",
            shards=SHARDS,
            parallelism=self._tasks,
            n=("*", "count"),
        )
        return counts.writeStream.format("noop").outputMode("append")

    @contextmanager
    def fed(self) -> Iterator[None]:
        """Write input as fast as it is taken, inside of the ``with``."""
        ended = threading.Event()

        def feed() -> None:
            while not ended.wait(_POLL):
                if self._written / keyed.FILES_PER_BATCH < self.committed() + 2 + _AHEAD:
                    keys = self._random.integers(0, self._keys, ROWS)
                    self._written = write_keys(self._files, self._written, keys)

        feeder = threading.Thread(target=feed)
        feeder.start()
        try:
            yield
        finally:
            ended.set()
            feeder.join()

    def committed(self) -> int:
        """Return the newest batch that is known to have committed; -1 if none."""
        last = self.query.lastProgress
        return -1 if last is None else int(last["batchId"])

    def batch(self) -> float:
        """Return the seconds of the next batches, on average."""
        began, first = time.monotonic(), self.committed()
        _until("five batches", lambda: self.committed() >= first + 5)
        return (time.monotonic() - began) / (self.committed() - first)

    def rescale(self) -> float:
        """Change the number of tasks in place, and return the seconds until the first batch has committed."""
        self._tasks = 3 - self._tasks
        began = time.monotonic()
        self.coordinator.rescale("counts", self._tasks)
        self._await_first_batch()
        return time.monotonic() - began

    def start_anew(self) -> float:
        """Change it by a stop and a start, and return the same."""
        self._tasks = 3 - self._tasks
        began = time.monotonic()
        self.coordinator.stop()
        self._start()
        self._await_first_batch()
        return time.monotonic() - began

    def _await_first_batch(self) -> None:
        _until("the first batch", lambda: self.coordinator.recoveries[-1].first_batch is not None)


def run(options: Options) -> Report:
    """Measure; see the module."""
    repetitions = options.repetitions or (2 if options.quick else 10)
    keys = 20_000 if options.quick else KEYS
    found: dict[str, list[float]] = {IN_PLACE: [], ANEW: [], BATCH: []}
    with stage() as (spark, folder):
        flow = Flow(spark, folder, keys)
        with flow.fed():
            _until("the first batches", lambda: flow.committed() >= 5)
            turns: dict[str, Callable[[], float]] = {
                BATCH: flow.batch,
                IN_PLACE: flow.rescale,
                ANEW: flow.start_anew,
            }
            for _ in range(repetitions):
                for name, turn in turns.items():
                    found[name].append(turn())
                    console().print(f"{name}: {found[name][-1]:.2f} s")
        flow.coordinator.stop()
    rows: list[dict[str, Any]] = [
        {"change": name, **spread(seconds), "turns": len(seconds)} for name, seconds in found.items()
    ]
    ratios = {
        f"{ANEW} / {IN_PLACE}": paired_ratio(found[ANEW], found[IN_PLACE], lambda seconds: seconds),
        f"{IN_PLACE} / {BATCH}": paired_ratio(found[IN_PLACE], found[BATCH], lambda seconds: seconds),
    }
    return Report("rescaling", rows, ratios, {"keys": keys, "shards": SHARDS})


def draw(report: Report, path: Path) -> None:
    """Draw the pauses."""
    rounds = {row["change"]: [row["least"], row["median"], row["greatest"]] for row in report.rows}
    bars(path, title="A running query gets another number of tasks", axis="seconds", rounds=rounds)


def _until(what: str, condition: Callable[[], bool]) -> None:
    wait_for(what, condition, _PATIENCE, _POLL)
