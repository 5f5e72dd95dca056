"""The local store: durable, atomic, exclusive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from chandy.storage import (
    InvalidNameError,
    InvalidPlaceError,
    ObjectMissingError,
    StoreFailedError,
)
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.keys import temporary_name


def names_on_disk(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def test_nothing_is_on_disk_before_the_first_write(store: LocalStore) -> None:
    assert store.list() == []
    store.delete("a")
    with pytest.raises(ObjectMissingError):
        store.read("a")
    assert not store.root.exists()


@pytest.mark.parametrize("operation", ["create", "write", "upload"])
def test_bytes_and_names_are_synced_before_an_operation_returns(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    # A manifest is durable before anybody hears of the checkpoint.
    events: list[str] = []
    sync, link, replace = os.fsync, Path.hardlink_to, Path.replace

    def traced_sync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        events.append(f"sync {path.name}" if path.is_dir() else "sync bytes")
        sync(descriptor)

    def traced_link(self: Path, target: Path) -> None:
        link(self, target)
        events.append("name")

    def traced_replace(self: Path, target: Path) -> Path:
        events.append("name")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", traced_sync)
    monkeypatch.setattr(Path, "hardlink_to", traced_link)
    monkeypatch.setattr(Path, "replace", traced_replace)
    if operation == "upload":
        (tmp_path / "file").write_bytes(b"data")
        store.upload(tmp_path / "file", "folder/key")
    else:
        getattr(store, operation)("folder/key", b"data")
    assert "sync bytes" in events[: events.index("name")]
    assert events[events.index("name") :] == ["name", "sync folder", "sync store"]


def traced_syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is synced from now on."""
    synced: list[str] = []
    sync = os.fsync

    def traced(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", traced)
    return synced


def test_a_deletion_is_durable_when_it_returns(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write("folder/a", b"")
    store.write("folder/b", b"")
    synced = traced_syncs(monkeypatch)
    store.delete("folder/a")
    assert synced == ["folder", "store"]


def test_many_deletions_are_durable_together_and_leave_no_empty_folder(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = [f"gone/{number}/{name}" for number in range(3) for name in "ab"]
    for key in [*gone, "kept/a", "kept/b", "kept/c/d"]:
        store.write(key, b"")
    synced = traced_syncs(monkeypatch)
    store.delete_all([*gone, "kept/a", "kept/c/d", "never/there"])
    assert store.list() == ["kept/b"]
    assert [path.name for path in store.root.iterdir()] == ["kept"]
    assert sorted(path.name for path in (store.root / "kept").iterdir()) == ["b"]
    # Each folder that is left is synced, and once, however much went out of it.
    assert synced == ["kept", "store"]


def test_files_being_written_are_never_listed(store: LocalStore) -> None:
    store.write("a/b", b"")
    (store.root / "a" / ".tmp-123").write_bytes(b"half")
    assert store.list() == ["a/b"]
    with pytest.raises(InvalidNameError):
        store.read("a/.tmp-123")


def test_deleting_the_last_object_removes_the_empty_folders(store: LocalStore) -> None:
    store.write("a/b/c", b"")
    store.write("a/d", b"")
    store.delete("a/b/c")
    assert [path.name for path in store.root.rglob("*")] == ["a", "d"]
    store.delete("a/d")
    assert list(store.root.iterdir()) == []


def test_writers_and_deleters_of_one_folder_do_not_disturb_each_other(store: LocalStore) -> None:
    def churn(name: str) -> None:
        for _ in range(60):
            store.write(f"a/b/{name}", b"x")
            assert store.read(f"a/b/{name}") == b"x"
            store.delete(f"a/b/{name}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(churn, "wxyz"))
    assert store.list() == []


@pytest.mark.parametrize("operation", ["write", "upload"])
def test_a_folder_that_is_deleted_and_made_again_at_the_wrong_moment_is_no_error(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    (tmp_path / "source").write_bytes(b"x")
    folder = store.root / "a"
    interruptions = iter(range(3))

    def interrupted(step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            if next(interruptions, None) is None:
                return step(*arguments)
            folder.rmdir()
            try:
                return step(*arguments)
            finally:
                folder.mkdir()

        return run

    # What a deleter and another writer do between two steps of this one.
    monkeypatch.setattr(Path, "hardlink_to", interrupted(Path.hardlink_to))
    if operation == "upload":
        store.upload(tmp_path / "source", "a/key")
    else:
        opened = os.open
        slow = interrupted(opened)
        monkeypatch.setattr(os, "open", lambda *args: (slow if ".tmp-" in str(args[0]) else opened)(*args))
        store.write("a/key", b"x")
    assert store.read("a/key") == b"x"


def test_a_file_that_vanishes_before_its_upload_is_an_error(store: LocalStore, tmp_path: Path) -> None:
    with pytest.raises(StoreFailedError, match="No such file"):
        store.upload(tmp_path / "missing", "a/key")


def test_a_folder_that_can_never_be_made_is_an_error(store: LocalStore) -> None:
    store.write("other", b"")
    (store.root / "a").symlink_to("nowhere")
    with pytest.raises(StoreFailedError):
        store.write("a/key", b"x")


def test_an_uploaded_file_is_a_hard_link_and_so_is_a_downloaded_one(
    store: LocalStore, tmp_path: Path
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"data")
    store.upload(source, "shared/x")
    store.upload(source, "shared/x")
    store.download("shared/x", target)
    assert source.stat().st_ino == target.stat().st_ino
    assert source.stat().st_nlink == 3
    source.unlink()
    assert store.read("shared/x") == b"data"


def test_an_upload_replaces_an_object_of_another_size(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"data")
    store.write("shared/x", b"da")
    store.upload(tmp_path / "source", "shared/x")
    assert store.read("shared/x") == b"data"
    assert names_on_disk(store.root) == ["shared/x"]


def test_between_file_systems_files_are_copied(tmp_path: Path) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system at /dev/shm")
    store = LocalStore(memory / f"chandy-test-{os.getpid()}")
    try:
        (tmp_path / "source").write_bytes(b"data")
        store.upload(tmp_path / "source", "x")
        store.download("x", tmp_path / "target")
        assert (tmp_path / "target").read_bytes() == store.read("x") == b"data"
        assert names_on_disk(store.root) == ["x"]
    finally:
        store.delete("x")
        store.root.rmdir()


def test_a_sweep_deletes_what_killed_writers_left_and_no_object(store: LocalStore) -> None:
    store.write("a/b", b"")
    left = store.root / "a" / temporary_name()
    left.write_bytes(b"half")
    (store.root / ".tmp-of-others").write_bytes(b"theirs")
    store.sweep(before=left.stat().st_ctime)
    assert left.exists()
    store.sweep(before=left.stat().st_ctime + 1)
    assert names_on_disk(store.root) == [".tmp-of-others", "a/b"]


def test_a_relative_root_is_refused() -> None:
    with pytest.raises(InvalidPlaceError):
        LocalStore(Path("relative"))


def test_a_failing_disk_is_told_with_operation_and_key(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = LocalStore(tmp_path / "file" / "store")
    with pytest.raises(StoreFailedError, match=r"could not write 'key' in file://.*Not a directory"):
        store.write("key", b"")


WRITER = """
import itertools, sys
from pathlib import Path
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.manifest import CheckpointKind, FileRef, Handle, Manifest, QueryRecord
store = LocalStore(Path(sys.argv[1]))
catalog = Catalog(store)
files = Handle(tuple(FileRef(f"f{i}", f"shared/{i}", i, "ab" * 32) for i in range(500)))
for id in itertools.count(1):
    queries = (QueryRecord("q", id, files),)
    catalog.commit(Manifest(id, CheckpointKind.PERIODIC, "p", 1, 1.0, 2.0, queries, (), 0))
    store.write("latest", b"%09d" % id * 10000)
    print(id, flush=True)
"""


@pytest.mark.parametrize("after", [1, 2, 5, 11, 20])
def test_a_killed_writer_leaves_only_whole_objects(store: LocalStore, after: int) -> None:
    # No half-written manifest is ever seen, and none that was announced is lost.
    with subprocess.Popen([sys.executable, "-c", WRITER, str(store.root)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        announced = [int(writer.stdout.readline()) for _ in range(after)][-1]
        writer.send_signal(signal.SIGKILL)
    catalog = Catalog(store)
    ids = catalog.list_ids()
    assert ids == list(range(1, len(ids) + 1))
    assert len(ids) >= announced
    assert [catalog.read(id).queries[0].batch for id in ids] == ids
    latest = store.read("latest")
    assert latest == latest[:9] * 10000


SLOW_WRITER = """
import itertools, sys
from pathlib import Path
from chandy.storage.backends.local import LocalStore
store = LocalStore(Path(sys.argv[1]))
for number in itertools.count(10):
    data = b"%d" % number * (8 << 20)
    if sys.argv[2] == "create":
        store.create(f"objects/{number}", data)
        store.delete(f"objects/{number - 1}")
    else:
        store.write("objects/latest", data)
"""


def half_written(root: Path) -> bool:
    """Whether any file below ``root``, of whatever name, has some of its bytes and not all."""
    for path in root.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file() and 0 < path.stat().st_size < 16 << 20:
                return True
    return False


@pytest.mark.parametrize("attempt", range(3))
@pytest.mark.parametrize("operation", ["create", "write"])
def test_an_object_whose_writer_is_killed_in_the_middle_is_never_seen(
    store: LocalStore, operation: str, attempt: int
) -> None:
    # The kill comes when the bytes are seen to be half there.
    with subprocess.Popen([sys.executable, "-c", SLOW_WRITER, str(store.root), operation]) as writer:
        deadline = time.monotonic() + 60
        while not half_written(store.root):
            assert writer.poll() is None
            assert time.monotonic() < deadline
        writer.send_signal(signal.SIGKILL)
    for key in store.list():
        data = store.read(key)
        assert data == data[:2] * (8 << 20)
