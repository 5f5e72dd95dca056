"""Anchors: how the tasks of an operator run where its shards are, batch after batch.

Spark runs the tasks of a shuffle wherever there is room, so a shard would be on another machine than its task more
often than not. A task whose input is cached prefers the executor that caches it. That is all there is of placement in
PySpark. So every operator's rows are joined with a tiny DataFrame, one row a partition, that is cached and partitioned
in the same way: its anchor. The join adds no shuffle, and drops and repeats no row. Its tasks, which are the
operator's, run where the anchor's partitions are cached. When an executor is lost, its partitions of the anchor are
computed again wherever their tasks run next, and stay there.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from ...storage.logs import logger

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

log = logger(__name__)

_PLACE: Final = "__chandy_place"
"""The column that is joined on: the number of the partition."""
_LOCALITY: Final = "spark.shuffle.reduceLocality.enabled"
_SLOW_MILLISECONDS: Final = 250
"""How long a task takes that caches a partition: as long as it takes for every executor to get its part of them."""


class Anchors:
    """The anchors of a session: one for each number of partitions, which all operators with as many share."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._lock = threading.Lock()
        self._made: dict[int, DataFrame] = {}

    def partition(self, rows: DataFrame, parallelism: int, partition: Column) -> DataFrame:
        """Return rows, each in its partition, and each partition where its anchor is.

        Args:
            rows: what is to be partitioned.
            parallelism: the number of partitions.
            partition: the number of a row's partition.
        """
        anchor = self._anchor(parallelism).hint("shuffle_hash")
        sent = rows.withColumn(_PLACE, partition).repartitionById(parallelism, F.col(_PLACE))
        return sent.join(anchor, _PLACE).drop(_PLACE)

    def close(self) -> None:
        """Give the executors' memory back."""
        with self._lock:
            for anchor in self._made.values():
                anchor.unpersist()
            self._made.clear()

    def _anchor(self, parallelism: int) -> DataFrame:
        with self._lock:
            anchor = self._made.get(parallelism)
            if anchor is None:
                anchor = self._made[parallelism] = _cached(self._spark, parallelism)
        return anchor


def _cached(spark: SparkSession, parallelism: int) -> DataFrame:
    numbers = spark.range(0, parallelism, 1, parallelism).select(F.col("id").cast("int").alias(_PLACE))
    # Slowed, because a single executor would otherwise be through with most partitions before the others begin.
    slow = F.expr(f"java_method('java.lang.Thread', 'sleep', {_SLOW_MILLISECONDS}L) is not null or true")
    anchor = numbers.repartitionById(parallelism, F.col(_PLACE)).where(slow).cache()
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
