"""DataFrames whose physical plan is made at once, with settings of their own."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession


def planned(df: DataFrame, partitions: int) -> DataFrame:
    """Return a batch DataFrame with the same rows, whose plan is made now and not changed by what is done with it.

    It is not planned adaptively, and no job runs. Tasks that have shuffled its rows are not run again for a second
    evaluation.

    Args:
        df: a batch DataFrame, of a session that no other thread is using.
        partitions: the number of partitions of its shuffles.
    """
    spark = df.sparkSession
    wanted = {"spark.sql.shuffle.partitions": str(partitions), "spark.sql.adaptive.enabled": "false"}
    with _set(spark, wanted):
        rows = df._jdf.queryExecution().toRdd()
    # As Spark makes the DataFrame that it gives to a function of foreachBatch.
    return DataFrame(spark._jsparkSession.internalCreateDataFrame(rows, df._jdf.schema(), False), spark)


@contextmanager
def _set(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in wanted}
    try:
        for name, value in wanted.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, was in before.items():
            if was is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, was)
