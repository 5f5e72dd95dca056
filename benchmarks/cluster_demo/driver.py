"""The driver of the demo on a cluster, ``python -m benchmarks.cluster_demo.driver PLAN``: see ``benchmarks.driver``."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator, FixedDelay
from chandy.storage.codec import from_json

from .. import driver
from ..lives import say
from ..watching import FAILED
from .plan import Plan, by_machine


def main() -> None:
    """Run the pipeline to the end of the stream, then check the result."""
    say("process")
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    try:
        _run(from_json(Plan, sys.argv[1].encode()))
    except Exception as error:
        say(FAILED, why=driver.first_line(error))
        raise


def _run(plan: Plan) -> None:
    work = driver.Work(Path(plan.folder), plan.storage)
    spark = SparkSession.builder.appName("Chandy demo").config(map={**plan.settings}).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    say("session")
    config = CheckpointConfig(
        interval="5 s",
        host_timeout="10 s",
        # Spark fails a batch again and again until it has given a lost machine up.
        restart=FixedDelay("500 ms", attempts=100),
        # All machines see the folders of input, output and checkpoints.
        shared=True,
    )
    with CheckpointCoordinator(
        spark, pipeline=driver.PIPELINE, storage=work.storage, config=config
    ) as coordinator:
        say("coordinator")
        query = driver.start(coordinator, spark, work, plan.days_per_batch)
        say("query", guarantee=str(query.guarantee))
        cluster = _Cluster(spark, coordinator, plan)
        told: set[int] = set()
        for position in driver.positions(query, plan.days, plan.days_per_batch):
            if position is not None:
                say("batch", batch=position.batch, days=position.days)
            cluster.tell()
            driver.tell_checkpoints(coordinator, told)
        last = coordinator.checkpoint().result(timeout=driver.CHECKPOINT_SECONDS)
        cluster.tell()
        driver.tell_checkpoints(coordinator, told)
        for recovery in coordinator.recoveries[1:]:
            driver.tell_recovery(recovery)
    say("stopped")
    driver.tell_result(spark, work, last.id)
    spark.stop()


class _Cluster:
    """Reports how many executors there are and which machine has which shards, whenever that has changed."""

    def __init__(self, spark: SparkSession, coordinator: CheckpointCoordinator, plan: Plan) -> None:
        self._spark, self._coordinator, self._plan = spark, coordinator, plan
        self._told: object = None

    def tell(self) -> None:
        shards = by_machine(self._coordinator.assignment(), self._plan.machines)
        # The driver is one of them.
        executors = self._spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
        if (now := (executors, shards)) != self._told:
            self._told = now
            say("cluster", executors=executors, shards=shards)


if __name__ == "__main__":
    main()
