"""Deleting dropped checkpoints and garbage, and nothing else."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

import attrs
import pytest

from chandy.storage import DamagedError, FencedError, NothingHereError, SchemaTooNewError
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.collect import GRACE_SECONDS, collect_garbage, discard, discard_aborted, ended
from chandy.storage.checkpoints.locate import find
from chandy.storage.checkpoints.manifest import EpochRecord, Handle, Manifest, OutputRecord, QueryRecord
from chandy.storage.checkpoints.proof import Unshared
from chandy.storage.checkpoints.restore import restore_files
from chandy.storage.checkpoints.savepoint import claim_savepoint, commit_savepoint, read_savepoint
from chandy.storage.checkpoints.snapshots import SnapshotWriter
from chandy.storage.checkpoints.verification import verify
from chandy.storage.errors import NotDeletedError, StoreFailedError
from chandy.storage.ids import CheckpointId
from chandy.storage.store import ObjectStat

from ...builders import PROBE, AskingProof, make_manifest, pack, shared, staged
from .stored_files import files

MakeManifest = Callable[..., Manifest]


@pytest.fixture
def catalog(store: LocalStore) -> Catalog:
    return Catalog(store)


class _DiesAfter(LocalStore):
    """Makes so many deletions and then dies."""

    def __init__(self, root: Path, deletions: int) -> None:
        super().__init__(root)
        self.deletions = deletions

    def _remove(self, path: Path) -> set[Path]:
        if self.deletions == 0:
            raise KeyboardInterrupt
        self.deletions -= 1
        return super()._remove(path)


def test_discarding_deletes_the_manifest_and_what_nobody_else_needs(
    catalog: Catalog, store: LocalStore
) -> None:
    one = make_manifest(1, 0, [files(store, shared("a"), shared("b"), pack(1))])
    two = make_manifest(2, 0, [files(store, shared("b"), pack(2))])
    catalog.commit(one)
    catalog.commit(two)
    assert ended(discard(store, [one], lambda: [two], Unshared())).keys == {shared("a"), pack(1)}
    assert store.list() == [pack(2), "checkpoints/2/manifest.json", shared("b")]


@pytest.mark.parametrize("repeated", [(1,), ()], ids=["asked twice", "of an earlier generation"])
def test_a_manifest_that_a_store_creates_after_its_deletion_does_not_count(
    catalog: Catalog, store: LocalStore, repeated: tuple[CheckpointId, ...]
) -> None:
    generation = catalog.take_over("driver", 1.0).generation
    one, two = (make_manifest(id, generation, [files(store, shared(str(id)))]) for id in (1, 2))
    catalog.commit(one)
    catalog.commit(two)
    if not repeated:
        generation = catalog.take_over("successor", 2.0).generation
    ended(discard(store, [one], lambda: [two], AskingProof(store, generation), repeated))
    catalog.commit(one)
    assert catalog.list_ids() == [2]
    assert catalog.completed() == [two]
    with pytest.raises(NothingHereError, match="there is no checkpoint 1"):
        find(catalog, 1)
    # The record goes when a start record makes void what comes back.
    assert catalog.take_over("next", 3.0).counted == (2,)
    assert store.list("checkpoints/1/") == ["checkpoints/1/manifest.json"]
    assert catalog.completed() == [two]


@pytest.mark.parametrize("deletions", range(4))
def test_a_crash_while_discarding_leaves_no_manifest_with_missing_files(
    store: LocalStore, deletions: int
) -> None:
    catalog = Catalog(store)
    one = make_manifest(1, shards=[files(store, shared("a"), pack(1))])
    catalog.commit(one)
    catalog.commit(make_manifest(2))
    with pytest.raises(KeyboardInterrupt):
        ended(
            discard(_DiesAfter(store.root, min(deletions, 2)), [one], lambda: [make_manifest(2)], Unshared())
        )
    for manifest in catalog.completed():
        assert manifest.keys() <= set(store.list())
    collect_garbage(catalog, time.time(), older_than=0)
    assert all(manifest.keys() <= set(store.list()) for manifest in catalog.completed())


def test_dropped_checkpoints_leave_the_others_restorable(
    catalog: Catalog, store: LocalStore, tmp_path: Path
) -> None:
    # Each checkpoint shares files with the one before it.
    base: Handle | None = None
    manifests = []
    for id in range(1, 6):
        folder = tmp_path / str(id)
        folder.mkdir()
        for number in range(id, id + 3):
            (folder / f"{number}.sst").write_bytes(bytes([number]) * 100)
        (folder / "CURRENT").write_bytes(str(id).encode())
        writer = SnapshotWriter(store, f"checkpoints/{id}/host.pack", pack_below=50)
        writer.add("0", {path.name: path for path in folder.iterdir()}, base)
        base = writer.finish()["0"].handle
        manifests.append(make_manifest(id, shards=[base]))
        catalog.commit(manifests[-1])
        ended(discard(store, manifests[-3:-2], lambda: manifests[-2:], Unshared()))
    assert catalog.list_ids() == [4, 5]
    for manifest in catalog.completed():
        assert verify(store, manifest).ok
        (handle,) = manifest.operators[0].shards
        assert handle is not None
        restore_files(store, handle, tmp_path / f"restored-{manifest.id}")
    assert len(store.list("shared/")) == 4


def test_garbage_is_what_no_completed_checkpoint_references(catalog: Catalog, store: LocalStore) -> None:
    first = catalog.take_over("driver-1", 1.0)
    catalog.commit(make_manifest(2, first.generation, [files(store, shared("a"), pack(1))]))
    catalog.take_over("driver-2", 2.0)
    catalog.commit(make_manifest(3, first.generation, [files(store, shared("d"))]))  # void
    catalog.commit(make_manifest(5, 2, [files(store, shared("b"), pack(5))]))
    needed = set(store.list()) - {"checkpoints/3/manifest.json", shared("d")}
    files(store, pack(4, "aborted"), pack(2, "late"), shared("c"), PROBE)
    in_flight = {pack(6), pack(7), "readme.txt"}
    files(store, *in_flight)
    found = collect_garbage(catalog, time.time(), older_than=0)
    assert found.keys[0] == "checkpoints/3/manifest.json"
    assert set(found.keys[1:]) == {
        pack(2, "late"),
        pack(4, "aborted"),
        PROBE,
        shared("c"),
        shared("d"),
    }
    assert set(store.list()) == needed | in_flight
    assert collect_garbage(catalog, time.time(), older_than=0).keys == ()


def with_output(id: int, *staged: Handle, published: int | None = None) -> Manifest:
    """A checkpoint that has so many epochs to publish."""
    epochs = tuple(EpochRecord(number, 1, handle) for number, handle in enumerate(staged, 1))
    output = OutputRecord("sink", epochs, published)
    return make_manifest(id, queries=(QueryRecord("delays", 4, Handle(), (output,)),))


def test_staged_rows_that_no_checkpoint_has_to_publish_are_garbage(
    catalog: Catalog, store: LocalStore
) -> None:
    one, two = files(store, staged("delays", 1)), files(store, staged("delays", 2))
    files(store, staged("delays", 9), staged("gone", 9))
    catalog.commit(with_output(2, one, two))
    for older_than in (GRACE_SECONDS, 0):
        found = collect_garbage(catalog, time.time(), older_than)
        assert found.keys == (), "they may wait for the next checkpoint, however long that takes"
    later = attrs.evolve(with_output(3, one, two), triggered_at=time.time() + 2 * 3600)
    catalog.commit(later)
    assert collect_garbage(catalog, time.time()).keys == (), "they may belong to a checkpoint in flight"
    found = collect_garbage(catalog, time.time(), older_than=0)
    assert found.keys == (staged("delays", 9), staged("gone", 9))
    assert store.list("staged/") == [staged("delays", 1), staged("delays", 2)]


def test_staged_rows_go_with_the_last_checkpoint_that_has_to_publish_them(
    catalog: Catalog, store: LocalStore
) -> None:
    one, two = files(store, staged("delays", 1)), files(store, staged("delays", 2))
    first, second, third = with_output(1, one), with_output(2, one, two), with_output(3, published=2)
    for manifest in (first, second, third):
        catalog.commit(manifest)
    assert ended(discard(store, [first], lambda: [second, third], Unshared())).keys == frozenset()
    assert ended(discard(store, [second], lambda: [third], Unshared())).keys == {
        staged("delays", 1),
        staged("delays", 2),
    }
    assert store.list("staged/") == []


def test_staged_rows_that_a_damaged_manifest_may_need_are_spared(catalog: Catalog, store: LocalStore) -> None:
    catalog.commit(with_output(2, files(store, staged("delays", 1))))
    store.write("checkpoints/2/manifest.json", store.read("checkpoints/2/manifest.json")[:-9])
    catalog.commit(make_manifest(3))
    found = collect_garbage(catalog, time.time(), older_than=0)
    assert (found.keys, found.spared) == ((), 1)
    assert store.list("staged/") == [staged("delays", 1)]


def test_a_dry_run_finds_the_same_and_deletes_nothing(catalog: Catalog, store: LocalStore) -> None:
    catalog.commit(make_manifest(2))
    files(store, shared("c"), pack(1))
    before = store.list()
    dry = collect_garbage(catalog, time.time(), older_than=0, dry_run=True)
    assert store.list() == before
    assert dry == collect_garbage(catalog, time.time(), older_than=0)
    assert dry.bytes == len(shared("c")) + len(pack(1))
    assert store.list() == ["checkpoints/2/manifest.json"]


def savepoints(store: LocalStore) -> set[str]:
    """A completed savepoint and one that never completed, in the pipeline's own folder; the keys of the latter."""
    for name in ("whole", "aborted"):
        folder = LocalStore(store.root / "savepoints" / name)
        claim_savepoint(folder, f"the driver that took {name}")
        kept = files(folder, shared("a"), pack(4))
        if name == "whole":
            commit_savepoint(folder, make_manifest(4, shards=[kept]))
    return {f"savepoints/aborted/{key}" for key in ("claim", shared("a"), pack(4))}


def test_a_savepoint_that_never_completed_is_garbage_and_a_completed_one_is_not(
    catalog: Catalog, store: LocalStore
) -> None:
    aborted = savepoints(store)
    # What another program has put there, and a folder that nobody has claimed.
    files(store, "savepoints/aborted/notes.txt", "savepoints/mine/" + shared("b"))
    before = set(store.list())
    dry = collect_garbage(catalog, time.time() + GRACE_SECONDS + 60, dry_run=True)
    assert set(dry.keys) == aborted
    assert set(store.list()) == before
    assert collect_garbage(catalog, time.time() + GRACE_SECONDS + 60) == dry
    assert set(store.list()) == before - aborted
    whole = LocalStore(store.root / "savepoints" / "whole")
    assert read_savepoint(whole).keys() <= set(whole.list())


@pytest.mark.parametrize("young", ["claim", shared("a"), pack(4)])
def test_a_savepoint_with_one_young_object_may_be_in_flight(
    catalog: Catalog, store: LocalStore, young: str
) -> None:
    aborted = savepoints(store)
    before = set(store.list())
    for key in aborted - {f"savepoints/aborted/{young}"}:
        os.utime(store.root / key, (1.0, 1.0))
    found = collect_garbage(catalog, time.time())
    assert (found.keys, found.young, set(store.list())) == ((), 3, before)


def test_a_savepoint_that_completes_meanwhile_is_left_alone(catalog: Catalog, store: LocalStore) -> None:
    aborted = savepoints(store)
    folder = LocalStore(store.root / "savepoints" / "aborted")

    class Completing(LocalStore):
        def scan(self, prefix: str = "") -> dict[str, ObjectStat]:
            found = super().scan(prefix)
            commit_savepoint(folder, make_manifest(4, shards=[]))
            return found

    found = collect_garbage(Catalog(Completing(store.root)), time.time(), older_than=0)
    assert found.keys == ()
    assert aborted <= set(store.list())


def test_a_savepoint_stays_claimed_while_some_of_it_cannot_be_deleted(
    catalog: Catalog, store: LocalStore
) -> None:
    aborted = savepoints(store)
    (kept,) = [key for key in aborted if key.endswith(".pack")]

    class Stubborn(LocalStore):
        def delete_all(self, keys: Collection[str]) -> None:
            super().delete_all([key for key in keys if key != kept])
            if kept in keys:
                raise NotDeletedError.of(self.uri, {kept: StoreFailedError(self.uri, kept, "delete", "no")})

    found = collect_garbage(Catalog(Stubborn(store.root)), time.time(), older_than=0)
    assert (set(found.keys), set(found.failed)) == ({"savepoints/aborted/" + shared("a")}, {kept})
    assert {"savepoints/aborted/claim", kept} <= set(store.list())


def test_what_a_checkpoint_in_flight_has_uploaded_is_spared(
    catalog: Catalog, store: LocalStore, tmp_path: Path
) -> None:
    # The file is months old, but somebody has just uploaded it.
    catalog.commit(make_manifest(2))
    (tmp_path / "1.sst").write_bytes(b"x" * 100)
    writer = SnapshotWriter(store, pack(3), pack_below=0)
    writer.add("0", {"1.sst": tmp_path / "1.sst"})
    handle = writer.finish()["0"].handle
    found = collect_garbage(catalog, time.time())
    assert (found.keys, found.young) == ((), 1)
    catalog.commit(make_manifest(3, shards=[handle]))
    assert verify(store, catalog.read(3)).ok
    # Without the manifest it would have been garbage once the time of grace was over.
    store.delete("checkpoints/3/manifest.json")
    assert collect_garbage(catalog, time.time() + GRACE_SECONDS + 60, dry_run=True).keys == (
        handle.files[0].key,
    )


def test_nothing_that_a_damaged_manifest_may_need_is_deleted(catalog: Catalog, store: LocalStore) -> None:
    needed = files(store, shared("c"), pack(1), pack(2))
    catalog.commit(make_manifest(2, shards=[needed]))
    whole = store.read("checkpoints/2/manifest.json")
    store.write("checkpoints/2/manifest.json", whole[:-9])
    store.create("checkpoints/2/trigger", b"t")
    files(store, pack(3), PROBE)
    catalog.commit(make_manifest(4))
    found = collect_garbage(catalog, time.time(), older_than=0)
    assert found.keys == (pack(3), PROBE)
    assert (found.damaged, found.spared) == (("checkpoints/2/manifest.json",), 3)
    store.write("checkpoints/2/manifest.json", whole)
    assert all(
        store.read(file.key) == file.key.encode() for file in catalog.read(2).operators[0].shards[0].files
    )
    # Once it is given up, nothing holds them any more.
    store.delete("checkpoints/2/manifest.json")
    found = collect_garbage(catalog, time.time(), older_than=0)
    assert found.keys == (
        pack(1),
        pack(2),
        "checkpoints/2/trigger",
        shared("c"),
    )
    assert (found.damaged, found.spared) == ((), 0)


@pytest.mark.parametrize(
    ("key", "damage", "error"),
    [
        ("generations/1.start.json", b"{", DamagedError),
        ("checkpoints/1/manifest.json", b'{"manifest":{},"schema":99}', SchemaTooNewError),
    ],
)
def test_nothing_is_deleted_where_nobody_knows_what_counts(
    catalog: Catalog,
    store: LocalStore,
    key: str,
    damage: bytes,
    error: type[Exception],
) -> None:
    catalog.take_over("driver", 1.0)
    catalog.commit(make_manifest(2))
    files(store, shared("c"), pack(1))
    store.write(key, damage)
    before = store.list()
    with pytest.raises(error):
        collect_garbage(catalog, time.time(), older_than=0)
    assert store.list() == before


class _Completing(LocalStore):
    """Completes a checkpoint and drops its base during the first list of manifests, as coordinators do."""

    step: Callable[[], None] | None = None
    torn = False
    """Whether that list has neither: the walk was past the new one's place, and found the old one gone."""

    def list(self, prefix: str = "") -> list[str]:
        keys = super().list(prefix)
        if prefix and self.step:
            step, self.step = self.step, None
            step()
            return [] if self.torn else keys
        return keys


@pytest.mark.parametrize("torn", [False, True])
def test_a_checkpoint_that_completes_meanwhile_keeps_its_files(tmp_path: Path, torn: bool) -> None:
    # Seen one by one, neither the base nor the new checkpoint may be in the list.
    store = _Completing(tmp_path)
    store.torn = torn
    catalog = Catalog(store)
    base = make_manifest(1, shards=[files(store, shared("a"))])
    new = make_manifest(2, shards=[files(store, shared("a"))])
    catalog.commit(base)

    def complete() -> None:
        catalog.commit(new)
        ended(discard(store, [base], lambda: [new], Unshared()))

    store.step = complete
    found = collect_garbage(catalog, time.time(), older_than=0)
    assert found.keys == ()
    assert store.read(shared("a"))


def test_an_aborted_checkpoint_leaves_nothing_of_its_own(catalog: Catalog, store: LocalStore) -> None:
    # Shared files stay, for a later checkpoint may use them.
    catalog.take_over("driver-1", 1.0)
    catalog.commit(make_manifest(1, shards=[files(store, shared("a"), pack(1))]))
    before = store.list()
    files(store, pack(2), "checkpoints/2/savepoint", shared("b"))
    catalog.commit(make_manifest(2, new_bytes=7))
    assert discard_aborted(store, 2, AskingProof(store, 1)) == {pack(2), "checkpoints/2/manifest.json"}
    assert store.list() == sorted([*before, "checkpoints/2/savepoint", shared("b")])


def test_discarding_an_aborted_checkpoint_spares_what_completed_ones_need(
    catalog: Catalog, store: LocalStore
) -> None:
    # The pack of a checkpoint that retention dropped, still referenced by a later one.
    catalog.take_over("driver-1", 1.0)
    catalog.commit(make_manifest(2, shards=[files(store, pack(1))]))
    files(store, pack(1, "late"))
    assert discard_aborted(store, 1, AskingProof(store, 1)) == {pack(1, "late")}
    assert verify_keys(catalog)


@pytest.mark.parametrize(("damaged", "deleted"), [(1, True), (3, False)])
def test_only_a_later_manifest_that_cannot_be_read_keeps_what_an_aborted_checkpoint_left(
    catalog: Catalog, store: LocalStore, damaged: int, deleted: bool
) -> None:
    # A later one may reference it, and an older one cannot.
    catalog.take_over("driver-1", 1.0)
    catalog.commit(make_manifest(damaged))
    store.write(f"checkpoints/{damaged}/manifest.json", b"{}")
    files(store, pack(2))
    if deleted:
        assert discard_aborted(store, 2, AskingProof(store, 1)) == {pack(2)}
    else:
        with pytest.raises(DamagedError):
            discard_aborted(store, 2, AskingProof(store, 1))
        assert pack(2) in store.list()


def test_a_fenced_coordinator_deletes_nothing_of_its_aborted_checkpoints(
    catalog: Catalog, store: LocalStore
) -> None:
    # The successor may use the same id.
    catalog.take_over("driver-1", 1.0)
    new = catalog.take_over("driver-2", 2.0)
    catalog.commit(make_manifest(1, new.generation, [files(store, pack(1))]))
    with pytest.raises(FencedError):
        discard_aborted(store, 1, AskingProof(store, 1))
    assert verify_keys(catalog)
    assert len(catalog.completed()) == 1


def test_without_a_generation_a_manifest_is_left_alone(catalog: Catalog, store: LocalStore) -> None:
    # It may be the successor's completed checkpoint of the same id.
    catalog.take_over("driver-1", 1.0)
    catalog.commit(make_manifest(1, 2, [files(store, pack(1))]))
    files(store, pack(2))
    assert discard_aborted(store, 1, Unshared()) == frozenset()
    assert discard_aborted(store, 1, AskingProof(store, 1)) == frozenset()
    assert discard_aborted(store, 2, Unshared()) == {pack(2)}
    assert verify_keys(catalog)
    assert len(catalog.completed()) == 1


def verify_keys(catalog: Catalog) -> bool:
    return all(manifest.keys() <= set(catalog.store.list()) for manifest in catalog.completed())
