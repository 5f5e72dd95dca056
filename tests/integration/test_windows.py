"""Aggregates of windows of event time give batch for batch what Spark's own groupBy gives, through restores."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import attrs
import pytest
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from chandy.coordinator import CheckpointCoordinator
from chandy.coordinator.batch_aggregate import BatchAggregate
from chandy.coordinator.errors import RestoreError
from chandy.state import SavepointWriter, read_state
from chandy.state.errors import DefinitionError
from chandy.state.testing import TimeWindow

from ..effort import chance, rounds, sampled
from ..waiting import DEADLINE
from .support import Make

pytestmark = pytest.mark.spark

SCHEMA = "t timestamp, k string, v long"
DELAY = "7 seconds"
Batch = frozenset[tuple[Any, ...]]
KINDS = {
    "tumbling": lambda: F.window("t", "10 seconds"),
    "sliding": lambda: F.window("t", "10 seconds", "4 seconds"),
    "shifted": lambda: F.window("t", "10 seconds", "10 seconds", "3 seconds"),
}
GAP = "case when k = 'a' then '2 seconds' when k = 'b' then '0 seconds' else '9 seconds' end"
SESSIONS = {
    "sessions": lambda: F.session_window("t", "3 seconds"),
    "sessions with gaps of their own": lambda: F.session_window("t", F.expr(GAP)),
}


class WindowInput:
    """A folder of input files, one a batch, whose event times go on with the files, some of them late."""

    def __init__(self, folder: Path, moments: random.Random) -> None:
        self.folder = folder
        self.files = 0
        self._moments = moments
        folder.mkdir()

    def add(self, files: int) -> None:
        for _ in range(files):
            self.files += 1
            now = datetime(2024, 3, 1, tzinfo=UTC) + timedelta(seconds=6 * self.files)
            lines = [self._row(now) for _ in range(self._moments.choice([0, 1, 30, 30]))]
            path = self.folder / f"{self.files:05}.json"
            path.write_text("\n".join(lines))
            os.utime(path, (1_600_000_000 + self.files,) * 2)

    def _row(self, now: datetime) -> str:
        behind = self._moments.choice([0, 1, 3, 10, 40]) * self._moments.random()
        at = now - timedelta(seconds=behind) if self._moments.random() < 0.95 else None
        if at and self._moments.random() < 0.7:
            # Ends of windows meet starts.
            at = at.replace(microsecond=0)
        key = self._moments.choice(["a", "b", "c", None])
        return json.dumps({"t": at and at.isoformat(), "k": key, "v": self._moments.randrange(100)})

    def stream(self, spark: SparkSession) -> DataFrame:
        rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(self.folder))
        return rows.withWatermark("t", DELAY)


def taking(found: list[Batch]) -> Callable[[DataFrame, int], None]:
    """Return a function for foreachBatch that keeps what each batch outputs, if it is anything."""

    def take(rows: DataFrame, batch: int) -> None:
        of_batch = [(row[0].start, row[0].end, row.k, row.n, row.total) for row in rows.collect()]
        assert len(set(of_batch)) == len(of_batch)
        if of_batch:
            found.append(frozenset(of_batch))

    return take


def windows(
    coordinator: CheckpointCoordinator, rows: DataFrame, window: Column, mode: str, **more: Any
) -> DataFrame | BatchAggregate:
    """Return aggregates of windows: within the stream, or over its batches where these say where rows are combined."""
    is_of_batches = more.get("combine") in ("sql", "python", "none")
    aggregate: Any = coordinator.aggregate_batches if is_of_batches else coordinator.aggregate
    made: DataFrame | BatchAggregate = aggregate(
        rows,
        by=["k"],
        window=window,
        output_mode=mode,
        uid="windows",
        **{"shards": 4, **more},
        n=("*", "count"),
        total=("v", "sum"),
    )
    return made


@attrs.frozen
class Twins:
    """The same windows in a pipeline and in a query of Spark's own, which read the same files."""

    spark: SparkSession
    rows: WindowInput
    kind: str
    mode: str
    folder: Path
    own: list[Batch] = attrs.field(factory=list)
    sparks: list[Batch] = attrs.field(factory=list)

    def lives(self, make: Make, number: int, moments: random.Random) -> int:
        """Run so often, each time with more files and from a checkpoint; return the last checkpoint's id."""
        forms = [moments.choice(["auto", False]), moments.choice(["sql", "python", "none"])]
        moments.shuffle(forms)
        for life in range(number):
            self.rows.add(moments.randrange(3, 7))
            coordinator = self.run(make(), combine=forms[life % 2])
            checkpoint = coordinator.checkpoint().result(timeout=DEADLINE)
            coordinator.stop()
        assert self.own == self.sparks
        assert self.own
        return checkpoint.id

    def run(self, coordinator: CheckpointCoordinator, **more: Any) -> CheckpointCoordinator:
        """Let both take all files that are new."""
        stream = self.rows.stream(self.spark)
        window = (KINDS | SESSIONS)[self.kind]
        native = stream.groupBy(window(), "k").agg(F.count("*").alias("n"), F.sum("v").alias("total"))
        writer = native.writeStream.foreachBatch(taking(self.sparks)).outputMode(self.mode)
        writer = writer.option("checkpointLocation", str(self.folder / "native"))
        writer.trigger(availableNow=True).start().awaitTermination()
        output = windows(coordinator, stream, window(), self.mode, **more)
        assert output.schema.names[0] == native.columns[0]
        own = output.writeStream.foreachBatch(taking(self.own)).trigger(availableNow=True)
        assert coordinator.start(own, name="q").awaitTermination(DEADLINE)
        return coordinator


@pytest.mark.parametrize(("kind", "mode"), sampled([*product(KINDS, ["append", "update"])], 1))
def test_windows_are_output_as_by_sparks_own_group_by_through_restores(
    spark: SparkSession, make: Make, tmp_path: Path, kind: str, mode: str
) -> None:
    moments = chance("windows", kind, mode)
    twins = Twins(spark, WindowInput(tmp_path / "in", moments), kind, mode, tmp_path)
    checkpoint = twins.lives(make, rounds(2, full=10), moments)
    stored = read_state(spark, str(tmp_path / "store" / "p"), checkpoint, operator="windows")
    # What is closed has left the state.
    assert {tuple(row)[:3] for row in stored.collect()} == open_windows(spark, twins.rows, KINDS[kind]())


@pytest.mark.parametrize("kind", sampled([*SESSIONS], 1))
@pytest.mark.full("integration/test_windows.py::test_windows_of_unit_tests_are_those_of_spark")
def test_sessions_are_output_as_by_sparks_own_group_by_through_restores(
    spark: SparkSession, make: Make, tmp_path: Path, kind: str
) -> None:
    moments = chance("sessions", kind)
    twins = Twins(spark, WindowInput(tmp_path / "in", moments), kind, "append", tmp_path)
    checkpoint = twins.lives(make, rounds(2, full=10), moments)
    stored = read_state(spark, str(tmp_path / "store" / "p"), checkpoint, operator="windows").collect()
    newest = spark.read.schema(SCHEMA).json(str(twins.rows.folder)).agg(F.max("t")).collect()[0][0]
    # Where all gaps are shorter than the delay, nothing may be open.
    assert all(end > newest - timedelta(seconds=7) for row in stored for end in row.window_end)


def plain(row: Row) -> tuple[Any, ...]:
    """Return a row of the output of windows, of Spark or of a tester, as plain values."""
    bounds = row[0] if isinstance(row[0], dict) else row[0].asDict()
    return (*(bounds[name].replace(tzinfo=None) for name in ("start", "end")), row.k, row.n, row.total)


@pytest.mark.parametrize("kind", sampled(["sliding", "sessions"], 1))
@pytest.mark.full(
    "integration/test_windows.py::test_windows_are_output_as_by_sparks_own_group_by_through_restores"
)
def test_windows_that_are_written_anew_are_closed(
    spark: SparkSession, make: Make, tmp_path: Path, kind: str
) -> None:
    moments = chance("windows in other shards", kind)
    twins = Twins(spark, WindowInput(tmp_path / "in", moments), kind, "append", tmp_path)
    twins.rows.add(4)
    savepoint = twins.run(make()).stop(savepoint="before")
    assert savepoint is not None
    state = "sessions" if kind == "sessions" else "aggregates"
    table = read_state(spark, savepoint.uri, operator="windows", state=state)
    bounds = "" if kind == "sessions" else "window_start timestamp, window_end timestamp, "
    uri = (
        SavepointWriter.from_existing(spark, savepoint.uri)
        .remove_operator("windows")
        .with_operator("windows", query="q", key=f"{bounds}k string", shards=3)
        .with_state("windows", state, table, null_keys=True)
        .write(str(tmp_path / "written"))
    )
    twins.rows.add(4)
    twins.run(make("p2", restore=uri), shards=3)
    assert twins.own == twins.sparks


def open_windows(spark: SparkSession, rows: WindowInput, window: Column) -> set[tuple[Any, ...]]:
    """Return the windows of all rows, with their keys, that end after the watermark."""
    read = spark.read.schema(SCHEMA).json(str(rows.folder))
    found = read.groupBy(window, "k").count().crossJoin(read.select(F.max("t").alias("newest")))
    left = found.where(f"window.end > newest - interval {DELAY}").select("window.start", "window.end", "k")
    return {tuple(row) for row in left.collect()}


def test_windows_of_unit_tests_are_those_of_spark(spark: SparkSession) -> None:
    moments = chance("windows of unit tests")
    for _ in range(rounds(6, full=20)):
        slide = moments.randrange(1, 20_000)
        window = TimeWindow("t", moments.randrange(slide, 60_000), slide, moments.randrange(0, slide))
        times = [datetime.fromtimestamp(moments.uniform(-1e5, 1e9), UTC) for _ in range(50)]
        column = F.window("t", *(f"{ms} milliseconds" for ms in (window.length_ms, slide, window.offset_ms)))
        rows = spark.createDataFrame([(time,) for time in times], "t timestamp").select("t", column)
        found = sorted((row.t, row.window.start, row.window.end) for row in rows.collect())
        expected = [(time, *bounds) for time in times for bounds in window.of(time)]
        assert found == sorted(tuple(one.replace(tzinfo=None) for one in row) for row in expected)


def test_what_cannot_be_windows_is_refused(spark: SparkSession, make: Make, tmp_path: Path) -> None:
    rows = WindowInput(tmp_path / "in", chance("refused windows")).stream(spark)
    coordinator, window = make(), F.window("t", "10 seconds")
    for df, given, more, message in (
        (rows, "10 seconds", {}, "invalid argument window"),
        (rows, F.col("t"), {}, "a column of type timestamp"),
        (rows, F.session_window("t", "10 seconds"), {}, "'append' for sessions"),
        (
            rows.withColumn("u", F.expr("t + interval 1 day")),
            F.window("u", "1 day"),
            {},
            "without a watermark",
        ),
        (spark.readStream.schema(SCHEMA).json(str(tmp_path / "in")), window, {}, "invalid argument window"),
        (rows.withColumnRenamed("v", "Window_End").withColumn("v", F.lit(1)), window, {}, "'Window_End'"),
        (rows, window, {"ttl": "1 day"}, "invalid argument ttl"),
        (rows, window, {"mode": "complete"}, "invalid argument output_mode"),
        (rows, None, {"mode": "append"}, "invalid argument output_mode"),
    ):
        arguments: dict[str, Any] = {"mode": "update"} | more
        with pytest.raises(DefinitionError, match=message):
            windows(coordinator, df, given, arguments.pop("mode"), **arguments)
    for by in ("k", "", F.col("k"), ["missing"], None):
        with pytest.raises(DefinitionError, match="invalid argument by: "):
            coordinator.aggregate(rows, by=by, window=window, uid="w", n=("*", "count"))  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="invalid argument by: "):
        sessions = F.session_window("t", "10 seconds")
        coordinator.aggregate(rows, by=[], window=sessions, output_mode="append", uid="w", n=("*", "count"))
    with pytest.raises(DefinitionError, match="names other than the arguments"):
        coordinator.aggregate(rows, by=["k"], uid="windows", window=("v", "sum"))  # type: ignore[arg-type]


def test_windows_that_nothing_has_closed_are_no_state_of_windows(
    spark: SparkSession, make: Make, tmp_path: Path
) -> None:
    source = WindowInput(tmp_path / "in", chance("windows by hand"))
    source.add(4)
    stream = source.stream(spark)
    bounds = F.window("t", "10 seconds")
    by_hand = stream.select("k", "v", bounds.start.alias("window_start"), bounds.end.alias("window_end"))
    coordinator = make()
    output = coordinator.aggregate(
        by_hand, by=["window_start", "window_end", "k"], uid="windows", shards=4, n=("*", "count")
    )
    writer = output.writeStream.format("noop").trigger(availableNow=True)
    coordinator.start(writer, name="q").awaitTermination(DEADLINE)
    coordinator.checkpoint().result(timeout=DEADLINE)
    coordinator.stop()
    with pytest.raises(
        RestoreError,
        match="expected aggregates of all rows of a key, as they were, found aggregates of windows",
    ):
        windows(make(), stream, bounds, "update")


@pytest.mark.compat
@pytest.mark.full(
    "integration/test_windows.py::test_windows_are_output_as_by_sparks_own_group_by_through_restores"
)
def test_a_window_may_be_all_there_is_to_group_by(spark: SparkSession, make: Make, tmp_path: Path) -> None:
    source = WindowInput(tmp_path / "in", chance("windows alone"))
    source.add(6)
    coordinator = make()
    output = coordinator.aggregate(
        source.stream(spark), by=[], window=F.window("t", "30 days"), uid="windows", n=("*", "count")
    )
    found: dict[Any, int] = {}
    query = coordinator.start(
        output.writeStream.foreachBatch(
            lambda rows, _: found.update({row.window.start: row.n for row in rows.collect()})
        ).trigger(availableNow=True),
        name="q",
    )
    query.awaitTermination(DEADLINE)
    assert output.columns == ["window", "n"]
    expected = spark.read.schema(SCHEMA).json(str(source.folder)).groupBy(F.window("t", "30 days")).count()
    assert found == {row.window.start: row["count"] for row in expected.collect()}
