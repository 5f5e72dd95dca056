"""Output that appears with the checkpoint that has it, once: with a real database as the target, under Spark."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections import Counter
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from chandy.coordinator import (
    Checkpoint,
    CheckpointCoordinator,
    CheckpointedQuery,
    ExponentialBackoff,
    FixedDelay,
    NoRestart,
)
from chandy.coordinator.connectors.files.sink import FilesSink
from chandy.coordinator.connectors.tables.delta import DeltaSink
from chandy.coordinator.errors import PipelineFailedError, QueryFailedError, RestoreError, WriterError
from chandy.coordinator.protocol.restart_tracker import RestartStrategy
from chandy.coordinator.sinks.two_phase.errors import OutputAheadError, OutputError, OutputLostError
from chandy.storage.backends.open import open_store, pipeline_uri
from chandy.storage.checkpoints.layout import STAGED
from tests.coordinator.sinks.two_phase import sqlite_sink
from tests.coordinator.sinks.two_phase.sqlite_sink import SqliteSink
from tests.permits import printed
from tests.waiting import DEADLINE, eventually

from .. import insides
from .support import EVENTS, TOTALS, Events, Make, Totals

pytestmark = pytest.mark.spark

# A worker of Spark cannot import test code.
cloudpickle.register_pickle_by_value(sqlite_sink)

Row = tuple[object, ...]


@pytest.fixture
def sink(tmp_path: Path) -> SqliteSink:
    return SqliteSink(tmp_path / "out.db", ("k", "n", "total"))


def start(
    coordinator: CheckpointCoordinator, spark: SparkSession, events: Events, *sinks: SqliteSink
) -> CheckpointedQuery:
    totals = coordinator.transform_with_state(
        events.stream(spark), key=["k"], processor=Totals(), output=TOTALS, uid="totals", shards=4
    )
    return coordinator.start(totals.writeStream, sink=sinks, name="totals")


def totals_into_nothing(coordinator: CheckpointCoordinator, spark: SparkSession, events: Events) -> None:
    totals = coordinator.transform_with_state(
        events.stream(spark), key=["k"], processor=Totals(), output=TOTALS, uid="totals", shards=4
    )
    coordinator.start(totals.writeStream.format("noop"), name="totals")


def expected(events: Events) -> Counter[Row]:
    """What the query gives out for the input files so far: one row for each key in each of them."""
    state: dict[str, tuple[int, int]] = {}
    rows: Counter[Row] = Counter()
    for path in sorted(events.folder.glob("*.json")):
        given = [json.loads(line) for line in path.read_text().splitlines()]
        for one in given:
            n, total = state.get(one["k"], (0, 0))
            state[one["k"]] = n + 1, total + one["v"]
        rows.update((key, *state[key]) for key in {one["k"] for one in given})
    return rows


def published(sink: SqliteSink) -> Counter[Row]:
    return Counter(sink.rows())


def staged(tmp_path: Path) -> list[str]:
    return open_store(pipeline_uri(str(tmp_path / "store"), "p")).list(STAGED)


def test_output_appears_with_the_checkpoint_that_has_it(
    make: Make, spark: SparkSession, events: Events, sink: SqliteSink, tmp_path: Path
) -> None:
    other = SqliteSink(tmp_path / "other.db", sink.columns, "other")
    events.add(2)
    coordinator = make(retained=1)
    query = start(coordinator, spark, events, sink, other)
    assert query.guarantee.level == "exactly once"
    query.processAllAvailable()
    assert published(sink) == Counter()
    coordinator.checkpoint().result(DEADLINE)
    assert published(sink) == published(other) == expected(events)
    # Nothing is kept of what is published, once no checkpoint needs it.
    events.add()
    query.processAllAvailable()
    coordinator.checkpoint().result(DEADLINE)
    coordinator.checkpoint().result(DEADLINE)
    eventually(lambda: staged(tmp_path) == [], "staged rows to be deleted")
    events.add()
    query.processAllAvailable()
    coordinator.stop()
    assert published(sink) == published(other) == expected(events)

    again = make()
    query = start(again, spark, events, sink, other)
    events.add()
    query.processAllAvailable()
    again.stop()
    assert published(sink) == published(other) == expected(events)


def test_columns_have_the_names_that_spark_gives_to_expressions(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    events.add(2)
    coordinator = make()
    rows = events.stream(spark).selectExpr("k AS `a.k`", "v * 1.5D", "named_struct('a.b', v) AS `s.t`")
    query = coordinator.start(rows.writeStream, sink=FilesSink(str(tmp_path / "out")), name="q")
    query.processAllAvailable()
    coordinator.checkpoint().result(DEADLINE)
    plain = spark.read.schema(EVENTS).json(str(events.folder))
    wanted = plain.selectExpr("k AS `a.k`", "v * 1.5D", "named_struct('a.b', v) AS `s.t`")
    found = spark.read.parquet(str(tmp_path / "out"))
    assert found.columns == wanted.columns
    assert Counter(map(tuple, found.collect())) == Counter(map(tuple, wanted.collect()))


def test_a_query_that_goes_back_publishes_nothing_twice_and_the_log_says_when_it_is_over(
    make: Make,
    spark: SparkSession,
    events: Events,
    sink: SqliteSink,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    events.add(2)
    coordinator = make(changelog=False, restart=FixedDelay(attempts=3, delay="0 s"))
    query = start(coordinator, spark, events, sink)
    query.processAllAvailable()
    coordinator.checkpoint().result(DEADLINE)
    events.add(2)
    query.processAllAvailable()
    assert "the query runs again" not in caplog.text
    insides.lose_state(coordinator)
    eventually(lambda: len(coordinator.recoveries) == 2)
    events.add()
    query.processAllAvailable()
    coordinator.checkpoint().result(DEADLINE)
    assert published(sink) == expected(events)
    # The thread that follows the query notices its first commit a little later.
    eventually(lambda: "the query runs again" in caplog.text)
    (line,) = (one.getMessage() for one in caplog.records if "the query runs again" in one.getMessage())
    assert "batch=2" in line
    assert "after_seconds=" in line
    assert "query=totals" in line


def test_checkpoints_complete_while_the_target_is_away(
    make: Make, spark: SparkSession, events: Events, sink: SqliteSink, tmp_path: Path
) -> None:
    coordinator = make(retained=1)
    query = start(coordinator, spark, events, sink)
    away = tmp_path / "away"
    away.touch()
    waiting = []
    for number in range(3):
        events.add()
        query.processAllAvailable()
        waiting.append(coordinator.checkpoint())
        eventually(lambda number=number: coordinator.statistics().counts.completed == number + 1)  # type: ignore[misc]
    assert not any(future.done() for future in waiting)
    assert published(sink) == Counter()
    away.unlink()
    assert [future.result(DEADLINE).id for future in waiting] == [1, 2, 3]
    assert published(sink) == expected(events)


def test_a_query_pauses_when_too_much_waits_and_goes_on_by_itself(
    make: Make,
    spark: SparkSession,
    events: Events,
    sink: SqliteSink,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CHANDY_MAX_UNPUBLISHED", "1")
    coordinator = make()
    query = start(coordinator, spark, events, sink)
    away = tmp_path / "away"
    away.touch()
    events.add()
    query.processAllAvailable()
    first = coordinator.checkpoint()
    eventually(lambda: coordinator.statistics().counts.completed == 1)
    events.add(2)
    second = coordinator.checkpoint()
    run = insides.run(coordinator, "totals")
    eventually(lambda: (run.directory / "offsets" / "1").exists(), "the next batch to be planned")
    assert not (run.directory / "commits" / "1").exists()
    assert coordinator.statistics().counts.in_progress == 0
    away.unlink()
    assert first.result(DEADLINE).id < second.result(DEADLINE).id
    query.processAllAvailable()
    coordinator.checkpoint().result(DEADLINE)
    assert published(sink) == expected(events)


def test_an_older_checkpoint_is_refused_behind_published_output_unless_rows_may_come_twice(
    make: Make, spark: SparkSession, events: Events, sink: SqliteSink
) -> None:
    first = make()
    query = start(first, spark, events, sink)
    for _ in range(2):
        events.add()
        query.processAllAvailable()
        first.checkpoint().result(DEADLINE)
    first.stop()
    before = published(sink)
    with pytest.raises(OutputAheadError, match="restore that one or a newer one") as refused:
        start(make(restore=1), spark, events, sink)
    with pytest.raises(OutputAheadError, match="without a checkpoint"):
        start(make(restore="none"), spark, events, sink)
    assert published(sink) == before
    twice = make(restore=1, permit=printed(refused.value))
    query = start(twice, spark, events, sink)
    query.processAllAvailable()
    twice.stop()
    assert (published(sink) - before).total() == 7
    assert set(published(sink)) == set(before)


def test_a_target_that_has_lost_its_rows_is_noticed(
    make: Make, spark: SparkSession, events: Events, sink: SqliteSink
) -> None:
    events.add()
    first = make()
    query = start(first, spark, events, sink)
    query.processAllAvailable()
    first.stop()
    # The checkpoint that knows what was published is the one after.
    second = make()
    query = start(second, spark, events, sink)
    events.add()
    query.processAllAvailable()
    second.stop()
    sink.path.unlink()
    with pytest.raises(OutputLostError, match="nothing of it") as refused:
        start(make(), spark, events, sink)
    permit = printed(refused.value)
    third = make(permit=permit)
    query = start(third, spark, events, sink)
    events.add()
    query.processAllAvailable()
    third.stop()
    assert set(published(sink)) < set(expected(events))
    # The permit is still in the program, and the next loss is another one.
    sink.path.unlink()
    with pytest.raises(OutputLostError, match="nothing of it"):
        start(make(permit=permit), spark, events, sink)


def test_a_savepoint_takes_what_is_not_published_along(
    make: Make, spark: SparkSession, events: Events, sink: SqliteSink, tmp_path: Path
) -> None:
    events.add(2)
    first = make()
    query = start(first, spark, events, sink)
    query.processAllAvailable()
    place = f"file://{tmp_path}/moved"
    saved = first.savepoint(place).result(DEADLINE)
    # A savepoint publishes nothing by itself.
    assert published(sink) == Counter()
    first.stop(checkpoint=False)
    for key in staged(tmp_path):
        (tmp_path / "store" / "p" / key).unlink()
    second = make(restore=saved.uri)
    query = start(second, spark, events, sink)
    assert published(sink) == expected(events)
    events.add()
    query.processAllAvailable()
    second.stop()
    assert published(sink) == expected(events)


def test_a_stop_with_a_savepoint_publishes_first(
    make: Make, spark: SparkSession, events: Events, sink: SqliteSink, tmp_path: Path
) -> None:
    events.add(2)
    first = make()
    start(first, spark, events, sink).processAllAvailable()
    saved = first.stop(savepoint=f"file://{tmp_path}/saved")
    assert saved is not None
    assert published(sink) == expected(events)
    later = make()
    query = start(later, spark, events, sink)
    events.add()
    query.processAllAvailable()
    later.stop()
    assert published(sink) == expected(events)


def test_a_paused_query_stops_at_once_and_nothing_of_it_is_lost(
    make: Make,
    spark: SparkSession,
    events: Events,
    sink: SqliteSink,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("chandy.coordinator.sinks.two_phase.query_sink._CLOSE_SECONDS", 0.0)
    monkeypatch.setenv("CHANDY_MAX_UNPUBLISHED", "1")
    coordinator = make()
    query = start(coordinator, spark, events, sink)
    away = tmp_path / "away"
    away.touch()
    events.add()
    query.processAllAvailable()
    coordinator.checkpoint()
    eventually(lambda: coordinator.statistics().counts.completed == 1)
    events.add(2)
    run = insides.run(coordinator, "totals")
    eventually(lambda: (run.directory / "offsets" / "1").exists(), "the next batch to be planned")
    # The batch that waits is given up, and a savepoint takes along what is not published.
    saved = coordinator.stop(savepoint=f"file://{tmp_path}/saved", timeout="1 s")
    assert saved is not None
    assert saved.batches == {"totals": 0}
    assert published(sink) == Counter()
    away.unlink()
    again = make(restore=saved.uri)
    query = start(again, spark, events, sink)
    query.processAllAvailable()
    again.stop()
    assert published(sink) == expected(events)


def test_the_last_checkpoint_of_a_stop_counts_although_its_target_is_away(
    make: Make,
    spark: SparkSession,
    events: Events,
    sink: SqliteSink,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("chandy.coordinator.sinks.two_phase.query_sink._CLOSE_SECONDS", 0.0)
    events.add()
    coordinator = make()
    query = start(coordinator, spark, events, sink)
    query.processAllAvailable()
    (tmp_path / "away").touch()
    request = insides.executor(coordinator).request

    def requested(*given: Any, **more: Any) -> Future[Checkpoint]:
        asked = request(*given, **more)
        eventually(lambda: coordinator.statistics().counts.completed == 1, "the last checkpoint")
        return asked

    monkeypatch.setattr(insides.executor(coordinator), "request", requested)
    last = coordinator.stop(timeout="0 s")
    assert last is not None
    assert last.batches == {"totals": 0}
    (tmp_path / "away").unlink()
    start(make(), spark, events, sink)
    assert published(sink) == expected(events)


def test_a_row_that_one_of_several_targets_cannot_have_fails_its_batch_and_is_staged_for_none(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    from deltalake import DeltaTable

    table = str(tmp_path / "table")
    DeltaTable.create(
        table, pa.schema([pa.field("k", pa.string()), pa.field("v", pa.int64(), nullable=False)])
    )
    events.add(rows=2)
    rows = events.stream(spark).selectExpr("k", "nullif(v, 0) AS v")
    sinks = FilesSink(str(tmp_path / "out")), DeltaSink(table, uid="delta")
    query = make().start(rows.writeStream, sink=sinks, name="q")
    with pytest.raises(QueryFailedError, match=r"sink 'delta' cannot take batch 0.* null in column 'v'"):
        query.awaitTermination(DEADLINE)
    assert staged(tmp_path) == []
    coordinator = make()
    query = coordinator.start(rows.where("v IS NOT NULL").writeStream, sink=sinks, name="q")
    query.processAllAvailable()
    coordinator.stop()
    assert DeltaTable(table).to_pyarrow_table().to_pylist() == [{"k": "k1", "v": 1}]


@pytest.mark.parametrize(
    "restart",
    [
        pytest.param(
            NoRestart(),
            marks=pytest.mark.full(
                "integration/test_transactional_sinks.py::test_a_target_that_refuses_a_row_ends_the_pipeline_and_keeps_what_it_has"
            ),
            id="no restart",
        ),
        pytest.param(ExponentialBackoff(), id="default"),
    ],
)
def test_a_target_that_refuses_a_row_ends_the_pipeline_and_keeps_what_it_has(
    make: Make, spark: SparkSession, events: Events, sink: SqliteSink, restart: RestartStrategy
) -> None:
    events.add()
    coordinator = make(restart=restart)
    query = start(coordinator, spark, events, sink)
    query.processAllAvailable()
    coordinator.checkpoint().result(DEADLINE)
    before = published(sink)
    with closing(sqlite3.connect(sink.path)) as db:
        db.execute("CREATE TRIGGER no BEFORE INSERT ON rows BEGIN SELECT RAISE(ABORT, 'no more'); END")
        db.commit()
    events.add()
    query.processAllAvailable()
    coordinator.checkpoint()
    with pytest.raises(OutputError, match="no more"):
        query.awaitTermination()
    assert published(sink) == before
    with pytest.raises(PipelineFailedError):
        coordinator.start(events.stream(spark).writeStream.format("noop"), name="another")
    with closing(sqlite3.connect(sink.path)) as db:
        db.execute("DROP TRIGGER no")
        db.commit()
    start(make(), spark, events, sink)
    assert published(sink) == expected(events)


def test_what_cannot_be_a_transactional_query_is_refused_before_it_starts(
    make: Make, spark: SparkSession, events: Events, sink: SqliteSink, tmp_path: Path
) -> None:
    coordinator = make()
    with pytest.raises(OutputError, match="the table does not fit"):
        start(coordinator, spark, events, SqliteSink(tmp_path / "x.db", ("a",)))
    with pytest.raises(WriterError, match="a uid each"):
        coordinator.start(events.stream(spark).writeStream, sink=[sink, sink], name="twice")
    with pytest.raises(WriterError, match="found none"):
        coordinator.start(events.stream(spark).writeStream, sink=[], name="none")
    with pytest.raises(WriterError, match="found str"):
        coordinator.start(events.stream(spark).writeStream, sink=["parquet"], name="text")  # type: ignore[list-item]
    with pytest.raises(WriterError, match="sink= and table t"):
        coordinator.start(events.stream(spark).writeStream, sink=sink, name="both", table="t")
    joined = events.stream(spark).selectExpr("k", "v", "v AS V")
    with pytest.raises(WriterError, match="different names, whatever their case, found 'v', 'V'"):
        coordinator.start(joined.writeStream, sink=sink, name="joined")
    for change, found in (
        (lambda writer: writer.foreachBatch(lambda rows, batch: None), "foreach_?[bB]atch"),
        (lambda writer: writer.format("console"), "console"),
        (lambda writer: writer.option("path", "/out"), "parquet in /out"),
    ):
        with pytest.raises(WriterError, match=f"sink= and {found}"):
            coordinator.start(change(events.stream(spark).writeStream), sink=sink, name="both")
    # A start that was refused may be repeated with the same writer.
    writer = events.stream(spark).writeStream.option("checkpointLocation", str(tmp_path / "own"))
    fits = SqliteSink(tmp_path / "fits.db", ("k", "v"))
    for _ in range(2):
        with pytest.raises(WriterError, match="checkpointLocation"):
            coordinator.start(writer, sink=fits, name="both")


def test_a_sink_that_is_gone_with_unpublished_output_is_missed(
    make: Make, spark: SparkSession, events: Events, sink: SqliteSink, tmp_path: Path
) -> None:
    events.add()
    first = make()
    start(first, spark, events, sink).processAllAvailable()
    saved = first.savepoint(f"file://{tmp_path}/saved").result(DEADLINE)
    first.stop(checkpoint=False)
    other = SqliteSink(tmp_path / "other.db", sink.columns, "other")
    with pytest.raises(RestoreError, match="no sink 'sqlite'"):
        start(make(restore=saved.uri), spark, events, other)
    with pytest.raises(RestoreError, match="no sink 'sqlite'") as refused:
        totals_into_nothing(make(restore=saved.uri), spark, events)
    totals_into_nothing(make(restore=saved.uri, permit=printed(refused.value)), spark, events)
