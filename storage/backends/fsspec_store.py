"""The store on any fsspec file system, which also is the base of stores for particular ones.

fsspec has no portable exclusive create: most file systems look first and then write. So a store is ``fenced`` only if
its protocol is known here to have an exclusive create. Users must allow a pipeline on a store that is not.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import fsspec
from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.exceptions import FSTimeoutError
from typing_extensions import override

from ..errors import ObjectExistsError, ObjectMissingError, StorageError, StoreFailedError
from ..keys import validate_key
from ..store import ObjectStat, Store
from ..uri import StoreUri, invalid_uri

EXCLUSIVE = frozenset({"memory", "gs", "gcs", "abfs", "az"})
"""Protocols whose ``pipe_file(mode="create")`` is one atomic step of the service (``memory``: of one thread at a time).

gcsfs sends ``ifGenerationMatch=0`` for it, and adlfs ``If-None-Match``.
"""

_PASSING = {
    errno.EAGAIN,
    errno.EBUSY,
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTUNREACH,
    errno.EIO,
    errno.ENETUNREACH,
    errno.EPIPE,
    errno.EREMOTEIO,
    errno.ETIMEDOUT,
}


def open_uri(uri: str) -> Store:
    """Open any fsspec protocol. The URI's options are passed to the file system as they are."""
    parts = StoreUri.parse(uri)
    address = str(StoreUri(parts.scheme, parts.authority, parts.path, {}))

    def connect() -> Any:
        # fsspec adds its own configuration (files, FSSPEC_... variables), where credentials belong.
        kwargs = fsspec.utils.infer_storage_options(address)
        # The authority is a host and a port, except for these protocols, for which it is a bucket.
        of_host = () if parts.scheme in EXCLUSIVE else ("host", "port")
        named = {name: kwargs[name] for name in of_host if name in kwargs}
        return fsspec.filesystem(parts.scheme, use_listings_cache=False, **named, **parts.options)

    root = fsspec.get_filesystem_class(parts.scheme)._strip_protocol(address)
    if not str(root).strip("/"):
        raise invalid_uri(uri, "a folder or bucket", "none")
    return FsspecStore(str(parts), connect, str(root), parts.scheme in EXCLUSIVE)


class FsspecStore(Store):
    """Keeps objects as files of a file system below a root.

    Args:
        uri: opens the store again.
        connect: makes the file system. It is called once in each process that uses the store.
        root: the path of the root, as the file system has it, without the protocol.
        fenced: whether the file system has an exclusive create.
    """

    def __init__(self, uri: str, connect: Callable[[], Any], root: str, fenced: bool) -> None:
        self.uri = uri
        self.fenced = fenced
        self.root = root.rstrip("/")
        self._connect = connect
        self._lock = threading.Lock()
        self._connected: tuple[int, Any] | None = None

    @property
    def fs(self) -> Any:
        """The file system of this process."""
        found = self._connected
        if found is not None and found[0] == os.getpid():
            return found[1]
        with self._lock:
            if self._connected is None or self._connected[0] != os.getpid():
                self._connected = (os.getpid(), self._connect())
            return self._connected[1]

    @override
    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        if length == 0:
            self.stat(key)
            return b""
        with self._explained("read", key):
            end = None if length is None else offset + length
            data: bytes = self.fs.cat_file(self._path(key), start=offset, end=end)
            return data

    @override
    def write(self, key: str, data: bytes) -> None:
        with self._explained("write", key):
            self._pipe(key, data)

    @override
    def create(self, key: str, data: bytes) -> None:
        with self._explained("create", key):
            if self.fenced:
                self._pipe(key, data, mode="create")
            elif self.fs.exists(self._path(key)):
                raise ObjectExistsError(self.uri, key)
            else:
                self._pipe(key, data)

    @override
    def list(self, prefix: str = "") -> list[str]:
        return list(self.scan(prefix))

    @override
    def scan(self, prefix: str = "") -> dict[str, ObjectStat]:
        with self._explained("list", prefix):
            found = self._find(prefix)
        keys = {self._key(info["name"]): info for info in found if info["type"] == "file"}
        return {
            key: _stat(keys[key]) for key in sorted(keys) if key.startswith(prefix) and not _is_marker(key)
        }

    @override
    def delete(self, key: str) -> None:
        try:
            with self._explained("delete", key):
                self.fs.rm_file(self._path(key))
        except ObjectMissingError:
            pass

    @override
    def upload(self, path: Path, key: str) -> None:
        with self._explained("upload", key):
            self._make_folder(key)
            self.fs.put_file(str(path), self._path(key))

    @override
    def copy(self, source: Store, source_key: str, key: str) -> bool:
        if not isinstance(source, FsspecStore) or source.fs is not self.fs:
            return False
        with source._explained("copy", source_key):
            self._make_folder(key)
            try:
                self.fs.cp_file(source._path(source_key), self._path(key))
            except NotImplementedError:
                return False
        return True

    @override
    def stat(self, key: str) -> ObjectStat:
        with self._explained("look at", key):
            info = self.fs.info(self._path(key))
        if info["type"] != "file":
            raise ObjectMissingError(self.uri, key)
        return _stat(info)

    def is_transient(self, error: Exception) -> bool:
        """Whether the operation may succeed if it is tried again."""
        if isinstance(error, (TimeoutError, ConnectionError, FSTimeoutError)):
            return True
        return isinstance(error, OSError) and error.errno in _PASSING

    def _find(self, prefix: str) -> Sequence[dict[str, Any]]:
        folder = self._folder(prefix)
        if _walks(type(self.fs)):
            return list(_files_below(self.fs, folder))
        try:
            found = self.fs.find(folder, detail=True)
        except FileNotFoundError:
            return []
        return list(found.values())

    def _folder(self, prefix: str) -> str:
        folder = prefix.rpartition("/")[0]
        return f"{self.root}/{folder}" if folder else self.root

    def _pipe(self, key: str, data: bytes, **mode: str) -> None:
        try:
            self.fs.pipe_file(self._path(key), data, **mode)
        except FileNotFoundError:
            # File systems with folders need the folder first. Object stores have none.
            self._make_folder(key)
            self.fs.pipe_file(self._path(key), data, **mode)

    def _make_folder(self, key: str) -> None:
        self.fs.makedirs(self._path(key).rpartition("/")[0], exist_ok=True)

    def _path(self, key: str) -> str:
        return f"{self.root}/{validate_key(key)}"

    def _key(self, name: str) -> str:
        return name.lstrip("/").removeprefix(self.root.lstrip("/")).lstrip("/")

    @contextmanager
    def _explained(self, operation: str, key: str) -> Iterator[None]:
        """Turn the errors of a file system into those of ``errors``."""
        try:
            yield
        except StorageError:
            raise
        except FileNotFoundError as error:
            if (reason := self.why_all_is_missing(error)) is not None:
                raise StoreFailedError(self.uri, key, operation, reason) from error
            if operation in ("write", "create", "upload"):
                # What is missing is the file to upload, or the part of it that is already uploaded.
                raise StoreFailedError(
                    self.uri, key, operation, str(error), self.is_transient(error)
                ) from error
            raise ObjectMissingError(self.uri, key) from None
        except FileExistsError:
            raise ObjectExistsError(self.uri, key) from None
        except Exception as error:
            # Each client has its own error classes.
            raise self.failure(key, operation, error) from error

    def failure(self, key: str, operation: str, error: Exception) -> StoreFailedError:
        """Return the error to raise for an error of the client."""
        reason = f"{type(error).__name__}: {error}"
        return StoreFailedError(self.uri, key, operation, reason, self.is_transient(error))

    def why_all_is_missing(self, error: FileNotFoundError) -> str | None:
        """Return what is missing besides the object, such as its bucket; None if only the object is missing."""
        return None


def _walks(kind: Any) -> bool:
    """Whether a class of file system uses fsspec's own ``find``, which goes folder by folder."""
    return kind.find is AbstractFileSystem.find and (
        getattr(kind, "_find", AsyncFileSystem._find) is AsyncFileSystem._find
    )


def _files_below(fs: Any, folder: str) -> Iterator[dict[str, Any]]:
    """Find the files below a folder. A folder that does not exist, or is deleted meanwhile, has none.

    Any other reason that a folder cannot be listed is an error. fsspec's ``find`` takes such a folder for an empty one,
    and its ``on_error`` changes that only for the uppermost folder.
    """
    folders = [fs._strip_protocol(folder)]
    while folders:
        path = folders.pop()
        try:
            found = fs.ls(path, detail=True)
        except OSError as error:
            if not _is_absent(error):
                raise
            continue
        for info in found:
            if info["type"] != "directory":
                yield info
            elif info["name"].rstrip("/") != path:
                # Some services list a folder as part of itself.
                folders.append(info["name"].rstrip("/"))


def _is_absent(error: OSError) -> bool:
    """Whether there is no such folder. Some clients have their own error for that, with the usual errno."""
    return isinstance(error, (FileNotFoundError, NotADirectoryError)) or error.errno in (
        errno.ENOENT,
        errno.ENOTDIR,
    )


def _stat(info: dict[str, Any]) -> ObjectStat:
    for name in ("LastModified", "mtime", "modified", "last_modified", "updated", "created"):
        when = info.get(name)
        if isinstance(when, datetime):
            return ObjectStat(info["size"], when.timestamp())
        if isinstance(when, (int, float)):
            return ObjectStat(info["size"], float(when))
    return ObjectStat(info["size"], None)


def _is_marker(key: str) -> bool:
    """Whether an object is an empty one that consoles and Hadoop make to show a folder."""
    return not key or key.endswith("/")
