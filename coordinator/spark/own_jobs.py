"""Jobs that a coordinator runs for itself, and that end with it.

A job waits for executors as long as there are none, and a task for a driver that may be gone. So what a coordinator has
Spark do in the background could outlive it, hold its stop up, or keep executors from the other queries of the session.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from ..errors import CoordinatorStoppedError
from . import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")


class OwnJobs:
    """The jobs that the coordinator of a pipeline runs for one purpose."""

    def __init__(self, spark: SparkSession, pipeline: str, purpose: str, is_over: Callable[[], bool]) -> None:
        """Describe them.

        Args:
            spark: the session.
            pipeline: its name.
            purpose: a word for it, which the tag of the jobs has.
            is_over: returns whether no other job is to begin.
        """
        self._spark = spark
        self._pipeline = pipeline
        self._is_over = is_over
        self._tag = f"chandy-{purpose}-{uuid.uuid4().hex[:12]}"

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count what this thread has Spark do during the ``with`` among these jobs.

        Raises:
            CoordinatorStoppedError: they were ended, or are over.
        """
        if self._is_over():
            raise CoordinatorStoppedError(self._pipeline)
        context = self._spark.sparkContext
        context.addJobTag(self._tag)
        try:
            yield
        except Exception as error:
            # Spark's words for it have the tag that was cancelled.
            if self._tag in str(error):
                raise CoordinatorStoppedError(self._pipeline) from error
            raise
        finally:
            context.removeJobTag(self._tag)

    def on_executors(self, work: Callable[[Iterable[int]], Iterable[T]]) -> list[T]:
        """Run as many tasks as the executors have cores, and return what they yield.

        Args:
            work: what a task does. Spark runs a task again in which it raises.

        Raises:
            CoordinatorStoppedError: they were ended, or are over.
        """
        context = self._spark.sparkContext
        tasks = max(1, context.defaultParallelism)
        with self.running():
            return context.parallelize(range(tasks), tasks).mapPartitions(work).collect()

    def end(self) -> None:
        """Have Spark end those that run."""
        if not session.is_stopped(self._spark):
            session.answer(lambda: self._spark.sparkContext.cancelJobsWithTag(self._tag), lambda error: None)
