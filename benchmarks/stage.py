"""Where contestants run: one Spark session in a folder of its own, and streams of which the warm part counts."""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import attrs
from pyspark.sql import SparkSession

from .lives import await_hosts, runtime

T = TypeVar("T")
MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_MANAGERS = "org.apache.spark.sql.execution.streaming.checkpointing"
DEFAULT_MANAGER = f"{_MANAGERS}.FileContextBasedCheckpointFileManager"
"""What Spark uses unless told otherwise."""


@attrs.frozen
class Stream:
    """The measured part of one stream."""

    contestant: str
    rows: int
    seconds: float
    batch_seconds: tuple[float, ...]
    checkpoints: int = 0
    """Completed in the whole stream."""

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds

    @property
    def batches(self) -> int:
        """How many batches were measured."""
        return len(self.batch_seconds)


def measured(contestant: str, progress: Sequence[Any], warm_up: int, checkpoints: int = 0) -> Stream:
    """Cut the warm-up off a stream's progress reports.

    What counts is the time from the start of the first batch after it to the end of the last.

    Args:
        contestant: whose stream it was.
        progress: Spark's reports, one a batch, in order.
        warm_up: batches that do not count.
        checkpoints: how many completed.
    """
    counted = [one for one in progress if one["numInputRows"] > 0][warm_up:]
    begin = datetime.datetime.fromisoformat(counted[0]["timestamp"])
    last = datetime.datetime.fromisoformat(counted[-1]["timestamp"])
    end = last + datetime.timedelta(milliseconds=counted[-1]["durationMs"]["triggerExecution"])
    return Stream(
        contestant,
        sum(one["numInputRows"] for one in counted),
        (end - begin).total_seconds(),
        tuple(one["durationMs"]["triggerExecution"] / 1000 for one in counted),
        checkpoints,
    )


def balanced(names: Sequence[T], round_number: int) -> list[T]:
    """Return the order of one round: rounds go forwards and backwards in turns, so that steady drift cancels."""
    return list(names if round_number % 2 == 0 else names[::-1])


@contextlib.contextmanager
def stage(**settings: str) -> Iterator[tuple[SparkSession, Path]]:
    """Give a Spark session with two cores and a folder for everything; both are gone afterwards.

    Args:
        settings: Spark's, with ``__`` for a dot.
    """
    folder = Path(tempfile.mkdtemp(prefix="chandy-")).resolve()
    os.environ["CHANDY_RUNTIME_DIR"] = str(runtime(folder))
    try:
        with _output_to(folder / "spark.log"):
            spark = session(folder, {name.replace("__", "."): value for name, value in settings.items()})
        try:
            yield spark, folder
        finally:
            spark.stop()
    finally:
        await_hosts(folder)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def file_manager(spark: SparkSession, name: str | None) -> Iterator[None]:
    """Have queries that are started inside of the ``with`` use this file manager; None: the stage's."""
    tuned = spark.conf.get(MANAGER)
    assert tuned is not None
    spark.conf.set(MANAGER, name or tuned)
    try:
        yield
    finally:
        spark.conf.set(MANAGER, tuned)


def session(folder: Path, settings: Mapping[str, str]) -> SparkSession:
    """Start Spark with two cores, all that it writes in a folder.

    Args:
        folder: where to.
        settings: Spark's, beside the ones that all contestants have.
    """
    # PySpark takes the python3 of the PATH, which need not be this one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    streaming = "org.apache.spark.sql.execution.streaming"
    defaults = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "4g",
        "spark.local.dir": str(folder / "spark"),
        "spark.sql.warehouse.dir": str(folder / "spark" / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        # The fastest that Spark's own state has.
        "spark.sql.streaming.stateStore.providerClass": f"{streaming}.state.RocksDBStateStoreProvider",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # Chandy chooses it by itself; peers get it, too.
        MANAGER: f"{_MANAGERS}.FileSystemBasedCheckpointFileManager",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in {**defaults, **settings}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@contextlib.contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Have processes that are started in this context print into a file: the JVM, and through it its workers."""
    kept = os.dup(1), os.dup(2)
    try:
        with log.open("w") as target:
            os.dup2(target.fileno(), 1)
            os.dup2(target.fileno(), 2)
        yield
    finally:
        for number, descriptor in enumerate(kept, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)
