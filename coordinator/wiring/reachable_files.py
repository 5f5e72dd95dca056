"""Whether all machines reach the files of a query that is about to start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..config import CheckpointConfig
from ..errors import SetupError, WriterError
from ..sinks.sink import Sink
from ..spark import plan, session
from ..spark.local_path import is_local
from ..spark.reachable_places import check_reach
from ..spark.writer_facts import WriterFacts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check_query_reach(
    spark: SparkSession, config: CheckpointConfig, base: str, name: str, facts: WriterFacts, sink: Sink
) -> None:
    """Refuse a query with files that executors cannot reach, or that nobody would see change.

    Args:
        spark: the session.
        config: that of the pipeline.
        base: the driver's own directory for the queries' working directories.
        name, facts: of the query.
        sink: where it writes.

    Raises:
        SetupError: a place is on the driver's machine alone.
        WriterError: its timers could not be fired.
    """
    master = str(spark.sparkContext.master)
    places: dict[str, str] = (
        {} if sink.location is None else {f"the output of query {name!r}": str(sink.location)}
    )
    if facts.native_state:
        role = f"Spark's own state of query {name!r}"
        places[role] = config.work_dir or base
        if config.work_dir is None and not session.is_local_mode(spark):
            raise SetupError(
                f"{role} cannot be kept in a private directory of the driver's",
                f"a directory that all executors of {master} reach",
                "no work_dir",
                "set CheckpointConfig.work_dir to a URI such as hdfs://namenode/chandy or s3a://bucket/chandy, or "
                "to a directory that is mounted on all machines",
            )
    check_reach(master, places, shared=config.shared)
    is_remote = config.work_dir is not None and not is_local(config.work_dir)
    if facts.native_state and is_remote and plan.needs_ticks(facts):
        raise WriterError(
            f"query {name!r} cannot be started",
            "no operator with timers together with state of Spark's own, because what fires the timers reads the "
            "query's log in its working directory",
            f"both, and work_dir={config.work_dir!r}",
            "set CheckpointConfig.work_dir to a directory that is mounted on all machines, or give the state to "
            "an operator of Chandy",
        )
