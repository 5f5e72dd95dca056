"""Storing the files of snapshots and bringing them back."""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import attrs

from .errors import DamagedError
from .files import FileCache, copy_hashed, file_sha256, is_immutable
from .keys import validate_key
from .layout import PACK, is_shared, shared_key
from .manifest import FileRef, Handle
from .store import Store

PACK_BELOW = 64 * 1024
"""Files with fewer bytes than this go into the pack."""

THREADS = 4
"""Files that are moved at a time, unless said."""

_GAP = 64 * 1024
"""Bytes between two files of a pack that are cheaper to read than to ask for the second file by itself."""

T = TypeVar("T")

KnownHashes = MutableMapping[tuple[str, int], str]
"""SHA-256 by name and size, of the immutable files of one shard's database as long as it is open."""


@attrs.frozen
class StoredSnapshot:
    """One group of files, durable."""

    handle: Handle
    new_bytes: int
    """Bytes that were written for it, as opposed to those that the base has already."""


@attrs.define
class _Group:
    files: list[Future[tuple[FileRef, int]]] = attrs.field(factory=list)
    small: list[tuple[str, bytes]] = attrs.field(factory=list)


class SnapshotWriter:
    """Writes groups of files (one group a shard, or a query) of one checkpoint into one store.

    Large files go to ``shared/`` under their SHA-256, small ones together into one pack. Uploads run in
    threads: the files must stay as they are until ``finish`` has returned. For a savepoint the store is the
    savepoint's folder and no group has a base: then everything is inside it.

    Args:
        store: where to.
        pack_key: key of the pack, to which something random is added: two lives of a coordinator may use one
            id, and the one that is fenced must not write over the other's pack.
        pack_below: files with fewer bytes go into the pack.
        pool: runs the uploads; one with four threads is made if there is none.
        cache: keeps the uploaded immutable files for a recovery on this machine.
    """

    def __init__(
        self,
        store: Store,
        pack_key: str,
        pack_below: int = PACK_BELOW,
        pool: Executor | None = None,
        cache: FileCache | None = None,
    ) -> None:
        self._store = store
        self._pack_key = f"{pack_key.removesuffix(PACK)}-{uuid.uuid4().hex[:12]}{PACK}"
        self._pack_below = pack_below
        self._cache = cache
        self._own_pool = ThreadPoolExecutor(THREADS, "chandy-upload") if pool is None else None
        self._pool = pool or self._own_pool
        self._groups: defaultdict[str, _Group] = defaultdict(_Group)
        self._lock = threading.Lock()
        self._uploaded: set[str] = set()

    def add(
        self,
        group: str,
        files: Mapping[str, Path],
        base: Handle | None = None,
        known: KnownHashes | None = None,
    ) -> None:
        """Begin to store files.

        Args:
            group: what they belong to; the key of the result of ``finish``.
            files: by name inside the snapshot.
            base: handle of a completed checkpoint in the same store; what it shares is not uploaded again.
            known: read and filled, so that an immutable file is hashed once.

        Raises:
            InvalidKeyError: a name would lead out of the snapshot's folder.
        """
        assert self._pool is not None
        shared = {(file.sha256, file.size) for file in base.files if is_shared(file.key)} if base else set()
        target = self._groups[group]
        for name, path in files.items():
            validate_key(name)
            if path.stat().st_size < self._pack_below:
                target.small.append((name, path.read_bytes()))
            else:
                store_file = self._store_immutable if is_immutable(name) else self._store_copy
                target.files.append(
                    self._pool.submit(store_file, name, path, shared, {} if known is None else known)
                )

    def finish(self) -> dict[str, StoredSnapshot]:
        """Wait for the uploads and write the pack; return what each group has become, all of it durable.

        Raises:
            The first error of an upload, after all uploads have ended.
        """
        try:
            wait([future for group in self._groups.values() for future in group.files])
            large = {
                name: [future.result() for future in group.files] for name, group in self._groups.items()
            }
        finally:
            if self._own_pool:
                self._own_pool.shutdown()
        packed = self._write_pack()
        return {name: _stored(large[name] + packed[name]) for name in self._groups}

    def _store_immutable(
        self, name: str, path: Path, shared: set[tuple[str, int]], known: KnownHashes
    ) -> tuple[FileRef, int]:
        size = path.stat().st_size
        sha256 = known.get((name, size))
        if sha256 is None:
            sha256 = known[name, size] = file_sha256(path)
        return self._upload(name, path, size, sha256, shared)

    def _store_copy(
        self, name: str, path: Path, shared: set[tuple[str, int]], known: KnownHashes
    ) -> tuple[FileRef, int]:
        # A store may keep a hard link to what is uploaded: a file that its owner goes on to change is copied
        # first.
        with TemporaryDirectory(prefix="chandy-upload-") as folder:
            copy = Path(folder) / "copy"
            size, sha256 = copy_hashed(path, copy)
            return self._upload(name, copy, size, sha256, shared)

    def _upload(
        self, name: str, path: Path, size: int, sha256: str, shared: set[tuple[str, int]]
    ) -> tuple[FileRef, int]:
        file = FileRef(name, shared_key(sha256), size, sha256)
        with self._lock:
            first = (sha256, size) not in shared and sha256 not in self._uploaded
            if first:
                self._uploaded.add(sha256)
        if first:
            self._store.upload(path, file.key)
            if self._cache and is_immutable(name):
                self._cache.put(sha256, path)
        return file, size if first else 0

    def _write_pack(self) -> dict[str, list[tuple[FileRef, int]]]:
        pack = bytearray()
        offsets: dict[str, int] = {}
        refs: dict[str, list[tuple[FileRef, int]]] = {name: [] for name in self._groups}
        for group, data in self._groups.items():
            for name, content in sorted(data.small):
                sha256 = hashlib.sha256(content).hexdigest()
                before = len(pack)
                if sha256 not in offsets:
                    offsets[sha256] = before
                    pack += content
                file = FileRef(name, self._pack_key, len(content), sha256, offsets[sha256])
                refs[group].append((file, len(pack) - before))
        if offsets:
            self._store.write(self._pack_key, bytes(pack))
        return refs


def _stored(files: list[tuple[FileRef, int]]) -> StoredSnapshot:
    refs = sorted((file for file, _ in files), key=lambda file: file.name)
    return StoredSnapshot(Handle(tuple(refs)), sum(new for _, new in files))


@attrs.frozen
class RestoreReport:
    """What a restore did."""

    files: int
    bytes: int
    """Bytes of all files."""
    cached_bytes: int
    """Those that the cache had."""
    downloaded_bytes: int
    """Those that came from the store."""


def restore_files(
    store: Store, handle: Handle, directory: Path, cache: FileCache | None = None, threads: int = THREADS
) -> RestoreReport:
    """Bring a snapshot's files into a directory, each verified before it gets its name.

    Immutable files may be hard links to the store's or the cache's: nobody may change them in place. All
    others are private copies. If it fails, files that were complete by then remain, and nothing that is not.

    Args:
        store: what the handle's keys are relative to.
        handle: the files.
        directory: where to; made if missing. Existing files of the same names are replaced.
        cache: asked before the store for immutable files, and given those that it did not have.
        threads: files that are fetched at a time.

    Raises:
        DamagedError: the store has other bytes than were written; names the object and the file.
        ObjectMissingError: the store does not have an object.
    """
    directory.mkdir(parents=True, exist_ok=True)
    whole = [file for file in handle.files if is_shared(file.key)]
    ranges = _ranges(file for file in handle.files if not is_shared(file.key))
    jobs = [partial(_restore_range, store, run, directory) for run in ranges]
    jobs += [partial(_restore_whole, store, file, directory, cache) for file in whole]
    cached = sum(_in_parallel(jobs, threads))
    if cache and whole:
        cache.trim()
    return RestoreReport(len(handle.files), handle.size, cached, handle.size - cached)


def copy_snapshot(
    source: Store,
    handle: Handle,
    writer: SnapshotWriter,
    group: str,
    scratch: Path,
    cache: FileCache | None = None,
) -> None:
    """Have ``writer`` store the files of a handle of another store, every byte verified on the way.

    Args:
        source: what the handle's keys are relative to.
        handle: the files to copy; it remains valid in ``source``.
        writer: writes into the other store; its ``finish`` tells the new handle of the group.
        group: as in ``SnapshotWriter.add``.
        scratch: an empty or missing directory of the caller, who deletes it after ``writer.finish``.
        cache: as in ``restore_files``.

    Raises:
        As ``restore_files``.
    """
    restore_files(source, handle, scratch, cache)
    writer.add(group, {file.name: scratch / file.name for file in handle.files})


def _in_parallel(jobs: Sequence[Callable[[], T]], threads: int) -> list[T]:
    """Run jobs; at the first error drop those that have not begun, wait for the others, and raise it."""
    pool = ThreadPoolExecutor(threads, "chandy-restore")
    try:
        return [future.result() for future in [pool.submit(job) for job in jobs]]
    finally:
        pool.shutdown(cancel_futures=True)


def _restore_whole(store: Store, file: FileRef, directory: Path, cache: FileCache | None) -> int:
    """Restore a file that is an object of its own; return how many bytes of it came from the cache."""
    with _placed(directory, file) as path:
        if cache and is_immutable(file.name) and cache.take(file.sha256, file.size, path):
            return file.size
        store.download(file.key, path)
        if is_immutable(file.name):
            _verify(store, file, path.stat().st_size, file_sha256(path))
            if cache:
                cache.put(file.sha256, path)
        else:
            downloaded = path.rename(path.with_name(path.name + "-shared"))
            try:
                _verify(store, file, *copy_hashed(downloaded, path))
            finally:
                downloaded.unlink(missing_ok=True)
        return 0


def _restore_range(store: Store, files: list[FileRef], directory: Path) -> int:
    """Restore files that lie close together in a pack."""
    start = files[0].offset
    end = max(file.offset + file.size for file in files)
    data = store.read(files[0].key, start, end - start)
    for file in files:
        content = data[file.offset - start : file.offset - start + file.size]
        _verify(store, file, len(content), hashlib.sha256(content).hexdigest())
        with _placed(directory, file) as path:
            path.write_bytes(content)
    return 0


def _ranges(files: Iterable[FileRef]) -> list[list[FileRef]]:
    """Return the files of packs in runs, each of one pack and without large gaps."""
    runs: list[list[FileRef]] = []
    end = 0
    for file in sorted(files, key=lambda file: (file.key, file.offset)):
        if runs and runs[-1][0].key == file.key and file.offset <= end + _GAP:
            runs[-1].append(file)
            end = max(end, file.offset + file.size)
        else:
            runs.append([file])
            end = file.offset + file.size
    return runs


@contextmanager
def _placed(directory: Path, file: FileRef) -> Iterator[Path]:
    """Give a temporary path; what is there in the end gets the file's name, unless there was an error."""
    target = directory / validate_key(file.name)
    temporary = directory / f".restore-{uuid.uuid4().hex}"
    try:
        yield temporary
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _verify(store: Store, file: FileRef, size: int, sha256: str) -> None:
    if (size, sha256) != (file.size, file.sha256):
        raise DamagedError(
            store.uri,
            file.key,
            f"{file.size} bytes with SHA-256 {file.sha256} for the file {file.name!r}",
            f"{size} bytes with SHA-256 {sha256}",
        )
