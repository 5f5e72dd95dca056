"""What a pipeline keeps of a query that it has adopted."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import attrs
import pytest

from chandy.coordinator.adopt import adopted_store
from chandy.coordinator.adopt.adopted_store import AdoptingPipeline, AdoptionRecord
from chandy.storage.backends.open import open_store
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.collect import collect_garbage
from chandy.storage.checkpoints.manifest import OperatorRecord, StateRecord
from chandy.storage.checkpoints.proof import Unshared
from chandy.storage.checkpoints.restore import restore_files
from chandy.storage.checkpoints.snapshots import SnapshotWriter
from chandy.storage.errors import DamagedError

SOURCE = AdoptionRecord("/old", "5f3a", 7, 8)
OPERATOR = OperatorRecord("totals", "", "{}", {"total": StateRecord(("{}",))}, (None,) * 3)


@pytest.fixture
def life(tmp_path: Path) -> AdoptingPipeline:
    return AdoptingPipeline(str(tmp_path / "store" / "p"), "p", 4, {"pyspark": "4.3.0"})


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "0.sst").write_bytes(b"state" * 20_000)
    (tmp_path / "offset").write_text("v1")
    return {"shard": tmp_path / "0.sst", "query": tmp_path / "offset"}


def write(
    life: AdoptingPipeline, files: dict[str, Path], source: AdoptionRecord = SOURCE
) -> adopted_store.Adopted:
    query, shards = {"working/offsets/7": files["query"]}, {("totals", 1): {"0.sst": files["shard"]}}
    return adopted_store.write(life, "q", source, query, (OPERATOR,), shards, 1000.0, Unshared())


def test_what_was_adopted_is_found_again_and_restores(
    life: AdoptingPipeline, files: dict[str, Path], tmp_path: Path
) -> None:
    assert adopted_store.find(life.root, "q") is None
    written = write(life, files)
    found = adopted_store.find(life.root, "q")
    assert found == written
    assert found is not None
    point = found.point
    assert point.is_adopted
    assert (found.source, point.batch("q"), point.has("other")) == (SOURCE, 7, False)
    (record,) = point.operators("q", (OPERATOR,))
    assert [handle is not None for handle in record.shards] == [False, True, False]
    handle = record.shards[1]
    assert handle is not None
    restore_files(open_store(point.root), handle, tmp_path / "restored")
    assert (tmp_path / "restored" / "0.sst").read_bytes() == files["shard"].read_bytes()


def test_what_was_written_in_part_is_not_found_and_is_written_again(
    life: AdoptingPipeline, files: dict[str, Path]
) -> None:
    manifest = open_store(write(life, files).point.root)
    manifest.delete("manifest.json")
    assert adopted_store.find(life.root, "q") is None
    write(life, files)
    assert adopted_store.find(life.root, "q") is not None


def test_whoever_comes_second_begins_from_what_is_there(
    life: AdoptingPipeline, files: dict[str, Path]
) -> None:
    first = write(life, files)
    assert write(life, files).point == first.point


def test_a_driver_that_is_overtaken_while_it_adopts_does_not_touch_what_its_successor_has(
    life: AdoptingPipeline, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    successor, later = attrs.evolve(life, generation=5), AdoptionRecord("/old", "5f3a", 9, 9)
    finish, written = SnapshotWriter.finish, list[adopted_store.Adopted]()

    def overtaken(writer: SnapshotWriter) -> Any:
        found = finish(writer)
        monkeypatch.setattr(SnapshotWriter, "finish", finish)
        (tmp_path / "newer").write_text("v1 of the successor")
        written.append(write(successor, {**files, "query": tmp_path / "newer"}, later))
        return found

    monkeypatch.setattr(SnapshotWriter, "finish", overtaken)
    write(life, files)
    found = adopted_store.find(life.root, "q")
    assert [found] == written
    assert found is not None
    assert found.source == later
    handle = found.point.manifest.queries[0].files
    restore_files(open_store(found.point.root), handle, tmp_path / "restored")
    assert (tmp_path / "restored" / "working/offsets/7").read_text() == "v1 of the successor"


@pytest.mark.parametrize("until", ["the record", "the files", "the manifest"])
def test_what_an_earlier_life_has_written_is_deleted_by_its_record_and_nothing_else(
    life: AdoptingPipeline, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, until: str
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        if until == "the record":
            patch.setattr(SnapshotWriter, "finish", killed)
        elif until == "the files":
            patch.setattr(adopted_store, "commit_savepoint", killed)
        write(life, files)
    place = open_store(adopted_store.place_of(life.root, "q"))
    assert any(key.startswith("4/") for key in place.list())
    foreign = {"4/notes.txt", "5/manifest.json", "6/shared/aa/notes"}
    for key in foreign:
        place.write(key, b"somebody's")
    written = write(attrs.evolve(life, generation=7), files)
    assert adopted_store.find(life.root, "q") == written
    assert {key for key in place.list() if not key.startswith("7/")} == foreign


def test_the_garbage_collection_of_the_pipeline_leaves_it_alone(
    life: AdoptingPipeline, files: dict[str, Path]
) -> None:
    written = write(life, files)
    catalog = Catalog(open_store(life.root))
    assert collect_garbage(catalog, 1e12, older_than=0).keys == ()
    assert adopted_store.find(life.root, "q") == written


def test_a_damaged_manifest_is_no_reason_to_adopt_again(
    life: AdoptingPipeline, files: dict[str, Path]
) -> None:
    store = open_store(write(life, files).point.root)
    store.write("manifest.json", b"{}")
    with pytest.raises(DamagedError):
        adopted_store.find(life.root, "q")
