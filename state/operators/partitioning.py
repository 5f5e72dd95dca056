"""How rows come to the partition that serves their shard: by Spark's shuffle, wherever it then runs the task."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame, SparkSession

Partitioning = Callable[[DataFrame, int, Column], DataFrame]
"""Returns rows, each in its partition, from the rows, the number of partitions, and the number of a row's partition."""


def by_id(rows: DataFrame, parallelism: int, partition: Column) -> DataFrame:
    """Leave it to Spark where the task of a partition runs."""
    return rows.repartitionById(parallelism, partition)


def default_tasks(spark: SparkSession, shards: int) -> int:
    """Return how many tasks serve some shards by default: Spark's default parallelism now, at most one for a shard."""
    return min(spark.sparkContext.defaultParallelism, shards)
