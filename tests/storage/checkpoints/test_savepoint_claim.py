"""Claim and no-claim: who deletes the savepoint that a pipeline was restored from, and when."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from chandy.storage import InvalidPlaceError
from chandy.storage.backends.local import LocalStore
from chandy.storage.backends.open import open_store
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.collect import collect_garbage, discard, ended
from chandy.storage.checkpoints.manifest import CheckpointKind, Manifest
from chandy.storage.checkpoints.proof import Unshared
from chandy.storage.checkpoints.restore import restore_files
from chandy.storage.checkpoints.savepoint import claim_savepoint, commit_savepoint, read_savepoint
from chandy.storage.checkpoints.savepoint_claim import claim_restored, drop_claimed
from chandy.storage.checkpoints.snapshots import SnapshotSource, SnapshotWriter
from chandy.storage.checkpoints.verification import verify

from ...builders import AskingProof, make_manifest

MakeManifest = Callable[..., Manifest]


@pytest.fixture
def catalog(store: LocalStore) -> Catalog:
    return Catalog(store)


@pytest.fixture
def savepoint(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "savepoint")
    for name, content in {"1.sst": b"x" * 100, "CURRENT": b"1"}.items():
        (tmp_path / name).write_bytes(content)
    claim_savepoint(store, "its writer")
    writer = SnapshotWriter(store, "checkpoints/5/host.pack", pack_below=50)
    writer.add("0", {name: tmp_path / name for name in ("1.sst", "CURRENT")})
    manifest = make_manifest(5, shards=[writer.finish()["0"].handle])
    commit_savepoint(store, attrs.evolve(manifest, kind=CheckpointKind.SAVEPOINT))
    return store


def live(catalog: Catalog, completes: int = 1) -> int:
    """Begin a generation that completes so many checkpoints."""
    began = catalog.take_over("driver", 1.0)
    for id in range(began.next_id, began.next_id + completes):
        catalog.commit(make_manifest(id, began.generation))
    return began.generation


def test_without_a_claim_nothing_of_the_source_is_ever_changed(
    catalog: Catalog, savepoint: LocalStore, tmp_path: Path
) -> None:
    # The first checkpoint has everything itself, and dropping it touches nothing of the source.
    before = {key: savepoint.read(key) for key in savepoint.list()}
    (source,) = read_savepoint(savepoint).operators[0].shards
    assert source is not None
    restore_files(savepoint, source, tmp_path / "shard")
    files = {path.name: path for path in (tmp_path / "shard").iterdir()}
    manifests = []
    for id in (6, 7, 8):
        writer = SnapshotWriter(catalog.store, f"checkpoints/{id}/host.pack", pack_below=50)
        writer.add(
            "0",
            files,
            manifests[-1].operators[0].shards[0] if manifests else None,
            source=SnapshotSource(savepoint, source),
        )
        manifests.append(make_manifest(id, live(catalog, 0), [writer.finish()["0"].handle]))
        catalog.commit(manifests[-1])
        assert manifests[0].keys() <= set(catalog.store.list()) or id > 6
    ended(discard(catalog.store, manifests[:2], lambda: manifests[2:], Unshared()))
    collect_garbage(catalog, 1e12, older_than=0)
    assert drop_claimed(catalog, open_store, ended=9, proof=Unshared()) == ()
    assert {key: savepoint.read(key) for key in savepoint.list()} == before
    # And the pipeline lives without its source.
    for key in savepoint.list():
        savepoint.delete(key)
    assert verify(catalog.store, catalog.read(8)).ok


def test_a_claimed_savepoint_is_deleted_when_it_is_fully_unused_and_only_then(
    catalog: Catalog, savepoint: LocalStore
) -> None:
    generation = live(catalog, 0)
    claim_restored(catalog, savepoint, AskingProof(catalog.store, generation))
    before = savepoint.list()
    # No checkpoint has completed: it is all that there is to go back to.
    assert drop_claimed(catalog, open_store, ended=generation, proof=Unshared()) == ()
    catalog.commit(make_manifest(6, generation))
    # Shards that nobody has touched are still the savepoint's.
    assert drop_claimed(catalog, open_store, ended=generation - 1, proof=Unshared()) == ()
    assert drop_claimed(catalog, open_store, ended=generation, proof=Unshared(), in_use=[savepoint.uri]) == ()
    assert savepoint.list() == before
    savepoint.write("thesis.txt", b"years of work")
    assert drop_claimed(catalog, open_store, ended=generation, proof=Unshared()) == (savepoint.uri,)
    assert savepoint.list() == ["thesis.txt"]
    assert catalog.store.list("claimed/") == []
    assert catalog.list_ids() == [6]


def test_a_driver_that_dies_before_its_first_checkpoint_leaves_the_savepoint_to_the_next(
    catalog: Catalog, savepoint: LocalStore
) -> None:
    first = live(catalog, 0)
    claim_restored(catalog, savepoint, AskingProof(catalog.store, first))
    second = live(catalog, 1)
    claim_restored(catalog, savepoint, AskingProof(catalog.store, second))
    # The first one's claim has a checkpoint after it now, but the second one lives on the savepoint.
    assert drop_claimed(catalog, open_store, ended=first, proof=Unshared()) == ()
    assert drop_claimed(catalog, open_store, ended=second, proof=Unshared()) == (savepoint.uri,)


def test_a_savepoint_has_one_owner(catalog: Catalog, savepoint: LocalStore, tmp_path: Path) -> None:
    claim_restored(catalog, savepoint, Unshared())
    other = Catalog(LocalStore(tmp_path / "other"))
    with pytest.raises(InvalidPlaceError, match=str(tmp_path / "store")):
        claim_restored(other, savepoint, Unshared())
    assert other.store.list() == []


@pytest.mark.parametrize("deletions", range(6))
def test_an_interrupted_deletion_is_gone_on_with_and_leaves_no_manifest_without_its_files(
    catalog: Catalog, savepoint: LocalStore, deletions: int
) -> None:
    generation = live(catalog, 1)
    claim_restored(catalog, savepoint, AskingProof(catalog.store, generation))

    class Dying(LocalStore):
        left = deletions

        def _remove(self, path: Path) -> set[Path]:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            return super()._remove(path)

    if deletions < 5:
        with pytest.raises(KeyboardInterrupt):
            drop_claimed(catalog, lambda uri: Dying(savepoint.root), ended=generation, proof=Unshared())
        if "manifest.json" in savepoint.list():
            assert verify(savepoint, read_savepoint(savepoint)).ok
    drop_claimed(catalog, open_store, ended=generation, proof=Unshared())
    assert savepoint.list() == []
    assert catalog.store.list("claimed/") == []
