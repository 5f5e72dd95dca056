"""What is particular to S3 and to HDFS, on real servers."""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chandy.storage import Store, StoreFailedError
from chandy.storage.backends import hdfs as hdfs_module
from chandy.storage.backends.open import open_store
from chandy.storage.backends.retrying import RetryingStore
from chandy.storage.checkpoints.manifest import CheckpointKind, Handle
from chandy.storage.checkpoints.restore import restore_files
from chandy.storage.checkpoints.savepoint import commit_savepoint, read_savepoint
from chandy.storage.checkpoints.snapshots import PACK_BELOW, SnapshotSource, SnapshotWriter
from chandy.storage.checkpoints.verification import verify
from chandy.storage.errors import ObjectExistsError
from chandy.storage.keys import temporary_name
from chandy.storage.transfer import PART, PARTS_AT_A_TIME

from ...builders import make_manifest
from .. import servers
from ..conftest import hdfs_uri, s3_uri
from ..lossy_proxy import LossyProxy
from ..servers import Server


def inner(store: Store) -> Any:
    assert isinstance(store, RetryingStore)
    return store.store


@pytest.fixture
def s3(moto: Server) -> Store:
    return open_store(s3_uri(moto, uuid.uuid4().hex))


class Requests:
    """The requests that an S3 client makes, by what they ask, and the bytes of their bodies."""

    def __init__(self, store: Store) -> None:
        self.made: list[tuple[str, int]] = []
        self.parts_at_once = 0
        self._parts = 0
        self._lock = threading.Lock()
        fs = inner(store).fs
        self._call, self._call_sync = fs._call_s3, fs.call_s3
        # s3fs goes through the one, whoever uses s3fs through the other.
        fs._call_s3, fs.call_s3 = self._counted, self._counted_sync

    def _counted_sync(self, method: str, **kwargs: Any) -> Any:
        self.made.append((method, 0))
        return self._call_sync(method, **kwargs)

    async def _counted(self, method: str, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            self.made.append((method, len(kwargs.get("Body", b""))))
            self._parts += method == "upload_part"
            self.parts_at_once = max(self.parts_at_once, self._parts)
        try:
            return await self._call(method, *args, **kwargs)
        finally:
            with self._lock:
                self._parts -= method == "upload_part"

    def names(self) -> list[str]:
        return [name for name, _ in self.made]


@pytest.fixture
def requests(s3: Store) -> Iterator[Requests]:
    counted = Requests(s3)
    yield counted
    del inner(s3).fs._call_s3, inner(s3).fs.call_s3


def test_each_operation_on_s3_is_one_request(s3: Store, requests: Requests, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 1000)
    for operation, asked in (
        (lambda: s3.write("a", b"1"), "put_object"),
        (lambda: s3.create("b", b"1"), "put_object"),
        (lambda: s3.read("a"), "get_object"),
        (lambda: s3.read("a", 0, 1), "get_object"),
        (lambda: s3.upload(tmp_path / "file", "c"), "put_object"),
        (lambda: s3.download("c", tmp_path / "d", 1000), "get_object"),
        (lambda: s3.copy(s3, "c", "e"), "copy_object"),
        (lambda: s3.stat("c"), "head_object"),
        (lambda: s3.list(), "list_objects_v2"),
        (lambda: s3.delete("a"), "delete_object"),
        (lambda: s3.delete_all(["b", "c", "e"]), "delete_objects"),
    ):
        requests.made.clear()
        operation()
        assert requests.names() == [asked]


def test_a_large_file_goes_up_in_parts_within_a_bound_of_memory(
    s3: Store, requests: Requests, tmp_path: Path
) -> None:
    data = os.urandom(6 * PART + 17)
    (tmp_path / "large").write_bytes(data)
    s3.upload(tmp_path / "large", "large.sst")
    parts = [size for name, size in requests.made if name == "upload_part"]
    assert sum(parts) == len(data)
    assert max(parts) <= PART
    assert 1 < requests.parts_at_once <= PARTS_AT_A_TIME
    requests.made.clear()
    s3.download("large.sst", tmp_path / "back", len(data))
    assert (tmp_path / "back").read_bytes() == data
    assert requests.names() == ["get_object"] * 7


def test_a_savepoint_in_the_same_service_is_copied_there(
    moto: Server, s3: Store, requests: Requests, tmp_path: Path
) -> None:
    data = os.urandom(4 * PACK_BELOW)
    for name, content in {"1.sst": data, "CURRENT": b"1"}.items():
        (tmp_path / name).write_bytes(content)
    files = {name: tmp_path / name for name in ("1.sst", "CURRENT")}
    writer = SnapshotWriter(s3, "checkpoints/1/host.pack")
    writer.add("0", files)
    handle = writer.finish()["0"].handle
    savepoint = open_store(s3_uri(moto, f"savepoints/{uuid.uuid4().hex}"))
    requests.made.clear()
    writer = SnapshotWriter(savepoint, "checkpoints/2/host.pack")
    writer.add("0", files, source=SnapshotSource(s3, handle))
    stored = writer.finish()["0"].handle
    assert sum(size for _, size in requests.made) < PACK_BELOW
    assert "copy_object" in requests.names()
    # It restores when the pipeline's own directory is gone, and when it was moved.
    manifest = make_manifest(2, shards=[stored], kind=CheckpointKind.SAVEPOINT)
    commit_savepoint(savepoint, manifest)
    s3.delete_all(s3.list())
    moved = open_store(s3_uri(moto, f"moved/{uuid.uuid4().hex}"))
    for key in savepoint.list():
        assert moved.copy(savepoint, key, key)
    savepoint.delete_all(savepoint.list())
    manifest = read_savepoint(moved)
    assert verify(moved, manifest).ok
    (again,) = manifest.operators[0].shards
    assert isinstance(again, Handle)
    restore_files(moved, again, tmp_path / "restored")
    assert (tmp_path / "restored" / "1.sst").read_bytes() == data


@pytest.mark.parametrize("count", [1, 3])
def test_a_sweep_gives_up_all_uploads_that_nobody_has_finished(
    s3: Store, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = inner(s3)
    call = store.fs.call_s3
    for number in range(count):
        call("create_multipart_upload", Bucket=servers.BUCKET, Key=f"{store._prefix}half-{number}")

    def open_uploads() -> list[Any]:
        found = call("list_multipart_uploads", Bucket=servers.BUCKET, Prefix=store._prefix)
        return sorted(found.get("Uploads", ()), key=lambda upload: str(upload["Key"]))

    def one_at_a_time(operation: str, *, KeyMarker: str = "", UploadIdMarker: str = "", **given: Any) -> Any:  # noqa: N803
        """Answer as S3 does for 1,000 at a time: the server of the tests lists all."""
        if operation != "list_multipart_uploads":
            return call(operation, **given)
        left = [upload for upload in open_uploads() if upload["Key"] > KeyMarker]
        last = left[0] if left else {"Key": "", "UploadId": ""}
        markers = {"NextKeyMarker": last["Key"], "NextUploadIdMarker": last["UploadId"]}
        return {"Uploads": left[:1], "IsTruncated": len(left) > 1} | (markers if len(left) > 1 else {})

    monkeypatch.setattr(store.fs, "call_s3", one_at_a_time)
    assert len(open_uploads()) == count
    s3.sweep(time.time() + 3600)
    assert open_uploads() == []


def test_a_create_that_the_client_sends_twice_finds_its_own_object(moto: Server) -> None:
    folder = uuid.uuid4().hex
    with LossyProxy(moto.port).running() as proxy:
        # One attempt of ours; the HTTP client makes another one by itself.
        store = inner(open_store(s3_uri(moto, folder).replace(str(moto.port), str(proxy.port))))
        # The client repeats requests on connections alone that have worked before.
        assert store.list() == []
        proxy.kind, proxy.lose = re.compile(rb"PUT [^ ]*/claim"), 1
        store.create("claim", b"mine")
        assert proxy.lost == 1
        with pytest.raises(ObjectExistsError):
            store.create("claim", b"mine")
    assert open_store(s3_uri(moto, folder)).read("claim") == b"mine"


def test_objects_are_encrypted_as_the_uri_says(moto: Server) -> None:
    store = open_store(f"{s3_uri(moto, uuid.uuid4().hex)}&sse=AES256")
    store.write("a", b"1")
    fs, prefix = inner(store).fs, inner(store)._prefix
    found = fs.call_s3("head_object", Bucket=servers.BUCKET, Key=f"{prefix}a")
    assert found["ServerSideEncryption"] == "AES256"


def test_a_bucket_that_is_not_there_is_told_and_is_no_empty_storage(moto: Server) -> None:
    store = open_store(s3_uri(moto, "p").replace(servers.BUCKET, "no-such-bucket", 1))
    for operation in (lambda: store.list(), lambda: store.read("a"), lambda: store.write("a", b"1")):
        with pytest.raises(StoreFailedError, match="no bucket 'no-such-bucket'"):
            operation()


def test_wrong_keys_are_told_at_once(rclone: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    # Options of its own, so that the client is not one that has been made with the right keys.
    uri = f"{s3_uri(rclone, 'p')}&addressing=path"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody-else")
    with pytest.raises(StoreFailedError, match="PermissionError") as caught:
        open_store(uri).write("a", b"1")
    assert caught.value.attempts == 1


@pytest.fixture
def files(hdfs: Server) -> Store:
    return open_store(hdfs_uri(hdfs, uuid.uuid4().hex))


def test_a_writer_on_hdfs_that_dies_leaves_nothing_under_the_name(files: Store) -> None:
    # A reader sees the whole object or none.
    class Dies(BaseException):
        pass

    store = inner(files)
    seen: list[list[str]] = []

    def chunks() -> Iterator[bytes]:
        yield b"half"
        seen.append(files.list())
        raise Dies

    with pytest.raises(Dies), store._written("checkpoints/1/manifest.json", chunks()):
        pytest.fail("everything was written")
    assert seen == [[]]
    left = [status.path for status in store._files("")]
    assert all(hdfs_module.TEMPORARY in path for path in left)
    files.create("checkpoints/1/manifest.json", b"whole")
    assert files.read("checkpoints/1/manifest.json") == b"whole"


def test_a_sweep_of_hdfs_deletes_what_killed_writers_left(files: Store) -> None:
    store = inner(files)
    files.write("a/b", b"x")
    with store._client.create(f"{store._root}/a/{temporary_name()}") as writer:
        writer.write(b"half")
    files.sweep(time.time() - 3600)
    assert len(store._files("")) == 2
    files.sweep(time.time() + 3600)
    assert len(store._files("")) == 1
    assert files.list() == ["a/b"]


def test_deleting_the_last_object_of_hdfs_removes_the_empty_folders(files: Store) -> None:
    files.write("a/b/c", b"x")
    files.write("a/d", b"x")
    files.delete("a/b/c")
    store = inner(files)
    assert [status.path for status in store._client.list_status(f"{store._root}/a")] == [f"{store._root}/a/d"]


def test_a_name_node_that_is_away_is_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(f"hdfs://127.0.0.1:{servers.free_port()}/p").within(0.0)
    with pytest.raises(StoreFailedError, match="refused") as caught:
        store.read("a")
    assert caught.value.transient
