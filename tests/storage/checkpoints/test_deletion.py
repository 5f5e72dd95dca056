"""Deleting many objects: one that cannot be deleted keeps no other, and all of them are named."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from chandy.storage import NotDeletedError, StoreFailedError
from chandy.storage.backends.fsspec_store import FsspecStore
from chandy.storage.backends.local import LocalStore
from chandy.storage.backends.open import open_store
from chandy.storage.backends.retrying import RetryingStore
from chandy.storage.backends.s3 import DELETE_AT_ONCE, S3Store
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.collect import collect_garbage, discard, ended
from chandy.storage.checkpoints.files import FileCache
from chandy.storage.checkpoints.layout import CLAIM, dropped_key
from chandy.storage.checkpoints.manifest import FileRef, Handle
from chandy.storage.checkpoints.proof import Unshared
from chandy.storage.checkpoints.savepoint import claim_savepoint, commit_savepoint, delete_savepoint
from chandy.storage.checkpoints.savepoint_claim import claim_restored, drop_claimed
from chandy.storage.keys import temporary_name
from chandy.storage.uri import StoreUri

from ...builders import PROBE, AskingProof, MemoryStore, make_manifest, pack, shared


class Stubborn(MemoryStore):
    """Some of its objects cannot be deleted: so many times, or ever."""

    def __init__(self, *keys: str, times: float = float("inf"), transient: bool = False) -> None:
        super().__init__()
        self.left = dict.fromkeys(keys, times)
        self.transient = transient
        self.asked: list[str] = []

    def delete(self, key: str) -> None:
        self.asked.append(key)
        if self.left.get(key, 0) > 0:
            self.left[key] -= 1
            raise StoreFailedError(self.uri, key, "delete", f"{key} is locked", self.transient)
        super().delete(key)


def fill(store: MemoryStore | LocalStore, *keys: str) -> Handle:
    for key in keys:
        store.write(key, key.encode())
    return Handle(tuple(FileRef(key, key, len(key), "ab") for key in keys))


def undeleted(act: Callable[[], object]) -> dict[str, str]:
    """Return why objects were not deleted, by key."""
    with pytest.raises(NotDeletedError) as caught:
        act()
    assert all(repr(key) in str(caught.value) for key in list(caught.value.failed)[:3])
    return {key: error.reason for key, error in caught.value.failed.items()}


# --- the stores ---------------------------------------------------------------------------------------------


def test_a_local_file_that_cannot_be_deleted_keeps_no_other(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, *"abcd")
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.name in "ac":
            raise PermissionError(13, "Permission denied", str(path))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    failed = undeleted(lambda: store.delete_all(list("abcd")))
    assert failed.keys() == {"a", "c"}
    assert all("Permission denied" in reason for reason in failed.values())
    assert store.list() == ["a", "c"]


def test_a_local_sweep_goes_on_after_a_file_that_cannot_be_deleted(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, "a")
    left = [store.root / temporary_name() for _ in range(3)]
    for path in left:
        path.write_bytes(b"half")
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path == left[0]:
            raise PermissionError(13, "Permission denied", str(path))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    assert undeleted(lambda: store.sweep(1e12)).keys() == {left[0].name}
    assert [path.exists() for path in left] == [True, False, False]


class _LockedFiles(MemoryFileSystem):
    cachable = False

    def rm_file(self, path: str) -> None:
        if path.endswith(("/a", "/c")):
            raise PermissionError(13, "Permission denied", path)
        super().rm_file(path)


def test_an_object_of_fsspec_that_cannot_be_deleted_keeps_no_other(tmp_path: Path) -> None:
    store = FsspecStore("memory://x", _LockedFiles, f"/{tmp_path.name}", fenced=True)
    for key in "abcd":
        store.write(key, b"x")
    assert undeleted(lambda: store.delete_all(list("abcd"))).keys() == {"a", "c"}
    assert store.list() == ["a", "c"]


class _S3:
    """A service that answers requests to delete: it refuses a request with a key of ``broken``, and each ``locked``."""

    broken = "1500"
    locked = ("7", "8")

    def __init__(self) -> None:
        self.deleted: list[str] = []

    def call_s3(self, method: str, **request: Any) -> dict[str, Any]:
        assert method == "delete_objects"
        keys = [each["Key"] for each in request["Delete"]["Objects"]]
        if self.broken in keys:
            raise PermissionError("Access Denied")
        self.deleted += [key for key in keys if key not in self.locked]
        return {"Errors": [{"Key": key, "Code": "ObjectLocked"} for key in keys if key in self.locked]}


def test_s3_goes_on_after_an_object_and_after_a_request_that_fails() -> None:
    service = _S3()
    store = S3Store(StoreUri("s3", "bucket", "", {}))
    store._connected = (os.getpid(), service)
    keys = [str(number) for number in range(2 * DELETE_AT_ONCE + 1)]
    with pytest.raises(NotDeletedError) as caught:
        store.delete_all(keys)
    second = keys[DELETE_AT_ONCE : 2 * DELETE_AT_ONCE]
    assert set(caught.value.failed) == {"7", "8", *second}
    assert set(service.deleted) == set(keys) - caught.value.failed.keys()
    assert caught.value.failed["7"].reason == "ObjectLocked"
    assert "could not delete 1002 objects in s3://bucket: '7' (ObjectLocked), '8'" in str(caught.value)
    assert "and 999 more" in str(caught.value)


def test_a_file_of_hdfs_that_cannot_be_deleted_keeps_no_other() -> None:
    hdfs = pytest.importorskip("chandy.storage.backends.hdfs")

    class _Client:
        files = {"/p/a", "/p/b", "/p/c"}

        def delete(self, path: str, recursive: bool) -> bool:
            if path == "/p/a":
                raise PermissionError("AccessControlException: p is not yours")
            self.files.discard(path)
            return True

    store = hdfs.HdfsStore(StoreUri("hdfs", "names", "p", {}))
    store._connected = (os.getpid(), _Client())
    assert undeleted(lambda: store.delete_all(list("abc"))) == {"a": "AccessControlException: p is not yours"}
    assert _Client.files == {"/p/a"}


def test_a_store_that_cannot_be_reached_is_not_asked_for_every_object() -> None:
    store = Stubborn(*"bcdefgh", transient=True)
    fill(store, *"abcdefgh")
    assert undeleted(lambda: store.delete_all("abcdefgh")).keys() == set("bcdefgh")
    assert store.asked == list("abcd")


def test_what_fails_in_passing_is_tried_again_and_nothing_else() -> None:
    store = Stubborn("b", "d", times=2, transient=True)
    fill(store, *"abcde")
    RetryingStore(store, sleep=lambda seconds: None).delete_all("abcde")
    assert store.objects == {}
    assert store.asked == [*"abcde", *"bd", *"bd"]


# --- who deletes --------------------------------------------------------------------------------------------


def test_discarding_goes_on_after_what_cannot_be_deleted() -> None:
    store = Stubborn(shared("a"))
    catalog = Catalog(store)
    one = make_manifest(1, 0, [fill(store, shared("a"), shared("b"), pack(1))])
    catalog.commit(one)
    assert ended(discard(store, [one], lambda: [], Unshared())).failed.keys() == {shared("a")}
    assert store.list() == [shared("a")]


def test_what_a_manifest_references_that_cannot_be_deleted_stays() -> None:
    store = Stubborn("checkpoints/1/manifest.json")
    catalog = Catalog(store)
    manifests = [
        make_manifest(1, 0, [fill(store, shared("a"), shared("b"))]),
        make_manifest(2, 0, [fill(store, shared("b"), shared("c"))]),
    ]
    for manifest in manifests:
        catalog.commit(manifest)
    deleted = ended(discard(store, manifests, lambda: [], Unshared()))
    assert (deleted.failed.keys(), deleted.remaining) == ({"checkpoints/1/manifest.json"}, (manifests[0],))
    assert store.list() == [dropped_key(1), "checkpoints/1/manifest.json", shared("a"), shared("b")]


class _Sweepless(Stubborn):
    def sweep(self, before: float) -> None:
        undeletable = {"upload": StoreFailedError(self.uri, "upload", "sweep", "not yours")}
        raise NotDeletedError.of(self.uri, undeletable)


def test_garbage_collection_goes_on_and_says_what_is_left() -> None:
    store = _Sweepless(shared("a"))
    fill(store, shared("a"), shared("b"), PROBE)
    found = collect_garbage(Catalog(store), 1e12, older_than=0)
    assert found.keys == (PROBE, shared("b"))
    assert found.failed == {shared("a"): f"{shared('a')} is locked", "upload": "not yours"}
    assert store.list() == [shared("a")]


def test_a_savepoint_stays_claimed_while_something_of_it_is_left() -> None:
    store = Stubborn(pack(1))
    claim_savepoint(store, "its writer")
    fill(store, pack(1), pack(1, "i"), shared("a"))
    assert undeleted(lambda: delete_savepoint(store, Unshared())).keys() == {pack(1)}
    assert store.list() == [pack(1), CLAIM]


def test_a_claimed_savepoint_that_cannot_be_deleted_keeps_no_other(tmp_path: Path) -> None:
    catalog = Catalog(LocalStore(tmp_path / "pipeline"))
    savepoints = [LocalStore(tmp_path / name) for name in "ab"]
    for store in savepoints:
        claim_savepoint(store, "its writer")
        commit_savepoint(store, make_manifest(1))
        claim_restored(
            catalog, store, AskingProof(catalog.store, catalog.take_over("driver", 1.0).generation)
        )
    catalog.commit(make_manifest(2, 2))

    def refuse(uri: str) -> Any:
        if uri == savepoints[0].uri:
            raise StoreFailedError(uri, "manifest.json", "delete", "no permission")
        return open_store(uri)

    assert drop_claimed(catalog, refuse, ended=2, proof=Unshared()) == (savepoints[1].uri,)
    assert drop_claimed(catalog, open_store, ended=2, proof=Unshared()) == (savepoints[0].uri,)


def test_a_cached_file_that_cannot_be_dropped_keeps_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = FileCache(tmp_path / "cache", limit_bytes=0)
    kept, dropped = "a" * 64, "b" * 64
    for sha256 in (kept, dropped):
        (tmp_path / sha256).write_bytes(b"x")
        cache.put(sha256, tmp_path / sha256)
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.name == kept:
            raise PermissionError(13, "Permission denied", str(path))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    cache.trim()
    assert [path.name for path in cache.files.glob("*/*")] == [kept]
