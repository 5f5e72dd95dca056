"""The store on a local (or mounted POSIX) file system."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from typing_extensions import override

from ..errors import ObjectExistsError, ObjectMissingError, StoreFailedError
from ..keys import TEMPORARY, is_temporary, temporary_name, validate_final_key
from ..store import ObjectStat, Store, delete_each
from ..uri import invalid_uri

T = TypeVar("T")

_ATTEMPTS = 1000
"""How often a folder is made again. Only one that can never exist (a dangling link) needs a bound."""

_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_CANNOT_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES}


class LocalStore(Store):
    """Keeps objects as files below ``root``. Nothing is created on disk before the first write.

    An object gets its name only when it is whole: it is written to a temporary name beside it, synced, and then renamed
    or linked. ``os.link`` fails if the name exists, which makes the create exclusive. Files that never change are
    hard-linked in and out, so uploads and downloads on one file system move no bytes.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_absolute():
            raise invalid_uri(str(root), "an absolute path", "a relative one")
        self.root = root
        self.uri = root.as_uri()

    @override
    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        path = self._path(key)
        with self._explained("read", key):
            try:
                with path.open("rb") as file:
                    # Memory for what is there, and not for what a damaged record says.
                    there = max(0, os.fstat(file.fileno()).st_size - file.seek(offset))
                    return file.read(there if length is None else min(length, there))
            except _ABSENT:
                raise ObjectMissingError(self.uri, key) from None

    @override
    def write(self, key: str, data: bytes) -> None:
        with self._explained("write", key), self._written(key, data) as (temporary, path):
            temporary.replace(path)

    @override
    def create(self, key: str, data: bytes) -> None:
        with self._explained("create", key), self._written(key, data) as (temporary, path):
            try:
                path.hardlink_to(temporary)
            except FileExistsError:
                raise ObjectExistsError(self.uri, key) from None

    @override
    def list(self, prefix: str = "") -> list[str]:
        folder = self.root / prefix.rpartition("/")[0]
        with self._explained("list", prefix):
            found = [path for path in _files_below(folder) if not path.name.startswith(TEMPORARY)]
        keys = [path.relative_to(self.root).as_posix() for path in found]
        return sorted(key for key in keys if key.startswith(prefix))

    @override
    def delete(self, key: str) -> None:
        self.delete_all([key])

    @override
    def delete_all(self, keys: Collection[str]) -> None:
        """Delete objects, and the folders that are then empty. Objects that are not there are ignored."""
        changed: set[Path] = set()

        def remove(key: str) -> None:
            with self._explained("delete", key):
                changed.update(self._remove(self._path(key)))

        try:
            delete_each(self.uri, keys, remove)
        finally:
            # A power failure must not bring back a manifest whose files are gone. The folders are synced once for all
            # objects, because syncing takes most of the time.
            with self._explained("delete", ""):
                self._sync_folders(*changed)

    @override
    def upload(self, path: Path, key: str) -> None:
        """Store a local file that never changes again, as a hard link or, between file systems, a copy."""
        target = self._path(key)
        with self._explained("upload", key):
            with path.open("rb") as file:
                os.fsync(file.fileno())
                size = os.fstat(file.fileno()).st_size
            try:
                self._place(target, lambda: target.hardlink_to(path), path)
            except FileExistsError:
                if target.stat().st_size == size:
                    os.utime(target)
                else:
                    self._copy_in(path, target)
            except OSError as error:
                if error.errno not in _CANNOT_LINK:
                    raise
                self._copy_in(path, target)
            self._sync_folders(target.parent)

    @override
    def download(self, key: str, path: Path, size: int | None = None) -> str | None:
        """Download an object to a new local file, as a hard link or, between file systems, a copy."""
        source = self._path(key)
        with self._explained("download", key):
            if not source.is_file():
                raise ObjectMissingError(self.uri, key)
            try:
                path.hardlink_to(source)
            except OSError as error:
                if error.errno not in _CANNOT_LINK:
                    raise
                shutil.copyfile(source, path)
        return None

    @override
    def is_same_file(self, key: str, path: Path) -> bool:
        with suppress(OSError):
            return path.samefile(self._path(key))
        return False

    @override
    def copy(self, source: Store, source_key: str, key: str) -> bool:
        if not isinstance(source, LocalStore):
            return False
        path = source._path(source_key)
        if not path.is_file():
            raise ObjectMissingError(source.uri, source_key)
        self.upload(path, key)
        return True

    @override
    def stat(self, key: str) -> ObjectStat:
        """Return the size and age of an object.

        The age is that of the inode (``st_ctime``). A hard link keeps the modification time of a file that may have
        been written days before it was uploaded, but linking and ``utime`` both renew the inode's time.
        """
        path = self._path(key)
        with self._explained("look at", key):
            if not path.is_file():
                raise ObjectMissingError(self.uri, key)
            status = path.stat()
            return ObjectStat(status.st_size, status.st_ctime)

    @override
    def sweep(self, before: float) -> None:
        with self._explained("sweep", ""):
            temporary = [path for path in _files_below(self.root) if is_temporary(path.name)]

        def remove(name: str) -> None:
            path = self.root / name
            with self._explained("delete", name), suppress(FileNotFoundError):
                if path.stat().st_ctime < before:
                    path.unlink()

        delete_each(self.uri, [path.relative_to(self.root).as_posix() for path in temporary], remove)

    def _path(self, key: str) -> Path:
        return self.root / validate_final_key(key)

    @contextmanager
    def _explained(self, operation: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreFailedError(self.uri, key, operation, str(error)) from error

    @contextmanager
    def _written(self, key: str, data: bytes) -> Iterator[tuple[Path, Path]]:
        """Write ``data``, synced, to a temporary name beside the object. The caller then gives it its name."""
        path = self._path(key)
        temporary = path.with_name(temporary_name())
        try:
            descriptor = self._place(
                path, lambda: os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
            )
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield temporary, path
            self._sync_folders(path.parent)
        finally:
            temporary.unlink(missing_ok=True)

    def _copy_in(self, source: Path, target: Path) -> None:
        temporary = target.with_name(temporary_name())
        try:
            self._place(target, lambda: shutil.copyfile(source, temporary), source)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)

    def _place(self, path: Path, step: Callable[[], T], source: Path | None = None) -> T:
        """Run a step that needs the folder of ``path``, and run it again if a delete has removed the empty folder.

        Looking for the folder after a failure would not help: another writer may have made it again by then.
        """
        for _ in range(_ATTEMPTS):
            with suppress(FileNotFoundError):
                _make_folder(path.parent)
            try:
                return step()
            except FileNotFoundError:
                if source is not None and not source.exists():
                    raise
        return step()

    def _remove(self, path: Path) -> set[Path]:
        """Delete a file and the folders that are then empty. Return the folder that remains, if the file was there."""
        try:
            path.unlink()
        except _ABSENT:
            return set()
        folder = path.parent
        while folder != self.root:
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass  # another delete was faster
            except OSError:
                break  # not empty
            folder = folder.parent
        return {folder}

    def _sync_folders(self, *folders: Path) -> None:
        """Make the entries of folders durable, and those of their parents, which another thread may have made."""
        above = {
            parent for folder in folders for parent in folder.parents if parent.is_relative_to(self.root)
        }
        # The deepest is synced first.
        for folder in sorted(above.union(folders), key=lambda one: len(one.parts), reverse=True):
            with suppress(FileNotFoundError):
                _sync_folder(folder)


def _files_below(folder: Path) -> Iterator[Path]:
    """Find the files below a folder. A folder that does not exist, or is deleted meanwhile, has none.

    Any other reason that a folder cannot be listed is an error. ``os.walk`` would take a folder that the disk or the
    server cannot list just now for an empty one, and a coordinator that takes over would find no checkpoints.
    """
    folders = [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if not entry.is_dir():
                        yield Path(entry)
                    elif not entry.is_symlink():
                        folders.append(Path(entry))
        except (FileNotFoundError, NotADirectoryError):
            # A delete removes the folders that are then empty.
            continue


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    # pathlib's exist_ok looks again after the error, and fails if a delete has removed the folder by then.
    with suppress(FileExistsError):
        folder.mkdir()
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
