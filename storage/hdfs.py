"""The store on HDFS, through hdfs-native: no JVM, no libhdfs.

``hdfs://namenode:8020/path``, ``hdfs://nameservice/path``, or ``hdfs:///path`` for ``fs.defaultFS``; ``viewfs://`` too.
Configuration comes from ``HADOOP_CONF_DIR`` (or ``HADOOP_HOME``), with HA name services and Kerberos; any of its
settings can stand in the URI: ``?dfs.client.use.datanode.hostname=true``. Who one is: ``HADOOP_USER_NAME``, or the
Kerberos ticket cache (``KRB5CCNAME``).
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hdfs_native import WriteOptions
from hdfs_native.fsspec import HdfsFileSystem, ViewfsFileSystem

from .errors import InvalidKeyError, ObjectExistsError, ObjectMissingError, StoreFailedError
from .keys import validate_key
from .store import ObjectStat, Store
from .transfer import PART
from .uri import StoreUri

TEMPORARY = ".tmp-"
"""How the names of files begin that are not objects yet."""

_SETTINGS = ("dfs.", "fs.", "hadoop.", "ipc.")
_DEFAULTS = {
    # An operation is tried again by ``RetryingStore``; here only as often as it takes to find the active name node.
    "dfs.client.failover.max.attempts": "3",
    "dfs.client.failover.sleep.base.millis": "100",
    "dfs.client.failover.sleep.max.millis": "1000",
}
_FINAL = (
    "AccessControlException",
    "QuotaExceededException",
    "InvalidPathException",
    "IllegalArgumentException",
)


def open_uri(uri: str) -> Store:
    """Open ``hdfs://`` or ``viewfs://``."""
    parts = StoreUri.parse(uri)
    parts.only(prefixes=_SETTINGS)
    return HdfsStore(parts)


class HdfsStore(Store):
    """Objects are files below a folder.

    Every object comes into being under its name whole: it is written under a temporary name beside it and then
    renamed, which the name node does in one step, and refuses if the name exists and is not to be replaced.
    That is the exclusive create; ``create`` with ``overwrite=False`` is one as well, but a writer that is killed
    would leave half an object under the final name.
    """

    def __init__(self, uri: StoreUri) -> None:
        self.uri = str(uri)
        self._where = uri
        self._root = f"/{uri.path}" if uri.path else ""
        self._connected: tuple[int, Any] | None = None

    @property
    def _client(self) -> Any:
        # A client's threads do not come along into a forked process.
        if self._connected is None or self._connected[0] != os.getpid():
            kind = ViewfsFileSystem if self._where.scheme == "viewfs" else HdfsFileSystem
            host, _, port = self._where.authority.partition(":")
            options = {**_DEFAULTS, **self._where.options}
            made = kind(host or None, int(port) if port else None, skip_instance_cache=True, **options)
            self._connected = (os.getpid(), made.client)
        return self._connected[1]

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return the object's bytes, or ``length`` of them from ``offset``."""
        with self._explained("read", key):
            reader = self._client.read(self._path(key))
            # Past the end the client panics.
            begin = min(offset, len(reader))
            end = len(reader) if length is None else min(begin + length, len(reader))
            data: bytes = reader.read_range(begin, end - begin) if end > begin else b""
            return data

    def write(self, key: str, data: bytes) -> None:
        """Write an object whole, in place of any that is there."""
        with self._explained("write", key), self._written(key, [data]) as temporary:
            self._client.rename(temporary, self._path(key), True)

    def create(self, key: str, data: bytes) -> None:
        """Write an object that must not exist yet."""
        with self._explained("create", key), self._written(key, [data]) as temporary:
            self._client.rename(temporary, self._path(key), False)

    def list(self, prefix: str = "") -> list[str]:
        """Return the keys that begin with ``prefix``, sorted."""
        return list(self.scan(prefix))

    def scan(self, prefix: str = "") -> dict[str, ObjectStat]:
        """Return what is known of each object whose key begins with ``prefix``."""
        with self._explained("list", prefix):
            found = {self._key(status.path): _stat(status) for status in self._files(prefix)}
        return {
            key: found[key]
            for key in sorted(found)
            if key.startswith(prefix) and not key.rpartition("/")[2].startswith(TEMPORARY)
        }

    def delete(self, key: str) -> None:
        """Delete an object and the folders that it leaves empty; one that is not there is no error."""
        self.delete_all([key])

    def delete_all(self, keys: Collection[str]) -> None:
        """Delete objects and the folders that they leave empty; those that are not there are no error."""
        folders: set[str] = set()
        for key in keys:
            with suppress(ObjectMissingError), self._explained("delete", key):
                self._client.delete(self._path(key), False)
                folders.add(key.rpartition("/")[0])
        while folders:
            folders = {folder.rpartition("/")[0] for folder in folders if folder and self._removed(folder)}

    def upload(self, path: Path, key: str) -> None:
        """Store a local file that will never change again."""
        with (
            self._explained("upload", key),
            path.open("rb") as file,
            self._written(key, iter(lambda: file.read(PART), b"")) as temporary,
        ):
            self._client.rename(temporary, self._path(key), True)

    def download(self, key: str, path: Path, size: int | None = None) -> str | None:
        """Bring an object to a new local file as a stream."""
        digest = hashlib.sha256()
        with self._explained("download", key), path.open("wb") as file:
            reader = self._client.read(self._path(key))
            for chunk in reader.read_range_stream(0, len(reader)):
                digest.update(chunk)
                file.write(chunk)
        return digest.hexdigest()

    def stat(self, key: str) -> ObjectStat:
        """Return size and age of an object."""
        with self._explained("look at", key):
            status = self._client.get_file_info(self._path(key))
        if status.isdir:
            raise ObjectMissingError(self.uri, key)
        return _stat(status)

    def sweep(self, before: float) -> None:
        """Delete the temporary files of writers that were killed."""
        with self._explained("sweep", ""):
            for status in self._files(""):
                if (
                    status.path.rpartition("/")[2].startswith(TEMPORARY)
                    and status.modification_time < before * 1000
                ):
                    self._client.delete(status.path, False)

    def _files(self, prefix: str) -> Sequence[Any]:
        # Folder by folder: the client's own recursive listing fails as a whole when one of its folders goes meanwhile.
        folder = prefix.rpartition("/")[0]
        folders = [f"{self._root}/{folder}" if folder else self._root or "/"]
        files: list[Any] = []
        while folders:
            with suppress(FileNotFoundError):
                found = list(self._client.list_status(folders.pop(), False))
                folders += [status.path for status in found if status.isdir]
                files += [status for status in found if not status.isdir]
        return files

    @contextmanager
    def _written(self, key: str, chunks: Iterable[bytes]) -> Iterator[str]:
        """Hold bytes under a temporary name beside the object; the caller gives it its name."""
        folder = self._path(key).rpartition("/")[0]
        temporary = f"{folder}/{TEMPORARY}{uuid.uuid4().hex}"
        try:
            with self._client.create(temporary, WriteOptions(overwrite=False, create_parent=True)) as writer:
                for chunk in chunks:
                    writer.write(chunk)
            yield temporary
        except BaseException:
            # It may be what has failed: nothing but the space of the file hangs on this.
            with suppress(OSError, RuntimeError):
                self._client.delete(temporary, False)
            raise

    def _removed(self, folder: str) -> bool:
        """Delete a folder if it is empty; return whether it was."""
        try:
            return bool(self._client.delete(f"{self._root}/{folder}", False))
        except (OSError, RuntimeError):
            return False

    def _path(self, key: str) -> str:
        if any(part.startswith(TEMPORARY) for part in validate_key(key).split("/")):
            raise InvalidKeyError(key)
        return f"{self._root}/{key}"

    def _key(self, path: str) -> str:
        return path.removeprefix(f"{self._root}/")

    @contextmanager
    def _explained(self, operation: str, key: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if operation in ("create", "write", "upload"):
                # The temporary file or its folder was taken away by somebody who deletes.
                raise StoreFailedError(
                    self.uri, key, operation, _first_line(error), transient=True
                ) from error
            raise ObjectMissingError(self.uri, key) from None
        except FileExistsError:
            raise ObjectExistsError(self.uri, key) from None
        except PermissionError as error:
            raise StoreFailedError(self.uri, key, operation, _first_line(error)) from error
        except OSError as error:
            raise StoreFailedError(self.uri, key, operation, _first_line(error), transient=True) from error
        except RuntimeError as error:
            # A key that goes through an object, or that is a folder, is no object's.
            if any(
                name in str(error) for name in ("is not a directory", "PathIsNotEmptyDirectory")
            ) and operation in ("read", "download", "look at", "delete"):
                raise ObjectMissingError(self.uri, key) from None
            final = any(name in str(error) for name in _FINAL)
            raise StoreFailedError(
                self.uri, key, operation, _first_line(error), transient=not final
            ) from error


def _stat(status: Any) -> ObjectStat:
    return ObjectStat(status.length, status.modification_time / 1000)


def _first_line(error: BaseException) -> str:
    """The error without the name node's stack trace."""
    return str(error).replace("\\n", "\n").partition("\n")[0]
