"""A source of files: what a query reads again must be there."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection
from pathlib import Path
from urllib.parse import quote

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.coordinator.connectors import recognition
from chandy.coordinator.connectors.source_files import FilesSource
from chandy.coordinator.errors import RestoreError
from chandy.coordinator.sources.errors import SourceLostError
from chandy.coordinator.sources.remembered import RememberedLosses
from chandy.coordinator.sources.source import Standing
from chandy.coordinator.spark.hadoop_files import HadoopFiles
from chandy.coordinator.spark.writer_facts import SinkFacts, SourceFacts, Trigger, WriterFacts
from chandy.storage.checkpoints.layout import lost_key
from chandy.storage.errors import FencedError

from ...builders import MemoryStore
from ...effort import trying
from .reading_query import reading_query

NAMES = ("a.json", "with space.json", "with%20percent.json", "naïve+1.json")


class UnreachableFolder:
    def missing(self, uris: Collection[str]) -> tuple[str, ...]:
        raise OSError("no route to host")


@attrs.define
class FileSourceWorld:
    """A folder of files, Spark's log of them, and a pipeline's store."""

    root: Path
    store: MemoryStore = attrs.field(factory=MemoryStore)
    leads: bool = True

    def write(self, name: str) -> str:
        """Put a file into the folder; return its URI."""
        path = self.root / name
        path.write_text("{}")
        return f"file://{quote(str(path))}"

    def logged(self, log: str, *entries: Collection[str], compact: int | None = None) -> Path:
        """Write the log of a run, with one entry of each collection of URIs; return its folder."""
        folder = self.root / log / "sources" / "0"
        folder.mkdir(parents=True)
        lines = [
            [json.dumps({"path": uri, "timestamp": 1, "batchId": number}) for uri in uris]
            for number, uris in enumerate(entries)
        ]
        for number, own in enumerate(lines):
            is_compact = number == compact
            repeated = list(itertools.chain(*lines[:number])) if is_compact else []
            (folder / f"{number}{'.compact' * is_compact}").write_text("\n".join(["v1", *repeated, *own]))
        return folder

    def source(self, **changes: object) -> FilesSource:
        """Return the source as a new life has it."""
        remembered = RememberedLosses(self.store, "q", 0, self.check_leads)
        # Only files on other file systems are looked for by Spark.
        found = FilesSource("q", "/in", False, HadoopFiles(None), remembered)  # type: ignore[arg-type]
        return attrs.evolve(found, **changes)  # type: ignore[arg-type]

    def check_leads(self) -> None:
        if not self.leads:
            raise FencedError("file:///store", 1, 2, "another driver")


@pytest.fixture
def world(tmp_path: Path) -> FileSourceWorld:
    return FileSourceWorld(tmp_path)


def after(entry: int, *logs: Path) -> Standing:
    return Standing(json.dumps({"logOffset": entry}) if entry >= 0 else None, logs)


@trying(40)
@given(data=st.data())
def test_exactly_what_is_read_again_is_missed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    world = FileSourceWorld(tmp_path_factory.mktemp("world"))
    own = data.draw(st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=5), label="the run's entries")
    more = data.draw(
        st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=5), label="of one it replaces"
    )
    end = data.draw(st.integers(-1, 5), label="the last entry that counts")
    compact = data.draw(st.integers(0, 5), label="the compact entry")
    gone = data.draw(st.sets(st.integers(0, 9)), label="numbers of files that are gone")
    uris = {number: world.write(f"{number}-{NAMES[number % 4]}") for number in range(10)}
    logs = [
        world.logged(name, *[[uris[one] for one in files] for files in entries], compact=compact)
        for name, entries in (("run", own), ("replaced", more))
    ]
    for number in gone:
        (world.root / f"{number}-{NAMES[number % 4]}").unlink()
    needed = {one for entries in (own, more) for files in entries[end + 1 :] for one in files}
    try:
        world.source().check(after(end, *logs, world.root / "no log"))
        lost: tuple[str, ...] = ()
    except SourceLostError as error:
        lost = error.files
        assert lost[0] in str(error)
    assert set(lost) == {uris[one] for one in needed & gone}


def test_a_loss_is_told_by_every_later_life_until_the_file_is_back(world: FileSourceWorld) -> None:
    uri = world.write("a.json")
    log = world.logged("run", [uri])
    (world.root / "a.json").unlink()
    with pytest.raises(SourceLostError, match=r"a\.json.*put them back.*ignoreMissingFiles"):
        world.source().check(after(-1, log))
    for _ in range(2):
        with pytest.raises(SourceLostError, match=r"a\.json"):
            world.source().check(after(-1))
    world.write("a.json")
    world.source().check(after(-1))
    (world.root / "a.json").unlink()
    # It has been read since, and may be archived.
    world.source().check(after(0, log))
    assert world.store.objects == {}


@pytest.mark.parametrize("allows", ["ignores_missing", "forgets"])
def test_a_loss_that_the_user_allows_is_allowed_for_good(
    world: FileSourceWorld, allows: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = world.logged("run", ["file:///gone/a.json"])
    with pytest.raises(SourceLostError):
        world.source().check(after(-1, log))
    world.source(**{allows: True}).check(after(-1, *[log] * (allows == "ignores_missing")))
    assert ("a.json" in caplog.text) == (allows == "ignores_missing")
    world.source().check(after(-1))


def test_files_that_the_pipeline_itself_takes_back_are_missed_only_in_place(world: FileSourceWorld) -> None:
    own, replaced = world.logged("run", ["file:///gone/a"]), world.logged("replaced", [], ["file:///gone/b"])
    source = world.source(is_made_again=True)
    source.check(after(0, own, replaced))
    with pytest.raises(SourceLostError) as caught:
        source.check(after(-1, own, replaced))
    assert caught.value.files == ("file:///gone/a",)
    # It has another name when it is made again.
    assert world.store.objects == {}


def test_the_record_is_read_once_in_a_life_and_kept_up_to_date(world: FileSourceWorld) -> None:
    source, log = world.source(), world.logged("run", ["file:///gone/a"])
    for _ in range(2):
        source.check(after(0, log))
        # What another has written meanwhile is not looked at: it does not lead.
        world.store.write(lost_key("q", 0), b"no record")
    with pytest.raises(SourceLostError):
        source.check(after(-1, log))
    assert b"file:///gone/a" in world.store.read(lost_key("q", 0))
    attrs.evolve(source, forgets=True).check(after(0, log))
    assert world.store.objects == {}


def test_what_cannot_be_seen_is_neither_there_nor_lost(world: FileSourceWorld) -> None:
    log = world.logged("run", ["hdfs://nn/a.json"])
    with pytest.raises(RestoreError, match="no route to host") as caught:
        world.source(files=UnreachableFolder()).check(after(-1, log))
    assert not isinstance(caught.value, SourceLostError)


def test_a_driver_that_does_not_lead_writes_nothing_down(world: FileSourceWorld) -> None:
    world.leads = False
    with pytest.raises(FencedError):
        world.source().check(after(-1, world.logged("run", ["file:///gone/a.json"])))
    assert world.store.objects == {}


@attrs.frozen
class EntryPoint:
    """An entry point of another distribution."""

    name: str
    group: str = "chandy.sources"

    def load(self) -> object:
        return lambda source, reader: (source.options["topic"], reader.query)


def test_sources_are_known_by_what_spark_calls_them_and_others_by_their_entry_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recognition, "declared_sources", {"pulsar": EntryPoint("pulsar")}.copy)
    facts = WriterFacts(
        SinkFacts("noop"),
        "append",
        Trigger.PROCESSING_TIME,
        sources=(
            SourceFacts("rate", True),
            SourceFacts("Pulsar", True, options={"topic": "clicks"}),
            SourceFacts("avro", True, options={"path": "/in"}, label="files", is_files=True),
        ),
    )
    for taken_back in (frozenset(), frozenset({"/in"})):
        reader = attrs.evolve(reading_query("copy"), taken_back=taken_back)
        found = recognition.sources_of(facts, reader).sources
        assert list(found) == ["1", "2", "files"]
        assert found["1"] == ("clicks", "copy")
        assert isinstance(found["2"], FilesSource)
        assert found["2"].is_made_again == bool(taken_back)
