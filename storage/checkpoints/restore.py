"""Restoring the files of a snapshot: from the cache or the store, in parallel, each verified by its SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import attrs

from .. import runtime
from ..keys import validate_key
from ..logs import named_pool
from ..store import Store
from ..transfer import PART
from ..verified import verified
from .files import FileCache, copy_hashed, file_sha256, is_immutable
from .layout import is_shared
from .manifest import FileRef, Handle

THREADS: Final = 4
"""Default number of files that are transferred at a time."""

_GAP: Final = 64 * 1024
"""Bytes between two files of a pack that are cheaper to read than a second request."""

T = TypeVar("T")


@attrs.frozen
class RestoreReport:
    """How many files and bytes a restore took from where."""

    files: int
    bytes: int
    """Bytes of all files."""
    cached_bytes: int
    """Bytes that came from the cache."""
    downloaded_bytes: int
    """Bytes that came from the store."""
    unread_bytes: int = 0
    """Bytes that came from a copy in the cache, so that nobody has read them in the store."""


def restore_files(
    store: Store,
    handle: Handle,
    directory: Path,
    cache: FileCache | None = None,
    threads: int = THREADS,
    progress: Callable[[int], None] | None = None,
) -> RestoreReport:
    """Restore a snapshot's files into a directory. Each file is verified before it gets its name.

    Immutable files may be hard links to those of the store or the cache, so nobody may change them in place. All others
    are private copies. After an error, the directory has only complete files.

    Args:
        store: the store that the handle's keys are relative to.
        handle: the files.
        directory: is created if it is missing. Existing files of the same names are replaced.
        cache: is asked for immutable files before the store, and given those that it does not have.
        threads: files that are transferred at a time.
        progress: called from several threads with the bytes that were just restored. They add up to ``handle.size``.

    Raises:
        DamagedError: the store has other bytes than were written. Names the object and the file.
        ObjectMissingError: the store does not have an object.
    """
    directory.mkdir(parents=True, exist_ok=True)
    whole = [file for file in handle.files if is_shared(file.key)]
    ranges = _ranges(file for file in handle.files if not is_shared(file.key))
    jobs = [partial(_restore_range, store, run, directory) for run in ranges]
    jobs += [partial(_restore_whole, store, file, directory, cache) for file in whole]
    sizes = [sum(file.size for file in run) for run in ranges] + [file.size for file in whole]
    if progress:
        jobs = [partial(_with_progress, job, size, progress) for job, size in zip(jobs, sizes, strict=True)]
    found = _in_parallel(jobs, threads)
    if cache and whole:
        cache.trim()
    cached, unread = (sum(part) for part in zip(*found, strict=True)) if found else (0, 0)
    return RestoreReport(len(handle.files), handle.size, cached, handle.size - cached, unread)


def read_file(store: Store, file: FileRef) -> bytes:
    """Return the bytes of a file in a store, which are those that were written.

    Raises:
        As ``restore_files``.
    """
    return _read_files(store, [file])[0]


def _with_progress(job: Callable[[], T], size: int, progress: Callable[[int], None]) -> T:
    result = job()
    progress(size)
    return result


def _in_parallel(jobs: Sequence[Callable[[], T]], threads: int) -> list[T]:
    """Run jobs. At the first error, drop those that have not begun, wait for the others, and raise it."""
    pool = named_pool(threads, "chandy-restore")
    try:
        return [future.result() for future in [pool.submit(job) for job in jobs]]
    finally:
        pool.shutdown(cancel_futures=True)


def _restore_whole(store: Store, file: FileRef, directory: Path, cache: FileCache | None) -> tuple[int, int]:
    """Restore a file that is an object of its own; return how many of its bytes came from the cache, and unread."""
    with _placed(directory, file) as path:
        if cache and is_immutable(file.name) and cache.take(file.sha256, file.size, path):
            return file.size, 0 if store.is_same_file(file.key, path) else file.size
        verified(store, file.key, partial(_download, file=file, path=path))
        if cache and is_immutable(file.name):
            cache.put(file.sha256, path)
        return 0, 0


def _download(store: Store, file: FileRef, path: Path) -> None:
    # What a first look has left may be a link to the store's file.
    path.unlink(missing_ok=True)
    sha256 = store.download(file.key, path, file.size)
    if sha256 is not None or is_immutable(file.name):
        file.check(path.stat().st_size, sha256 or file_sha256(path))
        return
    # It is a hard link to the store's file, which must not change when this one does.
    downloaded = path.rename(path.with_name(path.name + "-shared"))
    try:
        file.check(*copy_hashed(downloaded, path))
    finally:
        downloaded.unlink(missing_ok=True)


def _restore_range(store: Store, files: list[FileRef], directory: Path) -> tuple[int, int]:
    """Restore files that are close together in a pack."""
    for file, content in zip(files, _read_files(store, files), strict=True):
        with _placed(directory, file) as path:
            path.write_bytes(content)
    return 0, 0


def _read_files(store: Store, files: Sequence[FileRef]) -> list[bytes]:
    """Return the bytes of files that one object has, ascending by their offsets, with one request."""
    start = files[0].offset
    end = max(file.offset + file.size for file in files)

    def read(store: Store) -> list[bytes]:
        data = store.read(files[0].key, start, end - start)
        contents = [data[file.offset - start : file.offset - start + file.size] for file in files]
        for file, content in zip(files, contents, strict=True):
            file.check(len(content), hashlib.sha256(content).hexdigest())
        return contents

    return verified(store, files[0].key, read)


def _ranges(files: Iterable[FileRef]) -> list[list[FileRef]]:
    """Return the files of packs in runs to read at once. A run is of one pack, without large gaps and not too long."""
    runs: list[list[FileRef]] = []
    end = 0
    for file in sorted(files, key=lambda file: (file.key, file.offset)):
        first = runs[-1][0] if runs else None
        if (
            first is not None
            and first.key == file.key
            and file.offset <= end + _GAP
            and file.offset + file.size <= first.offset + PART
        ):
            runs[-1].append(file)
            end = max(end, file.offset + file.size)
        else:
            runs.append([file])
            end = file.offset + file.size
    return runs


@contextmanager
def _placed(directory: Path, file: FileRef) -> Iterator[Path]:
    """Yield a temporary path, and give what is there the file's name afterwards, unless there was an error."""
    target = directory / validate_key(file.name)
    temporary = directory / f".restore-{runtime.token()}"
    try:
        yield temporary
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
