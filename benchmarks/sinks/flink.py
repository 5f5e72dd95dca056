"""Flink's exactly-once sink for Kafka as a contestant: a cluster of its own, and rows as Spark's sources make them.

A JobManager and a TaskManager with two slots run on this machine, as in the benchmark ``recovery``. The job is SQL (see
``flink_job``). Each of its two tasks has a transaction of its own, which is committed once the checkpoint is complete.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
import numpy as np

from ..recovery.flink_cluster import Cluster, FlinkError
from ..recovery.flink_environment import Distribution, FlinkUnavailableError, distribution
from ..servers.maven import NoJavaServerError, class_path
from .figures import MICROSECONDS
from .servers import cache_folder
from .targets import Topic

NAME: Final = "Flink's Kafka sink"
JOB: Final = Path(__file__).with_name("flink_job.py")
POM: Final = Path(__file__).with_name("flink_kafka.pom.xml")


@attrs.frozen
class Installed:
    """What the contestant needs."""

    flink: Distribution
    connector: Path
    """The jar of Flink's connector for Kafka."""


@functools.cache
def installed() -> Installed | str:
    """Return Flink and its connector, or why they cannot be had here. The first call installs them."""
    try:
        (jar,) = class_path(POM, cache_folder("flink")).split(":")
        return Installed(distribution(), Path(jar))
    except (NoJavaServerError, FlinkUnavailableError) as error:
        return str(error)


@contextlib.contextmanager
def running(topic: Topic, folder: Path, interval: int, rate: int | None) -> Iterator[None]:
    """Write rows into a topic for the duration of the context, which begins when all tasks run.

    Args:
        topic: where to.
        folder: takes all files of the cluster.
        interval: seconds between checkpoints.
        rate: rows a second; None: as fast as Flink makes them.

    Raises:
        RuntimeError: Flink cannot be had here, or has failed.
    """
    found = installed()
    if isinstance(found, str):
        raise RuntimeError(found)
    arguments = [topic.servers, topic.name]
    with contextlib.ExitStack() as stack:
        if rate is not None:
            files = folder / "rows"
            files.mkdir()
            arguments.append(str(files))
        settings = {"execution.checkpointing.interval": f"{interval} s"}
        try:
            cluster = Cluster(
                found.flink,
                folder / "flink",
                arguments,
                job=JOB,
                jars=[found.connector],
                settings=settings,
            )
            stack.callback(cluster.kill)
            cluster.start_job_manager()
            cluster.start_task_manager()
            cluster.await_running()
            # A failure while it starts costs nothing that is measured.
            failures = len(cluster.noted())
            if rate is not None:
                stack.enter_context(Feeder(files, rate))
            yield
            cluster.check()
            if len(cluster.noted()) > failures:
                raise RuntimeError("the job has failed meanwhile, and has been restarted")
        except (FlinkError, FlinkUnavailableError) as error:
            raise RuntimeError(str(error)) from error


class Feeder:
    """Gives out rows a second at a time, as Spark's ``rate`` source does: a file with those of the past second."""

    def __init__(self, folder: Path, rate: int) -> None:
        """Start nothing yet.

        Args:
            folder: takes the files.
            rate: rows a second.
        """
        self._folder = folder
        self._rate = rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)

    def __enter__(self) -> Feeder:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        begin = time.time()
        second = 0
        while not self._stop.wait(max(0.0, begin + second + 1 - time.time())):
            # Flink ignores names that begin with a dot, so it never sees a half-written file.
            hidden = self._folder / f".{second:06}.csv"
            hidden.write_text(lines(begin, second, self._rate))
            hidden.rename(self._folder / f"{second:06}.csv")
            second += 1


def lines(begin: float, second: int, rate: int) -> str:
    """Return the rows of one second as lines of numbers and marks.

    Args:
        begin: the timestamp of the first row of all, in seconds since 1970.
        second: which second.
        rate: rows a second, at equal distances.
    """
    numbers = np.arange(second * rate, (second + 1) * rate)
    marks = int(begin * MICROSECONDS) + numbers * MICROSECONDS // rate
    return "".join(f"{number},{mark}\n" for number, mark in zip(numbers, marks, strict=True))
