"""FilesSink in real directories: on a local disk, and on S3 servers."""

from __future__ import annotations

import pickle
import re
import shutil
import uuid
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Literal

import attrs
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from chandy.coordinator.connectors.files import log as log_module
from chandy.coordinator.connectors.files import log_clock
from chandy.coordinator.connectors.files import sink as sink_module
from chandy.coordinator.connectors.files.log import FileLog, LogEntry
from chandy.coordinator.connectors.files.sink import FilesSink, url_of
from chandy.coordinator.errors import ConfigError
from chandy.coordinator.sinks.two_phase.contract import Committer, TwoPhaseSink
from chandy.coordinator.sinks.two_phase.errors import OutputError, RewindError, TargetUnavailableError
from chandy.storage.backends.open import open_store
from chandy.storage.errors import DamagedError, FencedError
from chandy.storage.keys import temporary_name
from chandy.testing import SCHEMA, SinkPipeline, SinkTarget

from ...effort import sampled, some
from ...integration.conftest import spark as spark
from ...storage import servers
from ...storage.conftest import hdfs, hdfs_uri, moto, rclone, s3_keys, s3proxy
from ...storage.lossy_proxy import LossyProxy
from ...storage.servers import Server
from ...waiting import DEADLINE, retried
from .boundaries import Disk, hdfs_calls, http_requests
from .boundaries import Server as ServerBoundary
from .directory_target import Directory, keys
from .directory_target import directory as directory
from .files_of_others import open_folder, read_only
from .races import RaceConformance, within_the_next_commits
from .server_kills import publish_while_killed
from .steps import Stepped, StepsConformance, rows_up_to

__all__ = ["hdfs", "moto", "rclone", "s3_keys", "s3proxy"]


@pytest.fixture
def pipeline(directory: Directory, tmp_path: Path) -> SinkPipeline:
    return SinkPipeline(directory.sink(), f"file://{tmp_path}/store/flights/")


def s3_uri(port: int) -> str:
    return f"s3://{servers.BUCKET}/{uuid.uuid4().hex}?endpoint=http://127.0.0.1:{port}&region=us-east-1"


class TestParquet(RaceConformance):
    @pytest.fixture
    def target(self, directory: Directory) -> SinkTarget:
        return directory


class TestJson(RaceConformance):
    @pytest.fixture
    def target(self, directory: Directory) -> SinkTarget:
        return attrs.evolve(directory, format="json")


class TestCsv(RaceConformance):
    @pytest.fixture
    def target(self, directory: Directory) -> SinkTarget:
        return attrs.evolve(directory, format="csv")


@pytest.mark.server
class TestOnS3(RaceConformance):
    @pytest.fixture
    def target(self, moto: Server) -> SinkTarget:
        return Directory(s3_uri(moto.port))


# --- steps --------------------------------------------------------------------------------------------------

TO_THE_NEXT_COMPACT = 8
"""Epochs after which the entry of the next one repeats all before it, once another life has begun."""


def through(sink: TwoPhaseSink, port: int) -> TwoPhaseSink:
    """The same sink through a proxy. What it publishes has the names that it has without."""
    assert isinstance(sink, FilesSink)
    url = url_of(open_store(sink.path).uri)
    path, count = re.subn(r"127\.0\.0\.1:\d+", f"127.0.0.1:{port}", sink.path)
    assert count == 1
    return attrs.evolve(sink, path=path, url=url)


class TestSteps(StepsConformance):
    @pytest.fixture(params=[1, TO_THE_NEXT_COMPACT])
    def stepped(self, request: pytest.FixtureRequest, tmp_path: Path) -> Stepped:
        return Stepped(
            lambda: Directory(str(tmp_path / "outputs" / uuid.uuid4().hex)),
            Disk(str(tmp_path)),
            before=request.param,
        )


class TestStepsOnS3(StepsConformance):
    @pytest.fixture
    def stepped(self, moto: Server) -> Stepped:
        boundary = ServerBoundary(moto.port, http_requests, through)
        return Stepped(lambda: Directory(s3_uri(moto.port)), boundary, before=TO_THE_NEXT_COMPACT)


@pytest.mark.full("coordinator/connectors/test_files.py::TestStepsOnS3")
class TestStepsOnHdfs(StepsConformance):
    @pytest.fixture
    def stepped(self, hdfs: Server) -> Stepped:
        boundary = ServerBoundary(hdfs.port, hdfs_calls, through)
        return Stepped(lambda: Directory(hdfs_uri(hdfs, uuid.uuid4().hex)), boundary)


# --- what readers see ---------------------------------------------------------------------------------------


def test_many_epochs_are_compacted_into_entries_that_repeat_them(
    directory: Directory, pipeline: SinkPipeline
) -> None:
    committer = pipeline.recover()
    for number in range(1, 26):
        committer.commit(pipeline.epoch(number, [(number, "a")]))
    # The entry of this life, and one for each epoch.
    assert directory.entries() == ["39.compact", "40", "41", "42", "43", "44"]
    assert directory.rows() == [(number, "a") for number in range(1, 26)]
    assert pipeline.recover(2).position == 25


def test_readers_that_list_the_directory_see_the_same_files(
    directory: Directory, pipeline: SinkPipeline
) -> None:
    committer = pipeline.recover()
    committer.commit(pipeline.epoch(1, [(1, "a")], [(2, "b")]))
    committer.commit(pipeline.epoch(2))
    pipeline.recover(2).commit(pipeline.epoch(3, [(3, "c")]))
    assert sorted(directory.files()) == sorted(directory.listed())
    found = pyarrow.dataset.dataset(directory.path, format="parquet").to_table().to_pylist()
    assert sorted(row["k"] for row in found) == [1, 2, 3]


def test_an_epoch_that_is_published_again_has_the_same_files(
    directory: Directory, pipeline: SinkPipeline, tmp_path: Path
) -> None:
    committer = pipeline.recover()
    epoch = pipeline.epoch(1, [(1, "a")], [(2, "b")])
    _, second = epoch.record.staged.files
    path = tmp_path / "store" / "flights" / second.key
    data = path.read_bytes()
    path.write_bytes(b"")
    with pytest.raises(DamagedError, match=re.escape(second.key)):
        committer.commit(epoch)
    # This is what is honestly said about readers that list the directory.
    assert (directory.rows(), len(directory.listed())) == ([], 1)
    path.write_bytes(data)
    committer.commit(epoch)
    assert sorted(directory.rows()) == [(1, "a"), (2, "b")]
    assert sorted(directory.files()) == sorted(directory.listed())


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_partitions_are_folders(tmp_path: Path, format: Literal["parquet", "json", "csv"]) -> None:
    directory = Directory(str(tmp_path / "out"), format)
    pipeline = SinkPipeline(attrs.evolve(directory.sink(), partition_by=["v"]), f"file://{tmp_path}/store/")
    pipeline.sink.check(SCHEMA)
    committer = pipeline.recover()
    committer.commit(pipeline.epoch(1, [(1, "a/b"), (2, "c")], [(3, "c")]))
    assert sorted(directory.files()) == sorted(directory.listed())
    assert sorted({key.rpartition("/")[0] for key in directory.files()}) == ["v=a%2Fb", "v=c"]
    if format == "parquet":
        found = pyarrow.dataset.dataset(directory.path, partitioning="hive").to_table().to_pylist()
        assert sorted((row["k"], row["v"]) for row in found) == [(1, "a/b"), (2, "c"), (3, "c")]


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_files_that_readers_could_not_take_for_one_table_are_refused(
    tmp_path: Path, format: Literal["parquet", "json", "csv"]
) -> None:
    directory = Directory(str(tmp_path / "out"), format)
    sink = attrs.evolve(directory.sink(), partition_by=["v"])
    pipeline = SinkPipeline(sink, f"file://{tmp_path}/store/")
    committer = pipeline.recover()
    committer.commit(pipeline.epoch(1, [(1, "a")]))
    k, v, new = pa.field("k", pa.int32()), pa.field("v", pa.string()), pa.field("new", pa.int64())
    sink.check(pa.schema([v, k]))
    others: list[tuple[FilesSink, pa.Schema]] = [
        (sink, pa.schema([("k", pa.string()), v])),
        (attrs.evolve(sink, partition_by=()), SCHEMA),
        (attrs.evolve(sink, format="json" if format == "csv" else "csv"), SCHEMA),
    ]
    if format == "csv":
        others.append((sink, SCHEMA.append(new)))
    else:
        # From then on it is one of the columns.
        committer.commit(pipeline.accepted(2, pa.table({"new": [7], "v": ["a"]})))
        others.append((sink, SCHEMA.append(new.with_type(pa.string()))))
    before = directory.listed()
    for other, schema in others:
        with pytest.raises(OutputError, match=f"expected rows as it has them: {format}, partition_by="):
            other.check(schema)
        # What reaches the directory all the same is not written.
        late = SinkPipeline(attrs.evolve(other, uid="late"), pipeline.store)
        rows = pa.table([pa.array(["7"]).cast(field.type) for field in schema], schema.names)
        with pytest.raises(OutputError, match="expected rows as it has them"):
            late.recover().commit(late.staged(1, rows))
    assert directory.listed() == before


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_files_have_the_columns_of_those_before(
    tmp_path: Path, format: Literal["parquet", "json", "csv"], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Directory(str(tmp_path / "out"), format)
    pipeline, other = (
        SinkPipeline(directory.sink(uid), f"file://{tmp_path}/store/") for uid in ("out", "other")
    )
    committer = pipeline.recover()
    first, second = other.epoch(1, [(1, "a")]), other.epoch(2, [(2, "b")])
    # The other sink is faster.
    within_the_next_commits(monkeypatch, [lambda: other.recover().commit(first)])
    committer.commit(pipeline.accepted(1, pa.table({"v": ["c"], "k": pa.array([3], pa.int16())})))
    other.recover().commit(second)
    assert sorted(directory.rows()) == [(1, "a"), (2, "b"), (3, "c")]
    if format == "csv":
        assert {Path(directory.path, key).read_text().split()[0] for key in directory.files()} == {'"k","v"'}
    elif format == "parquet":
        schemas = {
            str(pq.read_schema(Path(directory.path, key)).remove_metadata()) for key in directory.files()
        }
        assert len({text.replace(" not null", "") for text in schemas}) == 1


# --- taking back --------------------------------------------------------------------------------------------


def publish(pipeline: SinkPipeline, committer: Committer, *epochs: int) -> None:
    for number in epochs:
        committer.commit(pipeline.epoch(number, [(number, "a")]))


@pytest.mark.parametrize(("published", "stays"), sampled([*product([3, 8, 9, 10, 11, 35], [None, 1, 2])], 6))
def test_what_was_published_after_an_epoch_is_taken_back(
    directory: Directory, pipeline: SinkPipeline, published: int, stays: int | None
) -> None:
    committer = pipeline.recover()
    publish(pipeline, committer, *range(1, published + 1))
    successor = pipeline.recover(2)
    successor.rewind(stays)
    assert successor.position == stays
    assert keys(directory, all_listed=False) == list(range(1, (stays or 0) + 1))
    assert pipeline.recover(2).position == stays
    publish(pipeline, successor, 100)
    assert keys(directory) == [*range(1, (stays or 0) + 1), 100]
    with pytest.raises(FencedError):
        committer.commit(pipeline.epoch(published + 1, [(0, "zombie")]))
    assert keys(directory, all_listed=False) == [*range(1, (stays or 0) + 1), 100]


@pytest.mark.parametrize(("stays", "again"), [(None, 12), (5, 12), (5, 7), (5, 6)])
def test_what_was_taken_back_last_is_brought_back(
    directory: Directory, pipeline: SinkPipeline, stays: int | None, again: int
) -> None:
    committer = pipeline.recover()
    publish(pipeline, committer, *range(1, 13))
    files = directory.files()
    committer.rewind(8)
    committer.rewind(stays)
    successor = pipeline.recover(2)
    successor.bring_back(again)
    successor.bring_back(again)
    assert successor.position == again
    assert keys(directory, all_listed=False) == list(range(1, again + 1))
    assert set(directory.files()) <= set(files)
    publish(pipeline, successor, 20)
    assert keys(directory) == [*range(1, again + 1), 20]
    with pytest.raises(RewindError):
        successor.bring_back(21)


def test_what_was_taken_back_is_not_brought_back_once_something_is_published(
    directory: Directory, pipeline: SinkPipeline
) -> None:
    committer = pipeline.recover()
    publish(pipeline, committer, 1, 2, 3)
    committer.rewind(1)
    with pytest.raises(RewindError):
        committer.bring_back(4)
    publish(pipeline, committer, 4)
    committer.rewind(1)
    for step in (committer.bring_back, committer.check_bring_back):
        with pytest.raises(RewindError):
            step(5)
    for step in (committer.bring_back, committer.check_bring_back):
        # These numbers were taken back, too, and their files are deleted by now.
        with pytest.raises(RewindError):
            step(3)
    committer.check_bring_back(4)
    assert keys(directory, all_listed=False) == [1]
    committer.bring_back(4)
    assert keys(directory, all_listed=False) == [1, 4]


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_an_epoch_is_recognised_by_its_rows_as_long_as_it_is_there_or_can_come_back(
    directory: Directory, tmp_path: Path, format: Literal["parquet", "json", "csv"]
) -> None:
    pipeline = SinkPipeline(
        attrs.evolve(directory, format=format).sink(), f"file://{tmp_path}/store/flights/"
    )
    committer = pipeline.recover()
    epochs = [pipeline.epoch(number, [(number, "a")], [(number, "b")]) for number in range(1, 5)]
    for epoch in epochs:
        committer.commit(epoch)
    successor = pipeline.recover(2)
    assert list(successor.recognised(epochs)) == [1, 2, 3, 4]
    others = [pipeline.epoch(3, [(3, "a")]), pipeline.epoch(5, [(4, "a")], [(4, "b")])]
    assert list(successor.recognised([epochs[1], *others])) == [2]
    successor.rewind(2)
    assert list(successor.recognised(epochs)) == [1, 2, 3, 4]
    publish(pipeline, successor, 6)
    assert list(successor.recognised(epochs)) == [1, 2]
    other = attrs.evolve(pipeline, sink=directory.sink("other"))
    assert list(other.recover().recognised(epochs)) == []


@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("is_old", [False, True], ids=["", "log of an older version"])
def test_what_was_taken_back_is_deleted_though_readers_call_the_directory_otherwise_by_now(
    directory: Directory,
    pipeline: SinkPipeline,
    tmp_path: Path,
    moves: bool,
    is_old: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line_of = log_module.line_of
    if is_old:
        monkeypatch.setattr(
            log_module, "line_of", lambda file, modified: line_of(attrs.evolve(file, key=""), modified)
        )
    committer = pipeline.recover()
    publish(pipeline, committer, 1, 2, 3)
    if moves:
        directory = Directory(str(tmp_path / "another mount"))
        (tmp_path / "an output").rename(directory.path)
        sink = directory.sink()
    else:
        assert isinstance(pipeline.sink, FilesSink)
        sink = attrs.evolve(pipeline.sink, url=f"file://{tmp_path}/mounted/out")
    again = attrs.evolve(pipeline, sink=sink)
    successor = again.recover(2)
    successor.rewind(1)
    publish(again, successor, 4)
    assert again.recover(3).position == 4
    # Nobody knows what an older version's files are called now: they stay.
    assert len(directory.listed()) == (4 if is_old else 2)


def test_an_epoch_that_was_taken_back_may_be_published_again(
    directory: Directory, pipeline: SinkPipeline
) -> None:
    first = pipeline.recover()
    epoch = pipeline.epoch(2, [(2, "a")])
    publish(pipeline, first, 1)
    first.commit(epoch)
    before = directory.files()
    second = pipeline.recover(2)
    second.rewind(1)
    second.commit(epoch)
    publish(pipeline, second, 7)
    assert keys(directory) == [1, 2, 7]
    # A slow driver may still delete what it has taken back.
    assert set(before) & set(directory.files()) == set(before[:1])


def test_an_earlier_life_takes_nothing_back(directory: Directory, pipeline: SinkPipeline) -> None:
    zombie = pipeline.recover()
    publish(pipeline, zombie, 1, 2, 3)
    publish(pipeline, pipeline.recover(2), 4)
    for step in (zombie.check_rewind, zombie.rewind):
        with pytest.raises(FencedError):
            step(1)
    assert keys(directory) == [1, 2, 3, 4]


def test_a_life_that_is_overtaken_while_it_takes_back_changes_nothing(
    directory: Directory, pipeline: SinkPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(pipeline, pipeline.recover(), 1, 2, 3)
    zombie = pipeline.recover(2)
    lines = FileLog.lines

    def overtaken(log: FileLog, number: int) -> list[str]:
        monkeypatch.setattr(FileLog, "lines", lines)
        publish(pipeline, pipeline.recover(3), 4)
        return lines(log, number)

    monkeypatch.setattr(FileLog, "lines", overtaken)
    with pytest.raises(FencedError):
        zombie.rewind(1)
    assert keys(directory) == [1, 2, 3, 4]


def test_only_the_sinks_own_output_is_taken_back(directory: Directory, pipeline: SinkPipeline) -> None:
    other = attrs.evolve(pipeline, sink=directory.sink("other"))
    one, two = pipeline.recover(), other.recover()
    publish(pipeline, one, 1, 2)
    publish(other, two, 11, 12)
    publish(pipeline, one, 3)
    one.rewind(1)
    publish(other, two, 13)
    assert keys(directory, all_listed=False) == [1, 11, 12, 13]
    assert (pipeline.recover(2).position, other.recover(2).position) == (1, 13)


def test_what_was_taken_back_cannot_be_gone_back_to(directory: Directory, pipeline: SinkPipeline) -> None:
    committer = pipeline.recover()
    publish(pipeline, committer, *range(1, 11))
    committer.rewind(5)
    publish(pipeline, committer, 11, 12)
    for gone in (10, 8, 6):
        with pytest.raises(RewindError, match=f"epoch 12 cannot be taken back to {gone}"):
            committer.rewind(gone)
        with pytest.raises(RewindError, match=f"epoch 12 cannot be taken back to {gone}"):
            committer.check_rewind(gone)
        assert keys(directory) == [1, 2, 3, 4, 5, 11, 12]
    committer.check_rewind(11)
    assert keys(directory) == [1, 2, 3, 4, 5, 11, 12]
    committer.rewind(11)
    committer.rewind(5)
    committer.rewind(3)
    assert keys(directory, all_listed=False) == [1, 2, 3]
    with pytest.raises(RewindError):
        publish(pipeline, committer, 13)
        committer.rewind(12)


def test_files_that_a_killed_driver_has_taken_back_are_deleted_by_the_next_one(
    directory: Directory, pipeline: SinkPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = pipeline.recover()
    publish(pipeline, committer, 1, 2, 3)

    class KilledError(BaseException):
        pass

    def killed(log: FileLog, newest: LogEntry, writer: str) -> LogEntry:
        raise KilledError

    committer.rewind(1)
    with monkeypatch.context() as patch:
        patch.setattr(sink_module, "delete_removed", killed)
        with pytest.raises(KilledError):
            publish(pipeline, committer, 4)
    assert keys(directory, all_listed=False) == [1, 4]
    assert len(directory.listed()) == 4
    # Another sink of the directory publishes first.
    other = attrs.evolve(pipeline, sink=directory.sink("other"))
    publish(other, other.recover(), 5)
    publish(pipeline, pipeline.recover(2), 6)
    assert keys(directory) == [1, 4, 5, 6]


# --- the length of the log ----------------------------------------------------------------------------------


def test_entries_that_no_reader_needs_are_deleted(directory: Directory, pipeline: SinkPipeline) -> None:
    committer = pipeline.recover()
    names = list[int]()
    for number in range(1, 101):
        publish(pipeline, committer, number)
        names.append(len(open_store(directory.path).list("_spark_metadata/")))
    assert max(names) <= 21
    assert keys(directory) == list(range(1, 101))


def test_a_sink_that_was_slow_beside_others_loses_nothing(
    directory: Directory, pipeline: SinkPipeline
) -> None:
    other = attrs.evolve(pipeline, sink=directory.sink("other"))
    slow, zombie = other.recover(), pipeline.recover()
    fast = pipeline.recover(2)
    publish(pipeline, fast, *range(1, 46))
    publish(other, slow, 1001)
    with pytest.raises(FencedError):
        publish(pipeline, zombie, 1)
    assert keys(directory) == [*range(1, 46), 1001]
    publish(pipeline, fast, *range(46, 80))
    assert keys(directory) == [*range(1, 80), 1001]


def make_old(entry: Path) -> None:
    """Have an entry of a log be of 1970, as a version before hashes has written it."""
    text = re.sub(r'"modificationTime": \d+', '"modificationTime": 1', entry.read_text())
    entry.write_text(re.sub(r', "sha256": "\w+"', "", text))


def test_files_leave_the_log_when_their_time_is_over(directory: Directory, pipeline: SinkPipeline) -> None:
    old = pipeline.recover()
    publish(pipeline, old, 1, 2)
    make_old(Path(directory.path, "_spark_metadata", "20"))
    kept = attrs.evolve(pipeline, sink=attrs.evolve(directory.sink(), retention="1 d"))
    committer = kept.recover(2)
    publish(kept, committer, *range(3, 15))
    assert sorted(row[0] for row in directory.rows()) == list(range(2, 15))
    assert len(directory.listed()) == 14
    with pytest.raises(ConfigError, match="a duration"):
        attrs.evolve(directory.sink(), retention="long")


def test_the_retention_of_one_sink_drops_nothing_of_another_that_shares_its_log(
    directory: Directory, pipeline: SinkPipeline
) -> None:
    forgetful = attrs.evolve(pipeline, sink=attrs.evolve(directory.sink("other"), retention="1 d"))
    other, own = forgetful.recover(), pipeline.recover()
    publish(pipeline, own, 1)
    publish(forgetful, other, 1001)
    for entry in Path(directory.path, "_spark_metadata").iterdir():
        make_old(entry)
    publish(forgetful, other, *range(1002, 1015))
    assert sorted(row[0] for row in directory.rows()) == [1, *range(1002, 1015)]


class Clocks:
    """The time of day, which may be set, and the steady clock of a process."""

    def __init__(self) -> None:
        self.passed = self.ahead = 0.0

    def time(self) -> float:
        return 1_800_000_000.0 + self.passed + self.ahead

    def monotonic(self) -> float:
        return self.passed


@pytest.mark.parametrize(
    "when", sampled(["in a life", "at a start", "at the first start", "at a start long after"], 2)
)
def test_no_file_leaves_the_log_early_because_a_clock_was_ahead(
    directory: Directory, pipeline: SinkPipeline, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setattr(log_clock, "time", clocks := Clocks())
    day, month = 86400.0, 31 * 86400.0
    kept = attrs.evolve(pipeline, sink=attrs.evolve(directory.sink(), retention="30 d"))
    clocks.ahead = month if when == "at the first start" else 0.0
    committer = kept.recover()
    publish(kept, committer, *range(1, 5))
    clocks.ahead = month if when in ("in a life", "at a start") else 0.0
    clocks.passed += month if when == "at a start long after" else day
    committer = committer if when == "in a life" else kept.recover(2)
    publish(kept, committer, *range(5, 25))
    clocks.ahead, clocks.passed = 0.0, clocks.passed + day
    publish(kept, committer, *range(25, 45))
    committer = kept.recover(3)
    publish(kept, committer, *range(45, 65))
    assert keys(directory) == list(range(1, 65))
    # In the end they do.
    clocks.passed += 2 * month
    for life in range(4, 14):
        committer = kept.recover(life)
    publish(kept, committer, *range(65, 85))
    assert sorted(row[0] for row in directory.rows())[-20:] == list(range(65, 85))
    assert 1 not in {row[0] for row in directory.rows()} or when == "at the first start"


# --- directories that cannot be used ------------------------------------------------------------------------


def test_a_log_of_another_program_is_not_touched(directory: Directory, pipeline: SinkPipeline) -> None:
    entry = Path(directory.path, "_spark_metadata", "0")
    entry.parent.mkdir(parents=True)
    entry.write_text("v1")
    for step in (lambda: pipeline.sink.check(SCHEMA), pipeline.recover):
        with pytest.raises(OutputError, match="another program"):
            step()
    assert [path.name for path in entry.parent.iterdir()] == ["0"]


def test_files_without_a_log_would_be_lost_to_spark(directory: Directory, pipeline: SinkPipeline) -> None:
    Path(directory.path).mkdir()
    Path(directory.path, "old.parquet").write_bytes(b"x")
    with pytest.raises(OutputError, match=r"such as old\.parquet"):
        pipeline.sink.check(SCHEMA)


def test_a_gap_in_the_log_is_said(directory: Directory, pipeline: SinkPipeline) -> None:
    committer = pipeline.recover()
    for number in range(1, 10):
        committer.commit(pipeline.epoch(number))
    Path(directory.path, "_spark_metadata", "23").unlink()
    with pytest.raises(OutputError, match="no entry 23"):
        committer.commit(pipeline.epoch(10))


def test_a_damaged_entry_is_said(directory: Directory, pipeline: SinkPipeline) -> None:
    pipeline.recover()
    entry = Path(directory.path, "_spark_metadata", "19.compact")
    entry.write_bytes(entry.read_bytes()[:-5])
    with pytest.raises(OutputError, match="entry 19 that cannot be read"):
        pipeline.recover(2)


def test_a_log_that_was_set_back_makes_the_position_lower(
    directory: Directory, pipeline: SinkPipeline
) -> None:
    committer = pipeline.recover()
    committer.commit(pipeline.epoch(1, [(1, "a")]))
    committer.commit(pipeline.epoch(2, [(2, "b")]))
    Path(directory.path, "_spark_metadata", "21").unlink()
    assert pipeline.recover(2).position == 1


@pytest.mark.parametrize(("published", "stays"), sampled([*product([3, 9, 10, 11], [None, 2])], 4))
def test_a_log_that_was_set_back_meanwhile_gets_no_entry_behind_a_gap(
    directory: Directory, pipeline: SinkPipeline, published: int, stays: int | None
) -> None:
    committer = pipeline.recover()
    publish(pipeline, committer, *range(1, (stays or 0) + 1))
    backup = f"{directory.path}-backup"
    shutil.copytree(directory.path, backup)
    publish(pipeline, committer, *range((stays or 0) + 1, published + 1))
    shutil.rmtree(directory.path)
    if stays:
        shutil.copytree(backup, directory.path)
    with pytest.raises(TargetUnavailableError, match="has the record"):
        committer.commit(pipeline.epoch(published + 1, [(0, "behind a gap")]))
    assert keys(directory, all_listed=False) == list(range(1, (stays or 0) + 1))
    # By that the publisher knows that something is lost.
    assert pipeline.recover().position == stays


def test_a_directory_that_may_not_be_written_is_an_error_of_the_output(tmp_path: Path) -> None:
    with open_folder() as folder:
        pipeline = SinkPipeline(Directory(str(folder)).sink(), f"file://{tmp_path}/store/")
        pipeline.recover()
        with read_only(folder), pytest.raises(OutputError, match="Permission denied"):
            pipeline.recover(2)
        assert pipeline.recover(1).position is None


def test_rows_that_the_format_cannot_have_are_refused_before_the_query_starts(directory: Directory) -> None:
    schema = pa.schema([("l", pa.list_(pa.int64()))])
    with pytest.raises(OutputError, match="column 'l'"):
        attrs.evolve(directory.sink(), format="csv").check(schema)


def test_a_format_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="format"):
        FilesSink("/out", "xml")  # type: ignore[arg-type]


# --- S3 -----------------------------------------------------------------------------------------------------


@pytest.mark.server
def test_a_store_that_ignores_the_condition_is_refused(rclone: Server) -> None:
    with pytest.raises(OutputError, match="racing creates"):
        FilesSink(s3_uri(rclone.port)).check(SCHEMA)


def test_a_file_system_without_exclusive_create_is_refused(tmp_path: Path) -> None:
    sink = FilesSink(f"local://{tmp_path}/out")
    for step in (lambda: sink.check(SCHEMA), SinkPipeline(sink, f"file://{tmp_path}/store/").recover):
        with pytest.raises(OutputError, match="looks first and then writes"):
            step()


@pytest.mark.server
@pytest.mark.parametrize("lose", [1, 1000])
def test_an_entry_whose_answer_is_lost_is_found_again(moto: Server, tmp_path: Path, lose: int) -> None:
    with LossyProxy(moto.port).running() as proxy:
        directory = Directory(s3_uri(proxy.port))
        pipeline = SinkPipeline(
            attrs.evolve(directory.sink(), timeout=3), f"file://{tmp_path}/store/flights/"
        )
        committer = retried(pipeline.recover, TargetUnavailableError)
        proxy.kind, proxy.lose = re.compile(rb"PUT [^ ]*_spark_metadata/"), lose
        epoch = pipeline.epoch(1, [(1, "a")])
        # A client that repeats a request by itself finds the entry there, and only the position says whose it is.
        with suppress(TargetUnavailableError) if lose == 1 else pytest.raises(TargetUnavailableError):
            committer.commit(epoch)
        assert proxy.lost
        proxy.lose = 0
        again = attrs.evolve(pipeline, sink=directory.sink()).recover()
        assert again.position == 1
        again.commit(pipeline.epoch(2, [(2, "b")]))
        assert sorted(directory.rows()) == [(1, "a"), (2, "b")]


def test_a_store_that_is_not_there_is_not_available(s3_keys: None, tmp_path: Path) -> None:
    sink = FilesSink(s3_uri(servers.free_port()), timeout=0.5)
    with pytest.raises(TargetUnavailableError):
        SinkPipeline(sink, f"file://{tmp_path}/store/").recover()


def test_an_s3_that_is_killed_at_any_moment_has_every_row_once(s3proxy: Server, tmp_path: Path) -> None:
    directory = Directory(s3_uri(s3proxy.port))
    pipeline = SinkPipeline(directory.sink(), f"file://{tmp_path}/store/")
    newest = publish_while_killed(pipeline, lambda: servers.restart_s3proxy(s3proxy))
    assert sorted(directory.rows()) == rows_up_to(newest)
    directory.check_nothing_left()


# --- HDFS ---------------------------------------------------------------------------------------------------


@pytest.mark.full("coordinator/connectors/test_files.py::test_spark_reads_what_is_published_on_hdfs")
class TestOnHdfs(RaceConformance):
    @pytest.fixture
    def target(self, hdfs: Server) -> SinkTarget:
        return Directory(hdfs_uri(hdfs, uuid.uuid4().hex))


@pytest.mark.full(
    "coordinator/connectors/test_files.py::test_an_s3_that_is_killed_at_any_moment_has_every_row_once"
)
def test_an_hdfs_that_is_killed_at_any_moment_has_every_row_once(hdfs: Server, tmp_path: Path) -> None:
    directory = Directory(hdfs_uri(hdfs, uuid.uuid4().hex))
    pipeline = SinkPipeline(directory.sink(), f"file://{tmp_path}/store/")
    newest = publish_while_killed(pipeline, lambda: servers.restart_hdfs(hdfs))
    assert sorted(directory.rows()) == rows_up_to(newest)
    directory.check_nothing_left()


def test_what_was_published_on_hdfs_is_taken_back(hdfs: Server, tmp_path: Path) -> None:
    directory = Directory(hdfs_uri(hdfs, uuid.uuid4().hex))
    pipeline = SinkPipeline(directory.sink(), f"file://{tmp_path}/store/")
    committer = pipeline.recover()
    publish(pipeline, committer, *range(1, 26))
    committer.rewind(12)
    publish(pipeline, committer, 26)
    assert keys(directory) == [*range(1, 13), 26]


@pytest.mark.spark
def test_spark_reads_what_is_published_on_hdfs(hdfs: Server, tmp_path: Path, spark: SparkSession) -> None:
    directory = Directory(hdfs_uri(hdfs, f"{uuid.uuid4().hex}/an output"))
    pipeline = SinkPipeline(directory.sink(), f"file://{tmp_path}/store/")
    committer = pipeline.recover()
    publish(pipeline, committer, *range(1, 12))
    committer.rewind(9)
    found = spark.read.parquet(directory.path).collect()
    assert sorted(row["k"] for row in found) == list(range(1, 10))


# --- Spark --------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_spark_reads_whole_epochs_and_nothing_else(
    directory: Directory, pipeline: SinkPipeline, spark: SparkSession
) -> None:
    committer = pipeline.recover()
    for number in range(1, 13):
        committer.commit(pipeline.epoch(number, [(number, "a")], [(-number, "ü")]))
    committer.commit(pipeline.epoch(13))
    Path(directory.path, "part-of-an-epoch.parquet").write_bytes(b"not published")
    rows = spark.read.parquet(directory.path).collect()
    assert sorted((row["k"], row["v"]) for row in rows) == sorted(directory.rows())
    stream = spark.readStream.schema("k long, v string").parquet(directory.path)
    query = stream.writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
    query.awaitTermination(DEADLINE)
    assert spark.table("seen").count() == len(directory.rows())


@pytest.mark.spark
@pytest.mark.full("coordinator/connectors/test_files.py::test_spark_reads_whole_epochs_and_nothing_else")
def test_a_session_that_compacts_its_logs_otherwise_reads_the_directory_at_any_moment(
    directory: Directory, pipeline: SinkPipeline, spark: SparkSession
) -> None:
    settings = ["1", "3", "7", "10", "19", "100"]
    committer = pipeline.recover()
    for number in range(1, 33):
        publish(pipeline, committer, number)
        if number == 25:
            committer.rewind(24)
        for setting in some(settings, 1, "compacts", number):
            session = spark.newSession()
            session.conf.set("spark.sql.streaming.fileSink.log.compactInterval", setting)
            found = session.read.schema("k long, v string").parquet(directory.path).select("k").collect()
            # What was taken back lies there until the next epoch is published.
            assert sorted(row["k"] for row in found) == keys(directory, all_listed=number != 25)


def test_the_sink_is_a_value(directory: Directory) -> None:
    assert pickle.loads(pickle.dumps(directory.sink())) == directory.sink()


# --- what is left behind ------------------------------------------------------------------------------------


def test_what_a_killed_publisher_has_left_half_written_is_deleted_in_time(
    directory: Directory, pipeline: SinkPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.recover(1).commit(pipeline.epoch(1, [(1, "a")]))
    folder = Path(directory.path)
    left, others = folder / temporary_name(), folder / ".tmp-of-somebody-else"
    for file in (left, others):
        file.write_bytes(b"half")
    pipeline.recover(2).commit(pipeline.epoch(2, [(2, "b")]))
    assert left.exists(), "somebody may still write it"
    monkeypatch.setattr(sink_module, "ABANDONED_S", -60.0)
    committer = pipeline.recover(3)
    assert left.exists(), "a start is not slowed down by looking through the directory"
    committer.commit(pipeline.epoch(3, [(3, "c")]))
    assert not left.exists()
    assert others.exists()
    assert sorted(directory.rows()) == [(1, "a"), (2, "b"), (3, "c")]
