"""A latest checkpoint that is damaged: an error that says which one to take instead, never a silent choice."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from chandy.coordinator.restore import restore_point
from chandy.storage import DamagedCheckpointError, DamagedError
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.layout import savepoint_key
from chandy.storage.checkpoints.manifest import CheckpointKind, Handle, QueryRecord
from chandy.storage.checkpoints.savepoint import commit_savepoint
from chandy.storage.checkpoints.snapshots import SnapshotWriter

from ...builders import make_manifest


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """Three checkpoints; each has an object of its own, and all share one."""
    catalog = Catalog(LocalStore(tmp_path / "store"))
    base: Handle | None = None
    for id in (1, 2, 3):
        # The store has links to them: each checkpoint's are files of their own.
        folder = tmp_path / str(id)
        folder.mkdir()
        (folder / "own.sst").write_bytes(b"%d" % id * 100)
        (folder / "all.sst").write_bytes(b"all" * 100)
        writer = SnapshotWriter(catalog.store, f"checkpoints/{id}/driver.pack", pack_below=0)
        writer.add("q", {name: folder / name for name in ("own.sst", "all.sst")}, base)
        base = writer.finish()["q"].handle
        queries = (QueryRecord("q", id, base),)
        catalog.commit(make_manifest(id, queries=queries, operators=()))
    return catalog


def own_key(catalog: Catalog, id: int) -> str:
    return next(file.key for file in catalog.read(id).queries[0].files.files if file.name == "own.sst")


def test_an_intact_latest_is_chosen(catalog: Catalog) -> None:
    point = restore_point.choose(catalog, "latest")
    assert point is not None
    assert point.manifest.id == 3


@pytest.mark.parametrize("damage", ["object", "manifest"])
@pytest.mark.parametrize(("damaged", "intact"), [((3,), 2), ((3, 2), 1)])
def test_a_damaged_latest_names_the_newest_intact_one_and_how_to_choose_it(
    catalog: Catalog, damage: str, damaged: tuple[int, ...], intact: int
) -> None:
    for id in damaged:
        if damage == "object":
            catalog.store.delete(own_key(catalog, id))
        else:
            catalog.store.write(f"checkpoints/{id}/manifest.json", b"{}")
    with pytest.raises(DamagedCheckpointError, match=f'restore="{intact}"') as caught:
        restore_point.choose(catalog, "latest")
    assert (caught.value.checkpoint, caught.value.intact) == (3, intact)
    assert str(caught.value).startswith("checkpoint 3 cannot be restored: ")
    point = restore_point.choose(catalog, str(intact))
    assert point is not None
    assert point.manifest.id == intact


def test_bytes_that_only_look_whole_are_not_called_intact(catalog: Catalog) -> None:
    catalog.store.delete(own_key(catalog, 3))
    catalog.store.write(own_key(catalog, 2), b"x" * 100)
    with pytest.raises(DamagedCheckpointError) as caught:
        restore_point.choose(catalog, "latest")
    assert caught.value.intact == 1


def test_without_an_intact_one_that_is_said(catalog: Catalog) -> None:
    for key in catalog.store.list("shared/"):
        catalog.store.delete(key)
    with pytest.raises(DamagedCheckpointError, match="no other checkpoint"):
        restore_point.choose(catalog, "latest")


def test_damage_that_a_restore_has_met_is_named_with_the_newest_intact_one(catalog: Catalog) -> None:
    point = restore_point.choose(catalog, "latest")
    assert point is not None
    assert restore_point.damage(catalog, point, threading.Event()) is None
    catalog.store.write(own_key(catalog, 3), b"x" * 100)
    damage = restore_point.damage(catalog, point, threading.Event())
    assert damage is not None
    assert (damage.key, damage.checkpoint, damage.intact) == (own_key(catalog, 3), 3, 2)
    assert 'restore="2"' in str(damage)


def test_damage_in_a_savepoint_names_the_newest_intact_checkpoint(catalog: Catalog, tmp_path: Path) -> None:
    savepoint = LocalStore(tmp_path / "savepoint")
    copied = catalog.read(1)
    for key in sorted(copied.keys()):
        savepoint.write(key, b"y" * 100)
    point = restore_point.RestorePoint(copied, savepoint.uri)
    damage = restore_point.damage(catalog, point, threading.Event())
    assert damage is not None
    assert (damage.store, damage.checkpoint, damage.intact) == (savepoint.uri, 1, 3)


def test_a_damaged_checkpoint_that_was_chosen_by_its_id_is_named_as_damaged(catalog: Catalog) -> None:
    catalog.store.write("checkpoints/2/manifest.json", b"{}")
    with pytest.raises(DamagedError, match="checkpoints/2/manifest"):
        restore_point.choose(catalog, 2)


def test_what_lies_behind_the_checkpoint_that_a_user_chose_is_not_taken_for_whole(catalog: Catalog) -> None:
    def unverified(restore: str) -> list[bool]:
        chosen = None if restore == "latest" else restore_point.choose(catalog, restore)
        return [manifest.unverified for manifest in restore_point.known(catalog, chosen)]

    assert unverified("latest") == [False, False, False]
    assert unverified("2") == [False, False, True]


def test_a_savepoint_of_the_pipeline_is_chosen_by_its_id(catalog: Catalog, tmp_path: Path) -> None:
    place = LocalStore(tmp_path / "savepoint")
    commit_savepoint(place, make_manifest(4, kind=CheckpointKind.SAVEPOINT))
    catalog.store.write(savepoint_key(4), place.uri.encode())
    point = restore_point.choose(catalog, "4")
    assert point is not None
    assert (point.manifest.id, point.root, point.is_savepoint) == (4, place.uri, True)
