"""A list that cannot be had is an error: taken for an empty one, it would make every checkpoint void."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from chandy.storage import StoreFailedError
from chandy.storage.backends import fsspec_store
from chandy.storage.backends.fsspec_store import FsspecStore
from chandy.storage.backends.hdfs import HdfsStore
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.manifest import Manifest
from chandy.storage.uri import StoreUri

from ...builders import make_manifest

MakeManifest = Callable[..., Manifest]

# --- the local file system ----------------------------------------------------------------------------------


class UnlistableDisk:
    """``os.scandir`` of a disk on which some folders cannot be listed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.errors: dict[str, int] = {}
        self.scan = os.scandir
        monkeypatch.setattr(os, "scandir", self)

    def __call__(self, folder: Any) -> Any:
        if number := self.errors.get(Path(folder).name):
            raise OSError(number, os.strerror(number), str(folder))
        return self.scan(folder)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> UnlistableDisk:
    return UnlistableDisk(monkeypatch)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE, errno.EMFILE])
@pytest.mark.parametrize("folder", ["checkpoints", "2"])
def test_a_local_folder_that_cannot_be_listed_is_told(
    store: LocalStore, disk: UnlistableDisk, folder: str, number: int
) -> None:
    for key in ("checkpoints/1/manifest.json", "checkpoints/2/manifest.json"):
        store.create(key, b"x")
    disk.errors[folder] = number
    with pytest.raises(StoreFailedError, match=r"could not list 'checkpoints/' in file://") as caught:
        store.list("checkpoints/")
    assert os.strerror(number) in str(caught.value)
    assert folder in caught.value.reason


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENOTDIR])
def test_a_local_folder_that_goes_while_it_is_listed_is_empty(
    store: LocalStore, disk: UnlistableDisk, number: int
) -> None:
    for key in ("checkpoints/1/manifest.json", "checkpoints/2/manifest.json"):
        store.create(key, b"x")
    disk.errors["2"] = number
    assert store.list("checkpoints/") == ["checkpoints/1/manifest.json"]
    assert store.list("nothing/") == []


def test_an_entry_that_cannot_be_looked_at_is_told(store: LocalStore, disk: UnlistableDisk) -> None:
    """Where the file system does not tell folders from files, only a look at each does."""

    @attrs.define
    class Entries:
        real: Any

        def __enter__(self) -> Iterator[Any]:
            return (Unknown() for _ in self.real)

        def __exit__(self, *_: object) -> None:
            self.real.close()

    class Unknown:
        def is_dir(self) -> bool:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        is_symlink = is_dir

    store.create("checkpoints/1/manifest.json", b"x")
    scan = disk.scan
    disk.scan = lambda folder: Entries(scan(folder))  # type: ignore[assignment]
    with pytest.raises(StoreFailedError, match="could not list"):
        store.list("checkpoints/")


def test_a_disk_that_fails_while_a_pipeline_is_taken_over_makes_no_checkpoint_void(
    store: LocalStore, disk: UnlistableDisk
) -> None:
    catalog = Catalog(store)
    catalog.take_over("first", 1.0)
    catalog.commit(make_manifest(1))
    disk.errors["checkpoints"] = errno.EIO
    with pytest.raises(StoreFailedError):
        catalog.take_over("second", 2.0)
    disk.errors.clear()
    assert catalog.take_over("third", 3.0).predecessors_end == 1
    assert [manifest.id for manifest in catalog.completed()] == [1]


# --- HDFS ---------------------------------------------------------------------------------------------------


@attrs.frozen
class Status:
    path: str
    isdir: bool
    length: int = 1
    modification_time: int = 1000


class NameNode:
    """A client of HDFS whose folders can go, or fail, between two questions of one listing."""

    def __init__(self, *files: str) -> None:
        self.files = files
        self.errors: dict[str, Exception] = {}

    def list_status(self, path: str, recursive: bool = False) -> Iterator[Status]:
        found = self._children(path)
        if not found:
            raise FileNotFoundError(path)
        for status in found:
            if status.path in self.errors and recursive:
                raise self.errors[status.path]
            yield status
            if status.isdir and recursive:
                yield from self.list_status(status.path, True)

    def _children(self, path: str) -> list[Status]:
        if path in self.errors:
            raise self.errors[path]
        below = [file.removeprefix(f"{path}/") for file in self.files if file.startswith(f"{path}/")]
        names = sorted({name.partition("/")[0] for name in below})
        return [Status(f"{path}/{name}", name not in below) for name in names]


@pytest.fixture
def nodes() -> NameNode:
    return NameNode(*(f"/p/checkpoints/{number}/manifest.json" for number in (1, 2, 3)))


def hdfs(nodes: NameNode) -> HdfsStore:
    store = HdfsStore(StoreUri.parse("hdfs://namenode/p"))
    store._connected = (os.getpid(), nodes)
    return store


def test_a_folder_of_hdfs_that_goes_while_it_is_listed_takes_no_other_with_it(nodes: NameNode) -> None:
    store = hdfs(nodes)
    everything = store.list("checkpoints/")
    assert everything == [f"checkpoints/{number}/manifest.json" for number in (1, 2, 3)]
    nodes.errors["/p/checkpoints/2"] = FileNotFoundError("/p/checkpoints/2")
    assert store.list("checkpoints/") == [everything[0], everything[2]]
    assert store.list("generations/") == []


@pytest.mark.parametrize("path", ["/p/checkpoints", "/p/checkpoints/2"])
@pytest.mark.parametrize("error", [OSError("connection reset"), PermissionError("no"), RuntimeError("panic")])
def test_a_folder_of_hdfs_that_cannot_be_listed_is_told(nodes: NameNode, path: str, error: Exception) -> None:
    nodes.errors[path] = error
    with pytest.raises(StoreFailedError, match="could not list 'checkpoints/' in hdfs://namenode/p"):
        hdfs(nodes).list("checkpoints/")


# --- fsspec -------------------------------------------------------------------------------------------------


class Walked(MemoryFileSystem):
    """A file system that fsspec lists folder by folder, and of which some folders cannot be listed."""

    errors: dict[str, OSError]
    find = AbstractFileSystem.find

    def ls(self, path: str, detail: bool = True, **more: Any) -> Any:
        if (error := self.errors.get(self._strip_protocol(path))) is not None:
            raise error
        return super().ls(path, detail, **more)


def made(kind: type[Walked]) -> FsspecStore:
    fs = kind(skip_instance_cache=True)
    fs.store, fs.pseudo_dirs, fs.errors = {}, [""], {}
    store = FsspecStore("walked://p", lambda: fs, "/p", fenced=True)
    for number in (1, 2, 3):
        store.write(f"checkpoints/{number}/manifest.json", b"x")
    return store


@pytest.fixture
def walked() -> FsspecStore:
    return made(Walked)


class NotThere(OSError):
    """As a client's own error, known by its number alone."""


@pytest.mark.parametrize("gone", [FileNotFoundError("2"), NotADirectoryError("2")])
def test_a_folder_of_fsspec_that_goes_while_it_is_listed_takes_no_other_with_it(
    walked: FsspecStore, gone: OSError
) -> None:
    everything = [f"checkpoints/{number}/manifest.json" for number in (1, 2, 3)]
    assert walked.list() == walked.list("checkpoints/") == everything
    assert walked.list("checkpoints/2") == [everything[1]]
    own = NotThere("2")
    own.errno = errno.ENOENT
    for error in (gone, own):
        walked.fs.errors["/p/checkpoints/2"] = error
        assert walked.list("checkpoints/") == [everything[0], everything[2]]
    assert walked.list("generations/") == []


@pytest.mark.parametrize("path", ["/p/checkpoints", "/p/checkpoints/2"])
def test_a_folder_of_fsspec_that_cannot_be_listed_is_told(walked: FsspecStore, path: str) -> None:
    walked.fs.errors[path] = OSError(errno.EIO, os.strerror(errno.EIO))
    with pytest.raises(StoreFailedError, match="could not list 'checkpoints/' in walked://p") as caught:
        walked.list("checkpoints/")
    assert caught.value.transient


class Listed(Walked):
    """A file system that has all that is below a folder with one request to its service."""

    def find(self, path: str, *_: Any, **__: Any) -> Any:
        below = [name for name in self.store if name.startswith(f"{path}/")]
        return {name: {"name": name, "size": 1, "type": "file"} for name in below}


def test_a_file_system_that_lists_for_itself_is_not_asked_folder_by_folder() -> None:
    store = made(Listed)
    store.fs.errors = {f"/p/{folder}": OSError("asked") for folder in ("checkpoints", "checkpoints/1")}
    assert len(store.list("checkpoints/")) == 3


class Async(AsyncFileSystem):
    """As those of most services are."""


class AsyncListed(Async):
    async def _find(self, path: str, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(("kind", "walks"), [(Async, True), (AsyncListed, False), (Walked, True)])
def test_whether_a_file_system_lists_for_itself_is_seen(kind: type[AbstractFileSystem], walks: bool) -> None:
    assert fsspec_store._walks(kind) is walks
