"""The number of tasks that serve an operator may change at every start: its shards stay what they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ..waiting import DEADLINE
from .support import TOTALS, Events, Make, Totals, last_totals

pytestmark = [pytest.mark.spark, pytest.mark.compat]

SHARDS = 5


def test_a_checkpoint_restores_with_any_other_number_of_tasks(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    # H7, H8: fewer, more, one a shard, one for all, and the same again.
    out = str(tmp_path / "out")
    for parallelism in (2, 5, 3, 3, 1, 4):
        coordinator = make()
        totals = coordinator.transform_with_state(
            events.stream(spark),
            key=["k"],
            processor=Totals(),
            output=TOTALS,
            uid="totals",
            shards=SHARDS,
            parallelism=parallelism,
        )
        writer = totals.writeStream.format("parquet").option("path", out)
        query = coordinator.start(writer, name="totals")
        events.add()
        query.processAllAvailable()
        assert f"], {parallelism}\n" in totals._jdf.queryExecution().analyzed().toString()
        assert coordinator.checkpoint().result(DEADLINE).shards == SHARDS
        coordinator.stop()
    assert last_totals(spark.read.parquet(out)) == events.totals(spark)
