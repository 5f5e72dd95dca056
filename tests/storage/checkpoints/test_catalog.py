"""The checkpoints of a pipeline: committing and finding them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from chandy.storage import DamagedError, FencedError, ObjectExistsError, ObjectMissingError
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.fencing import KEPT, Generation
from chandy.storage.checkpoints.layout import (
    generation_key,
    generation_of,
    gone_key,
    manifest_key,
    start_key,
    trigger_key,
)
from chandy.storage.checkpoints.manifest import Manifest
from chandy.storage.errors import DamagedStartError, StorageReplacedError

from ...builders import make_manifest

MakeManifest = Callable[..., Manifest]


@pytest.fixture
def catalog(store: LocalStore) -> Catalog:
    return Catalog(store)


def test_an_empty_pipeline_has_no_latest_checkpoint(catalog: Catalog) -> None:
    assert catalog.latest() is None
    assert catalog.list_ids() == []
    assert catalog.completed() == []


def test_a_committed_manifest_is_read_back(catalog: Catalog) -> None:
    catalog.commit(make_manifest(3))
    assert catalog.read(3) == make_manifest(3)
    with pytest.raises(ObjectMissingError):
        catalog.read(4)


def test_an_id_is_committed_once(catalog: Catalog) -> None:
    catalog.commit(make_manifest(3, new_bytes=1))
    with pytest.raises(ObjectExistsError):
        catalog.commit(make_manifest(3, new_bytes=2))
    assert catalog.read(3).new_bytes == 1


def test_a_savepoint_uses_its_id_up_although_it_lives_elsewhere(catalog: Catalog) -> None:
    catalog.store.create("checkpoints/3/savepoint", b"file:///elsewhere")
    assert catalog.take_over("driver-1", 1.0).next_id == 4
    assert catalog.latest() is None


def test_the_latest_is_the_one_with_the_highest_id_not_the_youngest(catalog: Catalog) -> None:
    for id in (9, 10, 2):
        catalog.commit(make_manifest(id))
    latest = catalog.latest()
    assert latest is not None
    assert latest.id == 10


@pytest.mark.parametrize("content", [b"", b'{"schema":1', b"\x00" * 100])
def test_an_unreadable_newest_manifest_fails_loudly_and_is_not_skipped(
    catalog: Catalog, content: bytes
) -> None:
    catalog.commit(make_manifest(1))
    catalog.store.write("checkpoints/2/manifest.json", content)
    for look in (catalog.latest, catalog.completed):
        with pytest.raises(DamagedError) as caught:
            look()
        assert caught.value.key == "checkpoints/2/manifest.json"
    # Going on from an older one is possible, but somebody has to say so.
    assert catalog.read(1).id == 1
    assert catalog.take_over("other", 1.0).next_id == 3


def test_a_manifest_under_another_id_is_damage(catalog: Catalog) -> None:
    catalog.commit(make_manifest(1))
    catalog.store.write("checkpoints/2/manifest.json", catalog.store.read("checkpoints/1/manifest.json"))
    with pytest.raises(DamagedError, match="expected checkpoint 2, found checkpoint 1"):
        catalog.read(2)


def test_the_first_life_begins_at_one(catalog: Catalog) -> None:
    generation = catalog.take_over("driver-1", 12.5)
    assert generation.generation == 1
    assert generation.predecessors_end == 0
    assert generation.next_id == 1
    assert (generation.created_at, generation.owner) == (12.5, "driver-1")
    assert catalog.generations() == [generation]


def test_a_restored_savepoint_pushes_the_ids_up(catalog: Catalog) -> None:
    assert catalog.take_over("driver-1", 1.0, first_id=8).next_id == 8


def test_ids_are_never_used_again_whatever_happened_to_them(catalog: Catalog) -> None:
    first = catalog.take_over("driver-1", 1.0)
    catalog.commit(make_manifest(4, first.generation))
    catalog.store.write("checkpoints/6/host.pack", b"left by an aborted checkpoint")
    second = catalog.take_over("driver-2", 2.0)
    assert (second.predecessors_end, second.next_id) == (4, 7)
    catalog.store.delete("checkpoints/6/host.pack")
    catalog.store.delete("checkpoints/4/manifest.json")
    third = catalog.take_over("driver-3", 3.0)
    assert third.next_id == 7


def test_a_fenced_generation_completes_nothing_and_cleans_up(catalog: Catalog) -> None:
    old = catalog.take_over("driver-1", 1.0)
    catalog.commit(make_manifest(1, old.generation))
    catalog.confirm(make_manifest(1, old.generation))
    new = catalog.take_over("driver-2", 2.0)
    with pytest.raises(FencedError, match=r"generation 1 .* by generation 2 \(driver-2\)"):
        catalog.check_not_fenced(old.generation)
    late = make_manifest(2, old.generation)
    catalog.commit(late)
    latest = catalog.latest()
    assert latest is not None
    assert latest.id == 1
    with pytest.raises(FencedError):
        catalog.confirm(late)
    assert catalog.list_ids() == [1]
    catalog.check_not_fenced(new.generation)


def test_a_fenced_checkpoint_that_the_successor_has_seen_stays(catalog: Catalog) -> None:
    old = catalog.take_over("driver-1", 1.0)
    unconfirmed = make_manifest(1, old.generation)
    catalog.commit(unconfirmed)
    assert catalog.take_over("driver-2", 2.0).predecessors_end == 1
    with pytest.raises(FencedError):
        catalog.confirm(unconfirmed)
    assert catalog.latest() == unconfirmed


def test_a_claim_without_a_start_fences_but_makes_nothing_void(catalog: Catalog) -> None:
    # A driver that died while it took over.
    old = catalog.take_over("driver-1", 1.0)
    catalog.take_over("driver-2", 2.0)
    catalog.store.delete("generations/2.start.json")
    late = make_manifest(1, old.generation)
    catalog.commit(late)
    with pytest.raises(FencedError):
        catalog.confirm(late)
    assert catalog.latest() == late
    third = catalog.take_over("driver-3", 3.0)
    assert (third.generation, third.predecessors_end) == (3, 1)
    assert catalog.latest() == late


def test_a_store_that_was_wiped_while_its_driver_runs_is_called_so(catalog: Catalog) -> None:
    for _ in range(2):
        own = catalog.take_over("me", 0.0)
    catalog.check_not_fenced(own.generation)
    catalog.store.delete_all(catalog.store.list())
    with pytest.raises(StorageReplacedError, match="was wiped, or put back"):
        catalog.check_not_fenced(own.generation)
    # Another driver that starts over there, too.
    catalog.take_over("another", 0.0)
    with pytest.raises(StorageReplacedError, match="was wiped, or put back"):
        catalog.check_not_fenced(own.generation)


def test_a_generation_that_others_know_of_tells_a_wiped_store(catalog: Catalog) -> None:
    for _ in range(3):
        catalog.take_over("me", 0.0)
    catalog.check_has(FencedError(catalog.store.uri, 2, 3, "as sink 'a' has recorded"))
    with pytest.raises(StorageReplacedError, match=r"nothing of generation 4 \(as sink 'a' has recorded\)"):
        catalog.check_has(FencedError(catalog.store.uri, 3, 4, "as sink 'a' has recorded"))


def test_a_damaged_generation_record_fails_loudly(catalog: Catalog) -> None:
    catalog.take_over("driver-1", 1.0)
    catalog.store.write("generations/1.start.json", b"{}")
    catalog.commit(make_manifest(1))
    for look in (catalog.latest, lambda: catalog.take_over("driver-2", 2.0)):
        with pytest.raises(DamagedStartError, match="stop every driver of this pipeline, delete") as caught:
            look()
        assert caught.value.key == "generations/1.start.json"
    # The advice is good.
    catalog.store.delete("generations/1.start.json")
    assert catalog.latest() == make_manifest(1)
    assert catalog.take_over("driver-2", 2.0).counted == (1,)


# --- what many starts leave ---------------------------------------------------------------------------------


def start_often(catalog: Catalog, times: int = KEPT + 1) -> Generation:
    return [catalog.take_over(f"driver-{number}", 1.0) for number in range(times)][-1]


def numbers_of(catalog: Catalog) -> set[int | None]:
    return {generation_of(key) for key in catalog.store.list("generations/")}


def test_records_that_nothing_needs_are_deleted_and_no_number_comes_twice(catalog: Catalog) -> None:
    # A later version may write further records of a generation.
    catalog.store.create("generations/1.other.json", b"{}")
    generations = [start_often(catalog, 1).generation for _ in range(4 * KEPT)]
    assert generations == list(range(2, 4 * KEPT + 2))
    assert numbers_of(catalog) == set(generations[-KEPT:])


def test_a_driver_that_comes_back_after_many_others_is_still_fenced(catalog: Catalog) -> None:
    # The record of the generation that fenced it is gone.
    old = catalog.take_over("driver-1", 1.0)
    catalog.commit(make_manifest(1, old.generation))
    newest = start_often(catalog, 3 * KEPT)
    late = make_manifest(2, old.generation)
    with pytest.raises(FencedError) as caught:
        catalog.check_not_fenced(old.generation)
    assert (caught.value.by, caught.value.owner) == (newest.generation, newest.owner)
    catalog.commit(late)
    assert [manifest.id for manifest in catalog.completed()] == [1]
    with pytest.raises(FencedError):
        catalog.confirm(late)
    assert catalog.list_ids() == [1]


class _Stalled(LocalStore):
    """Something happens between a list of the generations and what follows it."""

    meanwhile: Callable[[], object] | None = None

    def list(self, prefix: str = "") -> list[str]:
        keys = super().list(prefix)
        if prefix == "generations/" and self.meanwhile:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return keys


@pytest.mark.parametrize("before", [0, 3])
def test_a_driver_that_claims_a_number_of_long_ago_is_fenced_and_fences_nobody(
    tmp_path: Path, before: int
) -> None:
    store = _Stalled(tmp_path)
    catalog, others = Catalog(store), Catalog(LocalStore(tmp_path))
    for _ in range(before):
        others.take_over("early", 1.0)
    store.meanwhile = lambda: start_often(others, 3 * KEPT)
    with pytest.raises(FencedError) as caught:
        catalog.take_over("late", 2.0)
    assert (caught.value.generation, caught.value.by) == (before + 1, before + 3 * KEPT)
    others.check_not_fenced(before + 3 * KEPT)
    # Whoever had that number before has not come to life again.
    with pytest.raises(FencedError):
        others.check_not_fenced(before + 1)
    assert others.take_over("next", 3.0).generation == before + 3 * KEPT + 1


def test_a_manifest_that_is_void_stays_void_when_the_record_that_says_so_is_gone(catalog: Catalog) -> None:
    old = catalog.take_over("driver-1", 1.0)
    catalog.commit(make_manifest(4, old.generation))
    new = catalog.take_over("driver-2", 2.0)
    catalog.commit(make_manifest(5, old.generation))  # void
    catalog.commit(make_manifest(7, new.generation))
    assert [manifest.id for manifest in catalog.completed()] == [4, 7]
    for _ in range(2 * KEPT):
        catalog.take_over("driver", 3.0)
        assert [manifest.id for manifest in catalog.completed()] == [4, 7]
    # Its id is below what the generations that are left have found, but they did not find it.
    catalog.store.delete("checkpoints/5/manifest.json")
    catalog.commit(make_manifest(6, new.generation))
    assert [manifest.id for manifest in catalog.completed()] == [4, 7]


@pytest.mark.parametrize("which", ["1.json", "1.start.json", "2.json"])
def test_a_damaged_record_that_is_not_the_newest_blocks_nothing(catalog: Catalog, which: str) -> None:
    catalog.take_over("driver-1", 1.0)
    catalog.commit(make_manifest(1))
    catalog.take_over("driver-2", 2.0)
    catalog.store.write(f"generations/{which}", b"\x00")
    assert catalog.latest() == make_manifest(1)
    assert [entry.id for entry in catalog.entries()] == [1]
    with pytest.raises(FencedError):
        catalog.check_not_fenced(1)
    assert catalog.take_over("driver-3", 3.0).counted == (1,)


def test_records_of_a_newer_version_may_say_more(catalog: Catalog) -> None:
    catalog.take_over("driver-1", 1.0)
    for key in ("generations/1.json", "generations/1.start.json"):
        document = json.loads(catalog.store.read(key)) | {"machine": {"cores": 2}}
        # The first versions have written no hash.
        del document["sha256"]
        catalog.store.write(key, json.dumps(document).encode())
    assert [start.generation for start in catalog.generations()] == [1]
    with pytest.raises(FencedError, match="driver-1"):
        catalog.check_not_fenced(0)


def test_ids_of_checkpoints_that_never_completed_are_not_used_again_and_leave_no_record(
    catalog: Catalog,
) -> None:
    first = catalog.take_over("driver-1", 1.0)
    catalog.commit(make_manifest(1, first.generation))
    for id in (1, 2):
        catalog.store.create(f"checkpoints/{id}/trigger", b"t")
    assert catalog.take_over("driver-2", 1.0).next_id == 3
    assert catalog.store.list("checkpoints/") == ["checkpoints/1/manifest.json", "checkpoints/1/trigger"]
    assert catalog.take_over("driver-3", 1.0).next_id == 3


# --- storages of the first version --------------------------------------------------------------------------


def first_version(catalog: Catalog, *ends: int) -> None:
    """Write the records of generations that found checkpoints up to these ids, as the first version wrote them."""
    for number, end in enumerate(ends, 1):
        common = {"generation": number, "owner": f"old-{number}", "created_at": 1.0}
        start = common | {"predecessors_end": end, "next_id": end + 1}
        catalog.store.create(f"generations/{number}.json", json.dumps(common | {"nonce": "x"}).encode())
        catalog.store.create(f"generations/{number}.start.json", json.dumps(start).encode())


def test_a_storage_of_the_first_version_says_the_same_before_and_after_the_first_start(
    catalog: Catalog,
) -> None:
    first_version(catalog, 0, 2, 5, *([6] * 10))
    catalog.commit(make_manifest(2, 1))
    catalog.commit(make_manifest(4, 1))  # void by the second
    catalog.commit(make_manifest(5, 2))
    catalog.commit(make_manifest(6, 3))
    catalog.commit(make_manifest(7, 13))
    assert [manifest.id for manifest in catalog.completed()] == [2, 5, 6, 7]
    began = catalog.take_over("new", 2.0)
    assert (began.generation, began.counted, began.next_id) == (14, (2, 5, 6, 7), 8)
    assert [manifest.id for manifest in catalog.completed()] == [2, 5, 6, 7]
    assert numbers_of(catalog) == set(range(15 - KEPT, 15))


def test_a_damaged_old_record_of_the_first_version_blocks_nothing(catalog: Catalog) -> None:
    first_version(catalog, 0, 2, 5)
    catalog.commit(make_manifest(5, 2))
    catalog.store.write("generations/2.start.json", b"{}")
    assert [entry.voided_by for entry in catalog.entries()] == [None]
    assert catalog.take_over("new", 2.0).counted == (5,)


def test_foreign_objects_are_no_checkpoints(catalog: Catalog) -> None:
    for key in ("checkpoints/x/manifest.json", "checkpoints/0/manifest.json", "checkpoints/01/manifest.json"):
        catalog.store.write(key, b"")
    catalog.store.write("checkpoints/5/sub/manifest.json", b"")
    catalog.store.write("generations/notes.txt", b"")
    assert catalog.list_ids() == []
    assert catalog.take_over("driver-1", 1.0).generation == 1


class _Vanishing(LocalStore):
    """Deletes an object after a list has shown it, as retention in another process may."""

    victim = "checkpoints/3/manifest.json"

    def list(self, prefix: str = "") -> list[str]:
        keys = super().list(prefix)
        if self.victim in keys:
            self.delete(self.victim)
        return keys


def test_a_manifest_that_is_deleted_while_one_looks_is_not_the_latest(tmp_path: Path) -> None:
    catalog = Catalog(_Vanishing(tmp_path))
    for id in (2, 3):
        catalog.commit(make_manifest(id))
    latest = catalog.latest()
    assert latest is not None
    assert latest.id == 2


class _Growing(LocalStore):
    """A checkpoint completes after every fifth manifest that somebody reads, and the oldest is deleted."""

    reads = 0

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        data = super().read(key, offset, length)
        if key.endswith("manifest.json"):
            self.reads += 1
            if self.reads % 5 == 0:
                oldest, *_, newest = Catalog(LocalStore(self.root)).list_ids()
                Catalog(LocalStore(self.root)).commit(make_manifest(newest + 1))
                self.delete(manifest_key(oldest))
        return data


def test_a_list_of_all_checkpoints_ends_although_checkpoints_go_on(tmp_path: Path) -> None:
    store = _Growing(tmp_path)
    for id in range(1, 26):
        Catalog(LocalStore(tmp_path)).commit(make_manifest(id))
    entries = Catalog(store).entries()
    assert [entry.id for entry in entries] == Catalog(LocalStore(tmp_path)).list_ids()
    assert len(entries) == 25
    assert store.reads < 40


class _Late(LocalStore):
    """Lists what is new only later."""

    known: set[str] | None = None

    def list(self, prefix: str = "") -> list[str]:
        found = super().list(prefix)
        return found if self.known is None else [key for key in found if key in self.known]


def test_a_checkpoint_counts_and_is_the_latest_although_the_store_does_not_list_it_yet(
    tmp_path: Path,
) -> None:
    store = _Late(tmp_path)
    catalog = Catalog(store)
    first = catalog.take_over("driver-1", 1.0)
    for id in (1, 2, 3, 4, 5):
        if id == 2:
            store.known = {*store.list(), generation_key(2), start_key(2)}
        store.create(trigger_key(id), b"")
        if id != 4:
            catalog.commit(make_manifest(id, generation=first.generation))
    # It was deleted, and the store has created it once more.
    store.create(gone_key(5), b"")
    second = catalog.take_over("driver-2", 2.0)
    assert second.counted == (1, 2, 3) and second.next_id == 6
    latest = catalog.latest()
    assert latest is not None and latest.id == 3
    # A user has chosen an older one to restore, and a checkpoint has completed since.
    catalog.amend(attrs.evolve(second, restored="1"))
    assert catalog.chosen() == "1"
    store.create(trigger_key(6), b"")
    catalog.commit(make_manifest(6, generation=second.generation))
    assert catalog.chosen() == ""
    store.delete(manifest_key(6))
    # Retention drops it: the record of the start does not bring it back.
    store.delete(manifest_key(3))
    latest = catalog.latest()
    assert latest is not None and latest.id == 2


def test_what_a_start_has_made_void_stays_void_although_the_store_does_not_list_that_start_yet(
    tmp_path: Path,
) -> None:
    store = _Late(tmp_path)
    catalog = Catalog(store)
    first = catalog.take_over("driver-1", 1.0)
    catalog.commit(make_manifest(1, generation=first.generation))
    listed = {*store.list(), manifest_key(2)}
    for more in (set[str](), {generation_key(2)}):
        store.known = None
        if not more:
            catalog.take_over("driver-2", 2.0)
            # The first driver was frozen, and has not looked yet.
            catalog.commit(make_manifest(2, generation=first.generation))
        store.known = listed | more
        latest = catalog.latest()
        assert latest is not None and latest.id == 1
