"""Plain Spark goes on from what a checkpoint was exported as, as if it had never been interrupted."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from chandy import FilesSink, export, read_state
from chandy.coordinator.export.errors import ExportError

from ..effort import sampled
from ..waiting import DEADLINE
from .support import Make

pytestmark = [pytest.mark.spark, pytest.mark.migration]

# Workers do not have the tests' modules: what the tests define travels by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
PROVIDERS = {
    "HDFS": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "RocksDB": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
EMPTY_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
"""In processing time, Spark runs them for ever, and has never taken everything."""
ROWS = "k string, v long, t timestamp"
KEYS = 5
FAR = 4_000_000_000_000
"""A processing time that no test lives to see."""

Plan = Callable[[DataFrame], DataFrame]


@attrs.define
class TimedFiles:
    """A folder of files, one a batch, whose event times go on."""

    folder: Path
    files: int = 0

    def add(self, files: int) -> None:
        """Add files; each has all keys, several rows that come twice, and one that is late."""
        self.folder.mkdir(exist_ok=True)
        for _ in range(files):
            at = self.files
            rows = [(f"k{n % KEYS}", 100 * at + n // 2, 60 * at + n) for n in range(2 * KEYS)]
            rows.append((f"k{at % KEYS}", -at, 60 * at - 300))
            lines = [
                json.dumps(
                    {"k": k, "v": v, "t": f"2026-01-01T{12 + s // 3600:02}:{s // 60 % 60:02}:{s % 60:02}Z"}
                )
                for k, v, s in rows
            ]
            hidden = self.folder / f".{at:05}"
            hidden.write_text("\n".join(lines))
            # Spark takes the oldest first, and several may be written within a millisecond.
            os.utime(hidden, (1_600_000_000 + at, 1_600_000_000 + at))
            hidden.rename(self.folder / f"{at:05}.json")
            self.files += 1

    def stream(self, spark: SparkSession) -> DataFrame:
        """The files as a stream."""
        return spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1).json(str(self.folder))


@pytest.fixture
def given(tmp_path: Path) -> TimedFiles:
    return TimedFiles(tmp_path / "in")


def to_files(df: DataFrame, output: Path) -> DataStreamWriter:
    return df.writeStream.format("parquet").option("path", str(output))


def run_plain(writer: DataStreamWriter, checkpoint: Path) -> StreamingQuery:
    """Run a plain query until it has taken everything, and stop it."""
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return query


def rows_in(spark: SparkSession, output: Path) -> Counter[tuple[Any, ...]]:
    """The rows in the output of a file sink, read through its log."""
    return Counter(tuple(map(repr, row)) for row in spark.read.parquet(str(output)).collect())


# --- Spark's own operators ----------------------------------------------------------------------------------


def stateless(rows: DataFrame) -> DataFrame:
    return rows.select("k", (F.col("v") * 2).alias("v"))


def windows(rows: DataFrame) -> DataFrame:
    window = F.window("t", "2 minutes").alias("w")
    counts = (
        rows.withWatermark("t", "1 minute")
        .groupBy(window, "k")
        .agg(F.count("*").alias("n"), F.sum("v").alias("s"))
    )
    return counts.select("w.start", "k", "n", "s")


def distinct(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("t", "1 hour").dropDuplicatesWithinWatermark(["k", "v"])


def joined(rows: DataFrame) -> DataFrame:
    left = rows.withWatermark("t", "1 minute")
    right = rows.withWatermark("t", "1 minute").select(
        F.col("k").alias("k2"), F.col("v").alias("v2"), F.col("t").alias("t2")
    )
    near = F.expr(
        "k = k2 AND v % 50 = v2 % 50 AND t2 BETWEEN t - INTERVAL 2 MINUTES AND t + INTERVAL 2 MINUTES"
    )
    return left.join(right, near).select("k", "v", "v2")


class RunningCounts(StatefulProcessor):
    """Counts rows by key."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        (n,) = self.count.get() or (0,)
        n += sum(1 for _ in rows)
        self.count.update((n,))
        yield Row(k=key[0], n=n)


def processed(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").transformWithState(RunningCounts(), "k string, n long", "Append", "None")


@pytest.mark.parametrize(
    ("plan", "provider"),
    sampled(
        [
            (stateless, "HDFS"),
            (windows, "HDFS"),
            pytest.param(*(windows, "RocksDB"), marks=pytest.mark.compat),
            (distinct, "HDFS"),
            (distinct, "RocksDB"),
            (joined, "RocksDB"),
            pytest.param(*(processed, "RocksDB"), marks=pytest.mark.compat),
        ],
        2,
    ),
)
def test_a_query_goes_on_as_if_nothing_had_happened(
    plan: Plan,
    provider: str,
    make: Make,
    spark: SparkSession,
    settings: dict[str, str],
    given: TimedFiles,
    tmp_path: Path,
) -> None:
    settings[PROVIDER] = PROVIDERS[provider]
    coordinator = make()
    given.add(4)
    out = tmp_path / "out"
    query = coordinator.start(to_files(plan(given.stream(spark)), out), name="q")
    query.processAllAvailable()
    coordinator.stop()
    done = export(str(tmp_path / "store"), tmp_path / "export")
    (exported,) = done.queries
    assert exported.directory is not None
    assert any(f"Go on in its output {out}" in note for note in exported.notes)

    given.add(3)
    plain = run_plain(to_files(plan(given.stream(spark)), out), exported.directory)
    batches = [progress["batchId"] for progress in plain.recentProgress if progress["numInputRows"]]
    assert batches[0] == exported.batch + 1
    run_plain(to_files(plan(given.stream(spark)), tmp_path / "expected"), tmp_path / "uninterrupted")
    expected = rows_in(spark, tmp_path / "expected")
    assert expected
    assert rows_in(spark, out) == expected


@pytest.mark.full("integration/test_export.py::test_a_query_goes_on_as_if_nothing_had_happened")
def test_logs_that_were_compacted_go_on(
    make: Make, spark: SparkSession, given: TimedFiles, tmp_path: Path
) -> None:
    coordinator = make()
    given.add(21)
    out = tmp_path / "out"
    coordinator.start(to_files(stateless(given.stream(spark)), out), name="q").processAllAvailable()
    coordinator.stop()
    (exported,) = export(str(tmp_path / "store"), tmp_path / "export").queries
    assert exported.directory is not None
    given.add(11)
    run_plain(to_files(stateless(given.stream(spark)), out), exported.directory)
    # And once more: Spark finds the logs as it wrote them.
    given.add(1)
    run_plain(to_files(stateless(given.stream(spark)), out), exported.directory)
    expected = stateless(spark.read.schema(ROWS).json(str(given.folder)))
    assert rows_in(spark, out) == Counter(tuple(map(repr, row)) for row in expected.collect())


@pytest.mark.compat
def test_an_output_that_is_ahead_goes_on_with_the_log_of_the_export(
    make: Make, spark: SparkSession, given: TimedFiles, tmp_path: Path
) -> None:
    coordinator = make()
    given.add(3)
    out = tmp_path / "out"
    query = coordinator.start(to_files(stateless(given.stream(spark)), out), name="q")
    query.processAllAvailable()
    savepoint = str(tmp_path / "save")
    coordinator.savepoint(savepoint).result(DEADLINE)
    given.add(2)
    query.processAllAvailable()
    coordinator.stop()
    # These files are read in other batches than before, so that batches of the one log are not those of the other.
    (exported,) = export(savepoint, tmp_path / "export").queries
    assert exported.directory is not None
    assert exported.sink_log is not None
    assert any("is ahead of the checkpoint" in note for note in exported.notes)
    shutil.rmtree(out / "_spark_metadata")
    shutil.copytree(exported.sink_log, out / "_spark_metadata")
    faster = given.stream(spark).sparkSession.readStream.schema(ROWS).json(str(given.folder))
    run_plain(to_files(stateless(faster), out), exported.directory)
    expected = stateless(spark.read.schema(ROWS).json(str(given.folder)))
    assert rows_in(spark, out) == Counter(tuple(map(repr, row)) for row in expected.collect())


def test_a_transactional_sink_has_published_everything_before_its_query_is_exported(
    make: Make, spark: SparkSession, given: TimedFiles, tmp_path: Path
) -> None:
    coordinator = make()
    given.add(2)
    out, after = tmp_path / "out", tmp_path / "after"
    query = coordinator.start(stateless(given.stream(spark)).writeStream, sink=FilesSink(str(out)), name="q")
    query.processAllAvailable()
    coordinator.stop(savepoint="for-export")
    # When it was taken, nobody knew whether it would be published.
    with pytest.raises(ExportError, match=r"coordinator\.stop"):
        export(str(tmp_path / "store"), tmp_path / "export")
    savepoint = str(tmp_path / "store" / "p" / "savepoints" / "for-export")
    (exported,) = export(savepoint, tmp_path / "export").queries
    assert exported.directory is not None
    given.add(2)
    # Spark's file sink would begin its log in the middle, in a directory that has none, and no reader takes that.
    append = stateless(given.stream(spark)).writeStream.foreachBatch(
        lambda rows, _: rows.write.mode("append").parquet(str(after))
    )
    run_plain(append, exported.directory)
    expected = stateless(spark.read.schema(ROWS).json(str(given.folder)))
    assert rows_in(spark, out) + rows_in(spark, after) == Counter(
        tuple(map(repr, row)) for row in expected.collect()
    )


# --- Chandy's own operators ---------------------------------------------------------------------------------


class KeepsRows(StatefulProcessor):
    """Keeps the rows of a key in every kind of state, and tells all of it."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n long, s long")
        self.values = handle.getListState("values", "v long")
        self.counts = handle.getMapState("counts", "v long", "n long")
        self.brief = handle.getValueState("brief", "v long", 3_600_000)

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:  # noqa: N802, N803
        total = initialState.total["value"]
        self.total.update((total["n"], total["s"]))
        self.values.put([(one["value"]["v"],) for one in initialState["values"]])
        for one in initialState.counts:
            self.counts.updateValue((one["key"]["v"],), (one["value"]["n"],))
        self.brief.update((initialState.brief["value"]["v"],))
        for time in initialState.timers:
            self.handle.registerTimer(time)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        brief = self.brief.get()
        for row in rows:
            n, s = self.total.get() or (0, 0)
            self.total.update((n + 1, s + row.v))
            self.values.appendValue((row.v,))
            found = self.counts.getValue((row.v,))
            self.counts.updateValue((row.v,), ((found[0] if found else 0) + 1,))
            self.brief.update((row.v,))
            self.handle.registerTimer(FAR + row.v)
        told = {
            "total": list(self.total.get()),
            "values": sorted(value[0] for value in self.values.get()),
            "counts": sorted([k[0], v[0]] for k, v in self.counts.iterator()),
            "brief before": brief and brief[0],
            "timers": sorted(self.handle.listTimers()),
        }
        yield Row(k=key[0], n=told["total"][0], what=json.dumps(told))


KEEPER = "k string, n long, what string"


def last_told(spark: SparkSession, *outputs: Path) -> dict[str, dict[str, Any]]:
    """What was told last of each key."""
    found: dict[str, Row] = {}
    for output in outputs:
        for row in spark.read.parquet(str(output)).collect():
            if row.k not in found or found[row.k].n < row.n:
                found[row.k] = row
    return {key: json.loads(row.what) for key, row in found.items()}


def kept(rows: DataFrame, state: DataFrame | None = None) -> DataFrame:
    """Spark's own operator, with an initial state or without."""
    initial = None if state is None else state.groupBy("k")
    return rows.groupBy("k").transformWithState(
        KeepsRows(), KEEPER, "Append", "ProcessingTime", initialState=initial
    )


@pytest.mark.compat
def test_the_state_of_a_processor_is_the_initial_state_of_sparks_own(
    make: Make, spark: SparkSession, settings: dict[str, str], given: TimedFiles, tmp_path: Path
) -> None:
    settings[PROVIDER] = PROVIDERS["RocksDB"]
    settings[EMPTY_BATCHES] = "false"
    coordinator = make()
    # Few: Spark's own operator takes its time for each batch.
    given.add(2)
    rows = coordinator.transform_with_state(
        given.stream(spark),
        key=["k"],
        processor=KeepsRows(),
        output=KEEPER,
        uid="keeper",
        time_mode="ProcessingTime",
    )
    coordinator.start(to_files(rows, tmp_path / "out"), name="q").processAllAvailable()
    coordinator.stop()
    store = str(tmp_path / "store")
    done = export(store, tmp_path / "export")
    (query,), (operator,) = done.queries, done.operators
    assert query.directory is not None
    assert not query.goes_on
    assert operator.keys == KEYS
    state = spark.read.parquet(str(operator.directory))
    totals = {row.k: tuple(row.total["value"]) for row in state.collect()}
    assert totals == {row.k: (row.n, row.s) for row in read_state(spark, store, state="total").collect()}

    given.add(1)
    run_plain(to_files(kept(given.stream(spark), state), tmp_path / "new"), query.directory)
    run_plain(to_files(kept(given.stream(spark)), tmp_path / "expected"), tmp_path / "uninterrupted")
    expected = last_told(spark, tmp_path / "expected")
    assert len(expected) == KEYS
    assert last_told(spark, tmp_path / "new") == expected
    # It is a query like any other from now on: it goes on without the state that it began with.
    given.add(1)
    run_plain(to_files(kept(given.stream(spark), state), tmp_path / "new"), query.directory)
    run_plain(to_files(kept(given.stream(spark)), tmp_path / "expected"), tmp_path / "uninterrupted")
    assert last_told(spark, tmp_path / "new") == last_told(spark, tmp_path / "expected")


@pytest.mark.full("integration/test_export.py::test_a_query_goes_on_as_if_nothing_had_happened")
def test_a_source_with_a_long_log_reads_on_from_the_checkpoint(
    make: Make, spark: SparkSession, given: TimedFiles, tmp_path: Path
) -> None:
    coordinator = make()
    given.add(12)
    totals = coordinator.aggregate(
        given.stream(spark), by=["k"], uid="totals", n=("v", "count"), s=("v", "sum")
    )
    coordinator.start(to_files(totals, tmp_path / "out"), name="q").processAllAvailable()
    coordinator.stop()
    done = export(str(tmp_path / "store"), tmp_path / "export")
    (query,), (operator,) = done.queries, done.operators
    assert query.directory is not None
    assert operator.keys == KEYS
    before = given.files
    for files in (3, 12, 1):
        given.add(files)
        run_plain(to_files(stateless(given.stream(spark)), tmp_path / "new"), query.directory)
    paths = sorted(str(path) for path in given.folder.glob("*.json"))[before:]
    expected = stateless(spark.read.schema(ROWS).json(paths))
    assert rows_in(spark, tmp_path / "new") == Counter(tuple(map(repr, row)) for row in expected.collect())
