"""The contestants: Chandy with periodic checkpoints or without checkpoints, and Spark's own state."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import attrs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator, CheckpointedQuery
from chandy.coordinator.protocol.statistics import CheckpointStatistics, Status
from chandy.storage.checkpoints.manifest import CheckpointKind

from ..stores import StoreAt
from . import disk
from .figures import (
    Commits,
    Course,
    Timing,
    Turn,
    batches_of,
    first_tick,
    in_window,
    spark_commits,
    spark_updates,
    window_start,
)
from .payloads import OUTPUT, Payloads

WITHOUT: Final = "Chandy, no checkpoints"
NO_CHANGELOG: Final = ", no changelog"
_UID: Final = "counts"
_DEADLINE: Final = 600.0
_LOOK: Final = 0.05
_CHANGELOG: Final = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
_RETAIN: Final = "spark.sql.streaming.minBatchesToRetain"


class Contestant(Protocol):
    """One system with its settings."""

    @property
    def name(self) -> str:
        """The name in the report."""
        ...

    def turn(self, course: Course, timing: Timing, folder: Path) -> Turn:
        """Run the stream once, from the filled state. All files go into ``folder``."""
        ...


def rows_of(spark: SparkSession, course: Course) -> DataFrame:
    """Return an endless stream of ``k long``: first every key once, in order, then random keys.

    Rows are computed, not read. They cost so little that most of a batch is the cost of state.
    """
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", course.rows)
    key = f"if(value < {course.keys}, value, pmod(xxhash64(value), {course.keys}))"
    return source.option("numPartitions", 2).load().select(F.expr(key).alias("k"))


def fill_batches(course: Course) -> int:
    """Return the number of batches until every key has arrived."""
    return -(-course.keys // course.rows)


@attrs.frozen
class Chandy:
    """Chandy. Each turn restores a savepoint of the filled state, so all turns begin with the same state."""

    spark: SparkSession
    savepoint: str
    interval: int | None
    """Seconds between checkpoints. None: no checkpoints in the window."""
    elsewhere: StoreAt | None = None
    """The S3 store for checkpoints. None: the turn's folder."""
    changelog: bool = True
    """Whether its state host keeps changelogs."""

    @property
    def name(self) -> str:
        """The name in the report."""
        every = WITHOUT if self.interval is None else f"Chandy, every {self.interval} s"
        return f"{every}{', S3' if self.elsewhere else ''}{'' if self.changelog else NO_CHANGELOG}"

    def turn(self, course: Course, timing: Timing, folder: Path) -> Turn:
        """Run the stream. Take one manual checkpoint in the warm-up, and periodic ones after that.

        Raises:
            RuntimeError: the query failed, even if it has restarted, or a checkpoint failed.
        """
        interval, elsewhere = self.interval, self.elsewhere
        os.environ["CHANDY_HISTORY"] = "10000"
        if interval is not None:
            os.environ["CHANDY_INITIAL_DELAY"] = f"{first_tick(interval, timing.warm_up):g}"
        config = CheckpointConfig(
            interval=None if interval is None else f"{interval} s",
            cache_dir=str(folder / "cache"),
            changelog=self.changelog,
            allow_unfenced=elsewhere is not None and not elsewhere.fenced,
        )
        storage = f"{elsewhere.uri}/{folder.name}" if elsewhere else str(folder / "storage")
        coordinator = CheckpointCoordinator(
            self.spark,
            pipeline="cost",
            storage=storage,
            config=config,
            restore=self.savepoint,
        )
        with coordinator:
            query = _start(coordinator, self.spark, course)
            start = time.time()
            _await(query, lambda: query.lastProgress is not None)
            # The first checkpoint after a savepoint shares nothing with it and stores everything.
            coordinator.checkpoint().result(timeout=_DEADLINE)
            begin = window_start(time.time(), start, interval, timing.warm_up)
            _sleep_until(begin)
            run, hosts = query.runId, disk.host_processes(folder / "cache")
            before = _counters(coordinator, hosts, folder)
            _sleep_until(begin + timing.window)
            after = _counters(coordinator, hosts, folder)
            progress = query.recentProgress
            if query.runId != run:
                raise RuntimeError(f"{self.name}: the query failed and restarted in the window")
            # The stream continues until all checkpoints of the window have ended, so that all have the same load.
            end = begin + timing.window
            _await(query, lambda: have_ended(coordinator.statistics().checkpoints, end))
            commits = commits_of(coordinator.statistics().checkpoints, begin, end)
            query.stop()
        return Turn(
            batches_of(in_window(progress, begin, end)),
            commits,
            changed=(after.keys - before.keys) * course.key_bytes,
            used=after.used.minus(before.used) if after.used and before.used else None,
            compactions=after.compactions - before.compactions,
        )


@attrs.frozen
class Native:
    """Spark's own count on RocksDB. It commits its state with every batch, and begins from a copied checkpoint."""

    spark: SparkSession
    filled: Path
    """The checkpoint of a query that has had every key."""
    changelog: bool

    @property
    def name(self) -> str:
        """The name in the report."""
        return native_name(self.changelog)

    def turn(self, course: Course, timing: Timing, folder: Path) -> Turn:
        """Run the stream."""
        checkpoint = folder / "checkpoint"
        shutil.copytree(self.filled, checkpoint)
        query = _start_native(self.spark, course, checkpoint, self.changelog)
        start = time.time()
        _await(query, lambda: query.lastProgress is not None)
        begin = window_start(time.time(), start, None, timing.warm_up)
        _sleep_until(begin)
        before = disk.bytes_below(checkpoint / "state")
        _sleep_until(begin + timing.window)
        stored = disk.bytes_below(checkpoint / "state") - before
        progress = query.recentProgress
        query.stop()
        reports = in_window(progress, begin, begin + timing.window)
        return Turn(
            batches_of(reports),
            spark_commits(reports, stored),
            changed=spark_updates(reports) * course.key_bytes,
        )


def native_name(changelog: bool) -> str:
    """Return the name of Spark's own count."""
    return f"Spark, every batch, RocksDB with{'' if changelog else 'out'} changelog"


def fill_chandy(spark: SparkSession, course: Course, folder: Path) -> str:
    """Run the course until every key has arrived, and return the URI of a savepoint."""
    config = CheckpointConfig(interval=None, cache_dir=str(folder / "cache"))
    with CheckpointCoordinator(
        spark, pipeline="fill", storage=str(folder / "storage"), config=config, restore="none"
    ) as coordinator:
        query = _start(coordinator, spark, course)
        _await(query, lambda: _batch(query) >= fill_batches(course))
        savepoint = coordinator.savepoint(str(folder / "savepoint")).result(timeout=_DEADLINE)
        query.stop()
    return savepoint.uri


def fill_native(spark: SparkSession, course: Course, folder: Path, changelog: bool) -> Path:
    """Run the course until every key has arrived, and return the folder of the checkpoint."""
    query = _start_native(spark, course, folder, changelog)
    _await(query, lambda: _batch(query) >= fill_batches(course))
    query.stop()
    return folder


def have_ended(checkpoints: Sequence[CheckpointStatistics], end: float) -> bool:
    """Return whether every checkpoint that was triggered before ``end`` has ended."""
    return not any(one.status is Status.IN_PROGRESS and one.triggered_at < end for one in checkpoints)


def commits_of(checkpoints: Sequence[CheckpointStatistics], begin: float, end: float) -> Commits:
    """Return the periodic checkpoints that were triggered from ``begin`` to before ``end``.

    Raises:
        RuntimeError: one of them failed or has not ended.
    """
    counted = [
        one for one in checkpoints if one.kind is CheckpointKind.PERIODIC and begin <= one.triggered_at < end
    ]
    for one in counted:
        if one.status is not Status.COMPLETED:
            raise RuntimeError(f"checkpoint {one.id} is {one.status}: {one.reason}")
    durations = [one.duration for one in counted if one.duration is not None]
    return Commits(tuple(durations), sum(one.new_bytes for one in counted))


@attrs.frozen
class _Counters:
    keys: int
    """The keys of all batches. A key counts in every batch that has it."""
    used: disk.Used | None
    compactions: int


def _counters(coordinator: CheckpointCoordinator, hosts: list[int], folder: Path) -> _Counters:
    keys = coordinator.metrics(_UID).keys
    return _Counters(keys, disk.used_by(hosts), disk.compactions(folder / "cache"))


def _start(coordinator: CheckpointCoordinator, spark: SparkSession, course: Course) -> CheckpointedQuery:
    rows = rows_of(spark, course)
    if course.value_bytes:
        frame = coordinator.transform_with_arrow(
            rows, key=["k"], processor=Payloads(course.value_bytes), output=OUTPUT, uid=_UID
        )
    else:
        frame = coordinator.aggregate(rows, by=["k"], uid=_UID, n=("*", "count"))
    return coordinator.start(frame.writeStream.format("noop").outputMode("append"), name="counts")


def _start_native(spark: SparkSession, course: Course, checkpoint: Path, changelog: bool) -> Any:
    kept = {name: spark.conf.get(name) for name in (_CHANGELOG, _RETAIN)}
    spark.conf.set(_CHANGELOG, str(changelog).lower())
    # Spark must delete nothing, so that the size of the folder shows what was written.
    spark.conf.set(_RETAIN, "1000000")
    try:
        writer = rows_of(spark, course).groupBy("k").count().writeStream.format("noop").outputMode("update")
        return writer.option("checkpointLocation", str(checkpoint)).start()
    finally:
        for name, value in kept.items():
            spark.conf.set(name, str(value))


def _batch(query: Any) -> int:
    last = query.lastProgress
    return -1 if last is None else int(last["batchId"])


def _await(query: Any, done: Callable[[], bool]) -> None:
    """Wait until ``done`` returns true.

    Raises:
        Exception: the query failed with it.
        RuntimeError: the query ended.
        TimeoutError: the wait took too long.
    """
    deadline = time.monotonic() + _DEADLINE
    while not done():
        if not query.isActive:
            raise query.exception() or RuntimeError("the query has ended")
        if time.monotonic() > deadline:
            raise TimeoutError(f"the query did not get there in {_DEADLINE:g} s")
        time.sleep(_LOOK)


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.time()))
