"""Looking at the ends of channels: on real logs, and where that fails or would take long."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest

from chandy.coordinator.channels import observer
from chandy.coordinator.channels.observer import ObservedChannels
from chandy.coordinator.connectors.files.sink import FilesSink
from chandy.coordinator.query import Definition
from chandy.coordinator.sinks.file_sink import FileSink
from chandy.coordinator.sinks.place import Output, Topic
from chandy.coordinator.sinks.sink import Sink
from chandy.coordinator.sinks.two_phase.contract import Committer, Fence, TwoPhaseSink
from chandy.coordinator.sinks.two_phase.errors import TargetUnavailableError
from chandy.coordinator.sinks.two_phase.staged import StagedSink
from chandy.coordinator.spark.writer_facts import SinkFacts, SourceFacts, Trigger, WriterFacts
from chandy.storage.backends.open import open_store
from chandy.storage.checkpoints.manifest import (
    ChannelRecord,
    Handle,
    QueryRecord,
    TopicPartition,
    UnreadFiles,
)
from chandy.storage.errors import StoreFailedError
from chandy.testing import SinkPipeline

from ...builders import make_manifest

Epochs = Iterator[int]


class ObservedSink(Sink):
    """As ``TransactionalSink``, of one sink that publishes whenever the test says so."""

    def __init__(self, sink: TwoPhaseSink) -> None:
        self.sink = sink

    @property
    def guarantee(self) -> Any:
        raise NotImplementedError

    @property
    def outputs(self) -> tuple[Output, ...]:
        assert self.sink.place is not None
        return (Output(self.sink.place, self.sink.uid),)

    def writer_of(self, uid: str) -> str:
        return f"flights/delays/{uid}"

    def committed_offsets(self, uid: str, seconds: float) -> Mapping[int, int]:
        return self.sink.committed_offsets(seconds)


class Ends:
    """A writer into a directory, and a reader of it with a working directory."""

    def __init__(self, folder: Path, sink: Sink, output: Path, source: SourceFacts | None = None) -> None:
        self.now = 0.0
        self.channels = ObservedChannels(lambda: self.now)
        self.folder = folder
        source = source or SourceFacts("parquet", True, None, {"path": str(output)})
        self.writer, self.reader = _definition("a", sink), _definition("b", _None(), source)
        self.channels.add(self.writer)
        self.channels.add(self.reader)

    def reads(self, name: str, *paths: str) -> None:
        """Write an entry of the source's log."""
        entry = self.folder / "sources" / "0" / name
        entry.parent.mkdir(parents=True, exist_ok=True)
        lines = (f'{{"path":"{path}","timestamp":1,"batchId":0}}' for path in paths)
        entry.write_text("\n".join(["v1", *lines]))

    def at(self, checkpoint: int = 99, kept: dict[str, Path] | None = None, cut: int = 0) -> ChannelRecord:
        """Look as a checkpoint does."""
        working = {
            path.relative_to(self.folder).as_posix(): path
            for path in self.folder.rglob("*")
            if path.is_file()
        }
        self.channels.look(self.reader, cut, working, {})
        self.channels.look(self.writer, cut, {}, kept or {})
        return self.record(checkpoint, cut)

    def record(self, checkpoint: int, cut: int) -> ChannelRecord:
        """Return what a checkpoint keeps of the channel."""
        queries = (QueryRecord("a", cut, Handle()), QueryRecord("b", cut, Handle()))
        (found,) = self.channels.at(make_manifest(checkpoint, queries=queries, operators=()))
        return found


class _None(Sink):
    @property
    def guarantee(self) -> Any:
        raise NotImplementedError


def _definition(name: str, sink: Sink, *sources: SourceFacts) -> Definition:
    facts = WriterFacts(SinkFacts("noop"), "append", Trigger.PROCESSING_TIME, sources=sources)
    return Definition(name, None, None, facts, sink, (), ())  # type: ignore[arg-type]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


@pytest.fixture
def pipeline(output: Path, tmp_path: Path) -> SinkPipeline:
    return SinkPipeline(FilesSink(str(output), uid="out"), f"file://{tmp_path}/store/flights/")


@pytest.fixture
def ends(pipeline: SinkPipeline, output: Path, tmp_path: Path) -> Ends:
    return Ends(tmp_path / "working", ObservedSink(pipeline.sink), output)


def uris(output: Path) -> list[str]:
    return sorted(path.as_uri() for path in output.glob("*.parquet"))


def test_the_log_of_a_directory_is_followed_from_entry_to_entry(
    ends: Ends, pipeline: SinkPipeline, output: Path
) -> None:
    assert ends.at().files == UnreadFiles(0, 0, 0)
    committer = pipeline.recover()
    assert ends.at().files == UnreadFiles(0, 0, 0)
    total = 0
    for number in range(1, 26):
        committer.commit(pipeline.epoch(number, [(number, "a")] * number))
        total += number
        if number % 4 == 0:
            found = ends.at()
            assert found.files is not None
            assert (found.files.files, found.files.rows, found.published) == (number, total, number)
    ends.reads("0", *uris(output)[:10])
    ends.reads("1", *uris(output)[10:24])
    found = ends.at()
    size = (output / uris(output)[-1].rpartition("/")[2]).stat().st_size
    assert (found.files, found.published) == (UnreadFiles(1, size, 25), 25)


@pytest.mark.parametrize("number", [8, 9, 10, 19, 23])
def test_a_log_that_is_there_already_is_read_from_its_latest_compact_entry(
    ends: Ends, pipeline: SinkPipeline, number: int
) -> None:
    committer = pipeline.recover()
    for epoch in range(1, number + 1):
        committer.commit(pipeline.epoch(epoch, [(epoch, "a")]))
    assert (found := ends.at().files) is not None
    assert (found.files, found.rows) == (number, number)
    committer.commit(pipeline.epoch(number + 1, [(1, "a"), (2, "b")]))
    assert (found := ends.at().files) is not None
    assert (found.files, found.rows) == (number + 1, number + 2)


def test_a_compact_entry_of_a_source_repeats_those_before_it(
    ends: Ends, pipeline: SinkPipeline, output: Path
) -> None:
    committer = pipeline.recover()
    committer.commit(pipeline.epoch(1, [(1, "a")], [(2, "b")], [(3, "c")]))
    first, second, _ = uris(output)
    # An older compact entry is kept for its name alone, and names less.
    ends.reads("9.compact", first)
    ends.reads("19.compact", first, second)
    assert (found := ends.at().files) is not None
    assert found.files == 1
    # Going back, the same entry has other contents.
    ends.reads("19.compact", first)
    assert (found := ends.at().files) is not None
    assert found.files == 2


def test_a_checkpoint_has_what_was_seen_at_its_own_cut(
    ends: Ends, pipeline: SinkPipeline, output: Path
) -> None:
    committer = pipeline.recover()
    committer.commit(pipeline.epoch(1, [(1, "a")]))
    first = ends.at(cut=0)
    committer.commit(pipeline.epoch(2, [(2, "b")], [(3, "c")]))
    ends.reads("0", uris(output)[0])
    later = ends.at(cut=1)
    assert first.files != later.files
    # The one whose cut was first completes last.
    assert ends.record(99, 0) == first


def test_a_directory_that_cannot_be_read_is_left_alone_for_a_while(
    ends: Ends, pipeline: SinkPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.recover().commit(pipeline.epoch(1, [(1, "a")]))
    asked = []

    def away(uri: str) -> Any:
        asked.append(uri)
        raise StoreFailedError(uri, "_spark_metadata/0", "read", "it is away", transient=True)

    monkeypatch.setattr(observer, "open_store", away)
    assert ends.at().files is None
    assert ends.at().files is None
    assert len(asked) == 1
    monkeypatch.setattr(observer, "open_store", open_store)
    assert ends.at().files is None
    ends.now = 61.0
    assert ends.at().files == UnreadFiles(1, next(pipeline_files(pipeline)), 1)


def pipeline_files(pipeline: SinkPipeline) -> Iterator[int]:
    assert isinstance(pipeline.sink, FilesSink)
    return (path.stat().st_size for path in Path(pipeline.sink.path).glob("*.parquet"))


def test_logs_that_have_grown_large_are_no_longer_read(
    ends: Ends, pipeline: SinkPipeline, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = pipeline.recover()
    committer.commit(pipeline.epoch(1, [(1, "a")]))
    ends.reads("0", *uris(output))
    assert ends.at().files == UnreadFiles(0, 0, 0)
    monkeypatch.setattr(observer, "MOST_BYTES", 100)
    assert ends.at().files is None


def test_what_cannot_be_read_fails_nothing(ends: Ends, pipeline: SinkPipeline) -> None:
    pipeline.recover()
    ends.reads("0", "file:///x")
    (ends.folder / "sources" / "0" / "1").write_text("v1\n{not json")
    found = ends.at()
    assert (found.files, found.rows_to_publish) == (None, 0)


def test_sparks_own_sink_is_seen_as_the_checkpoint_keeps_it(output: Path, tmp_path: Path) -> None:
    ends = Ends(tmp_path / "working", FileSink(output, "parquet"), output)
    log = tmp_path / "kept"
    log.mkdir()
    for name, files in (("0", "a"), ("1", "bc"), ("2.compact", "abcd"), ("3", "e")):
        lines = (f'{{"path":"{(output / one).as_uri()}","size":7,"isDir":false}}' for one in files)
        (log / name).write_text("\n".join(["v1", *lines]))
    ends.reads("0", (output / "a").as_uri(), (output / "d").as_uri())
    found = ends.at(kept={path.name: path for path in log.iterdir()}, cut=3)
    assert found == ChannelRecord("a", None, "b", str(output), 3, 0, UnreadFiles(3, 21, None))


def test_a_query_that_could_not_be_started_has_no_channels(ends: Ends) -> None:
    ends.channels.remove("b")
    queries = (QueryRecord("a", 0, Handle()), QueryRecord("b", 0, Handle()))
    manifest = make_manifest(1, queries=queries, operators=())
    assert ends.channels.at(manifest) == ()
    assert not ends.channels.add(ends.reader), "nobody reads what it writes"
    assert len(ends.channels.at(manifest)) == 1


@attrs.frozen
class Topical(StagedSink):
    """Knows how far a topic can be read, unless it is away."""

    target: ClassVar[str] = "Kafka"
    ends: dict[int, int]
    is_away: list[bool]
    uid: str = "sink"

    @property
    def place(self) -> Topic:
        return Topic(frozenset({"one:9092"}), "flights")

    def recover(self, fence: Fence) -> Committer:
        raise NotImplementedError

    def committed_offsets(self, seconds: float) -> Mapping[int, int]:
        if self.is_away:
            self.is_away.append(True)
            raise TargetUnavailableError("Kafka", "no answer")
        return self.ends


def test_a_topic_is_asked_for_its_ends_and_left_alone_for_a_while_if_it_does_not_answer(
    tmp_path: Path,
) -> None:
    sink = Topical({0: 10, 1: 5}, [])
    place = {
        "kafka.bootstrap.servers": "one:9092",
        "subscribe": "flights",
        "kafka.isolation.level": "read_committed",
    }
    ends = Ends(tmp_path, ObservedSink(sink), tmp_path, SourceFacts("kafka", True, None, place))
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text('v1\n{}\n{"flights":{"0":7,"1":5}}')
    # Kafka's source keeps its first offsets where file sources have their log; others keep what they like.
    (tmp_path / "sources" / "0").mkdir(parents=True)
    (tmp_path / "sources" / "0" / "0").write_text('\0v1\n{"flights":{"0":0,"1":0}}')
    (tmp_path / "sources" / "1").mkdir()
    (tmp_path / "sources" / "1" / "0").write_text("v1\n{whatever")
    known = (TopicPartition("flights", 0, 10, 7), TopicPartition("flights", 1, 5, 5))
    unknown = (TopicPartition("flights", 0, None, 7), TopicPartition("flights", 1, None, 5))
    assert ends.at().partitions == known
    sink.is_away.append(True)
    assert ends.at().partitions == ends.at().partitions == unknown
    assert len(sink.is_away) == 2
    sink.is_away.clear()
    assert ends.at().partitions == unknown
    ends.now = 61.0
    assert ends.at().partitions == known
