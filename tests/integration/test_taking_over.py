"""A pipeline that is taken over while its driver runs: the sink is whole, whoever published which batch."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator, CheckpointedQuery, FixedDelay
from chandy.coordinator.errors import SinkTakenError
from chandy.coordinator.sinks import file_sink_log
from chandy.coordinator.sinks.file_sink_log import LOG
from chandy.storage.errors import FencedError

from ..effort import chance, rounds
from ..waiting import DEADLINE, eventually
from .driver_runs import InputFeed, KilledDriver, parquet
from .driver_runs import local as local
from .driver_runs import runtime as runtime
from .drivers import chained, files_sunk
from .support import EVENTS, Events, Make
from .whole_output import check_whole

pytestmark = pytest.mark.spark

ROUNDS = rounds(1, full=10)


# --- in one process -----------------------------------------------------------------------------------------


def test_a_cell_that_runs_again_and_again_leaves_a_whole_sink(
    spark: SparkSession, tmp_path: Path, local: Path
) -> None:
    numbers = chance("moments")
    feed, out = InputFeed(tmp_path / "in", ahead=4), tmp_path / "out"
    made: list[CheckpointCoordinator] = []
    queries: list[CheckpointedQuery] = []
    try:
        for round_ in range(ROUNDS + 1):
            config = CheckpointConfig(interval="1 s")
            storage = str(tmp_path / "store")
            made.append(CheckpointCoordinator(spark, pipeline="twice", storage=storage, config=config))
            writer = parquet(chained(made[-1], spark, feed.folder), out).queryName(f"run {round_}")
            queries.append(made[-1].start(writer, name="chained"))
            if round_ > 0:
                with pytest.raises(FencedError):
                    queries[-2].awaitTermination(DEADLINE)
                assert not queries[-2].isActive
                eventually(lambda: files_sunk(made[-1], out) == feed.files, "all files")
                queries[-1].processAllAvailable()
                check_whole(spark, out, feed.files)
            wanted = feed.files + numbers.randint(-1, 3)
            feed.add(4)
            eventually(lambda: files_sunk(made[-1], out) >= wanted, "some batches")  # noqa: B023
            # Not to wait: to come at any moment of a batch or checkpoint.
            time.sleep(numbers.uniform(0, 0.5))
    finally:
        for coordinator in reversed(made):
            coordinator.stop(timeout="1 s")


# --- in two processes ---------------------------------------------------------------------------------------


@pytest.mark.kills
@pytest.mark.full(
    "integration/test_taking_over.py::test_a_cell_that_runs_again_and_again_leaves_a_whole_sink"
)
def test_drivers_that_start_while_another_runs_leave_a_whole_sink(
    spark: SparkSession, tmp_path: Path, runtime: Path
) -> None:
    numbers = chance("moments")
    feed = InputFeed(tmp_path / "in")
    drivers = [KilledDriver(tmp_path, runtime, interval="1 s")]
    try:
        drivers[0].wait("warm")
        drivers[0].tell()
        for _ in range(ROUNDS):
            # It starts its JVM while the other works.
            drivers.append(KilledDriver(tmp_path, runtime, interval="1 s"))
            before, after = drivers[-2:]
            after.wait("warm")
            feed.add(4)
            before.wait("sank", numbers.randint(1, 3), feed.taken)
            time.sleep(numbers.uniform(0, 0.5))
            after.tell()
            after.wait("started")
            assert "was fenced" in " ".join(before.wait_for_end())
            before.kill()
            feed.add(2)
            after.wait_for_files(feed.files)
            check_whole(spark, tmp_path / "out", feed.files)
        drivers[-1].tell()
        drivers[-1].wait("stopped")
    finally:
        for driver in drivers:
            driver.kill()


def listing(out: Path) -> Counter[str]:
    return Counter(str(path.relative_to(out)) for path in out.rglob("*") if not path.name.startswith("."))


# --- what others wrote --------------------------------------------------------------------------------------


@pytest.mark.full("integration/test_taking_over.py::test_a_managed_table_is_begun_and_gone_on_with")
def test_the_table_of_a_plain_query_is_refused_at_every_start(
    spark: SparkSession, make: Make, events: Events, tmp_path: Path
) -> None:
    events.add(3)
    out = tmp_path / "out"
    plain = events.stream(spark).writeStream.format("parquet").option("path", str(out))
    query = plain.option("checkpointLocation", str(tmp_path / "plain")).trigger(availableNow=True).start()
    query.awaitTermination()
    before = listing(out)
    # Also of a pipeline that goes on, in which the query is new.
    with make() as coordinator:
        other = events.stream(spark).writeStream.format("parquet").option("path", str(tmp_path / "other"))
        coordinator.start(other, name="other").processAllAvailable()
        coordinator.checkpoint().result(DEADLINE)
    for _ in range(2):
        with make() as coordinator, pytest.raises(SinkTakenError, match="another query or program"):
            coordinator.start(
                events.stream(spark).writeStream.format("parquet").option("path", str(out)), name="q"
            )
    assert listing(out) == before
    assert spark.read.schema(EVENTS).parquet(str(out)).count() == 3 * 40


def test_a_managed_table_is_begun_and_gone_on_with(
    spark: SparkSession, make: Make, events: Events, tmp_path: Path
) -> None:
    table = f"begun_{tmp_path.name}"
    for life in range(2):
        events.add(2)
        with make() as coordinator:
            query = coordinator.start(
                events.stream(spark).writeStream.format("parquet"), name="q", table=table
            )
            query.processAllAvailable()
            coordinator.checkpoint().result(DEADLINE)
        assert spark.table(table).count() == 80 * (life + 1)
    with (
        make("another") as coordinator,
        pytest.raises(SinkTakenError, match="that of query 'q' of pipeline 'p'"),
    ):
        coordinator.start(events.stream(spark).writeStream.format("parquet"), name="q", table=table)
    spark.sql(f"DROP TABLE {table}")


# --- a sink's log with a hole -------------------------------------------------------------------------------


def test_a_restart_in_place_that_meets_the_same_wall_gives_way_to_going_back(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    """Somebody has deleted an entry of the sink's log: Spark fails when it compacts the log, again and again."""
    out = tmp_path / "out"
    with make(restart=FixedDelay("10 ms", attempts=10)) as coordinator:
        events.add(4)
        writer = events.stream(spark).writeStream.format("parquet").option("path", str(out))
        query = coordinator.start(writer, name="q")
        query.processAllAvailable()
        coordinator.checkpoint().result(DEADLINE)
        events.add(2)
        query.processAllAvailable()
        (out / LOG / "5").unlink()
        events.add(6)
        eventually(lambda: file_sink_log.newest(out) >= 11, "the pipeline has gone back and has come further")
        query.processAllAvailable()
        causes = [one.cause for one in coordinator.recoveries]
        assert [one.in_place for one in coordinator.recoveries] == [False, True, False], causes
        assert "BATCH_METADATA_NOT_FOUND" in causes[-1]
        file_sink_log.files_at(out, 11)
    assert spark.read.parquet(str(out)).count() == 12 * 40
