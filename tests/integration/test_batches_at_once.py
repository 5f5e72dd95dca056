"""Batches that are published at once: into a real PostgreSQL under Spark, and by drivers that are killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from pyspark.sql import DataFrame, SparkSession

from chandy.coordinator import CheckpointCoordinator, CheckpointedQuery, FixedDelay
from chandy.coordinator.connectors.postgres.sink import PostgresSink
from chandy.coordinator.sinks.two_phase.contract import Fence
from chandy.storage.backends.open import open_store, pipeline_uri
from chandy.storage.errors import FencedError
from tests.coordinator.connectors.postgres_server import PostgresServer
from tests.coordinator.connectors.postgres_server import postgres as postgres
from tests.waiting import DEADLINE, eventually

from .. import insides
from ..effort import sampled
from .support import GOES_BACK, RESUMES, TOTALS, Events, Make, Totals

pytestmark = pytest.mark.spark


@attrs.frozen
class KeyedTable:
    """A table with one row for each key."""

    server: PostgresServer
    name: str

    @property
    def sink(self) -> PostgresSink:
        return PostgresSink(
            conninfo=self.server.conninfo(),
            table=self.name,
            mode="upsert",
            key="k",
            publish="batch",
            timeout=20,
        )

    def totals(self) -> dict[str, tuple[int, int]]:
        """What a reader sees: by key the rows and the sum of values."""
        return {k: (n, total) for k, n, total in self.server.execute(f"SELECT k, n, total FROM {self.name}")}

    def position(self) -> tuple[int, int | None]:
        """The generation that publishes, and the newest epoch."""
        query = "SELECT generation, epoch FROM chandy_positions WHERE writer = 'p/totals/postgres'"
        ((generation, epoch),) = self.server.execute(query)
        return generation, epoch


@pytest.fixture
def table(postgres: PostgresServer) -> KeyedTable:
    postgres.execute("DROP TABLE IF EXISTS chandy_positions, totals")
    postgres.execute("CREATE TABLE totals (k text PRIMARY KEY, n bigint, total bigint)")
    return KeyedTable(postgres, "totals")


def totals(coordinator: CheckpointCoordinator, spark: SparkSession, events: Events) -> DataFrame:
    return coordinator.transform_with_state(
        events.stream(spark), key=["k"], processor=Totals(), output=TOTALS, uid="totals", shards=4
    )


def start(
    coordinator: CheckpointCoordinator, spark: SparkSession, events: Events, table: KeyedTable
) -> CheckpointedQuery:
    frame = totals(coordinator, spark, events)
    return coordinator.start(frame.writeStream, sink=table.sink, name="totals")


def test_rows_are_visible_before_any_checkpoint_and_a_checkpoint_moves_the_position(
    make: Make, spark: SparkSession, events: Events, table: KeyedTable
) -> None:
    coordinator = make()
    query = start(coordinator, spark, events, table)
    assert query.guarantee.level == "at least once"
    assert "upserted by key into PostgreSQL" in query.guarantee.because
    for _ in range(2):
        events.add()
        query.processAllAvailable()
        assert table.totals() == events.totals(spark)
    assert coordinator.statistics().counts.completed == 0
    generation, epoch = table.position()
    assert epoch is None
    checkpoint = coordinator.checkpoint().result(DEADLINE)
    assert table.position() == (generation, checkpoint.id)


def test_going_back_comes_to_the_same_totals(
    make: Make, spark: SparkSession, events: Events, table: KeyedTable
) -> None:
    coordinator = make(changelog=False, restart=FixedDelay(attempts=3, delay="0 s"))
    query = start(coordinator, spark, events, table)
    events.add(2)
    query.processAllAvailable()
    coordinator.checkpoint().result(DEADLINE)
    events.add(2)
    query.processAllAvailable()
    insides.lose_state(coordinator)
    eventually(lambda: len(coordinator.recoveries) >= 2)
    events.add()
    query.processAllAvailable()
    assert table.totals() == events.totals(spark)
    # Also to an older checkpoint than the latest, without leave for output to come twice.
    coordinator.stop()
    older = make(restore=1)
    query = start(older, spark, events, table)
    query.processAllAvailable()
    older.stop()
    assert table.totals() == events.totals(spark)
    assert (table.position()[1] or 0) > 1


@pytest.mark.full(
    "coordinator/sinks/two_phase/test_batches.py::test_a_batch_waits_for_its_target_and_goes_on_by_itself"
)
def test_a_batch_waits_for_its_target_and_a_stop_does_not(
    make: Make, spark: SparkSession, events: Events, table: KeyedTable
) -> None:
    coordinator = make()
    query = start(coordinator, spark, events, table)
    events.add()
    query.processAllAvailable()
    before = table.totals()
    table.server.kill()
    try:
        events.add()
        run = insides.run(coordinator, "totals")
        eventually(lambda: (run.directory / "offsets" / "1").exists(), "the next batch to be planned")
    finally:
        table.server.start()
    query.processAllAvailable()
    assert before != table.totals() == events.totals(spark)
    assert not any(one.in_place for one in coordinator.recoveries)
    table.server.kill()
    try:
        events.add()
        eventually(lambda: (run.directory / "offsets" / "2").exists(), "the next batch to be planned")
        coordinator.stop(timeout="1 s", checkpoint=False)
    finally:
        table.server.start()
    query = start(make(), spark, events, table)
    query.processAllAvailable()
    assert table.totals() == events.totals(spark)


def test_a_driver_that_has_a_successor_at_its_target_publishes_nothing_and_fails(
    make: Make, spark: SparkSession, events: Events, table: KeyedTable, tmp_path: Path
) -> None:
    coordinator = make(restart=FixedDelay(attempts=3, delay="0 s"))
    query = start(coordinator, spark, events, table)
    events.add()
    query.processAllAvailable()
    before = table.totals()
    # Another machine has taken over, and this driver has not noticed.
    store = open_store(pipeline_uri(str(tmp_path / "store"), "p")).uri
    table.sink.recover(Fence("p", "totals", "postgres", store, 99)).close()
    events.add()
    with pytest.raises(FencedError, match="99"):
        query.awaitTermination(DEADLINE)
    assert table.totals() == before
    assert table.position() == (99, None)


# --- a driver that is killed --------------------------------------------------------------------------------


@pytest.mark.kills
@pytest.mark.parametrize("changelog", sampled([RESUMES, GOES_BACK], 1))
@pytest.mark.full("integration/test_batches_at_once.py::test_going_back_comes_to_the_same_totals")
def test_a_driver_that_is_killed_without_a_checkpoint_comes_to_the_same_totals(
    make: Make, spark: SparkSession, events: Events, table: KeyedTable, tmp_path: Path, changelog: bool
) -> None:
    events.add(3)
    wanted = events.totals(spark)
    with driver(tmp_path, table, changelog) as process:
        eventually(lambda: table.totals() == wanted, "the rows of a driver without checkpoints")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert table.position() == (1, None)
    coordinator = make(changelog=changelog)
    assert coordinator.restored is None
    query = start(coordinator, spark, events, table)
    assert coordinator.recoveries[0].in_place is changelog
    events.add()
    query.processAllAvailable()
    assert table.totals() == events.totals(spark)
    assert coordinator.stop() is not None


@contextlib.contextmanager
def driver(folder: Path, table: KeyedTable, changelog: bool) -> Iterator[subprocess.Popen[bytes]]:
    """Run the query in a process of its own, without checkpoints."""
    options = {"folder": str(folder), "conninfo": table.server.conninfo(), "changelog": changelog}
    with (folder / "driver.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.batches_driver", json.dumps(options)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
