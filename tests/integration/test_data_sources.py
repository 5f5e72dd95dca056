"""A stream writer that was written for plain Spark, as a transactional sink: the same rows, each once."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource

from chandy import (
    CheckpointConfig,
    CheckpointCoordinator,
    CheckpointedQuery,
    DataSourceSink,
    FixedDelay,
    NoRestart,
    OutputAheadError,
    Permit,
    QueryFailedError,
)
from chandy.coordinator.connectors.data_source.errors import DataSourceFailedError
from chandy.coordinator.connectors.data_source.messages import INLINE_BYTES
from chandy.coordinator.errors import SinkTakenError, WriterError
from chandy.storage.backends.open import open_store, pipeline_uri
from chandy.storage.checkpoints.layout import STAGED
from tests.coordinator.connectors import file_source
from tests.coordinator.connectors.file_source import ArrowFileSource, FileSource, calls, files, mark, rows
from tests.permits import printed
from tests.waiting import DEADLINE, eventually

from .. import insides
from . import drivers
from .driver_process import driver
from .driver_runs import runtime as runtime
from .drivers import add_file
from .support import TOTALS, Events, Make, Totals

pytestmark = pytest.mark.spark

# A worker of Spark cannot import test code.
cloudpickle.register_pickle_by_value(file_source)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def start(
    coordinator: CheckpointCoordinator,
    df: DataFrame,
    out: Path,
    source: type[DataSource] | str = FileSource,
    record: str | None = None,
    ballast: int = 0,
) -> CheckpointedQuery:
    sink = DataSourceSink(source, options={"path": out, "ballast": ballast}, record=record)
    return coordinator.start(df.writeStream, sink=sink, name="rows")


def given(events: Events) -> Counter[tuple[str, int]]:
    lines = [line for path in events.folder.glob("*.json") for line in path.read_text().splitlines()]
    return Counter((row["k"], row["v"]) for row in map(json.loads, lines))


def committed(out: Path) -> Counter[tuple[str, int]]:
    return Counter((row["k"], row["v"]) for row in rows(out))


def ids(out: Path) -> list[int]:
    """The ``batchId`` of each commit."""
    return [call[1] for call in calls(out, "commit")]


# --- the same writer ----------------------------------------------------------------------------------------


@pytest.mark.compat
@pytest.mark.parametrize(
    "source",
    [
        FileSource,
        pytest.param(
            ArrowFileSource,
            marks=pytest.mark.full(
                "integration/test_data_sources.py::test_a_writer_does_under_chandy_what_it_does_under_spark"
            ),
        ),
    ],
)
def test_a_writer_does_under_chandy_what_it_does_under_spark(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path, out: Path, source: type[DataSource]
) -> None:
    events.add(3)
    spark.dataSource.register(source)
    plain = events.stream(spark).repartition(2).writeStream.format(source.name())
    plain.option("path", tmp_path / "plain").option("checkpointLocation", str(tmp_path / "cp"))
    plain.trigger(availableNow=True).start().awaitTermination()
    assert committed(tmp_path / "plain") == given(events)

    coordinator = make()
    # As Spark does, it finds a data source under its name in any case.
    query = start(coordinator, events.stream(spark).repartition(2), out, source.name().upper())
    assert str(query.guarantee).startswith("exactly once if commit is idempotent: rows are committed")
    query.processAllAvailable()
    assert committed(out) == Counter()
    assert calls(out, "commit") == []
    first = coordinator.checkpoint().result(DEADLINE)
    assert committed(out) == committed(tmp_path / "plain")
    assert ids(out) == [first.id]
    # One message for each partition of each of the three batches.
    assert len(calls(out, "commit")[0][2]) == 6
    events.add()
    query.processAllAvailable()
    last = coordinator.stop()
    assert last is not None
    assert ids(out) == [first.id, last.id]
    assert committed(out) == given(events)
    assert calls(out, "abort", "repeated") == []


@pytest.mark.full(
    "integration/test_data_sources.py::test_what_was_written_since_the_checkpoint_is_aborted_when_the_pipeline_goes_back"
)
def test_a_pipeline_goes_on_where_it_stopped(
    make: Make, spark: SparkSession, events: Events, out: Path
) -> None:
    for _ in range(3):
        events.add()
        coordinator = make()
        start(coordinator, events.stream(spark), out).processAllAvailable()
        coordinator.stop()
        assert committed(out) == given(events)
    assert ids(out) == sorted(set(ids(out)))


# --- what is written and never committed --------------------------------------------------------------------


@pytest.mark.parametrize(
    "ballast",
    [
        pytest.param(
            0,
            marks=pytest.mark.full(
                "integration/test_data_sources.py::test_what_was_written_of_a_batch_that_fails_is_aborted"
            ),
        ),
        2 * INLINE_BYTES,
    ],
)
def test_what_was_written_of_a_batch_that_fails_is_aborted(
    make: Make, spark: SparkSession, events: Events, out: Path, tmp_path: Path, ballast: int
) -> None:
    # Two threads: the third partition is written when one of the others has been.
    mark(out, "write-2")
    events.add()
    coordinator = make(restart=FixedDelay(attempts=3, delay="0 s"))
    query = start(coordinator, events.stream(spark).repartition(3), out, ballast=ballast)
    eventually(lambda: len(coordinator.recoveries) >= 2, "the query to be restarted")
    query.processAllAvailable()
    done = coordinator.checkpoint().result(DEADLINE)
    ((_, batch, aborted),) = calls(out, "abort")
    assert len(aborted) in (1, 2)
    assert None not in aborted
    # As in Spark: the id of what is tried again.
    assert batch <= done.id
    assert ids(out) == [done.id]
    assert committed(out) == given(events)
    # Large messages are objects, which are deleted with what they are about. A task that ends after its batch has
    # failed leaves one that nobody knows, for `chandy gc`.
    store = open_store(pipeline_uri(str(tmp_path / "store"), "p"))
    left = len(store.list(STAGED))
    assert 3 <= left <= 5 - len(aborted) if ballast else left == 0


def test_what_was_written_since_the_checkpoint_is_aborted_when_the_pipeline_goes_back(
    make: Make, spark: SparkSession, events: Events, out: Path
) -> None:
    coordinator = make(changelog=False, restart=FixedDelay(attempts=3, delay="0 s"))
    totals = coordinator.transform_with_state(
        events.stream(spark), key=["k"], processor=Totals(), output=TOTALS, uid="totals", shards=4
    )
    events.add(2)
    query = start(coordinator, totals, out)
    query.processAllAvailable()
    first = coordinator.checkpoint().result(DEADLINE)
    before = files(out)
    events.add(2)
    query.processAllAvailable()
    behind = files(out) - before
    assert behind
    insides.lose_state(coordinator)
    eventually(lambda: len(coordinator.recoveries) >= 2)
    query.processAllAvailable()
    second = coordinator.checkpoint().result(DEADLINE)
    assert not behind & files(out)
    aborts = calls(out, "abort")
    assert aborts
    assert {batch for _, batch, _ in aborts} == {first.id + 1}
    assert ids(out) == [first.id, second.id]
    counts = Counter((row["k"], row["n"]) for row in rows(out))
    assert set(counts.values()) == {1}


# --- going back ---------------------------------------------------------------------------------------------


@pytest.mark.full(
    "integration/test_transactional_sinks.py::test_an_older_checkpoint_is_refused_behind_published_output_unless_rows_may_come_twice"
)
def test_an_older_checkpoint_is_refused_unless_rows_may_come_twice(
    make: Make, spark: SparkSession, events: Events, out: Path
) -> None:
    first = make()
    query = start(first, events.stream(spark), out)
    for _ in range(2):
        events.add()
        query.processAllAvailable()
        first.checkpoint().result(DEADLINE)
    first.stop()
    before = ids(out)
    with pytest.raises(OutputAheadError, match="restore that one or a newer one") as refused:
        start(make(restore=1), events.stream(spark), out)
    with pytest.raises(OutputAheadError, match="without a checkpoint"):
        start(make(restore="none"), events.stream(spark), out)
    assert ids(out) == before
    assert committed(out) == given(events)
    twice = make(restore=1, permit=printed(refused.value))
    start(twice, events.stream(spark), out).processAllAvailable()
    twice.stop()
    # An id that was used already would have been taken for a repetition, and its rows would be lost.
    assert calls(out, "repeated") == []
    assert min(ids(out)[len(before) :]) > max(before)
    assert (committed(out) - given(events)).total() == 40


def test_a_savepoint_that_moves_to_another_store_needs_the_record(
    make: Make, spark: SparkSession, events: Events, out: Path, tmp_path: Path
) -> None:
    events.add()
    first = make()
    start(first, events.stream(spark), out).processAllAvailable()
    saved = first.stop(savepoint=f"file://{tmp_path}/saved")
    assert saved is not None
    old = pipeline_uri(str(tmp_path / "store"), "p")
    events.add()

    def moved(record: str | None, permit: Permit | None = None) -> None:
        coordinator = CheckpointCoordinator(
            spark,
            pipeline="p",
            storage=str(tmp_path / "elsewhere"),
            config=CheckpointConfig(interval=None, restart=NoRestart()),
            restore=saved.uri,
            permit=permit,
        )
        try:
            start(coordinator, events.stream(spark), out, record=record).processAllAvailable()
            coordinator.stop()
        finally:
            coordinator.stop(checkpoint=False)

    before = ids(out)
    with pytest.raises(SinkTakenError, match="none: the checkpoint comes from a pipeline with another store"):
        moved(None)
    with pytest.raises(SinkTakenError, match="checkpoints in") as refused:
        moved(old)
    assert ids(out) == before
    moved(old, printed(refused.value))
    assert committed(out) == given(events)
    assert calls(out, "repeated") == []


# --- what fails ---------------------------------------------------------------------------------------------


def test_what_write_raises_ends_the_query_and_is_named(
    make: Make, spark: SparkSession, events: Events, out: Path
) -> None:
    mark(out, "write-0")
    events.add()
    query = start(make(), events.stream(spark), out)
    with pytest.raises(QueryFailedError) as caught:
        query.awaitTermination()
    text = str(caught.value)
    assert "data source 'listedFiles' has failed in write() of batch 0, partition 0" in text
    assert "ValueError: made to fail in write-0" in text
    assert "file_source.py" in text
    again = make()
    start(again, events.stream(spark), out).processAllAvailable()
    again.stop()
    assert committed(out) == given(events)


def test_what_commit_raises_ends_the_pipeline_and_is_committed_by_the_next_start(
    make: Make, spark: SparkSession, events: Events, out: Path
) -> None:
    mark(out, "commit")
    events.add()
    coordinator = make()
    query = start(coordinator, events.stream(spark), out)
    query.processAllAvailable()
    coordinator.checkpoint()
    with pytest.raises(DataSourceFailedError) as caught:
        query.awaitTermination()
    text = str(caught.value)
    assert "has failed in commit() of batchId 1" in text
    assert "ValueError: made to fail in commit" in text
    assert "file_source.py" in text
    assert committed(out) == Counter()
    start(make(), events.stream(spark), out)
    assert ids(out) == [1, 1]
    assert committed(out) == given(events)


def test_what_cannot_be_a_sink_is_refused_before_it_starts(
    make: Make, spark: SparkSession, events: Events, out: Path
) -> None:
    class Reader(DataSource):
        pass

    coordinator = make()
    with pytest.raises(WriterError, match="none that is registered under it"):
        start(coordinator, events.stream(spark), out, "neverRegistered")
    with pytest.raises(WriterError, match=r"streamWriter\(\) to return"):
        start(coordinator, events.stream(spark), out, Reader)
    counts = events.stream(spark).groupBy("k").count().writeStream.outputMode("complete")
    with pytest.raises(WriterError, match="append or update, found complete"):
        coordinator.start(counts, sink=DataSourceSink(FileSource, options={"path": out}), name="counts")
    assert not out.exists()


# --- drivers that are killed --------------------------------------------------------------------------------


@pytest.mark.kills
@pytest.mark.full(
    "integration/test_data_sources.py::test_what_commit_raises_ends_the_pipeline_and_is_committed_by_the_next_start"
)
def test_every_row_is_there_once_although_drivers_are_killed_within_commits_and_tasks_fail(
    tmp_path: Path, runtime: Path, out: Path
) -> None:
    (tmp_path / "in").mkdir()
    options = {"folder": tmp_path}
    added = 0

    def add() -> None:
        nonlocal added
        for _ in range(3):
            add_file(tmp_path / "in", added)
            added += 1

    for place in ("committed", "commit"):
        add()
        mark(out, place, "kill")
        with driver("data_source_driver", tmp_path, runtime, options) as killed:
            killed.process.wait(DEADLINE)
            assert killed.process.returncode == -signal.SIGKILL
    add()
    # The first attempt of a task; Spark tries it again.
    mark(out, "write-1")
    with driver("data_source_driver", tmp_path, runtime, options) as last:
        assert last.process.stdin is not None
        last.process.stdin.close()
        eventually(lambda: last.process.poll() is not None, "the driver to end")
    assert "stopped" in last.events
    assert not (out / "marks" / "write-1").exists()
    # The commit that was complete comes again with its id until it is recorded: who repeats it first is killed, too.
    (repeated,) = [batch for _, batch in calls(out, "repeated")]
    assert sorted(batch for batch, times in Counter(ids(out)).items() if times > 1)[0] == repeated
    assert sum(times - 1 for times in Counter(ids(out)).values()) == 2
    found = Counter((row["id"], row["k"], row["v"]) for row in rows(out))
    assert found == Counter(row for file in range(added) for row in drivers.records(file))
