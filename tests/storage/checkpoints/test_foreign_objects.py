"""Whatever deletes leaves alone what is not Chandy's, wherever it stands and whatever fails."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.collect import collect_garbage, discard_aborted
from chandy.storage.checkpoints.layout import OWNER, is_file, is_of_pipeline
from chandy.storage.checkpoints.proof import Unshared
from chandy.storage.checkpoints.savepoint import claim_savepoint, commit_savepoint, discard_savepoint
from chandy.storage.checkpoints.savepoint_claim import claim_restored, drop_claimed
from chandy.storage.errors import InvalidPlaceError
from chandy.storage.store import Store

from ...builders import PROBE, AskingProof, MemoryStore, make_manifest, pack, shared, staged

OWN: Final = (shared("a"), shared("b"), pack(1), pack(5, "driver-q"), staged("delays", 0))
"""Files that a driver may have written before it was killed."""
WORDS: Final = (
    "shared",
    "staged",
    "checkpoints",
    "probes",
    "savepoints",
    "outputs",
    "aa",
    "1",
    "5",
    "delays",
)
NAMES: Final = (
    "payroll-2025.xlsx",
    "photos.zip",
    "a.sst",
    "h.pack",
    "0.parquet",
    "notes",
    "a" * 64,
    ".tmp-1",
)


def foreign_keys() -> st.SearchStrategy[str]:
    """Keys near those of Chandy, and mangled ones of Chandy itself."""
    folders = st.lists(st.sampled_from(WORDS), max_size=3)
    near = st.builds(lambda folder, name: "/".join([*folder, name]), folders, st.sampled_from(NAMES))
    own = st.sampled_from([*OWN, PROBE])
    mangled = st.builds(
        lambda key, at, letter: key[:at] + letter + key[at + 1 :],
        own,
        st.integers(0, 30),
        st.sampled_from("xZ_"),
    )
    longer = st.builds(lambda key, more: key + more, own, st.sampled_from((".bak", "~", "/notes", "-old")))
    return st.one_of(near, mangled, longer).filter(lambda key: not is_file(key) and not is_of_pipeline(key))


@given(st.sets(foreign_keys(), min_size=1, max_size=8), st.sets(st.sampled_from(OWN)))
def test_an_aborted_savepoint_deletes_its_own_files_alone(foreign: set[str], own: set[str]) -> None:
    store = MemoryStore()
    for key in foreign:
        store.write(key, b"theirs")
    with pytest.raises(InvalidPlaceError):
        claim_savepoint(store, "a driver")
    # Its abort comes all the same; and somebody puts files there while a savepoint is written.
    discard_savepoint(store, "a driver", Unshared())
    assert set(store.list()) == foreign
    store.create("claim", b"a driver")
    for key in own:
        store.write(key, b"ours")
    discard_savepoint(store, "a driver", Unshared())
    assert set(store.list()) == foreign


@given(st.sets(foreign_keys(), max_size=8))
def test_dropped_checkpoints_and_garbage_are_named_or_of_an_exact_form(foreign: set[str]) -> None:
    store = MemoryStore()
    catalog = Catalog(store)
    generation = catalog.take_over("one", 0.0)
    for key in (*foreign, *OWN, PROBE):
        store.write(key, b"content")
    catalog.commit(make_manifest(7, generation.generation, triggered_at=1e12))
    discard_aborted(store, 1, AskingProof(store, generation.generation))
    discard_aborted(store, 5, AskingProof(store, generation.generation))
    collect_garbage(catalog, now=math.inf, older_than=0)
    assert foreign <= set(store.list())
    assert not {*OWN, PROBE}.intersection(store.list())


@given(st.sets(foreign_keys(), max_size=8))
def test_a_claimed_savepoint_is_deleted_alone(foreign: set[str]) -> None:
    catalog, savepoint = Catalog(MemoryStore("memory://pipeline/")), MemoryStore("memory://savepoint/")
    claim_savepoint(savepoint, "a driver")
    for key in (*foreign, *OWN):
        savepoint.write(key, b"content")
    commit_savepoint(savepoint, make_manifest(3))
    generation = catalog.take_over("one", 0.0).generation
    claim_restored(catalog, savepoint, AskingProof(catalog.store, generation))
    catalog.commit(make_manifest(4, generation))
    assert drop_claimed(catalog, lambda uri: savepoint, generation, Unshared()) == (savepoint.uri,)
    assert set(savepoint.list()) == foreign - {OWNER}


class _SlowToClaim(MemoryStore):
    """A folder into which a pipeline comes between the look and the claim."""

    def __init__(self, arrives: Callable[[Store], object]) -> None:
        super().__init__()
        self.arrives = arrives

    def create(self, key: str, data: bytes) -> None:
        if key == "claim" and not self.objects:
            self.arrives(self)
        super().create(key, data)


def test_the_folder_of_another_pipeline_that_was_named_by_mistake_keeps_everything() -> None:
    def begin(store: Store) -> None:
        catalog = Catalog(store)
        generation = catalog.take_over("another", 0.0)
        store.write(shared("a"), b"its state")
        catalog.commit(make_manifest(1, generation.generation))

    before = MemoryStore()
    begin(before)
    there, arriving = MemoryStore(), _SlowToClaim(begin)
    begin(there)
    for store in (there, arriving):
        with pytest.raises(InvalidPlaceError):
            claim_savepoint(store, "a driver")
        # The abort may come between the claim and its refusal.
        store.write("claim", b"a driver")
        discard_savepoint(store, "a driver", Unshared())
        assert store.list() == before.list()
