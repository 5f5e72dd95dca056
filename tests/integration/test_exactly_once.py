"""State and file sink are exactly once whatever is killed: drivers, state hosts and tasks that really die."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path

import attrs
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from chandy.coordinator import Checkpoint, CheckpointCoordinator, CheckpointedQuery, CheckpointError, Reason
from chandy.coordinator.recovery import launcher
from chandy.coordinator.restore.run_record import may_be_alive
from chandy.coordinator.sinks.file_sink_log import newest
from chandy.coordinator.spark import starting
from chandy.state import failure_marks
from chandy.state.errors import HostLostError
from chandy.state.local.changelog import FOLDER
from chandy.storage.backends.open import open_store
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.errors import FencedError

from ..effort import IS_FULL, chance, rounds, sampled, some
from ..waiting import DEADLINE, eventually
from . import drivers
from .driver_runs import AHEAD, InputFeed, KilledDriver, coordinate, hosts, parquet, rows
from .driver_runs import local as local
from .driver_runs import runtime as runtime
from .drivers import Output, answer, answer_of_batches, batches_in, chained, files_sunk, seen, trouble
from .support import GOES_BACK, RESUMES

pytestmark = pytest.mark.spark

# A worker of Spark cannot import test code.
cloudpickle.register_pickle_by_value(drivers)


# --- what is killed --------------------------------------------------------------------------------------


def host_directories(runtime: Path) -> set[str]:
    return {path.name for path in (runtime / "cache" / "hosts").iterdir() if path.is_dir()}


def with_shards(runtime: Path) -> set[str]:
    """The hosts, by their directories, that have opened or restored shards, or are at it."""
    found = set()
    for host in host_directories(runtime):
        # A host that ends removes its directory.
        with contextlib.suppress(FileNotFoundError):
            if any((runtime / "cache" / "hosts" / host / "shards").iterdir()):
                found.add(host)
    return found


def left_over(runtime: Path) -> list[str]:
    """What is in a runtime directory beside lock files, empty folders and the cache of immutable files."""
    kept = runtime / "cache" / "files"
    return sorted(
        str(path.relative_to(runtime))
        for path in runtime.rglob("*")
        if not path.is_dir() and path.name != ".lock" and not path.is_relative_to(kept)
    )


@attrs.frozen
class Moment:
    """When a driver is killed: some time after an event."""

    event: str
    nth: int
    after: float
    """Seconds."""


def moments() -> list[Moment]:
    """Moments while it constructs, restores and starts, and between and within batches and checkpoints."""
    numbers = chance("moments")
    times = {"constructing": 2, "starting": 4, "sank": 5, "triggered": 6, "completed": 3}
    tried = some(times, 3, "kinds of moments")
    kinds = [kind for kind in tried for _ in range(rounds(1, times[kind]))]
    numbers.shuffle(kinds)
    longest = {"constructing": 0.4, "starting": 2.0, "sank": 0.3, "triggered": 0.25, "completed": 0.1}
    return [
        Moment(
            kind,
            1 if kind in ("constructing", "starting") else numbers.randint(1, 4),
            numbers.uniform(0, longest[kind]),
        )
        for kind in kinds
    ]


# --- drivers ---------------------------------------------------------------------------------------------


@pytest.mark.kills
def test_a_driver_killed_at_random_moments_again_and_again_leaves_the_state_of_a_batch_job(
    spark: SparkSession, tmp_path: Path, runtime: Path
) -> None:
    feed = InputFeed(tmp_path / "in")
    lives: list[KilledDriver] = []
    # The next driver starts its JVM while this one works. Now and then one keeps no changelogs.
    spare = KilledDriver(tmp_path, runtime)
    try:
        for number, moment in enumerate(moments()):
            driver = spare
            spare = KilledDriver(tmp_path, runtime, changelog=number % 4 != 1)
            lives.append(driver)
            driver.wait("warm")
            driver.tell()
            driver.wait(moment.event, moment.nth, feed.taken)
            # No wait for anything, but the moment itself.
            time.sleep(moment.after)
            driver.kill()
        spare.wait("warm")
        spare.tell()
        # Among these files is every key: what comes out shows the whole state.
        feed.add(AHEAD)
        spare.wait_for_files(feed.files)
        spare.tell()
        spare.wait("stopped")
        lives.append(spare)
    finally:
        spare.kill()
        for life in lives:
            life.kill()

    found = rows(spark, tmp_path / "out")
    batches = batches_in(found, feed.files)
    assert found == answer_of_batches(batches)
    assert len(batches) == newest(tmp_path / "out") + 1
    if IS_FULL:
        # Whether one of a few lives does is chance.
        assert any(life.all("resumes") for life in lives), "no driver has resumed where the one before was"
        assert any(point for life in lives for point in life.all("replays"))
    restored = [number for life in lives for number in life.all("restored")]
    # What has completed is the latest from there on, and its id never comes again.
    known = 0
    for life in lives:
        assert all(point >= known for point in life.all("restored"))
        assert all(number > known for number in life.all("triggered"))
        assert life.all("completed") == sorted(set(life.all("completed")))
        known = max([known, *life.all("completed")])
    assert restored == sorted(restored)
    assert not IS_FULL or len(set(restored)) > len(lives) // 8
    # Of hosts and drivers that were killed nothing is left, either.
    eventually(lambda: not hosts(runtime), "all leases are over")
    assert not left_over(runtime)


@pytest.mark.kills
@pytest.mark.compat
@pytest.mark.full(
    "integration/test_exactly_once.py::test_a_driver_killed_at_random_moments_again_and_again_leaves_the_state_of_a_batch_job"
)
def test_a_driver_killed_between_the_logs_of_source_and_offsets_leaves_two_entries_for_one_batch(
    spark: SparkSession, tmp_path: Path, local: Path
) -> None:
    feed = InputFeed(tmp_path / "in")
    marks, out = tmp_path / "marks", tmp_path / "out"
    marks.mkdir()
    (marks / "4-0-held").touch()
    driver = KilledDriver(tmp_path, local, marks=str(marks))
    try:
        driver.wait("warm")
        driver.tell()
        eventually(lambda: (4, 0) in seen(marks), "batch 4 is about to go into the sink")
    finally:
        driver.kill()
    (run,) = (local / "queries").glob("*/*/run.json")
    eventually(lambda: not may_be_alive(json.loads(run.read_text())["java"]), "the JVM is gone")
    # What is there if it is killed a moment earlier: the source has logged its file, and no batch is planned.
    directory = run.parent / "checkpoint"
    (directory / "offsets" / "4").unlink()
    assert (directory / "sources" / "0" / "4").exists()

    with coordinate(spark, tmp_path, interval=None) as coordinator:
        query = coordinator.start(parquet(chained(coordinator, spark, feed.folder), out), name="chained")
        assert coordinator.recoveries[0].in_place
        sunk(coordinator, query, out, feed.files)
        assert coordinator.checkpoint().result(DEADLINE).batches == {"chained": 6}
    # The checkpoint has every entry of the source's log: else files would be taken for others.
    feed.add(3)
    with coordinate(spark, tmp_path, interval=None) as coordinator:
        frame = chained(coordinator, spark, feed.folder, files_per_batch=100)
        coordinator.start(parquet(frame, out), name="chained").processAllAvailable()
    assert rows(spark, out) == answer_of_batches([[0], [1], [2], [3], [4, 5], [6], [7], [8, 9, 10]])


@pytest.mark.kills
@pytest.mark.full(
    "integration/test_exactly_once.py::test_a_driver_killed_at_random_moments_again_and_again_leaves_the_state_of_a_batch_job"
)
def test_the_hosts_of_a_killed_driver_end_by_themselves_and_leave_nothing(
    tmp_path: Path, runtime: Path
) -> None:
    InputFeed(tmp_path / "in")
    driver = KilledDriver(tmp_path, runtime)
    try:
        driver.wait("warm")
        driver.tell()
        driver.wait("sank")
        assert len(hosts(runtime)) == 1
        driver.kill()
        eventually(lambda: not hosts(runtime), "the lease of the hosts is over")
    finally:
        driver.kill()
    assert not host_directories(runtime)
    assert not list((runtime / "meet").iterdir())
    # What the next coordinator of the pipeline may go on from.
    left = {
        Path(path).parts[:2] if path.startswith("cache") else Path(path).parts[:1]
        for path in left_over(runtime)
    }
    assert left == {("queries",), ("cache", FOLDER)}


# --- tasks -----------------------------------------------------------------------------------------------


@pytest.mark.kills
def test_a_task_that_fails_after_it_has_applied_its_batch_counts_once(
    spark: SparkSession, tmp_path: Path, runtime: Path
) -> None:
    feed = InputFeed(tmp_path / "in")
    marks = tmp_path / "marks"
    marks.mkdir()
    failing = [(0, 0), (0, 1), (2, 1), (3, 0), (5, 0), (5, 1), (7, 1)]
    for batch, partition in failing:
        (marks / f"{batch}-{partition}").touch()
    driver = KilledDriver(tmp_path, runtime, master="local[2,3]", marks=str(marks))
    try:
        driver.wait("warm")
        driver.tell()
        driver.wait_for_files(feed.files)
        driver.tell()
        driver.wait("stopped")
    finally:
        driver.kill()
    attempts = Counter(seen(marks))
    assert {place for place, times in attempts.items() if times == 2} == set(failing)
    assert sum(attempts.values()) == 2 * feed.files + len(failing)
    assert rows(spark, tmp_path / "out") == answer(range(feed.files))


def test_a_sink_that_evaluates_the_plan_twice_counts_each_row_once(
    spark: SparkSession, tmp_path: Path, local: Path
) -> None:
    feed = InputFeed(tmp_path / "in")
    evaluated: list[list[Output]] = []

    def twice(frame: DataFrame, batch: int) -> None:
        evaluated.extend(collected(frame) for _ in range(2))

    with coordinate(spark, tmp_path, interval="300 ms") as coordinator:
        writer = chained(coordinator, spark, feed.folder).writeStream.foreachBatch(twice)
        coordinator.start(writer, name="chained").processAllAvailable()
        eventually(lambda: coordinator.statistics().counts.completed > 0, "a periodic checkpoint")
    assert evaluated[0::2] == evaluated[1::2]
    assert Counter(row for batch in evaluated[0::2] for row in batch) == answer(range(feed.files))


def test_a_query_that_fails_while_its_hosts_live_runs_the_same_batch_again_and_no_other(
    spark: SparkSession, tmp_path: Path, local: Path
) -> None:
    feed = InputFeed(tmp_path / "in")
    marks = tmp_path / "marks"
    marks.mkdir()
    for mark in ("2-0", "5-1"):
        (marks / mark).touch()
    with coordinate(spark, tmp_path, interval="300 ms") as coordinator:
        frame = chained(coordinator, spark, feed.folder)
        query = coordinator.start(
            parquet(frame.mapInArrow(trouble(marks), frame.schema), tmp_path / "out"), name="chained"
        )
        host = until_one_host(local)
        sunk(coordinator, query, tmp_path / "out", feed.files)
        assert hosts(local) == host
        assert [(one.in_place, one.checkpoint) for one in coordinator.recoveries] == [
            (False, None),
            (True, None),
            (True, None),
        ]
    batches = [batch for batch, _ in seen(marks)]
    assert batches == sorted(batches)
    attempts = Counter(seen(marks))
    assert [
        place for place, times in sorted(attempts.items()) if times > 1 and place in [(2, 0), (5, 1)]
    ] == [
        (2, 0),
        (5, 1),
    ]
    assert {batch for (batch, _), times in attempts.items() if times > 1} == {2, 5}
    assert rows(spark, tmp_path / "out") == answer(range(feed.files))


# --- state hosts -----------------------------------------------------------------------------------------


@pytest.mark.kills
@pytest.mark.parametrize("changelog", sampled([GOES_BACK, RESUMES], 1))
def test_state_hosts_killed_at_random_batches_take_nothing_with_them(
    spark: SparkSession, tmp_path: Path, local: Path, changelog: bool
) -> None:
    numbers = chance("hosts", changelog)
    feed = InputFeed(tmp_path / "in")
    out = tmp_path / "out"
    known: set[str] = set()
    with coordinate(spark, tmp_path, interval="500 ms", attempts=30, changelog=changelog) as coordinator:
        query = coordinator.start(parquet(chained(coordinator, spark, feed.folder), out), name="chained")
        kills = (1, 2) * rounds(1, full=2)
        for times in kills:
            sunk(coordinator, query, out, files_sunk(coordinator, out) + numbers.randint(1, 3))
            # Whether a periodic one completes between two kills is chance.
            coordinator.checkpoint().result(DEADLINE)
            # The second time while the next one restores its shards, or right after.
            for _ in range(times):
                eventually(lambda: with_shards(local) - known, "a new host has shards")
                known.update(with_shards(local))
                (pid,) = until_one_host(local)
                # No wait for anything, but a random moment.
                time.sleep(numbers.uniform(0, 0.4))
                os.kill(pid, signal.SIGKILL)
                eventually(lambda pid=pid: until_one_host(local) != {pid}, "another host")
            feed.add(AHEAD)
            sunk(coordinator, query, out, files_sunk(coordinator, out) + 1)
            assert len(host_directories(local)) == 1, "the next host removes what the last one left"
        sunk(coordinator, query, out, feed.files)
        recoveries = coordinator.recoveries[1:]
        # Two that are killed one after the other may make one recovery.
        assert len(recoveries) >= len(kills)
        # One that is killed before the first batch after a failure leaves the pipeline to the checkpoint.
        assert any(one.in_place for one in recoveries) == changelog
        assert len({one.checkpoint for one in recoveries if one.checkpoint}) >= len(kills) - 1
    assert rows(spark, out) == answer(range(feed.files))


@pytest.mark.full(
    "coordinator/recovery/test_supervisor.py::test_a_store_that_fails_in_passing_while_going_back_is_asked_again"
)
def test_going_back_begins_anew_as_a_whole_when_it_fails_half_way(
    spark: SparkSession, tmp_path: Path, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = InputFeed(tmp_path / "in")
    marks = tmp_path / "marks"
    marks.mkdir()
    (marks / "4-0").touch()
    starts: list[str] = []

    def start(writer: DataStreamWriter, **options: str) -> StreamingQuery:
        starts.append(options["location"])
        if len(starts) == 2:
            raise RuntimeError("Spark does not start")
        return starting.start(writer, **options)

    monkeypatch.setattr(launcher, "start_spark", start)
    with coordinate(spark, tmp_path, interval="300 ms") as coordinator:
        frame = chained(coordinator, spark, feed.folder)
        # As of a task that finds its host gone before anybody else does.
        lost = HostLostError("unix://host", "killed")
        failure_marks.mark(lost, coordinator._operators.endpoint.token)
        failing = frame.mapInArrow(trouble(marks, lost.__notes__[0]), frame.schema)
        query = coordinator.start(parquet(failing, tmp_path / "out"), name="chained")
        sunk(coordinator, query, tmp_path / "out", feed.files)
        assert [one.in_place for one in coordinator.recoveries] == [False, False]
    assert len(set(starts)) == 3
    assert rows(spark, tmp_path / "out") == answer(range(feed.files))


# --- drivers that live too long --------------------------------------------------------------------------


def test_a_driver_that_was_overtaken_completes_nothing_more_and_the_next_one_goes_on(
    spark: SparkSession, tmp_path: Path, local: Path
) -> None:
    feed = InputFeed(tmp_path / "in")
    emitted: list[list[tuple[int, list[Output]]]] = []
    lives: list[tuple[CheckpointCoordinator, CheckpointedQuery]] = []
    completed: list[int] = []

    def start() -> None:
        own: list[tuple[int, list[Output]]] = []
        # Two queries of one name cannot run in one session.
        session = spark.newSession()
        coordinator = coordinate(session, tmp_path, interval=None)
        writer = chained(coordinator, session, feed.folder).writeStream.foreachBatch(
            lambda frame, batch: own.append((batch, collected(frame)))
        )
        lives.append((coordinator, coordinator.start(writer, name="chained")))
        emitted.append(own)

    try:
        start()
        for _ in range(rounds(1, full=3)):
            coordinator, query = lives[-1]
            query.processAllAvailable()
            completed.append(coordinator.checkpoint().result(DEADLINE).id)
            feed.add(2)
            query.processAllAvailable()
            # On its way while the next one takes over: it may still complete, or not.
            late = coordinator.checkpoint()
            start()
            successor, next_query = lives[-1]
            assert successor.restored is not None
            if (done := outcome(late)) is not None:
                completed.append(done.id)
            assert successor.restored.id >= completed[-1]
            # Whatever the old one tries, it is over, and says so.
            feed.add(1)
            with pytest.raises(CheckpointError) as refused:
                coordinator.checkpoint().result(DEADLINE)
            assert refused.value.reason in (Reason.FENCED, Reason.COORDINATOR_SUSPENDED)
            eventually(lambda query=query: not query.isActive, "the old query has ended")
            assert isinstance(query.exception(), FencedError)
            with pytest.raises(FencedError):
                query.awaitTermination(DEADLINE)
            assert next_query.isActive
        lives[-1][1].processAllAvailable()
        final = lives[-1][0].checkpoint().result(DEADLINE)
        assert final.batches == {"chained": feed.files - 1}
    finally:
        for coordinator, _ in lives:
            coordinator.stop()

    catalog = Catalog(open_store(f"{tmp_path}/store/killed"))
    generations = [manifest.generation for manifest in catalog.completed()]
    assert generations == sorted(generations)
    latest = catalog.latest()
    assert latest is not None
    assert (latest.id, latest.generation) == (final.id, len(lives))
    expected = answer(range(feed.files))
    for life, own in zip(lives, emitted, strict=True):
        point = life[0].restored
        first = point.batches["chained"] + 1 if point else 0
        # Each life goes on right after the cut that it restored, one batch after the other.
        assert [batch for batch, _ in own] == list(range(first, first + len(own)))
        assert all(expected[row] == 1 for _, batch in own for row in batch)
    by_batch = {batch: found for own in emitted for batch, found in own}
    assert Counter(row for found in by_batch.values() for row in found) == expected


def test_a_pipeline_that_has_stopped_leaves_no_process_and_no_file(
    spark: SparkSession, tmp_path: Path, local: Path
) -> None:
    feed = InputFeed(tmp_path / "in")
    with coordinate(spark, tmp_path, interval="300 ms") as coordinator:
        writer = parquet(chained(coordinator, spark, feed.folder), tmp_path / "out")
        coordinator.start(writer, name="chained").processAllAvailable()
        assert len(hosts(local)) == 1
        assert host_directories(local)
    eventually(lambda: not hosts(local), "the state host has ended")
    eventually(lambda: not left_over(local), "its files are gone")
    assert not host_directories(local)
    assert not list((local / "meet").iterdir())
    assert not [path for path in (local / "queries").iterdir() if path.is_dir()]


# --- helpers ---------------------------------------------------------------------------------------------


def collected(frame: DataFrame) -> list[Output]:
    return sorted(tuple(row) for row in frame.collect())


def sunk(coordinator: CheckpointCoordinator, query: CheckpointedQuery, out: Path, files: int) -> None:
    """Wait until so many input files are in the sink."""

    def reached() -> bool:
        if query.exception() is not None:
            raise AssertionError(query.exception())
        return files_sunk(coordinator, out) >= files

    eventually(reached, f"{files} files in the sink")


def until_one_host(runtime: Path) -> set[int]:
    eventually(lambda: len(hosts(runtime)) == 1, "one state host lives")
    return hosts(runtime)


def outcome(late: Future[Checkpoint]) -> Checkpoint | None:
    """What a checkpoint has come to; None if it failed because its driver was overtaken."""
    try:
        return late.result(DEADLINE)
    except CheckpointError as error:
        assert error.reason is Reason.FENCED, error
        return None
