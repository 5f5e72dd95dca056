"""A pipeline that has started a thousand times starts as it did the tenth time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from chandy.coordinator.restore import restore_point
from chandy.storage import ObjectStat, Store
from chandy.storage.backends.open import open_store
from chandy.storage.backends.probe import probe_exclusive_create
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.collect import discard, discard_aborted, ended
from chandy.storage.checkpoints.layout import trigger_key
from chandy.storage.checkpoints.proof import Unshared
from chandy.storage.checkpoints.savepoint_claim import drop_claimed

from ...builders import AskingProof, MemoryStore, make_manifest

STARTS = 1000
RETAINED = 3


class CountedRequests(MemoryStore):
    """Counts the requests that a remote store would get, and the keys that they name or answer."""

    def __init__(self, kept: MemoryStore) -> None:
        super().__init__()
        self.objects, self.written = kept.objects, kept.written
        self.requests: Counter[str] = Counter()
        self.listed = 0

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        self.requests["read"] += 1
        return super().read(key, offset, length)

    def create(self, key: str, data: bytes) -> None:
        self.requests["create"] += 1
        super().create(key, data)

    def list(self, prefix: str = "") -> list[str]:
        self.requests["list"] += 1
        keys = super().list(prefix)
        self.listed += len(keys)
        return keys

    def delete_all(self, keys: Collection[str]) -> None:
        self.requests["delete"] += 1
        super().delete_all(keys)

    def stat(self, key: str) -> ObjectStat:
        self.requests["stat"] += 1
        return super().stat(key)


def start(store: Store) -> int:
    """Do what a coordinator does with its store at the start; return its generation."""
    catalog = Catalog(store)
    probe_exclusive_create(store)
    generation = catalog.take_over("driver", 1.0)
    restore_point.choose(catalog, restore_point.LATEST)
    catalog.check_not_fenced(generation.generation)
    drop_claimed(catalog, open_store, generation.generation - 1, Unshared())
    restore_point.known(catalog, chosen=False)
    return generation.generation


def run(store: Store, generation: int) -> None:
    """Complete a checkpoint, drop the oldest, and abort a checkpoint."""
    catalog = Catalog(store)
    id = (catalog.list_ids() or [0])[-1] + 1
    for used in (id, id + 1):
        store.create(trigger_key(used), b"checkpoint")
    catalog.commit(make_manifest(id, generation))
    completed = catalog.completed()
    ended(discard(store, completed[:-RETAINED], lambda: completed[-RETAINED:], Unshared()))
    discard_aborted(store, id + 1, AskingProof(store, generation))


def test_the_thousandth_start_costs_as_many_requests_as_the_tenth() -> None:
    kept = MemoryStore()
    counts: dict[int, tuple[Counter[str], int]] = {}
    for number in range(1, STARTS + 1):
        store = CountedRequests(kept)
        generation = start(store)
        assert generation == number
        counts[number] = store.requests, store.listed
        # A pipeline that runs, and later one that only crashes.
        if number < STARTS / 2:
            run(kept, generation)
    assert counts[STARTS][0].total() <= counts[10][0].total()
    assert counts[STARTS][1] <= counts[10][1]
    assert counts[STARTS // 2 - 1] == counts[10]


def test_listing_checkpoints_costs_the_same_after_many_starts() -> None:
    kept = MemoryStore()
    store = CountedRequests(kept)
    requests = []
    for number in range(1, 41):
        run(kept, start(kept))
        store.requests.clear()
        Catalog(store).entries()
        requests.append(store.requests.total())
        assert len(Catalog(store).completed()) == min(number, RETAINED)
    assert len(set(requests[RETAINED:])) == 1
