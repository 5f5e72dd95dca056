"""Queries that read what another one writes: one consistent cut, and what is between them at that cut."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections import Counter
from pathlib import Path

import attrs
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from chandy import Permit
from chandy.coordinator import CheckpointConfig, CheckpointCoordinator, CheckpointedQuery, NoRestart
from chandy.coordinator.cli import main
from chandy.coordinator.connectors.files.sink import FilesSink
from chandy.coordinator.errors import SinkTakenError, WriterError
from chandy.coordinator.recovery.launcher import Launcher
from chandy.coordinator.recovery.runs import Run
from chandy.coordinator.spark import progress
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.manifest import ChannelRecord, UnreadFiles
from tests.effort import chance, rounds, sampled
from tests.permits import printed
from tests.waiting import DEADLINE, eventually

from ..coordinator.channels.listed_files import listed, local
from .channels_driver import PIPELINE
from .driver_process import DriverProcess, driver
from .driver_runs import runtime as runtime
from .drivers import ROWS, add_file, records
from .support import EVENTS, Events, Make

pytestmark = pytest.mark.spark

KILLS = rounds(2, full=20)
FILES = 8
"""Input files of each life."""


def read_through_log(output: Path) -> Counter[tuple[object, ...]]:
    """What Spark's readers see in a directory."""
    rows: Counter[tuple[object, ...]] = Counter()
    for uri in listed(output):
        columns = pq.read_table(local(uri)).to_pydict()
        rows.update(zip(*columns.values(), strict=True))
    return rows


def given(events: Events) -> Counter[tuple[object, ...]]:
    lines = [line for path in events.folder.glob("*.json") for line in path.read_text().splitlines()]
    return Counter((one["k"], one["v"]) for one in map(json.loads, lines))


@attrs.frozen
class WriterAndReaders:
    """A writer, and one or more readers of what it writes."""

    writer: CheckpointedQuery
    readers: tuple[CheckpointedQuery, ...]


def start(
    coordinator: CheckpointCoordinator, spark: SparkSession, events: Events, folder: Path, readers: int = 1
) -> WriterAndReaders:
    writer = coordinator.start(
        events.stream(spark).writeStream, sink=FilesSink(str(folder / "middle")), name="writer"
    )
    found = []
    for number in range(readers):
        rows = spark.readStream.schema(EVENTS).parquet(str(folder / "middle"))
        out = FilesSink(str(folder / f"out-{number}"))
        found.append(coordinator.start(rows.writeStream, sink=out, name=f"reader-{number}"))
    return WriterAndReaders(writer, tuple(found))


def test_a_channel_has_what_is_published_and_not_read_and_what_waits(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    first = make()
    pair = start(first, spark, events, tmp_path, readers=2)
    events.add(2)
    pair.writer.processAllAvailable()
    # Nothing of it is visible before the checkpoint is complete.
    found = first.checkpoint().result(DEADLINE)
    target = str(tmp_path / "middle")
    empty = UnreadFiles(0, 0, 0)
    assert found.channels == tuple(
        ChannelRecord("writer", "sink", f"reader-{number}", target, None, 80, empty) for number in (0, 1)
    )
    for reader in pair.readers:
        reader.processAllAvailable()
    pair.readers[1].stop()
    for _ in range(2):
        events.add()
        pair.writer.processAllAvailable()
        found = first.checkpoint().result(DEADLINE)
        pair.readers[0].processAllAvailable()
    last = first.checkpoint().result(DEADLINE)
    caught_up, behind = last.channels
    assert (caught_up.published, caught_up.rows_to_publish, caught_up.files) == (3, 0, empty)
    assert behind.files is not None
    assert (behind.files.files, behind.files.rows) == (2, 80)
    text = CliRunner().invoke(main, ["show", str(tmp_path / "store")]).stdout
    assert "channels between queries" in text
    assert "2 files, " in text
    assert ", 80 rows" in text
    first.stop(checkpoint=False)

    # What was published after an older checkpoint is taken back.
    second = make(restore=2)
    pair = start(second, spark, events, tmp_path, readers=2)
    events.add()
    pair.writer.processAllAvailable()
    second.checkpoint().result(DEADLINE)
    for reader in pair.readers:
        reader.processAllAvailable()
    second.stop()
    for output in ("middle", "out-0", "out-1"):
        assert read_through_log(tmp_path / output) == given(events)


def test_a_channel_goes_along_when_a_pipeline_is_moved(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    first = make()
    pair = start(first, spark, events, tmp_path)
    for _ in range(2):
        events.add()
        pair.writer.processAllAvailable()
        first.checkpoint().result(DEADLINE)
    pair.readers[0].stop()
    events.add()
    pair.writer.processAllAvailable()
    saved = first.savepoint(f"file://{tmp_path}/saved").result(DEADLINE)
    (channel,) = saved.channels
    assert channel.rows_to_publish == 40
    first.stop(checkpoint=False)

    def moved(permit: Permit | None) -> CheckpointCoordinator:
        return CheckpointCoordinator(
            spark,
            pipeline="p",
            storage=str(tmp_path / "elsewhere"),
            config=CheckpointConfig(interval=None, restart=NoRestart()),
            restore=saved.uri,
            permit=permit,
        )

    # Each start is refused for one more sink, and says what to permit in all.
    permit: Permit | None = None
    for _ in ("middle", "out-0"):
        with moved(permit) as refusing, pytest.raises(SinkTakenError) as refused:
            start(refusing, spark, events, tmp_path)
        permit = printed(refused.value)
    with moved(permit) as there:
        pair = start(there, spark, events, tmp_path)
        events.add()
        pair.writer.processAllAvailable()
        there.checkpoint().result(DEADLINE)
        pair.readers[0].processAllAvailable()
        (channel,) = there.checkpoint().result(DEADLINE).channels
        assert (channel.rows_to_publish, channel.files) == (0, UnreadFiles(0, 0, 0))
    for output in ("middle", "out-0"):
        assert read_through_log(tmp_path / output) == given(events)


def test_sparks_own_file_sink_is_a_channel_too(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    def begin(coordinator: CheckpointCoordinator) -> tuple[CheckpointedQuery, CheckpointedQuery]:
        writer = events.stream(spark).writeStream.format("parquet").option("path", str(tmp_path / "middle"))
        query = coordinator.start(writer, name="writer")
        # The mark of the owner is there, so the directory is.
        rows = spark.readStream.schema(EVENTS).parquet(str(tmp_path / "middle"))
        return query, coordinator.start(
            rows.writeStream, sink=FilesSink(str(tmp_path / "out")), name="reader"
        )

    first = make()
    writer, reader = begin(first)
    events.add(2)
    writer.processAllAvailable()
    reader.processAllAvailable()
    # Visible before the checkpoint that has it.
    (channel,) = first.checkpoint().result(DEADLINE).channels
    assert channel == ChannelRecord(
        "writer", None, "reader", str(tmp_path / "middle"), 1, 0, UnreadFiles(0, 0, 0)
    )
    reader.stop()
    events.add(2)
    writer.processAllAvailable()
    (channel,) = first.checkpoint().result(DEADLINE).channels
    assert channel.files is not None
    assert (channel.published, channel.files.files >= 2, channel.files.rows) == (3, True, None)
    first.stop(checkpoint=False)

    second = make(restore=1)
    writer, reader = begin(second)
    writer.processAllAvailable()
    reader.processAllAvailable()
    second.stop()
    for output in ("middle", "out"):
        assert read_through_log(tmp_path / output) == given(events)


def test_readers_that_could_see_what_is_taken_back_are_refused(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    coordinator = make()
    start(coordinator, spark, events, tmp_path, readers=0)
    for path in (f"{tmp_path}/middle/*.parquet", f"{tmp_path}/mid*"):
        rows = spark.readStream.schema(EVENTS).parquet(path)
        with pytest.raises(WriterError, match="'listing' cannot read what 'writer' writes"):
            coordinator.start(rows.writeStream.format("noop"), name="listing")
    (tmp_path / "late").mkdir()
    rows = spark.readStream.schema(EVENTS).parquet(str(tmp_path / "late"))
    coordinator.start(rows.writeStream.format("noop"), name="early")
    late = events.stream(spark).writeStream.format("parquet").option("path", str(tmp_path / "late"))
    with pytest.raises(WriterError, match="start 'late' before 'early'"):
        coordinator.start(late, name="late")
    # A transactional sink takes nothing back.
    coordinator.start(events.stream(spark).writeStream, sink=FilesSink(str(tmp_path / "late")), name="late")


@pytest.mark.parametrize("stops", [1, 2])
def test_a_query_that_is_stopped_between_the_sinks_log_and_the_commit_log_gives_no_row_twice(
    make: Make,
    spark: SparkSession,
    events: Events,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stops: int,
) -> None:
    def begin(coordinator: CheckpointCoordinator) -> tuple[CheckpointedQuery, CheckpointedQuery]:
        middle, out = str(tmp_path / "middle"), str(tmp_path / "out")
        writer = events.stream(spark).writeStream.format("parquet").option("path", middle)
        first = coordinator.start(writer, name="writer")
        rows = spark.readStream.schema(EVENTS).parquet(middle)
        return first, coordinator.start(rows.writeStream.format("parquet").option("path", out), name="reader")

    stopped = list[int]()
    stop = Launcher.stop

    def stopped_between(launcher: Launcher, run: Run) -> None:
        stop(launcher, run)
        if run.definition.name == "writer" and len(stopped) < stops:
            newest = progress.newest_committed(run.directory)
            stopped.append(newest)
            for name in (str(newest), f".{newest}.crc", f"{newest}.crc"):
                (run.directory / "commits" / name).unlink(missing_ok=True)

    first = make()
    events.add(2)
    (tmp_path / "middle").mkdir()
    writer, reader = begin(first)
    writer.processAllAvailable()
    reader.processAllAvailable()
    with monkeypatch.context() as patch:
        patch.setattr(Launcher, "stop", stopped_between)
        writer.stop()
        reader.stop()
    assert stopped == [1] * stops
    first.checkpoint().result(DEADLINE)
    first.stop(checkpoint=False)
    events.add(1)
    second = make()
    writer, reader = begin(second)
    writer.processAllAvailable()
    reader.processAllAvailable()
    second.stop()
    for output in ("middle", "out"):
        assert read_through_log(tmp_path / output) == given(events)


# --- drivers that are killed --------------------------------------------------------------------------------


def driven(
    folder: Path, runtime: Path, restore: str | int, *, transactional: bool
) -> contextlib.AbstractContextManager[DriverProcess]:
    options = {
        "folder": folder,
        "interval": "300 ms",
        "restore": restore,
        "transactional": transactional,
    }
    return driver("channels_driver", folder, runtime, options)


def is_refused(driver: DriverProcess) -> bool:
    return any(one.startswith("refused") for one in driver.events)


def older(folder: Path, numbers: random.Random) -> int | str:
    """A checkpoint of both queries to go back to, that is not the latest if there are several.

    From one of the first query alone, the other one cannot begin: its output has batches that no checkpoint has.
    """
    completed = Catalog(LocalStore(folder / "store" / PIPELINE)).completed()
    ids = [manifest.id for manifest in completed if len(manifest.queries) == 2]
    return numbers.choice(ids[-4:-1]) if len(ids) > 1 else "latest"


@pytest.mark.kills
@pytest.mark.parametrize(
    "transactional",
    sampled([pytest.param(True, id="transactional"), pytest.param(False, id="spark's own")], 1),
)
@pytest.mark.full(
    "integration/test_channels.py::test_a_query_that_is_stopped_between_the_sinks_log_and_the_commit_log_gives_no_row_twice"
)
def test_every_row_comes_through_once_whenever_the_driver_is_killed(
    tmp_path: Path, runtime: Path, transactional: bool
) -> None:
    (tmp_path / "in").mkdir()
    numbers = chance("channels", transactional)
    files = 0
    for life in range(KILLS):
        for _ in range(FILES):
            add_file(tmp_path / "in", files)
            files += 1
        restore = older(tmp_path, numbers) if life % 2 else "latest"
        with driven(tmp_path, runtime, restore, transactional=transactional) as alive:
            eventually(lambda alive=alive: is_refused(alive) or alive.told("started"), "the start")  # type: ignore[misc]
            # With Spark's own sink, an older checkpoint is always possible.
            assert transactional or not is_refused(alive)
            wanted = numbers.randrange(1, 3 * FILES)
            if not is_refused(alive):
                eventually(
                    lambda alive=alive, wanted=wanted: (  # type: ignore[misc]
                        sum(one.startswith("event") for one in alive.events) >= wanted
                    ),
                    f"{wanted} events",
                )
                # Not at the moment of an event alone.
                time.sleep(numbers.uniform(0, 0.3))
        rows = Counter(row for file in range(files) for row in records(file))
        assert not read_through_log(tmp_path / "out") - rows, "rows that were not given, or came twice"
    with driven(tmp_path, runtime, "latest", transactional=transactional) as last:
        eventually(lambda: last.told("started"), "the last driver")
        assert last.process.stdin is not None
        last.process.stdin.close()
        eventually(lambda: last.told("stopped"), "the last driver to stop")
    rows = Counter(row for file in range(files) for row in records(file))
    assert rows.total() == files * ROWS
    for output in ("middle", "out"):
        assert read_through_log(tmp_path / output) == rows
    # Each checkpoint says what was between the two, and after the stop there is nothing.
    manifests = Catalog(LocalStore(tmp_path / "store" / PIPELINE)).completed()
    assert all(len(manifest.channels) == len(manifest.queries) - 1 for manifest in manifests)
    (channel,) = manifests[-1].channels
    assert (channel.rows_to_publish, channel.files and channel.files.files) == (0, 0)
