"""Pipelines that resume after their driver was killed. Drivers are really killed in test_exactly_once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from chandy.coordinator import Checkpoint, CheckpointCoordinator, FixedDelay
from chandy.coordinator.query import CheckpointedQuery
from chandy.coordinator.spark.progress import newest_committed
from chandy.state.local.changelog import FOLDER
from chandy.storage.disk.directories import runtime_directory

from .. import insides
from ..waiting import DEADLINE, eventually
from .support import TOTALS, Events, Make, Totals, in_place

pytestmark = pytest.mark.spark
# Workers do not have the tests' modules: what the tests define travels by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

CHANGELOGS = runtime_directory() / "cache" / FOLDER
ROWS = 40
"""Rows of a batch of ``Events``."""


class More(Totals):
    """Has another state beside."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.more = handle.getValueState("more", "n long")


class SumsOfTotals(Totals):
    """Adds up what ``Totals`` counts: downstream of it."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        n, total = self.state.get() or (0, 0)
        for row in rows:
            n, total = n + 1, total + row.n
        self.state.update((n, total))
        yield Row(k=key[0], n=n, total=total)


class TwoQueries:
    """Two queries, the second of which reads what the first one writes; what batches the sinks were given."""

    def __init__(self, spark: SparkSession, events: Events, folder: Path) -> None:
        self.spark = spark
        self.events = events
        self.middle = folder / "middle"
        self.given: list[int] = []
        """Batches of the second query, in the order in which they ran."""
        self.rows: dict[int, list[Row]] = {}

    def start(
        self, coordinator: CheckpointCoordinator, second: type[Totals] = SumsOfTotals
    ) -> tuple[CheckpointedQuery, CheckpointedQuery]:
        return self.start_first(coordinator), self.start_second(coordinator, second)

    def start_first(self, coordinator: CheckpointCoordinator) -> CheckpointedQuery:
        totals = coordinator.transform_with_state(
            self.events.stream(self.spark),
            key=["k"],
            processor=Totals(),
            output=TOTALS,
            uid="totals",
            shards=4,
        )
        writer = totals.writeStream.format("parquet").option("path", str(self.middle))
        return coordinator.start(writer, name="totals")

    def start_second(
        self, coordinator: CheckpointCoordinator, second: type[Totals] = SumsOfTotals
    ) -> CheckpointedQuery:
        produced = self.spark.readStream.schema(TOTALS).parquet(str(self.middle))
        sums = coordinator.transform_with_state(
            produced, key=["k"], processor=second(), output=TOTALS, uid="sums", shards=2
        )
        return coordinator.start(sums.writeStream.foreachBatch(self.sink), name="sums", reads=["totals"])

    def sink(self, frame: DataFrame, batch: int) -> None:
        self.given.append(batch)
        self.rows[batch] = frame.collect()

    def run(self, queries: tuple[CheckpointedQuery, ...], files: int = 1) -> None:
        for _ in range(files):
            self.events.add()
            for query in queries:
                query.processAllAvailable()

    def live(self, coordinator: CheckpointCoordinator, files: int = 2) -> Checkpoint:
        """Run some batches before a checkpoint and as many after it."""
        queries = self.start(coordinator)
        self.run(queries, files)
        taken = coordinator.checkpoint().result(DEADLINE)
        self.run(queries, files)
        return taken

    def check(self) -> None:
        """Every key of both queries counts each of its rows once."""
        seen = {
            row.k: max(r.n for rows in self.rows.values() for r in rows if r.k == row.k)
            for row in self.rows[0]
        }
        assert seen == dict.fromkeys(seen, self.events.files), "each file has each key, and makes it one row"
        first = {
            row.k: row.n
            for row in self.spark.read.parquet(str(self.middle))
            .groupBy("k")
            .agg({"n": "max"})
            .withColumnRenamed("max(n)", "n")
            .collect()
        }
        assert sum(first.values()) == ROWS * self.events.files


@pytest.fixture
def pipeline(spark: SparkSession, events: Events, tmp_path: Path) -> TwoQueries:
    return TwoQueries(spark, events, tmp_path)


def ids(coordinator: CheckpointCoordinator) -> set[str]:
    return {run.query_id for run in insides.runs(coordinator)}


def changelogs(coordinator: CheckpointCoordinator) -> list[Path]:
    """The segments of the changelogs of a coordinator's runs."""
    return [path for id in ids(coordinator) for path in (CHANGELOGS / id).glob("*/*.log")]


def test_no_batch_runs_again_and_the_next_checkpoint_has_all_of_them(
    make: Make, pipeline: TwoQueries
) -> None:
    first = make()
    taken = pipeline.live(first)
    insides.crash(first)

    second = make()
    queries = pipeline.start(second)
    assert in_place(second) == [True, True]
    assert [recovery.checkpoint for recovery in second.recoveries] == [taken.id] * 2
    # Nothing runs yet: what this one has is what was in the changelogs, and files of the one before.
    idle = second.checkpoint().result(DEADLINE)
    assert idle.batches == {"totals": 3, "sums": 3}
    assert second.get("totals", "k1").n == second.get("totals", {"k": "k1"}).n > 0
    pipeline.run(queries, 1)
    assert pipeline.given == [0, 1, 2, 3, 4]
    pipeline.check()
    second.stop(checkpoint=False)

    # From the checkpoint alone: right after the batches that were in the changelogs.
    third = make(restore=idle.id)
    queries = pipeline.start(third)
    assert in_place(third) == [False, False]
    pipeline.run(queries, 1)
    assert pipeline.given[5:] == [4, 5]
    pipeline.check()


@pytest.mark.full(
    "integration/test_going_on.py::test_no_batch_runs_again_and_the_next_checkpoint_has_all_of_them"
)
def test_a_resumed_run_can_be_resumed_again(make: Make, pipeline: TwoQueries) -> None:
    """Killed again and again, and never a checkpoint."""
    coordinator = make()
    queries = pipeline.start(coordinator)
    pipeline.run(queries, 1)
    before: set[str] = set()
    for _ in range(3):
        before |= ids(coordinator)
        insides.crash(coordinator)
        coordinator = make()
        queries = pipeline.start(coordinator)
        assert in_place(coordinator) == [True, True]
        assert coordinator.restored is None
        pipeline.run(queries, 1)
    assert pipeline.given == [0, 1, 2, 3]
    pipeline.check()
    # The files of the previous drivers have been deleted by now.
    eventually(lambda: not any((CHANGELOGS / id).exists() for id in before))
    last = ids(coordinator)
    assert all((CHANGELOGS / id).exists() for id in last)
    coordinator.stop()
    assert not any((CHANGELOGS / id).exists() for id in last)


def damage(coordinator: CheckpointCoordinator) -> None:
    """Change a byte of what a batch has changed, in one changelog."""
    path = max(changelogs(coordinator), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_damaged_changelog_is_found_and_the_pipeline_goes_back_to_its_checkpoint(
    make: Make, pipeline: TwoQueries
) -> None:
    first = make()
    pipeline.live(first)
    damage(first)
    insides.crash(first)

    second = make(restart=FixedDelay("10 ms", attempts=3))
    queries = pipeline.start(second)
    assert in_place(second) == [True, True]
    pipeline.events.add()
    # What has been damaged shows when its shard is opened.
    eventually(lambda: len(second.recoveries) > 2 and not second.recoveries[-1].in_place)
    for query in queries:
        eventually(lambda query=query: query.isActive)
        query.processAllAvailable()
    assert pipeline.given[:4] == [0, 1, 2, 3]
    assert pipeline.given[-3:] == [2, 3, 4]
    pipeline.check()


def test_a_batch_that_the_sink_has_and_the_commit_log_has_not_is_counted(
    make: Make, pipeline: TwoQueries
) -> None:
    """Killed between the two: Spark would pass over that batch, and its shards would never hear of it."""
    first = make()
    pipeline.live(first)
    run = insides.run(first, "totals")
    insides.crash(first)
    newest = newest_committed(run.directory)
    for path in (run.directory / "commits").glob(f"*{newest}*"):
        path.unlink()
    assert newest_committed(run.directory) == newest - 1

    second = make()
    queries = pipeline.start(second)
    assert in_place(second) == [False, False]
    pipeline.run(queries, 1)
    pipeline.check()


def test_a_query_whose_working_directory_a_cleaner_has_emptied_loses_and_repeats_no_row(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    """In place, Spark would begin from the start there, and its file sink would take all its batches for written."""
    out, breaks = tmp_path / "out", tmp_path / "breaks"

    def value(v: int) -> int:
        if breaks.exists():
            breaks.unlink()
            raise ValueError("once")
        return v

    rows = events.stream(spark).select("k", F.udf(value, "long")("v").alias("v"))
    events.add(2)
    coordinator = make(restart=FixedDelay("0 s", attempts=3))
    query = coordinator.start(rows.writeStream.format("parquet").option("path", str(out)), name="plain")
    query.processAllAvailable()
    coordinator.checkpoint().result(DEADLINE)
    events.add(2)
    query.processAllAvailable()
    # Its own: others run beside this test.
    for file in [path for path in insides.run(coordinator, "plain").directory.rglob("*") if path.is_file()]:
        file.unlink()
    breaks.touch()
    events.add(2)
    eventually(lambda: len(coordinator.recoveries) == 2)
    assert not coordinator.recoveries[1].in_place
    query.processAllAvailable()
    assert sorted(spark.read.parquet(str(out)).collect()) == sorted(
        spark.read.schema("k string, v long").json(str(events.folder)).collect()
    )


@pytest.mark.full(
    "integration/test_going_on.py::test_no_batch_runs_again_and_the_next_checkpoint_has_all_of_them"
)
def test_a_query_that_has_changed_takes_those_back_that_had_gone_on(make: Make, pipeline: TwoQueries) -> None:
    first = make()
    pipeline.live(first)
    insides.crash(first)

    second = make()
    upstream = pipeline.start_first(second)
    assert in_place(second) == [True]
    upstream.processAllAvailable()

    class Changed(SumsOfTotals, More):
        pass

    downstream = pipeline.start_second(second, Changed)
    # The first query resumed, then went back to the checkpoint, and then the second query began.
    assert in_place(second) == [True, False, False]
    pipeline.run((upstream, downstream), 1)
    assert pipeline.given == [0, 1, 2, 3, 2, 3, 4]
    pipeline.check()
