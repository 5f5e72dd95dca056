"""A job on the executors that serves one coordinator alone, and that ends with it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from . import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")


class ExecutorJob:
    """Runs as many tasks as the executors have cores, for one purpose.

    Without an end of its own, such a job would hold up the executors of a session whose coordinator has stopped.
    """

    def __init__(self, spark: SparkSession, purpose: str) -> None:
        """Describe it.

        Args:
            spark: a session on a cluster.
            purpose: a word for it, which the tag of its jobs has.
        """
        self._spark = spark
        self._tag = f"chandy-{purpose}-{uuid.uuid4().hex[:12]}"

    def run(self, work: Callable[[Iterable[int]], Iterable[T]]) -> list[T]:
        """Run it, and return what its tasks have yielded.

        Args:
            work: what a task does. Spark runs a task again in which it raises.
        """
        context = self._spark.sparkContext
        tasks = max(1, context.defaultParallelism)
        # Tags belong to the thread, which may have jobs of other purposes as well.
        context.addJobTag(self._tag)
        try:
            return context.parallelize(range(tasks), tasks).mapPartitions(work).collect()
        finally:
            context.removeJobTag(self._tag)

    def cancel(self) -> None:
        """Have Spark end its tasks, if any run."""
        if not session.is_stopped(self._spark):
            session.answer(lambda: self._spark.sparkContext.cancelJobsWithTag(self._tag), lambda error: None)
