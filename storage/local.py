"""The store on a local (or mounted POSIX) file system."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from .errors import InvalidKeyError, InvalidUriError, ObjectExistsError, ObjectMissingError, StoreFailedError
from .keys import validate_key
from .store import ObjectStat, Store

TEMPORARY = ".tmp-"
"""How the names of files begin that are not objects yet."""

T = TypeVar("T")

_ATTEMPTS = 1000
"""How often a folder is made anew; only one that can never be there (a dangling link) needs a bound."""

_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_CANNOT_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES}


class LocalStore(Store):
    """Objects are files below ``root``; nothing is created on disk before the first write.

    Every object comes into being under its name whole: it is written under a temporary name beside it,
    synced, and then renamed or linked. ``os.link`` fails if the name exists: that is the exclusive create.
    Files that never change are hard-linked in and out, so uploads and downloads on one file system move no
    bytes.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_absolute():
            raise InvalidUriError(str(root), "the path must be absolute")
        self.root = root
        self.uri = root.as_uri()

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return the object's bytes, or ``length`` of them from ``offset``."""
        path = self._path(key)
        with self._explained("read", key):
            try:
                with path.open("rb") as file:
                    file.seek(offset)
                    return file.read(length)
            except _ABSENT:
                raise ObjectMissingError(self.uri, key) from None

    def write(self, key: str, data: bytes) -> None:
        """Write an object whole, in place of any that is there."""
        with self._explained("write", key), self._written(key, data) as (temporary, path):
            temporary.replace(path)

    def create(self, key: str, data: bytes) -> None:
        """Write an object that must not exist yet."""
        with self._explained("create", key), self._written(key, data) as (temporary, path):
            try:
                path.hardlink_to(temporary)
            except FileExistsError:
                raise ObjectExistsError(self.uri, key) from None

    def list(self, prefix: str = "") -> list[str]:
        """Return the keys that begin with ``prefix``, sorted."""
        folder = self.root / prefix.rpartition("/")[0]
        with self._explained("list", prefix):
            found = [path for path in _files_below(folder) if not path.name.startswith(TEMPORARY)]
        keys = [path.relative_to(self.root).as_posix() for path in found]
        return sorted(key for key in keys if key.startswith(prefix))

    def delete(self, key: str) -> None:
        """Delete an object and the folders that it leaves empty; one that is not there is no error."""
        self.delete_all([key])

    def delete_all(self, keys: Collection[str]) -> None:
        """Delete objects and the folders that they leave empty; those that are not there are no error."""
        changed = set()
        for key in keys:
            with self._explained("delete", key):
                changed |= self._remove(self._path(key))
        # So that no power failure brings a manifest back after the files that it names have gone. Once for all: with
        # thousands of objects in a few folders, this is what takes the time.
        with self._explained("delete", ""):
            self._sync_folders(*changed)

    def upload(self, path: Path, key: str) -> None:
        """Store a local file that will never change again: a hard link, a copy between file systems."""
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

    def download(self, key: str, path: Path, size: int | None = None) -> str | None:
        """Bring an object to a new local file: a hard link, a copy between file systems."""
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

    def copy(self, source: Store, source_key: str, key: str) -> bool:
        """Copy an object of another folder: a hard link, or the operating system's copy."""
        if not isinstance(source, LocalStore):
            return False
        path = source._path(source_key)
        if not path.is_file():
            raise ObjectMissingError(source.uri, source_key)
        self.upload(path, key)
        return True

    def stat(self, key: str) -> ObjectStat:
        """Return size and age of an object.

        The age is that of the inode (``st_ctime``): a hard link keeps the modification time of a file that
        may have been written days before it was uploaded, but linking and ``utime`` both renew the inode's.
        """
        path = self._path(key)
        with self._explained("look at", key):
            if not path.is_file():
                raise ObjectMissingError(self.uri, key)
            status = path.stat()
            return ObjectStat(status.st_size, status.st_ctime)

    def sweep(self, before: float) -> None:
        """Delete the temporary files of writers that were killed."""
        with self._explained("sweep", ""):
            for path in _files_below(self.root):
                with suppress(FileNotFoundError):
                    if path.name.startswith(TEMPORARY) and path.stat().st_ctime < before:
                        path.unlink()

    def _path(self, key: str) -> Path:
        if any(part.startswith(TEMPORARY) for part in validate_key(key).split("/")):
            raise InvalidKeyError(key)
        return self.root / key

    @contextmanager
    def _explained(self, operation: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreFailedError(self.uri, key, operation, str(error)) from error

    @contextmanager
    def _written(self, key: str, data: bytes) -> Iterator[tuple[Path, Path]]:
        """Hold ``data``, synced, under a temporary name beside the object; the caller gives it its name."""
        path = self._path(key)
        temporary = path.with_name(TEMPORARY + uuid.uuid4().hex)
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
        temporary = target.with_name(TEMPORARY + uuid.uuid4().hex)
        try:
            self._place(target, lambda: shutil.copyfile(source, temporary), source)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)

    def _place(self, path: Path, step: Callable[[], T], source: Path | None = None) -> T:
        """Run a step that needs the folder of ``path``; again if a delete takes the empty folder away.

        Whether the folder is there afterwards says nothing: another writer may have made it again by then.
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
        """Delete a file and the folders that it leaves empty; return the folder that remains, if anything was there."""
        try:
            path.unlink()
        except _ABSENT:
            return set()
        folder = path.parent
        while folder != self.root:
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass  # somebody else who deletes was faster
            except OSError:
                break  # not empty
            folder = folder.parent
        return {folder}

    def _sync_folders(self, *folders: Path) -> None:
        """Make the entries of folders durable, and of their parents: another thread may have made them."""
        above = {
            parent for folder in folders for parent in folder.parents if parent.is_relative_to(self.root)
        }
        # The deepest first: a folder is there for good before what is in it counts.
        for folder in sorted(above.union(folders), key=lambda one: len(one.parts), reverse=True):
            with suppress(FileNotFoundError):
                _sync_folder(folder)


def _files_below(folder: Path) -> Iterator[Path]:
    """Find the files below a folder; one that is not there, or goes meanwhile, has none.

    Whatever else keeps it from being listed is an error: ``os.walk`` would take a folder of which the disk or the
    server says nothing just now for an empty one, and who takes a pipeline over would find no checkpoints.
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
            # A delete takes away the folders that it leaves empty.
            continue


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    # pathlib's exist_ok looks again after the error, and fails if a delete has taken the folder away by then.
    with suppress(FileExistsError):
        folder.mkdir()
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
