"""Several executors: a state host beside each, and tasks that meet their shards wherever Spark puts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from chandy import FilesSink, read_state
from chandy.coordinator import CheckpointConfig, CheckpointCoordinator
from chandy.coordinator.spark.cached_partitions import CachedPartitions
from chandy.coordinator.spark.executors import executor_hosts
from chandy.coordinator.spark.own_jobs import OwnJobs

from .. import insides
from ..spark_settings import LOCAL, WITH_EXECUTORS
from ..waiting import DEADLINE, eventually
from .support import TOTALS, Events, Totals, last_totals

pytestmark = [pytest.mark.cluster, pytest.mark.compat]


@pytest.mark.full(
    "cluster/test_operators.py::test_operators_of_each_kind_are_exact_and_go_on_from_a_checkpoint"
)
def test_shards_on_two_executors_are_checkpointed_and_restored(tmp_path: Path) -> None:
    # Spark allows one session a process, and this one needs executors of its own.
    with tempfile.TemporaryDirectory(prefix="chandy-") as runtime:
        environment = {**os.environ, "CHANDY_RUNTIME_DIR": runtime, "PYSPARK_PYTHON": sys.executable}
        root = Path(__file__).parents[2]
        driver = [sys.executable, "-m", "tests.integration.test_local_cluster", str(tmp_path)]
        done = subprocess.run(
            driver, cwd=root, env=environment, capture_output=True, text=True, timeout=DEADLINE
        )
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    found = json.loads(done.stdout.splitlines()[-1])
    # Two hosts shared the eight shards, in both lives of the coordinator; who got how many is Spark's to say.
    assert [(len(owned), sum(owned)) for owned in found["owned"]] == [(2, 8), (2, 8)]
    assert found["restored"] == 1
    assert found["batches"] == {"q": 15}
    # With other tasks, shards move between the hosts, and no batch is lost.
    assert found["rescaled"] == [["start", "rescale", "rescale"]] * 2
    assert found["exact"] is True
    # Each replica has caught up, and its pipeline, which has no operators, needs no state hosts.
    assert found["replicated"] == [[True, 0], [True, 0]]
    assert found["placed"] == [True, True, True]
    # No job that starts hosts goes on after a stop, when hosts would find no driver.
    assert "hosts" in found["ended"]


def main(folder: Path) -> None:
    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config(map=WITH_EXECUTORS | LOCAL)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    placed = [cached_where_it_is_wanted(spark, first) for first in ("0", "1", "0")]
    events = Events(folder / "in")
    owned, batches, restored, replicated, rescaled = [], {}, None, [], []
    ended: list[OwnJobs] = []
    end = OwnJobs.end
    OwnJobs.end = lambda jobs: (ended.append(jobs), end(jobs))  # type: ignore[method-assign, assignment, return-value]
    for _ in range(2):
        events.add(6)
        config = CheckpointConfig(interval=None)
        with CheckpointCoordinator(
            spark, pipeline="p", storage=str(folder / "store"), config=config
        ) as coordinator:
            restored = coordinator.restored
            query = coordinator.start(
                build=partial(build, coordinator, events.stream(spark), folder), name="q"
            )
            replica = coordinator.replicate("t", to=FilesSink(str(folder / "log")), name="log")
            query.processAllAvailable()
            for parallelism in (8, 2):
                events.add()
                coordinator.rescale("t", parallelism)
                query.processAllAvailable()
            rescaled.append([one.kind for one in coordinator.recoveries])
            batches = coordinator.checkpoint().result(DEADLINE).batches
            ownership = insides.protocol(coordinator).read(lambda state: state.queries["q"].assignment)
            owned.append([len(shards) for shards in ownership.by_owner().values()])
            replica.catch_up(f"{DEADLINE:g} s")
            state = read_state(spark, str(folder / "store" / "p")).collect()
            changes = spark.read.parquet(str(folder / "log"))
            newest = changes.groupBy("k").agg({"total": "max"}).collect()
            is_copy = {(row.k, row.total) for row in state} == {(row.k, row[1]) for row in newest}
            own: Any = replica._pipeline
            hosts = insides.protocol(own).read(lambda state: len(state.members.hosts))
            replicated.append([is_copy, hosts])
    exact = last_totals(spark.read.parquet(str(folder / "out"))) == events.totals(spark)
    print(
        json.dumps(
            {
                "owned": owned,
                "batches": batches,
                "restored": restored and restored.id,
                "exact": exact,
                "replicated": replicated,
                "rescaled": rescaled,
                "placed": placed,
                "ended": [jobs._tag.split("-")[1] for jobs in ended],
            }
        )
    )
    spark.stop()


def build(coordinator: CheckpointCoordinator, rows: DataFrame, folder: Path) -> DataStreamWriter:
    totals = coordinator.transform_with_state(
        rows, key=["k"], processor=Totals(), output=TOTALS, uid="t", shards=8, parallelism=4
    )
    return totals.writeStream.format("parquet").option("path", str(folder / "out"))


def cached_where_it_is_wanted(spark: SparkSession, first: str) -> bool:
    """Whether an executor caches three of four partitions if it is to, and the other executor the last one."""
    eventually(lambda: len(executor_hosts(spark)) == 2, "two executors")
    hosts = executor_hosts(spark)
    frame = spark.range(4, numPartitions=4).cache()
    partitions = CachedPartitions(frame)
    (last,) = hosts.keys() - {first}
    wanted = {0: first, 1: first, 2: first, 3: last}

    def are_placed() -> bool:
        partitions.place(wanted, hosts)
        return partitions.executors() == wanted

    # An executor that has only just begun may have no room for longer than Spark waits for it.
    eventually(are_placed, "the partitions where they are wanted")
    return frame.count() == 4


if __name__ == "__main__":
    main(Path(sys.argv[1]))
