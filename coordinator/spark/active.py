"""Says whether a query with a certain id runs in this Spark application, in whichever of its sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_running(spark: SparkSession, query_id: str) -> bool:
    """Return whether a query runs in this application that goes on from the checkpoint with this id."""
    java = spark._jvm.java.util.UUID  # type: ignore[union-attr]
    running = spark._jsparkSession.sharedState().activeStreamingQueries()
    return bool(running.containsKey(java.fromString(query_id)))
