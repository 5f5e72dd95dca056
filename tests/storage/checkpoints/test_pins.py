"""Checkpoints that readers need stay, whatever retention does at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from chandy.storage import InvalidNameError, ObjectMissingError
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.collect import collect_garbage, discard
from chandy.storage.checkpoints.layout import pin_key, pin_of
from chandy.storage.checkpoints.manifest import Manifest
from chandy.storage.checkpoints.pins import Pins, pinned, pins
from chandy.storage.checkpoints.proof import Unshared
from chandy.storage.store import ObjectStat

from ...builders import MemoryStore, make_manifest, pack, shared
from .stored_files import files

DEADLINE = 30.0


def checkpoints(store: MemoryStore, *ids: int) -> list[Manifest]:
    """Commit checkpoints that each share a file with the next one."""
    made = [
        make_manifest(id, shards=[files(store, shared(str(id)), shared(str(id + 1)), pack(id))]) for id in ids
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
    assert discard(store, [one, two], [three], Unshared()).remaining == (one,)
    assert is_whole(store, one)
    assert not is_whole(store, two)
    # As long as it is there, so is what it shares with one that is dropped later.
    assert discard(store, [one], [three], Unshared()).remaining == (one,)
    reader.hold(3, 0.0)
    reader.release_before(3, Unshared())
    assert pins(store) == {"warehouse": (3,)}
    assert discard(store, [one], [three], Unshared()).remaining == ()
    assert store.list("shared/") == [shared("3"), shared("4")]


def test_a_checkpoint_that_is_gone_is_not_pinned() -> None:
    store = MemoryStore()
    one, two = checkpoints(store, 1, 2)
    discard(store, [one], [two], Unshared())
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


# --- at the same moment -------------------------------------------------------------------------------------


class Turns:
    """Lets two threads call a store in a given order."""

    def __init__(self, order: list[int]) -> None:
        self._order = order
        self._changed = threading.Condition()
        self._ended: set[int] = set()

    def take(self, who: int) -> None:
        """Wait until it is the caller's turn. Once the order is used up, or the other has ended, it always is."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._is_next(who), DEADLINE)
            if self._order:
                self._order.pop(0)
            self._changed.notify_all()

    def end(self, who: int) -> None:
        """Wait for the caller no more."""
        with self._changed:
            self._ended.add(who)
            self._changed.notify_all()

    def _is_next(self, who: int) -> bool:
        return not self._order or self._order[0] == who or bool(self._ended)


class TakingTurns(MemoryStore):
    """A store of which every operation waits for its turn."""

    def __init__(self, store: MemoryStore, turns: Turns, who: int) -> None:
        super().__init__(store.uri)
        self._store, self._turns, self._who = store, turns, who

    def _now(self) -> MemoryStore:
        self._turns.take(self._who)
        return self._store

    @override
    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        return self._now().read(key, offset, length)

    @override
    def write(self, key: str, data: bytes) -> None:
        self._now().write(key, data)

    @override
    def list(self, prefix: str = "") -> list[str]:
        return self._now().list(prefix)

    @override
    def delete(self, key: str) -> None:
        self._now().delete(key)

    @override
    def stat(self, key: str) -> ObjectStat:
        return self._now().stat(key)


@given(st.lists(st.integers(0, 1), max_size=24))
def test_what_a_reader_has_pinned_is_whole_in_whatever_order_both_ask_the_store(order: list[int]) -> None:
    store = MemoryStore()
    one, two, three = checkpoints(store, 1, 2, 3)
    turns = Turns(order)

    def run(who: int, do: Callable[[MemoryStore], object]) -> bool:
        try:
            do(TakingTurns(store, turns, who))
        except ObjectMissingError:
            return False
        finally:
            turns.end(who)
        return True

    with ThreadPoolExecutor(2) as pool:
        retention = pool.submit(run, 0, lambda own: discard(own, [one, two], [three], Unshared()))
        reader = pool.submit(run, 1, lambda own: Pins(own, "warehouse").hold(1, 0.0))
        assert retention.result(DEADLINE)
        is_held = reader.result(DEADLINE)
    assert is_held == (pinned(store) == {1})
    if is_held:
        assert is_whole(store, one)
    assert not is_whole(store, two)
