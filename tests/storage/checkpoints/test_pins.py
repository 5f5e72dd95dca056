"""Checkpoints that readers need stay, whatever retention does at the same moment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.storage import InvalidNameError, ObjectMissingError
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.collect import collect_garbage, discard, ended
from chandy.storage.checkpoints.layout import dropped_key, pin_key, pin_of
from chandy.storage.checkpoints.manifest import Manifest
from chandy.storage.checkpoints.pins import Pins, pinned, pins
from chandy.storage.checkpoints.proof import Unshared

from ...builders import MemoryStore, make_manifest, pack, shared
from .stored_files import files


def checkpoints(store: MemoryStore, *ids: int) -> list[Manifest]:
    """Commit checkpoints that each share a file with the next one."""
    made = [
        make_manifest(id, 0, [files(store, shared(str(id)), shared(str(id + 1)), pack(id))]) for id in ids
    ]
    for manifest in made:
        Catalog(store).commit(manifest)
    return made


def is_whole(store: MemoryStore, manifest: Manifest) -> bool:
    there = store.list()
    return f"checkpoints/{manifest.id}/manifest.json" in there and manifest.keys() <= set(there)


def test_a_pinned_checkpoint_stays_until_it_is_released() -> None:
    store = MemoryStore()
    one, two, three = checkpoints(store, 1, 2, 3)
    reader = Pins(store, "warehouse")
    assert reader.hold(1, 0.0) == one
    assert ended(discard(store, [one, two], lambda: [three], Unshared())).remaining == (one,)
    assert is_whole(store, one)
    assert not is_whole(store, two)
    # As long as it is there, so is what it shares with one that is dropped later.
    assert ended(discard(store, [one], lambda: [three], Unshared())).remaining == (one,)
    reader.hold(3, 0.0)
    reader.release_before(3, Unshared())
    assert pins(store) == {"warehouse": (3,)}
    assert ended(discard(store, [one], lambda: [three], Unshared())).remaining == ()
    assert store.list("shared/") == [shared("3"), shared("4")]


def test_a_checkpoint_that_is_gone_is_not_pinned() -> None:
    store = MemoryStore()
    one, two = checkpoints(store, 1, 2)
    ended(discard(store, [one], lambda: [two], Unshared()))
    with pytest.raises(ObjectMissingError):
        Pins(store, "warehouse").hold(1, 0.0)
    assert not pinned(store)


def test_readers_do_not_release_what_others_need() -> None:
    store = MemoryStore()
    checkpoints(store, 1, 2)
    one, other = Pins(store, "one"), Pins(store, "other")
    for reader in (one, other):
        reader.hold(1, 0.0)
    one.hold(2, 0.0)
    assert one.release(Unshared()) == (1, 2)
    assert pinned(store) == {1}


def test_garbage_collection_keeps_what_a_reader_has_read_although_it_became_void() -> None:
    store = MemoryStore()
    catalog = Catalog(store)
    catalog.take_over("first", 1.0)
    catalog.take_over("second", 2.0)
    one, two = checkpoints(store, 1, 2)
    Pins(store, "warehouse").hold(1, 0.0)
    assert all(entry.voided_by for entry in catalog.entries())
    collect_garbage(catalog, now=10.0, older_than=0.0)
    assert is_whole(store, one)
    assert not is_whole(store, two)


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "../up"])
def test_a_reader_has_a_name_that_can_be_a_folder(name: str) -> None:
    with pytest.raises(InvalidNameError):
        Pins(MemoryStore(), name)


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True), st.integers(1))
def test_the_key_of_a_pin_says_whose_it_is(reader: str, checkpoint: int) -> None:
    assert pin_of(pin_key(reader, checkpoint)) == (reader, checkpoint)


def test_a_crash_after_a_look_for_pins_leaves_the_checkpoint_that_is_pinned_then() -> None:
    store = MemoryStore()
    one, two = checkpoints(store, 1, 2)
    steps = discard(store, [one], lambda: [two], Unshared())
    next(steps)
    Pins(store, "warehouse").hold(1, 0.0)
    for _ in range(3):
        # Its mark was made after the look, and goes again.
        next(steps)
        assert is_whole(store, one)
    steps.close()
    assert dropped_key(1) not in store.list()
    assert Pins(store, "other").hold(1, 0.0) == one


def test_a_checkpoint_that_was_about_to_be_deleted_is_not_pinned_but_dropped_again() -> None:
    store = MemoryStore()
    one, two = checkpoints(store, 1, 2)
    steps = discard(store, [one], lambda: [two], Unshared())
    for _ in range(3):
        next(steps)
    steps.close()
    with pytest.raises(ObjectMissingError):
        Pins(store, "warehouse").hold(1, 0.0)
    assert is_whole(store, one)
    assert ended(discard(store, [one], lambda: [two], Unshared())).remaining == ()
    assert store.list("checkpoints/1/") == []
