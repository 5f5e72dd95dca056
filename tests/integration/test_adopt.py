"""Queries of plain Spark go on under a coordinator as if nobody had interrupted them."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.streaming.readwriter import DataStreamWriter

from chandy.coordinator import CheckpointCoordinator
from chandy.coordinator.adopt import adopted_store, adopters
from chandy.coordinator.errors import AdoptionError, SinkTakenError
from chandy.coordinator.spark import progress
from chandy.storage.checkpoints.verification import verify

from .. import insides
from ..effort import sampled
from ..waiting import eventually
from .native_state import PROVIDERS, STREAMING
from .support import Events, Make, in_place
from .untouched import check_untouched, contents

pytestmark = [pytest.mark.spark, pytest.mark.migration]

# Workers do not have the tests' modules: what the tests define travels by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

GONE_ON = "plain Spark has gone on with the query after it was adopted"
"""What the log says."""
TIMED = "id long, k string, t timestamp"
Build = Callable[[SparkSession, Path], DataFrame]


# --- plain queries ------------------------------------------------------------------------------------------


def add_file(folder: Path, number: int) -> None:
    """Add a file of events, the newest so far; some events come twice, and none is late."""
    folder.mkdir(exist_ok=True)
    lines = [
        {"id": number * 10 + row % 17, "k": f"k{row % 5}", "t": f"2024-01-01T00:{number:02}:{row:02}Z"}
        for row in range(20)
    ]
    hidden = folder / f".{number:03}"
    hidden.write_text("\n".join(map(json.dumps, lines)))
    os.utime(hidden, (1_600_000_000 + number, 1_600_000_000 + number))
    hidden.rename(folder / f"{number:03}.json")


def timed(spark: SparkSession, folder: Path) -> DataFrame:
    stream = spark.readStream.schema(TIMED).option("maxFilesPerTrigger", 1).json(str(folder))
    return stream.withWatermark("t", "30 seconds")


def mapped(spark: SparkSession, folder: Path) -> DataFrame:
    return timed(spark, folder).withColumn("double", F.col("id") * 2)


def windows(spark: SparkSession, folder: Path) -> DataFrame:
    counted = timed(spark, folder).groupBy(F.window("t", "40 seconds"), "k").count()
    return counted.select(F.col("window.start").alias("start"), "k", "count")


def distinct(spark: SparkSession, folder: Path) -> DataFrame:
    return timed(spark, folder).dropDuplicates(["id"]).select("id", "k")


def joined(spark: SparkSession, folder: Path) -> DataFrame:
    left = timed(spark, folder)
    right = timed(spark, folder).select(F.col("id").alias("other"), F.col("t").alias("u"))
    return left.join(right, F.expr("id = other AND u BETWEEN t AND t + INTERVAL 1 MINUTE")).select(
        "id", "k", "u"
    )


def into(df: DataFrame, out: Path) -> DataStreamWriter:
    return df.writeStream.format("parquet").option("path", str(out))


def plain(writer: DataStreamWriter, checkpoint: Path) -> None:
    """Let plain Spark run a query over what is there, and stop it."""
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def rows(spark: SparkSession, out: Path) -> Counter[tuple[Any, ...]]:
    """What readers see in the output of a file sink."""
    return Counter(map(tuple, spark.read.parquet(str(out)).collect()))


class AdoptedQuery:
    """One query: interrupted, adopted and gone on with, and beside it one that plain Spark runs to the end."""

    def __init__(self, spark: SparkSession, folder: Path, build: Build) -> None:
        self.spark, self.build = spark, build
        self.inputs, self.out, self.old = folder / "events", folder / "out", folder / "old"
        self._whole = folder / "whole"
        self._files = 0

    def add(self, files: int) -> None:
        """Add files of events."""
        for _ in range(files):
            add_file(self.inputs, self._files)
            self._files += 1

    def writer(self, out: Path | None = None) -> DataStreamWriter:
        return into(self.build(self.spark, self.inputs), out or self.out)

    def plain(self) -> None:
        """Let plain Spark run the query over what is there, and stop it."""
        plain(self.writer(), self.old)

    @property
    def newest(self) -> int:
        """The newest batch that plain Spark has committed."""
        return progress.newest_committed(self.old)

    def interrupt(self) -> int:
        """Leave the newest batch as a kill does between the sink's commit and the commit log; return its number."""
        newest = self.newest
        (self.old / "commits" / str(newest)).unlink()
        return newest

    def start(self, coordinator: CheckpointCoordinator) -> Any:
        return coordinator.start(self.writer(), name="q", adopt=str(self.old))

    def run(self, coordinator: CheckpointCoordinator) -> Any:
        """Start the query, and wait until it has processed all that is there."""
        query = self.start(coordinator)
        query.processAllAvailable()
        return query

    def check(self) -> None:
        """Compare what readers see with what a query of plain Spark gives out that nobody interrupts."""
        plain(self.writer(self._whole), self._whole.with_name("whole-checkpoint"))
        expected = rows(self.spark, self._whole)
        assert expected
        assert rows(self.spark, self.out) == expected


Begin = Callable[[Build, int], AdoptedQuery]
"""Makes a query that plain Spark has run over so many files, and that has stopped."""


@pytest.fixture
def begin(spark: SparkSession, tmp_path: Path) -> Begin:
    def new(build: Build, files: int) -> AdoptedQuery:
        case = AdoptedQuery(spark, tmp_path, build)
        case.add(files)
        case.plain()
        return case

    return new


@pytest.fixture
def stopped(begin: Begin) -> AdoptedQuery:
    """A query with state of Spark's own, which plain Spark has run over four files."""
    return begin(windows, 4)


# --- stateless queries, and Spark's own state ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "provider"),
    sampled(
        [
            pytest.param(*(mapped, "hdfs"), marks=pytest.mark.compat),
            (windows, "hdfs"),
            pytest.param(*(windows, "rocksdb-changelog-v2"), marks=pytest.mark.compat),
            (distinct, "rocksdb"),
            (joined, "rocksdb-changelog"),
        ],
        1,
    ),
)
def test_an_adopted_query_gives_out_what_an_uninterrupted_one_does(
    build: Build,
    provider: str,
    begin: Begin,
    settings: dict[str, str],
    make: Make,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, value in PROVIDERS[provider].items():
        settings[STREAMING + name] = value
    case = begin(build, 5)
    before, newest = contents(case.old), case.newest

    coordinator = make()
    report = coordinator.adoption(str(case.old), case.writer())
    assert report.is_possible, report
    assert not (tmp_path / "store" / "p" / adopted_store.FOLDER).exists()
    assert not (tmp_path / "store" / adopters.FOLDER).exists()
    case.add(3)
    query = case.run(coordinator)
    first = min(progress["batchId"] for progress in query.recentProgress)
    assert first == newest + 1
    taken = coordinator.stop()
    assert taken is not None
    assert verify(coordinator._taken.catalog.store, coordinator._taken.catalog.latest()).ok

    # Adopted once: from now on the pipeline's own checkpoint counts.
    case.add(2)
    with caplog.at_level(logging.INFO):
        again = make()
        case.run(again)
    assert "nothing is adopted" in caplog.text
    assert GONE_ON not in caplog.text
    again.stop()
    case.check()
    check_untouched(case.old, before)


def test_a_batch_that_was_planned_runs_again_with_its_offsets(stopped: AdoptedQuery, make: Make) -> None:
    newest = stopped.interrupt()
    planned = (stopped.old / "offsets" / str(newest)).read_text()

    coordinator = make()
    assert f"Batch {newest} was planned" in str(coordinator.adoption(str(stopped.old)))
    stopped.add(2)
    stopped.run(coordinator)
    run = insides.run(coordinator, "q")
    assert (run.directory / "offsets" / str(newest)).read_text() == planned
    coordinator.stop()
    stopped.check()


@pytest.mark.full("integration/test_adopt.py::test_a_killed_driver_resumes_behind_what_it_has_adopted")
def test_before_its_first_checkpoint_it_begins_again_where_it_was_adopted(
    stopped: AdoptedQuery, make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stopped.add(2)
    for _ in range(2):
        coordinator = make()
        stopped.run(coordinator)
        coordinator.stop(checkpoint=False)
    # It needs the old directory no more.
    stopped.old.rename(tmp_path / "gone")
    with caplog.at_level(logging.INFO):
        coordinator = make()
        query = stopped.start(coordinator)
    assert "goes on from what it has adopted before" in caplog.text
    query.processAllAvailable()
    coordinator.stop()
    stopped.check()


def test_a_killed_driver_resumes_behind_what_it_has_adopted(stopped: AdoptedQuery, make: Make) -> None:
    stopped.add(2)
    coordinator = make()
    stopped.run(coordinator)
    stood = progress.newest_committed(insides.runs(coordinator)[0].directory)
    insides.crash(coordinator)
    stopped.add(2)
    after = make()
    query = stopped.run(after)
    assert in_place(after) == [True]
    assert min(progress["batchId"] for progress in query.recentProgress) == stood + 1
    after.stop()
    stopped.check()


@pytest.mark.kills
@pytest.mark.full("integration/test_adopt.py::test_a_killed_driver_resumes_behind_what_it_has_adopted")
def test_a_query_that_was_killed_goes_on(spark: SparkSession, make: Make, tmp_path: Path) -> None:
    case = AdoptedQuery(spark, tmp_path, windows)
    case.add(5)
    code = f"""
import sys
from pathlib import Path
from tests.integration import drivers, test_adopt
spark = drivers.session("local[2]", Path({str(tmp_path)!r}))
spark.conf.set("spark.sql.session.timeZone", "UTC")
df = test_adopt.windows(spark, Path({str(case.inputs)!r}))
test_adopt.into(df, Path({str(case.out)!r})).option("checkpointLocation", {str(case.old)!r}).start().awaitTermination()
"""
    driver = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: progress.newest_planned(case.old) >= 3, "batch 3")
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    coordinator = make()
    case.add(3)
    case.run(coordinator)
    coordinator.stop()
    case.check()


# --- what is adopted once -----------------------------------------------------------------------------------


def nowhere(case: AdoptedQuery) -> DataStreamWriter:
    """The query with a sink in which nobody can leave a mark."""
    return case.build(case.spark, case.inputs).writeStream.foreachBatch(lambda frame, batch: frame.collect())


@pytest.mark.parametrize(
    ("writer", "storage", "error"),
    [(AdoptedQuery.writer, "elsewhere", SinkTakenError), (nowhere, "store", AdoptionError)],
    ids=["by its output", "by the storage"],
)
def test_of_two_pipelines_that_adopt_a_query_at_once_one_goes_on_and_the_other_is_told_so(
    writer: Callable[[AdoptedQuery], DataStreamWriter],
    storage: str,
    error: type[Exception],
    stopped: AdoptedQuery,
    make: Make,
) -> None:
    stopped.add(2)
    coordinators = [make(), make(pipeline="other", storage=storage)]
    begin = threading.Barrier(2)

    def adopt(coordinator: CheckpointCoordinator) -> Any:
        begin.wait()
        try:
            return coordinator.start(writer(stopped), name="q", adopt=str(stopped.old))
        except error as refused:
            return refused

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(adopt, coordinators))
    refused = [one for one in outcomes if isinstance(one, error)]
    assert len(refused) == 1
    winner = coordinators[1 - outcomes.index(refused[0])]
    assert f"query 'q' of pipeline {winner._pipeline!r}" in str(refused[0]).lower()
    for one in outcomes:
        if one is not refused[0]:
            one.processAllAvailable()
    winner.stop()
    if writer is AdoptedQuery.writer:
        stopped.check()


@pytest.mark.full(
    "integration/test_adopt.py::test_of_two_pipelines_that_adopt_a_query_at_once_one_goes_on_and_the_other_is_told_so"
)
def test_a_query_that_another_one_has_adopted_is_refused_until_that_is_given_up(
    stopped: AdoptedQuery, make: Make, tmp_path: Path
) -> None:
    first, old = make(), str(stopped.old)
    first.start(nowhere(stopped), name="q", adopt=old).processAllAvailable()
    first.stop()
    other = make(pipeline="other")
    for coordinator, name in ((make(), "another"), (other, "q")):
        report = coordinator.adoption(old, nowhere(stopped), name=name)
        assert "Query 'q' of pipeline 'p' has adopted it" in " ".join(report.obstacles)
        with pytest.raises(
            AdoptionError, match=r"[Qq]uery 'q' of pipeline 'p' has adopted it.* delete "
        ) as refused:
            coordinator.start(nowhere(stopped), name=name, adopt=old)
    named = re.search(r"delete (\S+);", str(refused.value))
    assert named is not None
    Path(named[1].removeprefix("file://")).unlink()
    other.start(nowhere(stopped), name="q", adopt=old).processAllAvailable()


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_a_query_that_plain_spark_goes_on_with_after_its_adoption_is_noticed_at_the_next_start(
    has_checkpoint: bool, stopped: AdoptedQuery, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator, old = make(), str(stopped.old)
    coordinator.start(nowhere(stopped), name="q", adopt=old).processAllAvailable()
    coordinator.stop(checkpoint=has_checkpoint)
    stopped.add(1)
    stopped.plain()
    again = make()
    if not has_checkpoint:
        with pytest.raises(AdoptionError, match="plain Spark has gone on with it"):
            again.start(nowhere(stopped), name="q", adopt=old)
        return
    # What the pipeline has is right all the same.
    again.start(nowhere(stopped), name="q", adopt=old).processAllAvailable()
    assert GONE_ON in caplog.text


# --- what is refused ----------------------------------------------------------------------------------------


def test_a_query_that_runs_here_is_refused(spark: SparkSession, make: Make, tmp_path: Path) -> None:
    case = AdoptedQuery(spark, tmp_path, mapped)
    case.add(1)
    query = case.writer().option("checkpointLocation", str(case.old)).start()
    coordinator = make()
    try:
        query.processAllAvailable()
        with pytest.raises(AdoptionError, match="is running in it: stop it first"):
            case.start(coordinator)
    finally:
        query.stop()
    case.run(coordinator)


def test_another_source_or_output_is_refused_and_nothing_is_changed(
    spark: SparkSession, begin: Begin, make: Make, tmp_path: Path
) -> None:
    case = begin(mapped, 2)
    before = contents(tmp_path / "out"), contents(case.old)
    coordinator = make()
    two = case.build(spark, case.inputs).union(case.build(spark, case.inputs))
    for writer, why in [
        (into(two, case.out), "offsets of 1 source, and the query reads 2"),
        (case.writer(tmp_path / "elsewhere"), "has no log of batches"),
        (into(windows(spark, case.inputs), case.out), "needs state of Spark's own"),
    ]:
        report = coordinator.adoption(str(case.old), writer)
        assert why in " ".join(report.obstacles)
        with pytest.raises(AdoptionError, match=why):
            coordinator.start(writer, name="q", adopt=str(case.old))
    with pytest.raises(AdoptionError, match="no directory"):
        coordinator.start(case.writer(), name="q", adopt=str(tmp_path / "nowhere"))
    assert (contents(tmp_path / "out"), contents(case.old)) == before


def test_state_that_spark_has_and_the_query_has_not_is_refused(
    spark: SparkSession, make: Make, events: Events, tmp_path: Path
) -> None:
    events.add(2)
    counted = events.stream(spark).groupBy("k").count()
    writer = counted.writeStream.outputMode("update").format("noop")
    plain(writer, tmp_path / "old")
    coordinator = make()
    stateless = events.stream(spark).writeStream.format("noop")
    with pytest.raises(AdoptionError, match="stateStoreSave"):
        coordinator.start(stateless, name="q", adopt=str(tmp_path / "old"))
