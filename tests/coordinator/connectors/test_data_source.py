"""DataSourceSink with a real data source on a real disk, without Spark: commits, what is recorded of them, errors."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import Row as SparkRow
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import (
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from chandy.coordinator.connectors.data_source import record as record_module
from chandy.coordinator.connectors.data_source.errors import DataSourceFailedError
from chandy.coordinator.connectors.data_source.messages import INLINE_BYTES
from chandy.coordinator.connectors.data_source.record import Record, RecordEntry
from chandy.coordinator.connectors.data_source.sink import DataSourceSink
from chandy.coordinator.errors import ConfigError, WriterError
from chandy.coordinator.sinks.guarantee import Level
from chandy.coordinator.sinks.two_phase.contract import Epoch, Fence, Position, Staged, WriteContext
from chandy.coordinator.sinks.two_phase.errors import OutputError, OutputTakenError, TargetUnavailableError
from chandy.coordinator.sinks.two_phase.staged import StagedSink
from chandy.storage.backends.open import open_store
from chandy.storage.checkpoints.layout import OUTPUTS
from chandy.storage.checkpoints.manifest import EpochRecord, Handle, OutputRecord
from chandy.storage.errors import DamagedError, FencedError, ObjectExistsError
from chandy.testing import SCHEMA, Row, SinkConformance, SinkPipeline, SinkTarget
from tests.coordinator.sinks.two_phase.sqlite_sink import SqliteSink

from . import file_source
from .boundaries import Disk
from .file_source import ArrowFileSource, FileSource, calls, mark
from .races import RaceConformance
from .steps import Stepped, StepsConformance

ROWS = StructType([StructField("k", LongType(), False), StructField("v", StringType())])


@attrs.frozen
class FolderTarget(SinkTarget):
    path: Path
    source: type[DataSource] = FileSource
    more: dict[str, Any] = attrs.field(factory=dict)
    record: bool = True
    """Whether what was committed is recorded beside the target."""

    def sink(self, uid: str = "out") -> DataSourceSink:
        options = {"path": self.path, "writer": uid, **self.more}
        record = (self.path / "record").as_uri() if self.record else None
        made = DataSourceSink(self.source, options=options, uid=uid, record=record)
        return made.for_schema(self.source, ROWS)

    def rows(self) -> list[Row]:
        return [(row["k"], row["v"]) for row in file_source.rows(self.path)]

    @property
    def commits(self) -> list[int]:
        """The ``batchId`` of each call."""
        return [call[1] for call in calls(self.path, "commit")]


class TestRows(RaceConformance):
    @pytest.fixture
    def target(self, tmp_path: Path) -> SinkTarget:
        return FolderTarget(tmp_path / "out")


class TestArrow(SinkConformance):
    @pytest.fixture
    def target(self, tmp_path: Path) -> SinkTarget:
        return FolderTarget(tmp_path / "out", ArrowFileSource)


class TestLargeMessages(SinkConformance):
    @pytest.fixture
    def target(self, tmp_path: Path) -> SinkTarget:
        return FolderTarget(tmp_path / "out", more={"ballast": 2 * INLINE_BYTES})


class TestSteps(StepsConformance):
    @pytest.fixture
    def stepped(self, tmp_path: Path) -> Stepped:
        return Stepped(lambda: FolderTarget(tmp_path / "outputs" / uuid.uuid4().hex), Disk(str(tmp_path)))


@pytest.fixture
def target(tmp_path: Path) -> FolderTarget:
    return FolderTarget(tmp_path / "out", record=False)


@pytest.fixture
def pipeline(target: FolderTarget, tmp_path: Path) -> SinkPipeline:
    return SinkPipeline(target.sink(), f"file://{tmp_path}/store/flights/")


def entries(pipeline: SinkPipeline) -> list[str]:
    return open_store(pipeline.store).list(OUTPUTS)


def fence(pipeline: SinkPipeline, generation: int = 1, **more: Any) -> Fence:
    return Fence("flights", "delays", pipeline.sink.uid, pipeline.store, generation, **more)


# --- commits, and what is recorded of them ------------------------------------------------------------------


def test_a_commit_gets_all_messages_of_an_epoch_by_batch_and_partition(
    target: FolderTarget, pipeline: SinkPipeline
) -> None:
    committer = pipeline.recover()
    committer.commit(pipeline.epoch(7, [(1, "a")], [], [(2, "b"), (3, "c")]))
    assert calls(target.path, "commit") == [["commit", 7, [1, 0, 2]]]


@pytest.mark.parametrize("place", ["commit", "committed"])
def test_a_commit_of_which_nobody_knows_how_far_it_came_comes_again(
    target: FolderTarget, pipeline: SinkPipeline, place: str
) -> None:
    first = pipeline.recover()
    first.commit(pipeline.epoch(1, [(1, "a")]))
    mark(target.path, place)
    with pytest.raises(DataSourceFailedError):
        first.commit(pipeline.epoch(2, [(2, "b")], [(3, "c")]))
    # The epoch is not given to the next life: the record alone says that it has begun.
    assert pipeline.recover(2).position == 2
    assert calls(target.path, "commit")[1:] == [["commit", 2, [1, 1]]] * 2
    assert sorted(target.rows()) == [(1, "a"), (2, "b"), (3, "c")]
    # And once it is done, it does not.
    assert pipeline.recover(3).position == 2
    assert target.commits == [1, 2, 2]


def test_an_epoch_that_may_be_committed_is_what_a_restore_of_an_older_checkpoint_runs_into(
    target: FolderTarget, pipeline: SinkPipeline
) -> None:
    first = pipeline.recover()
    first.commit(pipeline.epoch(1, [(1, "a")]))
    mark(target.path, "committed")
    with pytest.raises(DataSourceFailedError):
        first.commit(pipeline.epoch(2, [(2, "b")]))
    older = OutputRecord("out", (), published=1)
    assert pipeline.sink.recover(fence(pipeline, 2, restored=older)).position == 2


def test_a_life_that_is_overtaken_while_it_commits_leaves_the_epoch_to_its_successor(
    target: FolderTarget, pipeline: SinkPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = pipeline.recover(1)
    positions = []
    commit = file_source.FileWriter.commit

    def disturbed(self: Any, messages: Any, batchId: int) -> None:  # noqa: N803 (Spark's name)
        monkeypatch.setattr(file_source.FileWriter, "commit", commit)
        positions.append(pipeline.recover(2).position)
        commit(self, messages, batchId)

    monkeypatch.setattr(file_source.FileWriter, "commit", disturbed)
    with pytest.raises(FencedError):
        frozen.commit(pipeline.epoch(1, [(1, "a")]))
    assert positions == [1]
    assert target.commits == [1, 1]
    assert target.rows() == [(1, "a")]


def test_a_life_that_was_overtaken_calls_no_commit(target: FolderTarget, pipeline: SinkPipeline) -> None:
    zombie = pipeline.recover(1)
    pipeline.recover(2)
    with pytest.raises(FencedError):
        zombie.commit(pipeline.epoch(1, [(1, "a")]))
    assert target.commits == []


def test_old_entries_are_deleted_and_a_life_that_slept_over_it_is_still_shut_out(
    target: FolderTarget, pipeline: SinkPipeline
) -> None:
    zombie = pipeline.recover(1)
    successor = pipeline.recover(2)
    for id in range(1, record_module.KEPT + 2):
        successor.commit(pipeline.epoch(id, [(id, "a")]))
    assert len(entries(pipeline)) == record_module.KEPT
    before = entries(pipeline)
    with pytest.raises(FencedError):
        zombie.commit(pipeline.epoch(1, [(1, "zombie")]))
    assert entries(pipeline) == before
    assert len(target.commits) == record_module.KEPT + 1


def test_two_connections_of_one_life_do_not_both_go_on(target: FolderTarget, pipeline: SinkPipeline) -> None:
    first, second = pipeline.recover(1), pipeline.recover(1)
    second.commit(pipeline.epoch(1, [(1, "a")]))
    with pytest.raises(TargetUnavailableError):
        first.commit(pipeline.epoch(1, [(1, "a")]))
    assert target.commits == [1]


def test_entries_follow_each_other_and_one_of_two_wins(tmp_path: Path) -> None:
    record = Record(open_store(tmp_path.as_uri()), "p/q/any uid/../x")
    position = Position("s", 1)
    assert record.newest() is None
    made = []

    def create() -> None:
        try:
            made.append(record.follow(None, RecordEntry(position)))
        except ObjectExistsError:
            made.append(None)

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (won,) = [one for one in made if one is not None]
    assert record.newest() == won
    assert record.follow(won, RecordEntry(attrs.evolve(position, epoch=3))).number == 1
    found = record.newest()
    assert found is not None
    assert found.entry.position.epoch == 3


def test_a_damaged_record_is_not_gone_on_with(pipeline: SinkPipeline) -> None:
    pipeline.recover(1)
    (key,) = entries(pipeline)
    open_store(pipeline.store).write(key, b'{"position"')
    with pytest.raises(DamagedError, match="the record of a writer"):
        pipeline.recover(2)


# --- checkpoints of other stores ----------------------------------------------------------------------------


def test_a_checkpoint_that_has_the_sink_needs_its_record(pipeline: SinkPipeline) -> None:
    for published in (None, 7):
        restored = OutputRecord("out", (), published)
        with pytest.raises(OutputTakenError, match="set `record` of the sink to that store's URI"):
            pipeline.sink.recover(fence(pipeline, restored=restored))
    assert entries(pipeline) == []
    committer = pipeline.sink.recover(fence(pipeline, restored=restored, may_take_over=True))
    assert committer.position == 7
    # From then on it is there.
    assert pipeline.sink.recover(fence(pipeline, 2, restored=restored)).position == 7


def test_a_sink_that_a_checkpoint_does_not_have_begins_anew(pipeline: SinkPipeline) -> None:
    assert pipeline.recover().position is None


def test_the_store_of_another_pipeline_can_keep_the_record(pipeline: SinkPipeline, tmp_path: Path) -> None:
    pipeline.recover(3).commit(pipeline.epoch(5, [(1, "a")]))
    assert isinstance(pipeline.sink, DataSourceSink)
    moved = SinkPipeline(
        attrs.evolve(pipeline.sink, record=pipeline.store), f"file://{tmp_path}/elsewhere/flights/"
    )
    restored = OutputRecord("out", (), 4)
    with pytest.raises(OutputTakenError):
        moved.sink.recover(fence(moved, restored=restored))
    found = moved.sink.recover(fence(moved, restored=restored, may_take_over=True))
    assert found.position == 5


def test_an_epoch_that_has_begun_is_committed_from_a_store_that_was_moved_as_a_whole(
    target: FolderTarget, pipeline: SinkPipeline, tmp_path: Path
) -> None:
    large = attrs.evolve(pipeline, sink=attrs.evolve(target, more={"ballast": 2 * INLINE_BYTES}).sink())
    mark(target.path, "commit")
    with pytest.raises(DataSourceFailedError):
        large.recover().commit(large.epoch(5, [(1, "a")]))
    (tmp_path / "store").rename(tmp_path / "moved")
    moved = attrs.evolve(large, store=f"file://{tmp_path}/moved/flights/")
    with pytest.raises(OutputTakenError):
        moved.recover(2)
    assert moved.recover(2, may_take_over=True).position == 5
    assert target.rows() == [(1, "a")]


# --- messages -----------------------------------------------------------------------------------------------


def test_a_large_message_is_an_object_of_the_store_that_is_verified(
    target: FolderTarget, pipeline: SinkPipeline
) -> None:
    large = attrs.evolve(pipeline, sink=attrs.evolve(target, more={"ballast": INLINE_BYTES}).sink())
    epoch = large.epoch(1, [(1, "a")], [(2, "b")])
    files = epoch.record.staged.files
    assert len(files) == 2
    assert len(epoch.record.note) < 1000
    committer = large.recover()
    data = open_store(large.store).read(files[1].key)
    open_store(large.store).write(files[1].key, data[:-1] + b"x")
    with pytest.raises(DamagedError):
        committer.commit(epoch)
    # Nothing has begun.
    assert target.commits == []
    assert len(entries(large)) == 1
    open_store(large.store).write(files[1].key, data)
    committer.commit(epoch)
    assert sorted(target.rows()) == [(1, "a"), (2, "b")]


def test_a_small_message_needs_no_object(pipeline: SinkPipeline) -> None:
    assert pipeline.epoch(1, [(1, "a")]).record.staged.files == ()


def test_what_another_sink_has_staged_is_refused(
    target: FolderTarget, pipeline: SinkPipeline, tmp_path: Path
) -> None:
    other = SqliteSink(tmp_path / "x.db", ("k", "v"), uid="out")
    assert isinstance(other, StagedSink)
    epoch = SinkPipeline(other, pipeline.store).epoch(1, [(1, "a")])
    with pytest.raises(OutputError, match="another kind of sink"):
        pipeline.recover().commit(epoch)
    assert target.commits == []


def test_a_message_whose_class_is_gone_says_so(
    pipeline: SinkPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tests under Spark have the classes of these modules travel by value.
    monkeypatch.setattr(cloudpickle.cloudpickle, "_PICKLE_BY_VALUE_MODULES", set())
    epoch = pipeline.epoch(1, [(1, "a")])
    monkeypatch.delattr(file_source, "Written")
    with pytest.raises(OutputError, match="put the class back"):
        pipeline.recover().commit(epoch)


def test_an_epoch_is_committed_by_a_writer_for_the_rows_that_it_has(
    pipeline: SinkPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = pipeline.epoch(1, [(1, "a")])
    assert isinstance(pipeline.sink, DataSourceSink)
    later = SinkPipeline(pipeline.sink.for_schema(FileSource, StructType([ROWS["k"]])), pipeline.store)
    seen = []
    made = FileSource.streamWriter

    def noted(self: FileSource, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        seen.append((schema, overwrite))
        return made(self, schema, overwrite)

    monkeypatch.setattr(FileSource, "streamWriter", noted)
    later.recover().commit(epoch)
    assert seen == [(ROWS, False)]


@pytest.mark.parametrize("ballast", [0, 2 * INLINE_BYTES])
def test_an_abort_gets_the_messages_of_what_was_written(
    target: FolderTarget, pipeline: SinkPipeline, ballast: int
) -> None:
    sink = attrs.evolve(target, more={"ballast": ballast}).sink()
    batch = pa.RecordBatch.from_pylist([{"k": 1, "v": "a"}], schema=SCHEMA)
    staged = [
        sink.write(iter([batch] * (1 + part)), WriteContext(pipeline.store, "staged/delays/", 4, part))
        for part in range(2)
    ]
    assert [one.rows for one in staged] == [1, 2]
    assert len(file_source.files(target.path)) == 2
    sink.abort(staged, 9)
    assert calls(target.path, "abort") == [["abort", 9, [1, 2]]]
    assert file_source.files(target.path) == set()
    sink.abort([], 9)
    sink.abort([Staged(0)], 9)
    assert len(calls(target.path, "abort")) == 1


# --- rows ---------------------------------------------------------------------------------------------------


class Keeping(DataSource):
    """Keeps in its message what it was given."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return KeepingWriter()


class KeptMessage(WriterCommitMessage):
    def __init__(self, given: list[Any]) -> None:
        self.given = given


class KeepingWriter(DataSourceStreamWriter):
    def write(self, iterator: Iterator[SparkRow]) -> WriterCommitMessage:
        return KeptMessage(list(iterator))

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        committed.extend(messages)


committed: list[KeptMessage] = []


@pytest.mark.compat
def test_a_writer_of_rows_gets_rows_as_spark_makes_them(tmp_path: Path) -> None:
    committed.clear()
    schema = (
        StructType()
        .add("k", LongType())
        .add("at", TimestampType())
        .add("tags", MapType(StringType(), LongType()))
        .add("nested", StructType().add("a", LongType()))
        .add("raw", BinaryType())
    )
    sink = DataSourceSink(Keeping).for_schema(Keeping, schema)
    batch = pa.RecordBatch.from_pylist(
        [
            {
                "k": 1,
                "at": datetime(2026, 1, 2, 3, 4, 5).astimezone(),
                "tags": [("x", 2)],
                "nested": {"a": 3},
                "raw": b"r",
            },
            {"k": 2, "at": None, "tags": None, "nested": None, "raw": None},
        ],
        schema=pa.schema(
            [
                ("k", pa.int64()),
                ("at", pa.timestamp("us", "UTC")),
                ("tags", pa.map_(pa.string(), pa.int64())),
                ("nested", pa.struct([("a", pa.int64())])),
                ("raw", pa.binary()),
            ]
        ),
    )
    place = f"file://{tmp_path}/store/"
    staged = sink.write(iter([batch]), WriteContext(place, "staged/q/", 0, 0))
    committer = sink.recover(Fence("p", "q", "sink", place, 1))
    note = sink.pre_commit(1, [staged])
    committer.commit(Epoch(EpochRecord(1, 2, Handle(), note), place))
    (message,) = committed
    first, second = message.given
    assert isinstance(first, SparkRow)
    assert first.asDict() == {
        "k": 1,
        "at": datetime(2026, 1, 2, 3, 4, 5),
        "tags": {"x": 2},
        "nested": SparkRow(a=3),
        "raw": b"r",
    }
    assert second == (2, None, None, None, None)


def test_rows_are_counted_as_the_writer_takes_them(tmp_path: Path) -> None:
    class Impatient(KeepingWriter):
        def write(self, iterator: Iterator[SparkRow]) -> WriterCommitMessage:
            return KeptMessage([next(iterator)])

    class Source(Keeping):
        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
            return Impatient()

    batch = pa.RecordBatch.from_pylist([{"k": 1, "v": "a"}] * 3, schema=SCHEMA)
    sink = DataSourceSink(Source).for_schema(Source, ROWS)
    context = WriteContext(f"file://{tmp_path}/store/", "staged/q/", 0, 0)
    assert sink.write(iter([batch, batch]), context).rows == 3


# --- what a data source does wrong --------------------------------------------------------------------------


def test_what_commit_raises_is_named_with_its_traceback(target: FolderTarget, pipeline: SinkPipeline) -> None:
    mark(target.path, "commit")
    with pytest.raises(DataSourceFailedError) as caught:
        pipeline.recover().commit(pipeline.epoch(3, [(1, "a")]))
    text = str(caught.value)
    assert "the stream writer of data source 'listedFiles' has failed in commit() of batchId 3" in text
    assert "ValueError: made to fail in commit" in text
    assert "file_source.py" in text
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("how", ["connection", "time"])
def test_a_target_that_is_away_is_asked_again(target: FolderTarget, pipeline: SinkPipeline, how: str) -> None:
    mark(target.path, "commit", how)
    with pytest.raises(TargetUnavailableError, match="made to fail in commit"):
        pipeline.recover().commit(pipeline.epoch(3, [(1, "a")]))
    assert pipeline.recover().position == 3
    assert target.rows() == [(1, "a")]


def test_what_write_raises_is_named_with_its_batch_and_partition(
    target: FolderTarget, pipeline: SinkPipeline
) -> None:
    mark(target.path, "write-0")
    with pytest.raises(
        DataSourceFailedError, match=r"write\(\) of batch 0, partition 0: .*made to fail"
    ) as caught:
        pipeline.epoch(1, [(1, "a")])
    assert isinstance(caught.value.__cause__, ValueError)
    # Spark sends the text alone.
    assert "file_source.py" in str(caught.value)


def sink_of(writer: object) -> DataSourceSink:
    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "odd"

        def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
            if isinstance(writer, Exception):
                raise writer
            return writer

    return DataSourceSink(Source).for_schema(Source, ROWS)


class SilentWriter(KeepingWriter):
    def write(self, iterator: Iterator[SparkRow]) -> Any:
        return None


class Unsendable(KeepingWriter):
    def write(self, iterator: Iterator[SparkRow]) -> WriterCommitMessage:
        return KeptMessage([threading.Lock()])


@pytest.mark.parametrize(
    ("writer", "reason"),
    [
        (SilentWriter(), r"expected write\(\) to return a WriterCommitMessage, found NoneType"),
        (Unsendable(), "a message"),
    ],
)
def test_a_message_that_cannot_be_kept_is_refused(
    writer: DataSourceStreamWriter, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(DataSourceFailedError, match=reason):
        sink_of(writer).write(iter([]), WriteContext(f"file://{tmp_path}/", "staged/q/", 0, 0))


def test_a_data_source_without_a_stream_writer_is_refused_at_the_start() -> None:
    class Reader(DataSource):
        pass

    with pytest.raises(WriterError, match=r"data source 'Reader' cannot be the sink.*not implemented"):
        DataSourceSink(Reader).for_schema(Reader, ROWS)
    with pytest.raises(WriterError, match=r"found str; implement DataSource\.streamWriter"):
        sink_of("a writer")
    with pytest.raises(DataSourceFailedError, match=r"has failed in streamWriter\(\): .*KeyError: 'path'"):
        sink_of(KeyError("path"))


def test_a_writer_that_cannot_be_sent_is_refused_at_the_start() -> None:
    writer = KeepingWriter()
    writer.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(DataSourceFailedError, match="a writer that can be pickled"):
        sink_of(writer).check(SCHEMA)


@pytest.mark.parametrize("source", ["", " ", object, KeepingWriter, 3, None])
def test_what_is_no_data_source_is_refused(source: Any) -> None:
    with pytest.raises(ConfigError, match="a subclass of pyspark"):
        DataSourceSink(source)


def test_a_place_that_cannot_keep_the_record_is_refused(target: FolderTarget) -> None:
    with pytest.raises(WriterError, match="cannot be recorded in nowhere"):
        attrs.evolve(target.sink(), record="nowhere").check(SCHEMA)
    target.sink().check(SCHEMA)


def test_options_are_what_spark_would_make_of_them(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Source(Keeping):
        def __init__(self, options: Any) -> None:
            seen.append((dict(options), options["PATH"]))

    options = {"Path": tmp_path, "flag": True, "count": 3, "none": None}
    DataSourceSink(Source, options=options).for_schema(Source, ROWS)
    assert seen == [({"path": str(tmp_path), "flag": "true", "count": "3"}, str(tmp_path))]
    assert str(tmp_path) not in repr(DataSourceSink(Source, options=options))


def test_the_guarantee_says_what_is_left_to_the_writer(pipeline: SinkPipeline) -> None:
    assert pipeline.sink.guarantee.level is Level.IF_IDEMPOTENT
    assert str(pipeline.sink.guarantee).startswith("exactly once if commit is idempotent: ")


def test_messages_keep_their_order_when_some_are_large(target: FolderTarget, pipeline: SinkPipeline) -> None:
    small, large = pipeline.sink, attrs.evolve(target, more={"ballast": 2 * INLINE_BYTES}).sink()

    def write(sink: Any, rows: Iterable[Row]) -> Staged:
        batch = pa.RecordBatch.from_pylist([{"k": k, "v": v} for k, v in rows], schema=SCHEMA)
        staged: Staged = sink.write(iter([batch]), WriteContext(pipeline.store, "staged/delays/", 0, 0))
        return staged

    staged = [write(sink, [(1, "a")] * count) for count, sink in enumerate((large, small, large, small), 1)]
    files = tuple(file for one in staged for file in one.files)
    note = small.pre_commit(1, staged)
    assert json.loads(note)["notes"][0] == "@"
    pipeline.recover().commit(Epoch(EpochRecord(1, 10, Handle(files), note), pipeline.store))
    assert calls(target.path, "commit") == [["commit", 1, [1, 2, 3, 4]]]
