"""Operators of each kind on three machines give out what a batch job does, also rescaled and from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from chandy.coordinator import CheckpointCoordinator

from ..integration.support import TOTALS, Events, Totals, last_totals
from ..waiting import DEADLINE
from .conftest import Cluster, coordinate

pytestmark = pytest.mark.cluster

_BATCHES = 3
Of = Callable[[CheckpointCoordinator], DataFrame]
"""Makes an operator."""


def test_operators_of_each_kind_are_exact_and_go_on_from_a_checkpoint(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.await_workers()
    folder = cluster.shared / tmp_path.name
    events = Events(folder / "in")

    def processed(coordinator: CheckpointCoordinator) -> DataFrame:
        return coordinator.transform_with_state(
            events.stream(cluster.spark),
            key=["k"],
            processor=Totals(),
            output=TOTALS,
            uid="totals",
            shards=12,
            parallelism=6,
        )

    def aggregated(coordinator: CheckpointCoordinator) -> DataFrame:
        return coordinator.aggregate(
            events.stream(cluster.spark),
            by=["k"],
            uid="sums",
            shards=12,
            parallelism=6,
            n=("*", "count"),
            total=("v", "sum"),
        )

    def write(coordinator: CheckpointCoordinator, name: str, of: Of) -> DataStreamWriter:
        return of(coordinator).writeStream.format("parquet").option("path", str(folder / name))

    # In each life with other tasks on the same machines, whose shards are where they were.
    for parallelism in (12, 3):
        with coordinate(cluster, tmp_path.name) as coordinator:
            events.add(_BATCHES)
            for name, of in {"p": processed, "a": aggregated}.items():
                build = partial(write, coordinator, name, of)
                coordinator.start(build=build, name=name).processAllAvailable()
            metrics = [coordinator.metrics(uid) for uid in ("totals", "sums")]
            events.add()
            for uid in ("totals", "sums"):
                coordinator.rescale(uid, parallelism)
            for query in coordinator.queries:
                query.processAllAvailable()
            assert coordinator.checkpoint().result(DEADLINE).batches == {
                "p": events.files - 1,
                "a": events.files - 1,
            }
            assert [one.kind for one in coordinator.recoveries] == ["start"] * 2 + ["rescale"] * 2
            # What is asked for by key comes from whichever machine has it.
            n, sum_ = events.totals(cluster.spark)["k3"]
            assert tuple(coordinator.get("totals", "k3")) == (n, sum_)
    assert last_totals(cluster.spark.read.parquet(str(folder / "p"))) == events.totals(cluster.spark)
    assert last_totals(cluster.spark.read.parquet(str(folder / "a"))) == events.totals(cluster.spark)
    for found in metrics:
        assert found.shards == 12 * _BATCHES
        # Chance would put two thirds elsewhere. How many exactly depends on where a busy machine runs the first batch.
        assert found.remote_shards < found.shards / 2
