"""Which objects are damaged, which checkpoints need them, and which one to go back to."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.manifest import Handle, Manifest
from chandy.storage.checkpoints.snapshots import SnapshotWriter
from chandy.storage.checkpoints.verification import (
    damaged_objects,
    missing_object,
    newest_intact,
    verify,
    verify_all,
)

from ...builders import MemoryStore, make_manifest

MakeManifest = Callable[..., Manifest]


class CountedReads(MemoryStore):
    """Counts how often each object is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()
        self._counting = threading.Lock()

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        with self._counting:
            self.reads[key] += 1
        return super().read(key, offset, length)


@pytest.fixture
def store() -> CountedReads:  # type: ignore[override]
    return CountedReads()


@pytest.fixture
def catalog(store: CountedReads, tmp_path: Path) -> Catalog:
    """Three checkpoints: one file is in all, one in the last two, and each has a pack and a file of its own."""
    catalog = Catalog(store)
    base: Handle | None = None
    for id in (1, 2, 3):
        names = {"all.sst": b"a" * 100, f"{id}.sst": b"%d" % id * 100, "CURRENT": b"%d" % id}
        if id > 1:
            names["two.sst"] = b"t" * 100
        for name, content in names.items():
            (tmp_path / name).write_bytes(content)
        writer = SnapshotWriter(store, f"checkpoints/{id}/host.pack", pack_below=50)
        writer.add("0", {name: tmp_path / name for name in names}, base)
        base = writer.finish()["0"].handle
        catalog.commit(make_manifest(id, shards=[base]))
    return catalog


def key_of(catalog: Catalog, checkpoint: int, name: str) -> str:
    (handle,) = catalog.read(checkpoint).operators[0].shards
    assert handle is not None
    return next(file.key for file in handle.files if file.name == name)


def test_what_checkpoints_share_is_read_once(catalog: Catalog, store: CountedReads) -> None:
    manifests = catalog.completed()
    store.reads.clear()
    reports = verify_all(store, manifests)
    assert all(report.ok for report in reports)
    assert reports == [verify(store, manifest) for manifest in manifests]
    store.reads.clear()
    verify_all(store, manifests)
    alone = CountedReads()
    alone.objects, alone.written = store.objects, store.written
    verify(alone, manifests[2])
    shared = key_of(catalog, 1, "all.sst")
    assert store.reads[shared] == alone.reads[shared]


def test_each_damaged_object_is_named_with_the_checkpoints_that_need_it(
    catalog: Catalog, store: CountedReads
) -> None:
    in_all, in_two, own = (
        key_of(catalog, 1, "all.sst"),
        key_of(catalog, 2, "two.sst"),
        key_of(catalog, 3, "CURRENT"),
    )
    store.delete(in_all)
    store.write(in_two, b"wrong" * 20)
    store.write(own, b"")
    manifests = catalog.completed()
    reports = verify_all(store, manifests)
    damaged = damaged_objects(
        {manifest.id: report for manifest, report in zip(manifests, reports, strict=True)}
    )
    assert {one.key: one.checkpoints for one in damaged} == {in_all: (1, 2, 3), in_two: (2, 3), own: (3,)}
    assert {one.key: one.found[0][:15] for one in damaged}[in_all] == "no such object"
    assert "needed by checkpoints 2, 3" in str(next(one for one in damaged if one.key == in_two))


def test_the_newest_intact_checkpoint_is_one_of_which_every_byte_is_there(
    catalog: Catalog, store: CountedReads
) -> None:
    found = newest_intact(catalog)
    assert found is not None
    assert found.id == 3
    store.write("checkpoints/4/manifest.json", b"{}")
    store.write(key_of(catalog, 3, "3.sst"), b"4" * 100)
    found = newest_intact(catalog)
    assert found is not None
    assert found.id == 2
    store.delete(key_of(catalog, 1, "all.sst"))
    assert newest_intact(catalog) is None


def test_a_void_checkpoint_is_not_offered(catalog: Catalog, store: CountedReads) -> None:
    catalog.take_over("a", 1.0)
    catalog.take_over("b", 2.0)
    catalog.commit(make_manifest(9, generation=1))
    found = newest_intact(catalog)
    assert found is not None
    assert found.id == 3


def test_a_missing_object_is_seen_at_a_glance(catalog: Catalog, store: CountedReads) -> None:
    manifest = catalog.read(3)
    store.reads.clear()
    assert missing_object(store, manifest) is None
    assert not store.reads
    for key in sorted(manifest.keys()):
        data = store.read(key)
        store.delete(key)
        assert missing_object(store, manifest) == key
        store.write(key, data)
