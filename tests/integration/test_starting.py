"""One DataStreamWriter started many times, on real Spark."""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from chandy.coordinator.spark import progress, starting
from chandy.coordinator.spark.plan import facts, field
from chandy.coordinator.spark.starting import ADAPTIVE, FILE_MANAGER, LOCAL_FILE_MANAGER
from chandy.storage.checkpoints.proof import Unshared

from ..waiting import DEADLINE

pytestmark = pytest.mark.spark

start = partial(starting.start, proof=Unshared())


@pytest.fixture
def lines(spark: SparkSession, tmp_path: Path) -> DataFrame:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.json").write_text('{"id": 1}\n{"id": 2}')
    return spark.readStream.schema("id long").json(str(folder))


@pytest.mark.compat
def test_a_writer_starts_again_and_again_and_keeps_its_function(lines: DataFrame, tmp_path: Path) -> None:
    seen: list[int] = []
    followed: list[int] = []
    writer = lines.writeStream.foreachBatch(lambda frame, batch: seen.append(frame.count()))
    writer = writer.trigger(availableNow=True)
    ids = set()
    for life in range(3):
        query = start(
            writer,
            query_id="new",
            location=str(tmp_path / str(life)),
            query_name="same",
            after_batch=(lambda rows, batch, life=life: followed.append(life)) if life else None,
        )
        assert query.awaitTermination(DEADLINE)
        assert query.name == "same"
        ids.add(query.id)
        gc.collect()
    assert seen == [2, 2, 2]
    assert followed == [1, 2], "each by its own query, and by the user's function alone in between"
    assert len(ids) == 3


def test_a_start_that_is_interrupted_leaves_no_query_that_nobody_knows(
    spark: SparkSession, lines: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = lines.writeStream.format("noop")
    first = start(writer, query_id="new", location=str(tmp_path / "0"))
    first.stop()

    def interrupt(query: StreamingQuery) -> None:
        assert query.id == first.id
        raise KeyboardInterrupt

    monkeypatch.setattr(starting, "_await_sources", interrupt)
    with pytest.raises(KeyboardInterrupt):
        start(writer, query_id=first.id, location=str(tmp_path / "0"))
    assert first.id not in [query.id for query in spark.streams.active]


def test_starting_leaves_the_writer_as_it_was(lines: DataFrame, tmp_path: Path) -> None:
    writer = lines.writeStream.format("noop").queryName("own").trigger(availableNow=True)
    before = facts(writer)
    query = start(writer, query_id="new", location=str(tmp_path / "0"), query_name="other")
    assert query.awaitTermination(DEADLINE)
    assert query.name == "other"
    assert facts(writer) == before
    assert before.query_name == "own"


def test_the_writers_own_query_name_stays_where_none_is_given(lines: DataFrame, tmp_path: Path) -> None:
    writer = lines.writeStream.format("noop").queryName("own").trigger(availableNow=True)
    query = start(writer, query_id="new", location=f"file://{tmp_path}/0")
    assert query.awaitTermination(DEADLINE)
    assert query.name == "own"


def test_a_writer_runs_on_two_locations_at_once(lines: DataFrame, tmp_path: Path) -> None:
    writer = lines.writeStream.format("noop")
    queries = [start(writer, query_id="new", location=str(tmp_path / name)) for name in ("a", "b")]
    for query in queries:
        query.processAllAvailable()
        query.stop()
    assert [progress.newest_committed(tmp_path / name) for name in ("a", "b")] == [0, 0]


def test_a_default_location_of_the_session_is_not_used(
    lines: DataFrame, settings: dict[str, str], tmp_path: Path
) -> None:
    settings["spark.sql.streaming.checkpointLocation"] = str(tmp_path / "default")
    query = start(
        lines.writeStream.format("noop").trigger(availableNow=True),
        query_id="new",
        location=str(tmp_path / "own"),
    )
    assert query.awaitTermination(DEADLINE)
    assert progress.query_id(tmp_path / "own") == str(query.id)
    assert not (tmp_path / "default").exists()


def test_the_local_file_manager_is_set_for_the_start_alone(
    spark: SparkSession, lines: DataFrame, tmp_path: Path
) -> None:
    assert spark.conf.get(FILE_MANAGER, None) is None
    query = start(lines.writeStream.format("noop"), query_id="new", location=str(tmp_path / "work"))
    assert spark.conf.get(FILE_MANAGER, None) is None
    execution = query._jsq.streamingQuery()
    logs = [execution.offsetLog(), execution.commitLog(), field(execution.sources().apply(0), "metadataLog")]
    assert [inherited_field(log, "fileManager").getClass().getName() for log in logs] == [
        LOCAL_FILE_MANAGER
    ] * 3
    query.processAllAvailable()
    query.stop()


def test_a_file_manager_that_the_user_chose_stays(
    lines: DataFrame, spark: SparkSession, settings: dict[str, str], tmp_path: Path
) -> None:
    settings[FILE_MANAGER] = "no.such.FileManager"
    with pytest.raises(Exception, match=r"no\.such\.FileManager"):
        start(lines.writeStream.format("noop"), query_id="new", location=str(tmp_path / "work"))
    assert spark.conf.get(FILE_MANAGER) == "no.such.FileManager"


def is_adaptive(lines: DataFrame, location: Path, *, stateful: bool) -> bool:
    """Whether a query's batches are planned adaptively: run one with a shuffle, and look at its plan."""
    writer = lines.repartition(2, "id").writeStream.format("noop").trigger(availableNow=True)
    query = start(writer, query_id="new", location=str(location), stateful=stateful)
    assert query.awaitTermination(DEADLINE)
    plan = query._jsq.explainInternal(False)
    assert "Exchange" in plan
    return "AdaptiveSparkPlan" in plan


def test_a_query_with_state_is_not_planned_adaptively(
    spark: SparkSession, lines: DataFrame, tmp_path: Path
) -> None:
    assert [
        is_adaptive(lines, tmp_path / str(stateful), stateful=stateful) for stateful in (True, False)
    ] == [
        False,
        True,
    ]
    assert spark.conf.get(ADAPTIVE, None) is None


def test_adaptive_planning_that_the_user_chose_stays(
    lines: DataFrame, settings: dict[str, str], tmp_path: Path
) -> None:
    settings[ADAPTIVE] = "true"
    assert is_adaptive(lines, tmp_path / "work", stateful=True)


def test_a_start_that_fails_leaves_writer_and_session_as_they_were(
    spark: SparkSession, lines: DataFrame, tmp_path: Path
) -> None:
    writer = lines.writeStream.outputMode("complete").format("noop")
    before = facts(writer)
    with pytest.raises(AnalysisException):
        start(writer, query_id="new", location=str(tmp_path / "work"), query_name="x")
    assert facts(writer) == before
    assert spark.conf.get(FILE_MANAGER, None) is None


def inherited_field(instance: Any, name: str) -> Any:
    kind = instance.getClass()
    while name not in [found.getName() for found in kind.getDeclaredFields()]:
        kind = kind.getSuperclass()
    found = kind.getDeclaredField(name)
    found.setAccessible(True)
    return found.get(instance)
