"""State hosts that freeze, or die at a bad moment, under pipelines on real Spark."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from chandy.coordinator import CheckpointCoordinator, CheckpointError, FixedDelay, Reason
from chandy.coordinator.query import CheckpointedQuery
from chandy.state.local.processes import started_at

from .. import insides
from ..waiting import DEADLINE, eventually, freeze
from .support import TOTALS, Events, Make, Totals, last_totals, pids

pytestmark = [pytest.mark.spark, pytest.mark.kills]

AT_ONCE = FixedDelay("0 s", attempts=5)


def start(
    coordinator: CheckpointCoordinator, spark: SparkSession, events: Events, out: Path
) -> CheckpointedQuery:
    totals = coordinator.transform_with_state(
        events.stream(spark), key=["k"], processor=Totals(), output=TOTALS, uid="totals", shards=4
    )
    return coordinator.start(totals.writeStream.format("parquet").option("path", str(out)), name="totals")


def exact(spark: SparkSession, events: Events, out: Path) -> bool:
    return last_totals(spark.read.parquet(str(out))) == events.totals(spark)


def exact_by_now(spark: SparkSession, events: Events, out: Path) -> bool:
    """Whether all is there already. While the pipeline goes back, files that are being read are moved away."""
    try:
        return out.exists() and exact(spark, events, out)
    except PySparkException:
        return False


def test_a_frozen_host_is_killed_when_its_time_is_up_and_the_pipeline_goes_on(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    events.add(3)
    coordinator = make(host_timeout="6 s", restart=AT_ONCE)
    query = start(coordinator, spark, events, out)
    query.processAllAvailable()
    coordinator.checkpoint().result(DEADLINE)
    (frozen,) = pids(coordinator)
    freeze(frozen)
    try:
        events.add(3)
        eventually(lambda: started_at(frozen) is None, "the end of the frozen host")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(frozen, signal.SIGCONT)
    eventually(lambda: exact_by_now(spark, events, out), "all rows, exactly once")
    assert len(coordinator.recoveries) >= 2
    assert coordinator.checkpoint().result(DEADLINE).id > 1


@pytest.mark.full(
    "coordinator/recovery/test_supervisor.py::test_a_stop_ends_its_savepoint_when_the_pipeline_must_go_back_and_lets_it_go_back_then"
)
def test_a_host_that_dies_in_a_stop_ends_its_savepoint_and_the_pipeline_goes_on(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    events.add(3)
    coordinator = make(restart=AT_ONCE)
    query = start(coordinator, spark, events, out)
    query.processAllAvailable()
    stop = insides.supervisor(coordinator).stop_gracefully

    def stop_and_lose_the_host(*given: Any) -> Any:
        stopped = stop(*given)
        (pid,) = pids(coordinator)
        os.kill(pid, signal.SIGKILL)
        return stopped

    with monkeypatch.context() as patch:
        patch.setattr(insides.supervisor(coordinator), "stop_gracefully", stop_and_lose_the_host)
        with pytest.raises(CheckpointError) as caught:
            coordinator.stop(savepoint=str(tmp_path / "savepoint"))
    assert caught.value.reason is Reason.JOB_FAILOVER
    events.add(2)
    eventually(lambda: exact_by_now(spark, events, out), "all rows, exactly once")
    # The place is free for the next one.
    taken = coordinator.stop(savepoint=str(tmp_path / "savepoint"))
    assert taken is not None
    assert exact(spark, events, out)
