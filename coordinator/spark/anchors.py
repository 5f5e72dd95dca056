"""Anchors: how the tasks of an operator run where its shards are, batch after batch.

Spark runs the tasks of a shuffle wherever there is room, so a shard would be on another machine than its task more
often than not. A task whose input is cached prefers the executor that caches it. That is all there is of placement in
PySpark. So every operator's rows are joined with a tiny DataFrame, one row a partition, that is cached and partitioned
in the same way: its anchor. The join adds no shuffle, and drops and repeats no row. Its tasks, which are the
operator's, run where the anchor's partitions are cached. When an executor is lost, its partitions of the anchor are
computed again wherever their tasks run next, and stay there. When one joins, some are computed again there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from ...storage.logs import logger
from .cached_partitions import CachedPartitions
from .executors import executor_hosts
from .own_jobs import OwnJobs

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

log = logger(__name__)

_PLACE: Final = "__chandy_place"
"""The column that is joined on: the number of the partition."""
_INTERRUPT_SECONDS: Final = 0.1
"""From one interruption of what places tasks to the next."""
_LOCALITY: Final = "spark.shuffle.reduceLocality.enabled"

Balance = Callable[[Mapping[int, str], Collection[str]], Mapping[int, str]]
"""Returns which executor is to have each partition, from those that have them now and those that may have some."""


class Anchors:
    """The anchors of a session: one for each number of partitions, which all operators with as many share.

    Args:
        spark: the session.
        pipeline: the name of the pipeline.
        balance: says where partitions are to be. One that is nowhere is at "" for it.
        is_over: returns whether nothing more is to be placed.
    """

    def __init__(
        self, spark: SparkSession, pipeline: str, balance: Balance, is_over: Callable[[], bool]
    ) -> None:
        self._spark = spark
        self._jobs = OwnJobs(spark, pipeline, "anchors", is_over)
        self._balance = balance
        self._lock = threading.Lock()
        self._made: dict[int, DataFrame] = {}

    def partition(self, rows: DataFrame, parallelism: int, partition: Column) -> DataFrame:
        """Return rows, each in its partition, and each partition where its anchor is.

        Args:
            rows: what is to be partitioned.
            parallelism: the number of partitions.
            partition: the number of a row's partition.

        Raises:
            CoordinatorStoppedError: it was interrupted, or nothing more is to be placed.
        """
        anchor = self._anchor(parallelism).hint("shuffle_hash")
        sent = rows.withColumn(_PLACE, partition).repartitionById(parallelism, F.col(_PLACE))
        return sent.join(anchor, _PLACE).drop(_PLACE)

    def spread(self) -> bool:
        """Give executors that have joined their part of the tasks; return whether each had it already.

        Queries go on meanwhile. What they run just now may bring a partition elsewhere: then another call helps.
        """
        with self._lock, self._jobs.running():
            done = [self._spread(parallelism, anchor) for parallelism, anchor in self._made.items()]
        return all(done)

    def interrupt(self) -> None:
        """End what places tasks just now: it waits for executors as long as there are none."""
        self._jobs.end()

    def close(self) -> None:
        """Give the executors' memory back."""
        while not self._lock.acquire(timeout=_INTERRUPT_SECONDS):
            # Again: one of several jobs may have ended.
            self.interrupt()
        try:
            for anchor in self._made.values():
                anchor.unpersist()
            self._made.clear()
        finally:
            self._lock.release()

    def _anchor(self, parallelism: int) -> DataFrame:
        with self._lock:
            anchor = self._made.get(parallelism)
            if anchor is None:
                with self._jobs.running():
                    anchor = self._made[parallelism] = _cached(self._spark, parallelism)
                    self._spread(parallelism, anchor)
        return anchor

    def _spread(self, parallelism: int, anchor: DataFrame) -> bool:
        hosts = executor_hosts(self._spark)
        if not hosts:
            # They may all have left, with what they cached. It comes back where tasks need it first.
            return True
        partitions = CachedPartitions(anchor)
        present = dict.fromkeys(range(parallelism), "") | partitions.executors()
        wanted = self._balance(present, hosts)
        if wanted == present:
            return True
        partitions.place(wanted, hosts)
        moved = [partition for partition, executor in wanted.items() if present[partition] != executor]
        log.info("tasks are spread over the executors", tasks=len(moved), executors=sorted(hosts))
        return False


def _cached(spark: SparkSession, parallelism: int) -> DataFrame:
    numbers = spark.range(0, parallelism, 1, parallelism).select(F.col("id").cast("int").alias(_PLACE))
    anchor = numbers.repartitionById(parallelism, F.col(_PLACE)).cache()
    # Spark knows how a cached plan is partitioned once it has run. Before, a join with it would shuffle it again.
    anchor.count()
    return anchor


def can_place(spark: SparkSession) -> bool:
    """Return whether anchors work in a session; the log says what is in their way."""
    if spark.sparkContext.getConf().get(_LOCALITY, "true") == "false":
        return True
    log.warning(
        "tasks will not run where their state is, and reach it over the network; set "
        f"{_LOCALITY}=false before the session starts",
        setting=_LOCALITY,
        found="true",
        expected="false",
    )
    return False
