"""Spark's own working directory: taken at a batch while the query runs on, seeded again, and gone on from."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.dataset
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.state import GroupState

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator, NoRestart
from chandy.coordinator.sinks import file_sink_log
from chandy.coordinator.spark import progress, starting
from chandy.coordinator.spark.logs import compact_log
from chandy.coordinator.spark.seeding import seed
from chandy.storage.checkpoints.proof import Unshared

from .. import insides
from ..effort import sampled
from ..waiting import DEADLINE
from .native_state import PROVIDERS, STREAMING, join, stream

pytestmark = pytest.mark.spark

start = partial(starting.start, proof=Unshared())

FILES = 6
CUT = 2


def records(file: int) -> list[dict[str, int]]:
    # Every file brings keys that earlier ones had, so no batch can do without the state before it.
    return [{"id": value, "k": value % 7} for value in range(file * 5, file * 5 + 20)]


def add_file(folder: Path, file: int) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / f"{file}.json"
    hidden = folder / f".{file}.tmp"
    hidden.write_text("\n".join(json.dumps(record) for record in records(file)))
    os.utime(hidden, (file + 1, file + 1))
    hidden.rename(path)


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    for file in range(FILES):
        add_file(folder, file)
    return folder


# --- the queries, and what a plain computation over all the input says -----------------------------------


def count(spark: SparkSession, folder: Path) -> DataFrame:
    return stream(spark, folder).groupBy("k").count()


def duplicates(spark: SparkSession, folder: Path) -> DataFrame:
    return stream(spark, folder).dropDuplicates(["id"])


def pandas_state(spark: SparkSession, folder: Path) -> DataFrame:
    def add(key: tuple[int], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        total = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
        state.update((total,))
        yield pd.DataFrame({"k": [key[0]], "count": [total]})

    return (
        stream(spark, folder)
        .groupBy("k")
        .applyInPandasWithState(add, "k long, count long", "n long", "update", "NoTimeout")
    )


class CountsRows(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timers: Any) -> Iterator[Row]:  # noqa: N802
        total = (self._count.get()[0] if self._count.exists() else 0) + sum(1 for _ in rows)
        self._count.update((total,))
        yield Row(k=key[0], count=total)

    def close(self) -> None:
        pass


def processor(spark: SparkSession, folder: Path) -> DataFrame:
    counts = stream(spark, folder).groupBy("k")
    return counts.transformWithState(CountsRows(), "k long, count long", "Update", "None")


def limit(spark: SparkSession, folder: Path) -> DataFrame:
    return stream(spark, folder).limit(70)


def all_records() -> list[dict[str, int]]:
    return [record for file in range(FILES) for record in records(file)]


def last_by_key(batches: dict[int, list[Row]]) -> Counter[tuple[int, ...]]:
    last: dict[int, int] = {}
    for batch in sorted(batches):
        last |= {row["k"]: row["count"] for row in batches[batch]}
    return Counter(last.items())


def every_row(batches: dict[int, list[Row]]) -> Counter[tuple[int, ...]]:
    return Counter(tuple(row) for rows in batches.values() for row in rows)


def counted() -> Counter[tuple[int, ...]]:
    return Counter(Counter(record["k"] for record in all_records()).items())


def joined() -> Counter[tuple[int, ...]]:
    times = Counter(record["id"] for record in all_records())
    return Counter({(value, value % 7, value, value % 7): number**2 for value, number in times.items()})


def distinct() -> Counter[tuple[int, ...]]:
    return Counter({(record["id"], record["k"]) for record in all_records()})


def limited() -> Counter[tuple[int, ...]]:
    return Counter((record["id"], record["k"]) for record in all_records()[:70])


Result = Counter[tuple[int, ...]]
Case = tuple[
    Callable[[SparkSession, Path], DataFrame],
    str,
    Callable[[dict[int, list[Row]]], Result],
    Callable[[], Result],
]
CASES: dict[str, Case] = {
    "count": (count, "update", last_by_key, counted),
    "join": (join, "append", every_row, joined),
    "duplicates": (duplicates, "append", every_row, distinct),
    "limit": (limit, "append", every_row, limited),
    "applyInPandasWithState": (pandas_state, "update", last_by_key, counted),
    "transformWithState": (processor, "update", last_by_key, counted),
}


@pytest.mark.parametrize(
    ("case", "provider"),
    sampled(
        [
            ("count", "hdfs"),
            ("count", "rocksdb"),
            ("count", "rocksdb-changelog"),
            ("count", "rocksdb-v2"),
            pytest.param(*("count", "rocksdb-changelog-v2"), marks=pytest.mark.compat),
            ("join", "hdfs"),
            ("join", "rocksdb-changelog"),
            ("join", "rocksdb-changelog-v2"),
            pytest.param(*("join", "rocksdb-one-store"), marks=pytest.mark.compat),
            ("duplicates", "hdfs"),
            ("duplicates", "rocksdb"),
            ("limit", "hdfs"),
            ("applyInPandasWithState", "hdfs"),
            ("transformWithState", "rocksdb"),
            pytest.param(*("transformWithState", "rocksdb-changelog-v2"), marks=pytest.mark.compat),
        ],
        1,
    ),
)
def test_a_query_goes_on_from_files_that_were_taken_two_batches_ago(
    case: str, provider: str, spark: SparkSession, settings: dict[str, str], inputs: Path, tmp_path: Path
) -> None:
    for name, value in PROVIDERS[provider].items():
        settings[STREAMING + name] = value
    build, mode, collect, expected = CASES[case]
    first, second = tmp_path / "first life %41", tmp_path / "second life %41"
    batches: dict[int, list[Row]] = {}
    held: dict[str, Path] = {}

    def sink(frame: DataFrame, batch: int) -> None:
        batches[batch] = frame.collect()
        if batch == CUT + 2 and not held:
            # The query is in the middle of a later batch here.
            held.update(progress.hold(lambda: progress.files_at(first, CUT), tmp_path / "held"))

    writer = build(spark, inputs).writeStream.outputMode(mode).foreachBatch(sink).trigger(availableNow=True)
    old = finish(start(writer, query_id="new", location=str(first)))
    assert collect(batches) == expected()

    before, batches_to_cut = len(batches), {batch: rows for batch, rows in batches.items() if batch <= CUT}
    assert before > CUT + 2
    batches.clear()
    # What was taken must stand alone. Renamed, not deleted: Spark still uploads snapshots in the background.
    first.rename(tmp_path / "gone")
    new_id = seed(tmp_path / "held", second)
    query = finish(start(writer, query_id="new", location=str(second)))

    assert str(query.id) == new_id == progress.query_id(second) != str(old.id)
    assert min(batches) == CUT + 1
    assert collect(batches_to_cut | batches) == expected()


@pytest.mark.full(
    "integration/test_working_directory.py::test_a_query_goes_on_from_files_that_were_taken_two_batches_ago"
)
def test_a_query_that_went_on_from_a_seed_can_be_taken_and_gone_on_from_again(
    spark: SparkSession, settings: dict[str, str], inputs: Path, tmp_path: Path
) -> None:
    for name, value in PROVIDERS["rocksdb-changelog-v2"].items():
        settings[STREAMING + name] = value
    batches: dict[int, list[Row]] = {}

    def sink(frame: DataFrame, batch: int) -> None:
        batches[batch] = frame.collect()

    writer = (
        count(spark, inputs).writeStream.outputMode("update").foreachBatch(sink).trigger(availableNow=True)
    )
    finish(start(writer, query_id="new", location=str(tmp_path / "0")))
    for life, cut in enumerate([1, 3]):
        here = tmp_path / str(life)
        progress.hold(lambda here=here, cut=cut: progress.files_at(here, cut), tmp_path / f"held-{life}")
        seed(tmp_path / f"held-{life}", tmp_path / str(life + 1))
        for batch in [batch for batch in batches if batch > cut]:
            del batches[batch]
        finish(start(writer, query_id="new", location=str(tmp_path / str(life + 1))))
    assert last_by_key(batches) == counted()


def test_the_least_files_are_few(
    spark: SparkSession, settings: dict[str, str], inputs: Path, tmp_path: Path
) -> None:
    for name, value in PROVIDERS["rocksdb"].items():
        settings[STREAMING + name] = value
    writer = noop(count(spark, inputs), "update")
    finish(start(writer, query_id="new", location=str(tmp_path / "work")))
    files = progress.files_at(tmp_path / "work", CUT)
    assert {name for name in files if name.startswith(("offsets", "commits", "sources", "metadata"))} == {
        "metadata",
        "offsets/1",
        "offsets/2",
        "commits/2",
        "sources/0/0",
        "sources/0/1",
        "sources/0/2",
    }
    snapshots = [name for name in files if name.endswith(".zip")]
    assert sorted(snapshots) == ["state/0/0/3.zip", "state/0/1/3.zip"]
    every_sst = [
        path for path in (tmp_path / "work" / "state").rglob("*.sst") if not path.name.startswith(".")
    ]
    assert 0 < len([name for name in files if name.endswith(".sst")]) < len(every_sst)


def test_progress_says_what_has_been_planned_and_committed(
    spark: SparkSession, inputs: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    assert progress.newest_planned(work) == progress.newest_committed(work) == -1
    seen: list[tuple[int, int, bool, bool]] = []

    def sink(frame: DataFrame, batch: int) -> None:
        committed = progress.is_committed
        seen.append(
            (batch, progress.newest_planned(work), committed(work, batch - 1), committed(work, batch))
        )

    writer = stream(spark, inputs).writeStream.foreachBatch(sink).trigger(availableNow=True)
    finish(start(writer, query_id="new", location=str(work)))
    assert seen == [(batch, batch, batch > 0, False) for batch in range(FILES)]
    assert progress.newest_planned(work) == progress.newest_committed(work) == FILES - 1


def test_an_empty_seed_begins_anew(spark: SparkSession, inputs: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    writer = noop(stream(spark, inputs), "append")
    finish(start(writer, query_id="new", location=str(first)))
    assert progress.files_at(first, -1) == {}
    new_id = seed(tmp_path / "nothing", second)
    query = finish(start(writer, query_id="new", location=str(second)))
    assert str(query.id) == new_id
    assert progress.newest_committed(second) == FILES - 1


# --- the file sink ---------------------------------------------------------------------------------------


def test_a_parquet_sink_goes_back_with_its_query(
    spark: SparkSession, settings: dict[str, str], tmp_path: Path
) -> None:
    settings["spark.sql.streaming.fileSink.log.compactInterval"] = "3"
    inputs, out = tmp_path / "in", tmp_path / "out"
    for file in range(4):
        add_file(inputs, file)
    writer = stream(spark, inputs).writeStream.format("parquet").option("path", str(out)).partitionBy("k")
    query = start(writer, query_id="new", location=str(tmp_path / "first"))
    query.processAllAvailable()
    progress.hold(lambda: progress.files_at(tmp_path / "first", 1), tmp_path / "held")
    log = progress.hold(lambda: file_sink_log.files_at(out, 1), tmp_path / "log")
    add_file(inputs, 4)
    query.processAllAvailable()
    assert query.isActive
    later = progress.hold(lambda: file_sink_log.files_at(out, 4), tmp_path / "later")
    query.stop()
    assert "2.compact" in later

    done = file_sink_log.restore(out, file_sink_log.contents(log), Unshared())
    assert done.undone == (2, 3, 4)
    assert done.set_aside > 0
    assert rows(spark, out) == expected_rows(range(2)) == rows_without_log(out)

    seed(tmp_path / "held", tmp_path / "second")
    add_file(inputs, 5)
    query = start(writer, query_id="new", location=str(tmp_path / "second"))
    query.processAllAvailable()
    query.stop()
    assert rows(spark, out) == expected_rows(range(6)) == rows_without_log(out)

    # Forward again to the other history, whose files were only set aside.
    done = file_sink_log.restore(out, file_sink_log.contents(later), Unshared())
    assert done.brought_back > 0
    assert done.missing == ()
    assert rows(spark, out) == expected_rows(range(5)) == rows_without_log(out)


def test_a_table_goes_back_with_its_query(spark: SparkSession, inputs: Path, tmp_path: Path) -> None:
    writer = stream(spark, inputs).writeStream.format("parquet").trigger(availableNow=True)
    table = f"went_back_{tmp_path.name}"
    finish(start(writer, query_id="new", location=str(tmp_path / "first"), table=table))
    out = Path(spark.conf.get("spark.sql.warehouse.dir").removeprefix("file:")) / table
    progress.hold(lambda: progress.files_at(tmp_path / "first", CUT), tmp_path / "held")
    log = progress.hold(lambda: file_sink_log.files_at(out, CUT), tmp_path / "log")
    file_sink_log.restore(out, file_sink_log.contents(log), Unshared())
    seed(tmp_path / "held", tmp_path / "second")
    assert Counter(
        spark.read.parquet(str(out)).toPandas().itertuples(index=False, name=None)
    ) == expected_rows(range(CUT + 1))
    finish(start(writer, query_id="new", location=str(tmp_path / "second"), table=table))
    found = Counter(tuple(row) for row in spark.table(table).collect())
    assert found == expected_rows(range(FILES))
    spark.sql(f"DROP TABLE {table}")


def test_a_rate_source_goes_on_without_gap_or_repetition(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    source = spark.readStream.format("rate").option("rowsPerSecond", 200).load().select("value")
    writer = source.writeStream.format("parquet").option("path", str(out))
    query = start(writer, query_id="new", location=str(tmp_path / "first"))
    until(query, lambda: file_sink_log.newest(out) >= 4)
    cut = progress.newest_committed(tmp_path / "first") - 2
    progress.hold(lambda: progress.files_at(tmp_path / "first", cut), tmp_path / "held")
    log = progress.hold(lambda: file_sink_log.files_at(out, cut), tmp_path / "log")
    query.stop()
    file_sink_log.restore(out, file_sink_log.contents(log), Unshared())
    seed(tmp_path / "held", tmp_path / "second")
    query = start(writer, query_id="new", location=str(tmp_path / "second"))
    until(query, lambda: progress.newest_committed(tmp_path / "second") >= cut + 2)
    query.stop()
    assert (tmp_path / "second" / "offsets" / str(cut + 1)).exists()
    values = sorted(row["value"] for row in spark.read.parquet(str(out)).collect())
    assert values == list(range(len(values)))
    assert values


# --- helpers ---------------------------------------------------------------------------------------------


def noop(frame: DataFrame, mode: str) -> DataStreamWriter:
    return frame.writeStream.outputMode(mode).format("noop").trigger(availableNow=True)


def finish(query: StreamingQuery) -> StreamingQuery:
    assert query.awaitTermination(DEADLINE)
    return query


def until(query: StreamingQuery, reached: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not reached():
        if query.exception() is not None:
            raise AssertionError(query.exception())
        assert time.monotonic() < end, "the query did not get there"
        query.awaitTermination(0.05)


def expected_rows(files: Iterable[int]) -> Result:
    return Counter((record["id"], record["k"]) for file in files for record in records(file))


def rows(spark: SparkSession, out: Path) -> Result:
    return Counter((row["id"], row["k"]) for row in spark.read.parquet(str(out)).collect())


def rows_without_log(out: Path) -> Result:
    table = pyarrow.dataset.dataset(out, format="parquet", partitioning="hive").to_table()
    return Counter((row["id"], row["k"]) for row in table.to_pylist())


# --- logs that Spark compacts -------------------------------------------------------------------------------


@pytest.mark.compat
def test_spark_derives_the_interval_of_a_log_as_we_do(spark: SparkSession) -> None:
    streaming = "org.apache.spark.sql.execution.streaming"
    found = next(
        log
        for package in (f"{streaming}.runtime", streaming)
        if hasattr(log := getattr(spark._jvm, f"{package}.CompactibleFileStreamLog"), "deriveCompactInterval")
    )
    for default in (1, 2, 3, 10, 12):
        for latest in range(130):
            interval = compact_log.interval_of([latest], default)
            assert interval == found.deriveCompactInterval(default, latest)
            # What Spark reads first is a compact file by this interval, or the whole log.
            for newest in range(latest, latest + 25):
                first = compact_log.first_read(newest, interval)
                assert first == found.getAllValidBatches(newest, interval).head()


@pytest.mark.full("integration/test_working_directory.py::test_a_parquet_sink_goes_back_with_its_query")
def test_logs_are_read_after_any_number_of_restores(
    spark: SparkSession, settings: dict[str, str], tmp_path: Path
) -> None:
    """Of the compact file that a checkpoint has, Spark derives another interval than the one the log was written by."""
    for log in ("fileSource", "fileSink"):
        settings[f"{STREAMING}{log}.log.compactInterval"] = "2"
    files, out = tmp_path / "in", tmp_path / "out"
    files.mkdir()
    config = CheckpointConfig(interval=None, restart=NoRestart())
    given = 0
    # The last batches of four lives: with 3.compact alone "every 4" would follow, with 7.compact alone "every 2".
    for last in (4, 10, 11, 16):
        storage = str(tmp_path / "store")
        with CheckpointCoordinator(spark, pipeline="logs", storage=storage, config=config) as coordinator:
            rows = spark.readStream.schema("v long").option("maxFilesPerTrigger", 1).json(str(files))
            query = coordinator.start(
                rows.writeStream.format("parquet").option("path", str(out)), name="logs"
            )
            while given <= last:
                (tmp_path / "new").write_text(f'{{"v": {given}}}')
                os.utime(tmp_path / "new", (1_600_000_000 + given, 1_600_000_000 + given))
                (tmp_path / "new").rename(files / f"{given:03}.json")
                given += 1
            query.processAllAvailable()
            rows = spark.read.parquet(str(out))
            assert sorted(row.v for row in rows.collect()) == list(range(given))
            # What Spark deletes some time after it has compacted a log.
            for folder in (out / file_sink_log.LOG, _source_log(coordinator)):
                compacted = sorted(int(path.stem) for path in folder.glob("*.compact"))
                for path in folder.iterdir():
                    number = compact_log.entry_number(path.name)
                    if number is not None and number < compacted[-1]:
                        path.unlink()


def _source_log(coordinator: CheckpointCoordinator) -> Path:
    run = insides.run(coordinator, "logs")
    return run.directory / "sources" / "0"
