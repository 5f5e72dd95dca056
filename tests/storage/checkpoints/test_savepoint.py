"""Savepoints: self-contained folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chandy.storage import InvalidPlaceError, ObjectExistsError, ObjectMissingError
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.layout import (
    generation_key,
    manifest_key,
    trigger_key,
)
from chandy.storage.checkpoints.manifest import Manifest
from chandy.storage.checkpoints.proof import Unshared
from chandy.storage.checkpoints.restore import restore_files
from chandy.storage.checkpoints.savepoint import (
    claim_savepoint,
    commit_savepoint,
    delete_savepoint,
    discard_savepoint,
    read_savepoint,
)
from chandy.storage.checkpoints.snapshots import SnapshotWriter
from chandy.storage.checkpoints.verification import verify

from ...builders import make_manifest, pack, shared, staged

MakeManifest = Callable[..., Manifest]


@pytest.fixture
def savepoint(store: LocalStore, tmp_path: Path) -> Manifest:
    (tmp_path / "1.sst").write_bytes(b"x" * 100)
    (tmp_path / "CURRENT").write_bytes(b"1")
    claim_savepoint(store, "driver-1")
    writer = SnapshotWriter(store, "checkpoints/5/host.pack", pack_below=50)
    writer.add("0", {name: tmp_path / name for name in ("1.sst", "CURRENT")})
    manifest = make_manifest(5, shards=[writer.finish()["0"].handle])
    commit_savepoint(store, manifest)
    return manifest


def test_a_savepoint_is_read_back(store: LocalStore, savepoint: Manifest) -> None:
    assert read_savepoint(store) == savepoint


def test_a_folder_holds_one_savepoint(store: LocalStore, savepoint: Manifest) -> None:
    with pytest.raises(ObjectExistsError):
        commit_savepoint(store, make_manifest(6))
    with pytest.raises(InvalidPlaceError, match="found a savepoint"):
        claim_savepoint(store, "driver-2")
    assert read_savepoint(store) == savepoint


def test_a_folder_without_a_savepoint_is_told(store: LocalStore) -> None:
    with pytest.raises(ObjectMissingError):
        read_savepoint(store)


def test_a_folder_with_anything_in_it_is_refused_and_left_as_it_was(store: LocalStore) -> None:
    store.write("thesis.txt", b"years of work")
    with pytest.raises(InvalidPlaceError, match=r"thesis\.txt"):
        claim_savepoint(store, "driver-1")
    assert store.list() == ["thesis.txt"]


def test_a_moved_savepoint_restores(store: LocalStore, savepoint: Manifest, tmp_path: Path) -> None:
    moved = LocalStore(store.root.rename(tmp_path / "moved"))
    manifest = read_savepoint(moved)
    assert verify(moved, manifest).ok
    (handle,) = manifest.operators[0].shards
    assert handle is not None
    restore_files(moved, handle, tmp_path / "restored")
    assert (tmp_path / "restored" / "1.sst").read_bytes() == b"x" * 100
    assert (tmp_path / "restored" / "CURRENT").read_bytes() == b"1"


def test_an_aborted_savepoint_leaves_an_empty_folder(store: LocalStore, savepoint: Manifest) -> None:
    assert len(store.list()) == 4
    discard_savepoint(store, "driver-1", Unshared())
    assert store.list() == []
    claim_savepoint(store, "driver-2")


@pytest.mark.parametrize("aborted", [False, True])
def test_a_savepoint_is_deleted_with_the_staged_rows_in_it(
    store: LocalStore, savepoint: Manifest, aborted: bool
) -> None:
    store.write(staged("delays", 1), b"rows")
    store.write("thesis.txt", b"years of work")
    if aborted:
        discard_savepoint(store, "driver-1", Unshared())
    else:
        delete_savepoint(store, Unshared())
    assert store.list() == ["thesis.txt"]


def test_nobody_discards_what_another_has_claimed(store: LocalStore, savepoint: Manifest) -> None:
    before = store.list()
    discard_savepoint(store, "driver-2", Unshared())
    assert store.list() == before


def test_discarding_spares_what_is_no_part_of_a_savepoint(store: LocalStore, savepoint: Manifest) -> None:
    store.write("thesis.txt", b"years of work")
    discard_savepoint(store, "driver-1", Unshared())
    assert store.list() == ["thesis.txt"]


def test_a_crash_while_discarding_leaves_no_manifest_with_missing_files(
    store: LocalStore, savepoint: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted: list[str] = []
    monkeypatch.setattr(store, "delete", deleted.append)
    discard_savepoint(store, "driver-1", Unshared())
    assert deleted[0] == "manifest.json"
    assert deleted[-1] == "claim"


def test_a_place_where_uploads_of_an_aborted_savepoint_came_late_can_be_used_again(
    store: LocalStore, tmp_path: Path
) -> None:
    claim_savepoint(store, "driver-1")
    discard_savepoint(store, "driver-1", Unshared())
    late = [pack(5), shared("a"), staged("delays", 1)]
    for key in late:
        store.write(key, b"late")
    with pytest.raises(ObjectMissingError):
        read_savepoint(store)
    claim_savepoint(store, "driver-2")
    commit_savepoint(store, make_manifest(6))
    assert read_savepoint(store).id == 6
    assert set(late) < set(store.list())


def test_a_place_of_an_unfinished_savepoint_names_who_writes_it(store: LocalStore) -> None:
    claim_savepoint(store, "driver-1")
    with pytest.raises(InvalidPlaceError, match=r"an unfinished savepoint \(driver-1\)"):
        claim_savepoint(store, "driver-2")


@pytest.mark.parametrize("key", [manifest_key(5), trigger_key(5), generation_key(1), "shared.txt"])
def test_a_pipelines_own_storage_is_no_place_for_a_savepoint(store: LocalStore, key: str) -> None:
    store.write(pack(5), b"a pack")
    store.write(key, b"somebody's")
    with pytest.raises(InvalidPlaceError):
        claim_savepoint(store, "driver-1")
    assert store.list() == sorted([key, pack(5)])
