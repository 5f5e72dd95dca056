"""Scheduled savepoints: which ones a pipeline has, which expire, and what is never deleted with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.storage import FencedError, Store
from chandy.storage.backends.local import LocalStore
from chandy.storage.backends.open import open_store
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.layout import savepoint_key
from chandy.storage.checkpoints.locate import savepoints
from chandy.storage.checkpoints.manifest import CheckpointKind
from chandy.storage.checkpoints.proof import Unshared
from chandy.storage.checkpoints.savepoint import claim_savepoint, commit_savepoint, read_savepoint
from chandy.storage.checkpoints.savepoint_claim import claim_restored, drop_claimed
from chandy.storage.checkpoints.scheduled import (
    ScheduledSavepoint,
    drop,
    expired,
    is_scheduled,
    scheduled,
    scheduled_name,
)
from chandy.storage.errors import StoreFailedError
from chandy.storage.ids import CheckpointId

from ...builders import AskingProof, make_manifest

Write = Callable[..., LocalStore]


@pytest.fixture
def write(store: LocalStore, tmp_path: Path) -> Write:
    """Writes a savepoint as a checkpoint of the pipeline does."""

    def write(id: int, name: str | None = None) -> LocalStore:
        place = LocalStore(tmp_path / "archive" / (name or scheduled_name(86400.0 * id)))
        store.create(savepoint_key(CheckpointId(id)), place.uri.encode())
        claim_savepoint(place, f"{store.uri}, generation 1, checkpoint {id}")
        manifest = attrs.evolve(make_manifest(id), kind=CheckpointKind.SAVEPOINT, completed_at=float(id))
        commit_savepoint(place, manifest)
        return place

    return write


def drop_all_but(store: Store, keep: int, in_use: tuple[str, ...] = ()) -> tuple[int, ...]:
    return drop(store, open_store, expired(scheduled(store, open_store), keep, in_use), Unshared())


def test_the_oldest_expire_with_their_records_and_no_other_savepoint_does(
    store: LocalStore, write: Write
) -> None:
    named = write(1, "before-upgrade")
    written = [write(id) for id in (2, 3, 4, 5)]
    assert drop_all_but(store, 2) == (2, 3)
    assert [place.list() for place in written[:2]] == [[], []]
    assert list(savepoints(store)) == [1, 4, 5]
    assert read_savepoint(named).id == 1
    assert drop_all_but(store, 2) == ()


def test_one_that_was_claimed_restored_copied_or_moved_away_is_left_alone(
    store: LocalStore, write: Write, tmp_path: Path
) -> None:
    claimed, restored, moved, other, _ = (write(id) for id in (1, 2, 3, 4, 5))
    claim_restored(Catalog(LocalStore(tmp_path / "fork")), claimed, Unshared())
    moved.delete("manifest.json")
    # A copy of the pipeline's storage has the same ids, and its records name the savepoints of the original.
    other.delete("claim")
    other.create("claim", b"file:///the/original, generation 1, checkpoint 4")
    assert drop_all_but(store, 1, in_use=(restored.uri,)) == ()
    assert read_savepoint(claimed).id == 1
    assert read_savepoint(restored).id == 2
    assert read_savepoint(other).id == 4


def test_a_deletion_that_fails_keeps_none_of_the_others_and_goes_on_later(
    store: LocalStore, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _, _ = (write(id) for id in (1, 2, 3))
    delete = type(first).delete

    def fail_on_the_claim(place: LocalStore, key: str) -> None:
        if place.uri == first.uri and key == "claim":
            raise StoreFailedError("delete", place.uri, key, "it is away")
        delete(place, key)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "delete", fail_on_the_claim)
        assert drop_all_but(store, 1) == (2,)
    assert first.list() == ["claim"]
    assert drop_all_but(store, 1) == (1,)
    assert first.list() == []
    assert list(savepoints(store)) == [3]
    assert not [key for key in store.list() if key.endswith("/dropped")]


def test_a_driver_that_has_a_successor_deletes_nothing(store: LocalStore, write: Write) -> None:
    write(1), write(2)
    catalog = Catalog(store)
    proof = AskingProof(store, catalog.take_over("driver", 1.0).generation)
    catalog.take_over("its successor", 2.0)
    with pytest.raises(FencedError):
        drop(store, open_store, expired(scheduled(store, open_store), 1), proof)
    assert len(scheduled(store, open_store)) == 2


class Asked(Unshared):
    """Whether somebody has looked for a successor since the last change of a store."""

    is_asked = False

    def check(self) -> None:
        self.is_asked = True

    check_now = check


@pytest.mark.parametrize("is_claimed", [False, True])
def test_a_successor_is_looked_for_before_each_change(
    store: LocalStore, write: Write, is_claimed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, catalog, proof = write(1), Catalog(store), Asked()
    if is_claimed:
        generation = catalog.take_over("driver", 1.0).generation
        claim_restored(catalog, place, AskingProof(store, generation))
        catalog.commit(make_manifest(6, generation))

    def watch(name: str) -> None:
        right = getattr(LocalStore, name)

        def change(changed: LocalStore, *given: object) -> None:
            assert proof.is_asked, f"{name}{given} without a look"
            right(changed, *given)
            proof.is_asked = False

        monkeypatch.setattr(LocalStore, name, change)

    for name in ("write", "delete", "delete_all"):
        watch(name)
    if is_claimed:
        assert drop_claimed(catalog, open_store, generation, proof) == (place.uri,)
    else:
        assert drop(store, open_store, {CheckpointId(1): place.uri}, proof) == (1,)
    assert place.list() == []


@given(
    ids=st.lists(st.integers(1, 50), unique=True).map(sorted),
    keep=st.integers(1, 9),
    in_use=st.sets(st.integers(1, 50)),
)
def test_the_newest_stay_whatever_their_clocks_said(ids: list[int], keep: int, in_use: set[int]) -> None:
    found = [ScheduledSavepoint(CheckpointId(id), str(id), float(-id)) for id in ids]
    gone = set(expired(found, keep, {str(id) for id in in_use}))
    assert not gone & (set(ids[-keep:]) | in_use)
    assert set(ids) - gone <= set(ids[-keep:]) | in_use


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("scheduled-19700101T000000Z-0123ab", True),
        ("s3://bucket/p/scheduled-20010909T014640Z-0123ab?endpoint=http://there:1/", True),
        ("scheduled-monday", False),
        ("scheduled-19700101T000000Z-0123456", False),
        ("before-upgrade", False),
    ],
    # A name has a part by chance, and all processes must collect the same tests.
    ids=["of a schedule", "in a place", "of somebody", "too long", "of a user"],
)
def test_the_name_says_whether_it_is_by_schedule(name: str, expected: bool) -> None:
    assert is_scheduled(name) is expected


def test_the_names_that_are_given_are_known_again() -> None:
    assert is_scheduled(scheduled_name(1e9))
    assert scheduled_name(1e9) != scheduled_name(1e9)
