"""Aggregates over the batches of a query in real pipelines: as Spark's own groupBy, wherever rows are combined."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from chandy.coordinator import (
    CheckpointCompleted,
    CheckpointCoordinator,
    CheckpointFailed,
    CheckpointMeasured,
    FixedDelay,
    PipelineEnded,
    PipelineEvent,
    Recovered,
    Recovering,
)
from chandy.coordinator.batch_aggregate import BatchAggregate
from chandy.coordinator.errors import ChandyError, PipelineNameError, WriterError
from chandy.state.aggregation import combining
from chandy.state.aggregation.combining import Combining, PreAggregation
from chandy.state.errors import DefinitionError
from tests.coordinator.sinks.two_phase import sqlite_sink
from tests.coordinator.sinks.two_phase.sqlite_sink import SqliteSink
from tests.waiting import DEADLINE, eventually

from ..effort import sampled
from .support import Events, Make
from .typed_columns import NUMBERS, SPARK, TYPES, functions_of, same

pytestmark = pytest.mark.spark

# Workers do not have the tests' modules: what the tests define travels by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(sqlite_sink)

COLUMNS = {"n": ("*", "count"), "total": ("v", "sum")}
PLACES: tuple[Combining, ...] = ("sql", "python", "none")
TRIED = sampled(PLACES, 1)
Totals = dict[str, tuple[int, int]]


def totals_of(
    coordinator: CheckpointCoordinator, stream: DataFrame, combine: Combining = "auto"
) -> BatchAggregate:
    return coordinator.aggregate_batches(stream, by=["k"], uid="totals", shards=4, combine=combine, **COLUMNS)


class NewestRows:
    """A function for ``foreachBatch`` that keeps the newest row of each key."""

    def __init__(self) -> None:
        self.rows: dict[Any, Row] = {}
        self.batches: list[list[Row]] = []

    def __call__(self, rows: DataFrame, batch: int) -> None:
        found = rows.collect()
        # Spark runs the operator again: the same state comes out.
        assert sorted(found) == sorted(rows.collect())
        self.batches.append(found)
        self.rows.update({row["k"]: row for row in found})

    @property
    def totals(self) -> Totals:
        return {key: (row.n, row.total) for key, row in self.rows.items()}


def run_to_end(coordinator: CheckpointCoordinator, totals: BatchAggregate, function: Any) -> None:
    writer = totals.writeStream.foreachBatch(function).trigger(availableNow=True)
    coordinator.start(writer, name="q").awaitTermination()


# --- what comes out -----------------------------------------------------------------------------------------


@pytest.fixture
def rows(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """Two files, a batch each; half of the rows have one key, some a key of null."""
    ids = spark.range(1000).selectExpr(
        "id",
        "if(id % 2 = 0, 'hot', if(id % 25 = 1, null, concat('k', id % 20))) k",
        "cast(if(id % 3 = 0, -0.0, 0.0) as double) z",
        # What is added up in between does not fit, the sum of a batch does.
        "case id % 4 when 0 then 9223372036854775807 when 2 then -9223372036854775807 else 0 end huge",
        *(f"{text} {name}" for name, text in TYPES.items()),
    )
    for part in range(2):
        ids.where(f"id div 500 = {part}").coalesce(1).write.mode("append").parquet(str(tmp_path / "rows"))
    return spark.read.parquet(str(tmp_path / "rows"))


@pytest.mark.parametrize("combine", TRIED)
def test_all_functions_give_what_sparks_batch_group_by_gives(
    spark: SparkSession,
    make: Make,
    rows: DataFrame,
    tmp_path: Path,
    settings: dict[str, str],
    combine: Combining,
) -> None:
    settings["spark.sql.session.timeZone"] = "America/New_York"
    settings["spark.sql.shuffle.partitions"] = "7"
    fixed = [c for c in TYPES if c not in ("s", "x")]
    columns = {
        f"{c}_{f}": (c, f)
        for c in TYPES
        for f in functions_of(c)
        if f == "count" or (c in fixed and not (c == "wide" and f in ("sum", "mean")))
    }
    columns |= {"n": ("*", "count")}
    seen = {f"{c}_{f}": (c, f) for c in ("i", "day", "at", "wide") for f in ("first", "last")}
    expected = rows.groupBy("k", "z").agg(
        *(SPARK[f](F.col(c)).alias(name) for name, (c, f) in columns.items() if c != "*"),
        F.count("*").alias("n"),
        *(F.array_distinct(F.collect_list(c)).alias(f"all_{c}") for c in ("i", "day", "at", "wide")),
    )
    assert {c for c, _ in columns.values()} > set(NUMBERS)
    coordinator = make()
    stream = (
        spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "rows"))
    )
    running = coordinator.aggregate_batches(
        stream, by=["k", "z"], uid="all", combine=combine, huge=("huge", "sum"), **columns, **seen
    )
    wanted = {field.name: field.dataType for field in expected.schema.fields}
    assert {name: running.schema[name].dataType for name in columns} == {
        name: wanted[name] for name in columns
    }
    found: dict[Any, Row] = {}
    partitions: set[int] = set()

    def keep(given: DataFrame, batch: int) -> None:
        # A function's own shuffles are as the user has set them.
        partitions.add(int(given.sparkSession.conf.get("spark.sql.shuffle.partitions") or 0))
        found.update({(row["k"], row["z"]): row for row in given.collect()})

    run_to_end(coordinator, running, keep)
    assert partitions == {7}
    of_spark = {(row["k"], row["z"]): row for row in expected.collect()}
    assert found.keys() == of_spark.keys()
    assert len(found) > 10
    for key, row in found.items():
        its = of_spark[key]
        wrong = {name: (row[name], its[name]) for name in columns if not same(row[name], its[name])}
        assert not wrong, key
        for c in ("i", "day", "at", "wide"):
            for value in (row[f"{c}_first"], row[f"{c}_last"]):
                assert value is None or value in its[f"all_{c}"]


@pytest.mark.parametrize("combine", TRIED)
def test_a_sum_that_is_too_large_fails_the_query(
    spark: SparkSession, make: Make, tmp_path: Path, combine: Combining
) -> None:
    spark.range(4).selectExpr("'k' k", "9223372036854775807 v").coalesce(1).write.json(str(tmp_path / "in"))
    stream = spark.readStream.schema("k string, v long").json(str(tmp_path / "in"))
    coordinator = make()
    with pytest.raises(ChandyError, match="no longer fits"):
        run_to_end(coordinator, totals_of(coordinator, stream, combine), NewestRows())


@pytest.mark.compat
@pytest.mark.full(
    "integration/test_aggregate_batches.py::test_a_batch_is_combined_as_the_one_before_asks_for"
)
def test_a_query_changes_the_way_from_one_start_to_the_next(
    spark: SparkSession, make: Make, events: Events
) -> None:
    kept = NewestRows()
    ways: tuple[Combining | None, ...] = (None, "sql", None, "none", "python", "sql")
    for way in ways:
        events.add(2)
        coordinator = make()
        stream = events.stream(spark)
        if way is None:
            running = coordinator.aggregate(stream, by=["k"], uid="totals", shards=4, **COLUMNS)
            writer = running.writeStream.foreachBatch(kept).trigger(availableNow=True)
            coordinator.start(writer, name="q").awaitTermination()
        else:
            run_to_end(coordinator, totals_of(coordinator, stream, way), kept)
        coordinator.checkpoint().result(timeout=DEADLINE)
        coordinator.stop()
        assert kept.totals == events.totals(spark)
        kept.rows = dict(kept.rows)
    assert len(kept.batches) == 2 * len(ways)


def test_transformations_run_over_each_batch(spark: SparkSession, make: Make, events: Events) -> None:
    events.add(2)
    coordinator = make()
    totals = (
        totals_of(coordinator, events.stream(spark), "sql")
        .transform(lambda rows: rows.where("n > 5"))
        .transform(lambda rows: rows.withColumn("twice", F.col("n") * 2))
    )
    assert totals.schema.names == ["k", "n", "total", "twice"]
    kept = NewestRows()
    run_to_end(coordinator, totals, kept)
    expected = {key: n for key, (n, _) in events.totals(spark).items()}
    assert {key: row.n for key, row in kept.rows.items()} == expected
    assert all(row.n > 5 and row.twice == 2 * row.n for batch in kept.batches for row in batch)


# --- which place --------------------------------------------------------------------------------------------


def test_a_batch_is_combined_as_the_one_before_asks_for(
    spark: SparkSession, make: Make, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(combining, "SMALL", 30)
    monkeypatch.setattr(combining, "LARGE", 60)
    events.keys = 1
    events.add(2, rows=400)
    events.add(1, rows=10)
    events.add(2, rows=400)
    events.keys = 400
    events.add(2, rows=400)
    coordinator = make()
    totals = totals_of(coordinator, events.stream(spark))
    kept, places = NewestRows(), list[PreAggregation | None]()

    def look(rows: DataFrame, batch: int) -> None:
        places.append(totals._operator.place)
        if totals._operator.place is PreAggregation.SQL:
            # Rows are combined in the tasks that read them, and sent once.
            lineage = rows._jdf.queryExecution().toRdd().toDebugString()
            assert str(lineage).count("ShuffledRowRDD") == 1
        kept(rows, batch)

    run_to_end(coordinator, totals, look)
    assert kept.totals == events.totals(spark)
    assert places == [
        PreAggregation.PYTHON,
        PreAggregation.SQL,
        PreAggregation.SQL,
        PreAggregation.NOWHERE,
        PreAggregation.PYTHON,
        PreAggregation.SQL,
        PreAggregation.PYTHON,
    ]


# --- what fails ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("combine", TRIED)
def test_a_batch_that_fails_and_runs_again_counts_once(
    spark: SparkSession, make: Make, events: Events, combine: Combining
) -> None:
    events.add(4)
    coordinator = make(restart=FixedDelay("10 ms", attempts=5))
    kept, failed = NewestRows(), set[int]()

    def fail_once(rows: DataFrame, batch: int) -> None:
        kept(rows, batch)
        if batch % 2 == 1 and batch not in failed:
            failed.add(batch)
            raise RuntimeError("after the state has changed")

    run_to_end(coordinator, totals_of(coordinator, events.stream(spark), combine), fail_once)
    assert failed == {1, 3}
    assert kept.totals == events.totals(spark)


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """What a program's own tracer provider is given. OpenTelemetry takes one in a process's life."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


class KilledOnce:
    """A function for ``mapInArrow`` whose first task with rows after a checkpoint is killed."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if len(batch) and self.mark.exists():
                self.mark.unlink(missing_ok=True)
                os._exit(1)


@pytest.mark.parametrize("combine", TRIED)
@pytest.mark.full(
    "integration/test_exactly_once.py::test_a_task_that_fails_after_it_has_applied_its_batch_counts_once"
)
def test_a_task_that_is_killed_changes_no_output_of_a_transactional_sink(
    spark: SparkSession,
    make: Make,
    events: Events,
    tmp_path: Path,
    exported: InMemorySpanExporter,
    combine: Combining,
) -> None:
    mark = tmp_path / "kill"
    sink = SqliteSink(tmp_path / "out.db", ("k", "n", "total"))
    events.add(2)
    told: list[PipelineEvent] = []
    coordinator = make(
        restart=FixedDelay("10 ms", attempts=5), interval="300 ms", on_event=told.append, traces=True
    )
    totals = totals_of(coordinator, events.stream(spark), combine)
    totals = totals.transform(lambda rows: rows.mapInArrow(KilledOnce(mark), totals.schema))
    query = coordinator.start(totals.writeStream, sink=sink, name="q")
    assert query.guarantee.level == "exactly once"
    eventually(lambda: Counter(sink.rows()) == expected(events), "the first batches")
    mark.touch()
    events.add(2)
    eventually(lambda: not mark.exists(), "a task to be killed")
    eventually(lambda: Counter(sink.rows()) == expected(events), "the batches since")
    assert len(coordinator.recoveries) == 2
    coordinator.stop()
    assert Counter(sink.rows()) == expected(events)
    completed = [one.checkpoint.id for one in told if isinstance(one, CheckpointCompleted)]
    assert completed == sorted(completed)
    assert len(completed) == coordinator.statistics().counts.completed
    of_checkpoints = (CheckpointCompleted, CheckpointFailed, CheckpointMeasured)
    kinds = [type(one) for one in told if not isinstance(one, of_checkpoints)]
    assert kinds == [Recovering, Recovered, PipelineEnded]
    measured = [one.statistics.id for one in told if isinstance(one, CheckpointMeasured)]
    spans = Counter(one.name for one in exported.get_finished_spans() if one.parent is None)
    assert spans == {"checkpoint": len(measured), "recovery": 1}
    assert set(completed) <= set(measured)

    # The next life goes on in the stream's way.
    events.add(1)
    again = make()
    running = again.aggregate(events.stream(spark), by=["k"], uid="totals", shards=4, **COLUMNS)
    again.start(running.writeStream, sink=sink, name="q").processAllAvailable()
    again.stop()
    assert Counter(sink.rows()) == expected(events)


def expected(events: Events) -> Counter[tuple[object, ...]]:
    """What comes out for the input files so far: one row for each key in each of them."""
    state: dict[str, tuple[int, int]] = {}
    rows: Counter[tuple[object, ...]] = Counter()
    for path in sorted(events.folder.glob("*.json")):
        given = [json.loads(line) for line in path.read_text().splitlines()]
        for one in given:
            n, total = state.get(one["k"], (0, 0))
            state[one["k"]] = n + 1, total + one["v"]
        rows.update((key, *state[key]) for key in {one["k"] for one in given})
    return rows


# --- what is refused ----------------------------------------------------------------------------------------


def test_what_cannot_be_is_refused_at_once(
    spark: SparkSession, make: Make, events: Events, tmp_path: Path
) -> None:
    events.add(1)
    coordinator = make()
    stream = events.stream(spark)
    with pytest.raises(DefinitionError, match="streaming"):
        totals_of(coordinator, spark.read.json(str(events.folder)))
    with pytest.raises(DefinitionError, match="combine"):
        totals_of(coordinator, stream, "jvm")  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match=r"min\(k\) of type string"):
        coordinator.aggregate_batches(stream, by=["v"], uid="m", combine="sql", least=("k", "min"))
    totals = totals_of(coordinator, stream)
    with pytest.raises(PipelineNameError, match="taken"):
        totals_of(coordinator, stream)
    for function in (
        lambda rows: rows.limit(3),
        lambda rows: rows.coalesce(1),
        lambda rows: rows.union(rows),
        lambda rows: spark.range(3),
        lambda rows: stream,
        lambda rows: None,
    ):
        with pytest.raises(DefinitionError, match="function"):
            totals.transform(function)
    for refused in ("format", "toTable", "start", "foreach", "option", "partitionBy"):
        with pytest.raises(WriterError, match=refused):
            getattr(totals.writeStream, refused)
    with pytest.raises(WriterError, match="complete"):
        totals.writeStream.outputMode("complete")
    sink = SqliteSink(tmp_path / "out.db", ("k", "n", "total"))
    for arguments, found in (
        ({}, "neither"),
        ({"sink": sink, "table": "t"}, "table"),
        ({"sink": sink, "adopt": str(tmp_path)}, "adopt"),
    ):
        with pytest.raises(WriterError, match=found):
            coordinator.start(totals.writeStream, name="q", **arguments)
    with pytest.raises(WriterError, match="both"):
        coordinator.start(totals.writeStream.foreachBatch(NewestRows()), name="q", sink=sink)
    # Nothing has been started, and what is right still can be.
    kept = NewestRows()
    run_to_end(coordinator, totals, kept)
    assert kept.totals == events.totals(spark)
