"""The store on HDFS, through hdfs-native: no JVM, no libhdfs.

URIs are ``hdfs://namenode:8020/path``, ``hdfs://nameservice/path``, ``hdfs:///path`` for ``fs.defaultFS``, and the same
with ``viewfs://``. The configuration, with HA name services and Kerberos, comes from ``HADOOP_CONF_DIR`` or
``HADOOP_HOME``. The URI can override any setting: ``?dfs.client.use.datanode.hostname=true``. The user comes from
``HADOOP_USER_NAME`` or from the Kerberos ticket cache (``KRB5CCNAME``).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from hdfs_native import WriteOptions
from hdfs_native.fsspec import HdfsFileSystem, ViewfsFileSystem
from typing_extensions import override

from ..errors import ObjectExistsError, ObjectMissingError, StoreFailedError
from ..keys import TEMPORARY, is_temporary, temporary_name, validate_final_key
from ..store import ObjectStat, Store, delete_each
from ..transfer import PART
from ..uri import StoreUri
from .clients import check_client

T = TypeVar("T")

_SETTINGS = ("dfs.", "fs.", "hadoop.", "ipc.")
_DEFAULTS = {
    # ``RetryingStore`` retries operations. The client retries only as often as it takes to find the active name node.
    "dfs.client.failover.max.attempts": "3",
    "dfs.client.failover.sleep.base.millis": "100",
    "dfs.client.failover.sleep.max.millis": "1000",
}
_PATIENCE: Final = 20.0
"""Seconds that one call of the client may take, besides those for its bytes. The client has no limit, and was seen to
wait for ever. ``RetryingStore`` has time for more than one such call."""
_SLOWEST: Final = 1024 * 1024
"""Bytes a second of the slowest network that is waited for."""
_FINAL = (
    "AccessControlException",
    "QuotaExceededException",
    "InvalidPathException",
    "IllegalArgumentException",
)


def open_uri(uri: str) -> Store:
    """Open ``hdfs://`` or ``viewfs://``."""
    parts = StoreUri.parse(uri)
    check_client("hdfs-native", str(parts))
    parts.check_options(prefixes=_SETTINGS)
    return HdfsStore(parts)


class HdfsStore(Store):
    """Keeps objects as files below a folder.

    An object gets its name only when it is whole: it is written to a temporary name beside it and then renamed. The
    name node renames in one step. Unless told to replace, it refuses if the name exists, so the create is exclusive.
    ``create`` with ``overwrite=False`` is exclusive as well, but a writer that is killed would leave half an object
    under the final name.
    """

    def __init__(self, uri: StoreUri) -> None:
        self.uri = str(uri)
        self._where = uri
        self._root = f"/{uri.path}" if uri.path else ""
        self._connected: tuple[int, Any] | None = None

    @property
    def _client(self) -> Any:
        # A forked process does not have the threads of its parent's client.
        if self._connected is None or self._connected[0] != os.getpid():
            kind = ViewfsFileSystem if self._where.scheme == "viewfs" else HdfsFileSystem
            host, _, port = self._where.authority.partition(":")
            options = {**_DEFAULTS, **self._where.options}
            made = kind(host or None, int(port) if port else None, skip_instance_cache=True, **options)
            self._connected = (os.getpid(), made.client)
        return self._connected[1]

    def _call(self, work: Callable[[Any], T], size: int = 0) -> T:
        """Return what a call of the client returns that transfers so many bytes.

        Raises:
            TimeoutError: there is no answer in time. What the call does may still come about.
        """
        try:
            return _within(_PATIENCE + size / _SLOWEST, partial(work, self._client))
        except TimeoutError:
            # The next attempt has connections of its own.
            self._connected = None
            raise

    @override
    def afresh(self) -> Store:
        other = copy(self)
        other._connected = None
        return other

    @override
    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        def read(client: Any) -> bytes:
            reader = client.read(self._path(key))
            # The client panics if it reads past the end.
            begin = min(offset, len(reader))
            end = len(reader) if length is None else min(begin + length, len(reader))
            data: bytes = reader.read_range(begin, end - begin) if end > begin else b""
            return data

        with self._explained("read", key):
            return self._call(read, PART if length is None else length)

    @override
    def write(self, key: str, data: bytes) -> None:
        with self._explained("write", key), self._written(key, [data]) as temporary:
            self._rename(temporary, key, overwrite=True)

    @override
    def create(self, key: str, data: bytes) -> None:
        with self._explained("create", key), self._written(key, [data]) as temporary:
            self._rename(temporary, key, overwrite=False)

    @override
    def list(self, prefix: str = "") -> list[str]:
        return list(self.scan(prefix))

    @override
    def scan(self, prefix: str = "") -> dict[str, ObjectStat]:
        with self._explained("list", prefix):
            found = {self._key(status.path): _stat(status) for status in self._files(prefix)}
        return {
            key: found[key]
            for key in sorted(found)
            if key.startswith(prefix) and not key.rpartition("/")[2].startswith(TEMPORARY)
        }

    @override
    def delete(self, key: str) -> None:
        self.delete_all([key])

    @override
    def delete_all(self, keys: Collection[str]) -> None:
        """Delete objects, and the folders that are then empty. Objects that are not there are ignored."""
        folders: set[str] = set()

        def remove(key: str) -> None:
            with suppress(ObjectMissingError), self._explained("delete", key):
                self._delete(self._path(key))
                folders.add(key.rpartition("/")[0])

        try:
            delete_each(self.uri, keys, remove)
        finally:
            # A server that does not answer is not asked about one folder after the other.
            with suppress(TimeoutError):
                while folders:
                    folders = {
                        folder.rpartition("/")[0] for folder in folders if folder and self._removed(folder)
                    }

    @override
    def upload(self, path: Path, key: str) -> None:
        with (
            self._explained("upload", key),
            path.open("rb") as file,
            self._written(key, iter(lambda: file.read(PART), b"")) as temporary,
        ):
            self._rename(temporary, key, overwrite=True)

    @override
    def stat(self, key: str) -> ObjectStat:
        with self._explained("look at", key):
            status = self._call(lambda client: client.get_file_info(self._path(key)))
        if status.isdir:
            raise ObjectMissingError(self.uri, key)
        return _stat(status)

    @override
    def sweep(self, before: float) -> None:
        with self._explained("sweep", ""):
            temporary = [
                status.path
                for status in self._files("")
                if is_temporary(status.path.rpartition("/")[2]) and status.modification_time < before * 1000
            ]

        def remove(path: str) -> None:
            with suppress(ObjectMissingError), self._explained("delete", self._key(path)):
                self._delete(path)

        delete_each(self.uri, temporary, remove)

    def _files(self, prefix: str) -> Sequence[Any]:
        # Folder by folder, because the client's recursive listing fails if one of the folders is deleted meanwhile.
        folder = prefix.rpartition("/")[0]
        folders = [f"{self._root}/{folder}" if folder else self._root or "/"]
        files: list[Any] = []
        while folders:
            with suppress(FileNotFoundError):
                found = self._call(partial(_listed, folders.pop()))
                folders += [status.path for status in found if status.isdir]
                files += [status for status in found if not status.isdir]
        return files

    @contextmanager
    def _written(self, key: str, chunks: Iterable[bytes]) -> Iterator[str]:
        """Write bytes to a temporary name beside the object. The caller then gives it its name."""
        folder = self._path(key).rpartition("/")[0]
        temporary = f"{folder}/{temporary_name()}"
        options = WriteOptions(overwrite=False, create_parent=True)
        try:
            # Not the client's own file object: when that is deleted, it waits for the server without a limit.
            writer = self._call(lambda client: client.inner.create(temporary, options))
            for chunk in chunks:
                self._call(lambda _, chunk=chunk: writer.write(chunk), len(chunk))  # type: ignore[misc]
            self._call(lambda _: writer.close())
            yield temporary
        except TimeoutError:
            # Only the file's space is lost, until a sweep.
            raise
        except BaseException:
            # Deleting may fail for the same reason.
            with suppress(OSError, RuntimeError):
                self._delete(temporary)
            raise

    def _rename(self, temporary: str, key: str, *, overwrite: bool) -> None:
        self._call(lambda client: client.rename(temporary, self._path(key), overwrite))

    def _delete(self, path: str) -> bool:
        return bool(self._call(lambda client: client.delete(path, False)))

    def _removed(self, folder: str) -> bool:
        """Delete a folder if it is empty, and return whether it was.

        Raises:
            TimeoutError: there is no answer in time.
        """
        try:
            return self._delete(f"{self._root}/{folder}")
        except TimeoutError:
            raise
        except (OSError, RuntimeError):
            return False

    def _path(self, key: str) -> str:
        return f"{self._root}/{validate_final_key(key)}"

    def _key(self, path: str) -> str:
        return path.removeprefix(f"{self._root}/")

    @contextmanager
    def _explained(self, operation: str, key: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if operation in ("create", "write", "upload"):
                # Somebody has deleted the temporary file or its folder.
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
            # A key that leads through an object, or to a folder, has no object.
            if any(
                name in str(error) for name in ("is not a directory", "PathIsNotEmptyDirectory")
            ) and operation in ("read", "look at", "delete"):
                raise ObjectMissingError(self.uri, key) from None
            final = any(name in str(error) for name in _FINAL)
            raise StoreFailedError(
                self.uri, key, operation, _first_line(error), transient=not final
            ) from error


def _listed(folder: str, client: Any) -> list[Any]:
    return list(client.list_status(folder, False))


def _within(seconds: float, call: Callable[[], T]) -> T:
    """Return what a call returns.

    Raises:
        TimeoutError: it takes longer. It goes on in its thread, which ends with the process at the latest.
    """
    found: Future[T] = Future()

    def run() -> None:
        try:
            found.set_result(call())
        except BaseException as error:  # noqa: BLE001 - a panic of the client, too, is for the caller
            found.set_exception(error)

    threading.Thread(target=run, name="chandy-hdfs", daemon=True).start()
    try:
        return found.result(seconds)
    except TimeoutError as error:
        if found.done():
            raise
        raise TimeoutError(f"no answer within {seconds:.0f} s") from error


def _stat(status: Any) -> ObjectStat:
    return ObjectStat(status.length, status.modification_time / 1000)


def _first_line(error: BaseException) -> str:
    """Return the message without the name node's stack trace."""
    return str(error).replace("\\n", "\n").partition("\n")[0]
