"""The partitions of a cached DataFrame: which executor caches each of them, and how they get to another one.

PySpark has nothing for either, Spark's JVM has both. A partition is cached by the executor that computes it, and a task
can be asked for at one executor: by an RDD of ``makeRDD``, which takes the places of its partitions. Zipped with the
cached RDD, which has no places before it is computed, it takes each partition to where it is wanted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EXECUTOR: Final = "executor_"
"""How Spark's name for a place begins that is an executor: its address and its id follow."""


class CachedPartitions:
    """The partitions of a DataFrame.

    Args:
        frame: was given to ``cache``.
    """

    def __init__(self, frame: DataFrame) -> None:
        spark = frame.sparkSession
        self._context = spark.sparkContext._jsc.sc()
        self._jvm: Any = spark.sparkContext._jvm
        cached = spark._jsparkSession.sharedState().cacheManager().lookupCachedData(frame._jdf).get()
        self._builder: Any = cached.cachedRepresentation().cacheBuilder()

    def executors(self) -> dict[int, str]:
        """Return the id of the executor that caches a partition, by partition; some may not be cached."""
        # Spark looks for what is cached once a job.
        self._at({0: ""}).count()
        rdd, found = self._builder.cachedColumnBuffers(), {}
        for partition in range(rdd.getNumPartitions()):
            places = str(self._context.getPreferredLocs(rdd, partition).mkString(" ")).split()
            if places and places[0].startswith(_EXECUTOR):
                found[partition] = places[0].rpartition("_")[2]
        return found

    def place(self, executors: Mapping[int, str], hosts: Mapping[str, str]) -> None:
        """Compute all partitions again, each on an executor.

        Plans stay as they are, also those of what runs meanwhile. A task that needs a partition before it is computed
        computes it, and may do so elsewhere. So may a task of this, if its executor has no room for long.

        Args:
            executors: the id of the executor by partition, for all partitions; each has a single row.
            hosts: the addresses of these executors by id.
        """
        wanted = self._at(
            {partition: f"{_EXECUTOR}{hosts[one]}_{one}" for partition, one in executors.items()}
        )
        # Spark forgets the blocks, and not that the plan is cached: without that, plans would have no anchor.
        self._builder.clearCache(False)
        wanted.zip(self._builder.cachedColumnBuffers(), self._any()).count()

    def _at(self, places: Mapping[int, str]) -> Any:
        """Return an RDD of a row a partition, each at a place."""
        as_scala = self._jvm.scala.jdk.javaapi.CollectionConverters.asScala
        rows = [
            self._jvm.scala.Tuple2(number, as_scala([place]).toSeq())
            for number, place in sorted(places.items())
        ]
        return self._context.makeRDD(as_scala(rows).toSeq(), self._any())

    def _any(self) -> Any:
        return self._jvm.scala.reflect.ClassTag.Any()
