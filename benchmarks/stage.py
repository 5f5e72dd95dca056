"""The setting of the contestants: one Spark session in a folder of its own, and streams measured after a warm-up."""

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
"""Spark's default."""


@attrs.frozen
class Stream:
    """The measured part of one stream."""

    contestant: str
    rows: int
    seconds: float
    batch_seconds: tuple[float, ...]

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds

    @property
    def batches(self) -> int:
        """How many batches were measured."""
        return len(self.batch_seconds)


def measured(contestant: str, progress: Sequence[Any], warm_up: int) -> Stream:
    """Return the measured part of a stream: from the start of the first batch after the warm-up to the end of the last.

    Args:
        contestant: the contestant that ran the stream.
        progress: Spark's reports, one for each batch, in order.
        warm_up: the number of batches at the beginning that are not measured.
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
    )


def balanced(names: Sequence[T], round_number: int) -> list[T]:
    """Return the order of one round. Every other round is reversed, so that steady drift cancels out."""
    return list(names if round_number % 2 == 0 else names[::-1])


@contextlib.contextmanager
def stage(**settings: str) -> Iterator[tuple[SparkSession, Path]]:
    """Provide a Spark session with two cores and a folder for all files. Both are removed afterwards.

    Args:
        settings: settings of Spark, with ``__`` for each dot.
    """
    folder = Path(tempfile.mkdtemp(prefix="chandy-")).resolve()
    os.environ["CHANDY_RUNTIME_DIR"] = str(runtime(folder))
    try:
        with output_to(folder / "spark.log"):
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
    """Start the queries of this context with the given file manager, or with the stage's if it is None."""
    tuned = spark.conf.get(MANAGER)
    assert tuned is not None
    spark.conf.set(MANAGER, name or tuned)
    try:
        yield
    finally:
        spark.conf.set(MANAGER, tuned)


def session(folder: Path, settings: Mapping[str, str]) -> SparkSession:
    """Start Spark with two cores. It writes only below ``folder``.

    Args:
        folder: takes all files of Spark.
        settings: settings of Spark in addition to those of all contestants.
    """
    # By default PySpark takes the python3 of the PATH, which may be another one.
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
        # The fastest settings for Spark's own state.
        "spark.sql.streaming.stateStore.providerClass": f"{streaming}.state.RocksDBStateStoreProvider",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # Chandy chooses this file manager by itself. The peers get it as well.
        MANAGER: f"{_MANAGERS}.FileSystemBasedCheckpointFileManager",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in {**defaults, **settings}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@contextlib.contextmanager
def output_to(log: Path) -> Iterator[None]:
    """Send the output of processes started in this context to a file: the JVM, and the workers that it starts."""
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
