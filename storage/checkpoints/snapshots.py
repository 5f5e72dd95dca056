"""Storing the files of snapshots: large ones by their hash, small ones in packs, nothing twice."""

from __future__ import annotations

import hashlib
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping, MutableMapping
from concurrent.futures import Executor, Future
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO

import attrs

from .. import runtime
from ..disk.scratch import scratch_directory
from ..errors import StorageError
from ..keys import validate_key
from ..logs import logger, named_pool
from ..store import Store
from ..transfer import PART
from ..verified import verified
from .files import FileCache, copy_hashed, file_sha256, is_bookkeeping, is_immutable
from .layout import is_shared, new_pack_key, shared_key
from .manifest import FileRef, Handle
from .packs import packs_to_keep
from .restore import THREADS, restore_files

PACK_BELOW = 64 * 1024
"""Files with fewer bytes go into the pack. So do files of any size that describe a database."""

PACK_IN_MEMORY = 2 * PART
"""Bytes up to which a pack is built in memory. A larger one is built on disk."""

_log = logger(__name__)

KnownHashes = MutableMapping[tuple[str, int], str]
"""SHA-256 of the immutable files of one shard's open database, by name and size."""


@attrs.frozen
class StoredSnapshot:
    """One group of files that is durable."""

    handle: Handle
    new_bytes: int
    """Bytes that were written for it, without those that the base already has."""


@attrs.frozen
class SnapshotSource:
    """A snapshot in another store, from which the service may copy files."""

    store: Store
    handle: Handle


@attrs.define
class _Group:
    files: list[Future[tuple[FileRef, int]]] = attrs.field(factory=list)
    small: list[tuple[str, Path]] = attrs.field(factory=list)
    packed: dict[tuple[str, int], FileRef] = attrs.field(factory=dict)
    """What the base has in packs, by SHA-256 and size."""
    known: KnownHashes = attrs.field(factory=dict)


class SnapshotWriter:
    """Writes groups of files of one checkpoint into one store. A group belongs to a shard or a query.

    Large files go to ``shared/`` under their SHA-256, and small ones together into one pack. So a checkpoint takes one
    request for each new large file, and one for the pack. What the base has is not stored again, except small files
    that would be spread over too many packs (``packs_to_keep``). For a savepoint, the store is the savepoint's folder
    and no group has a base: it then holds everything.

    Uploads run in threads, so the files must not change until ``finish`` returns.

    Args:
        store: the store to write to.
        pack_key: key of the pack, to which a random part is added: two lives of a coordinator may use the same id, and
            the fenced one must not overwrite the other's pack.
        pack_below: files with fewer bytes go into the pack.
        pool: runs the uploads; one with four threads is made if there is none.
        cache: keeps the uploaded immutable files, for a recovery on this machine.
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
        self._pack_key = new_pack_key(pack_key)
        self._pack_below = pack_below
        self._cache = cache
        self._owns_pool = pool is None
        self._pool = pool or named_pool(THREADS, "chandy-upload")
        self._groups: defaultdict[str, _Group] = defaultdict(_Group)
        self._lock = runtime.lock()
        self._uploaded: set[str] = set()

    def add(
        self,
        group: str,
        files: Mapping[str, Path],
        base: Handle | None = None,
        known: KnownHashes | None = None,
        source: SnapshotSource | None = None,
    ) -> None:
        """Begin to store files. Threads may add different groups at the same time, and none while ``finish`` runs.

        Args:
            group: the shard or query that they belong to; a key of the result of ``finish``.
            files: the files by their names in the snapshot.
            base: handle of a completed checkpoint in the same store, whose files need not be stored again.
            known: hashes of immutable files. It is read and filled, so that each file is hashed once.
            source: a snapshot in another store. The service copies its shared files if it can; otherwise they are
                uploaded.

        Raises:
            InvalidNameError: a name would lead out of the snapshot's folder.
        """
        shared = _shared(base) if base else {}
        known = {} if known is None else known
        target = self._groups[group]
        target.packed = _packed(base) if base else {}
        target.known = known
        for name, path in files.items():
            validate_key(name)
            if path.stat().st_size < self._pack_below or is_bookkeeping(name):
                target.small.append((name, path))
            else:
                store_file = self._store_immutable if is_immutable(name) else self._store_copy
                target.files.append(self._pool.submit(store_file, name, path, shared, known, source))

    def copy(self, group: str, source: SnapshotSource) -> tuple[FileRef, ...]:
        """Let the service copy the files of a snapshot into a group, and return those that it could not copy.

        Raises:
            ObjectMissingError: ``source`` does not have an object.
        """
        shared = [file for file in source.handle.files if is_shared(file.key)]
        copied = [self._pool.submit(self._copied_file, file, source.store) for file in shared]
        runtime.wait(copied)
        done = set()
        for file, future in zip(shared, copied, strict=True):
            if future.result() is not None:
                done.add(file)
                self._groups[group].files.append(future)  # type: ignore[arg-type]
        return tuple(file for file in source.handle.files if file not in done)

    def relay(
        self, group: str, source: Store, files: Iterable[FileRef], cache: FileCache | None = None
    ) -> None:
        """Begin to copy shared files from another store through this machine, one for each thread at a time.

        So the disk holds no more than that many files at once. Each is verified. Errors come from ``finish``.

        Args:
            group: as in ``add``.
            source: the store that the files are in.
            files: files that other snapshots share.
            cache: as in ``restore_files``.
        """
        target = self._groups[group]
        for file in files:
            target.files.append(self._pool.submit(self._relayed, file, source, cache))

    def finish(self) -> dict[str, StoredSnapshot]:
        """Wait for the uploads, write the pack, and return the stored groups, all of them durable.

        Raises:
            The first error of an upload, after all uploads have ended.
        """
        try:
            runtime.wait([future for group in self._groups.values() for future in group.files])
            large = {
                name: [future.result() for future in group.files] for name, group in self._groups.items()
            }
        finally:
            if self._owns_pool:
                self._pool.shutdown()
        packed = self._write_pack()
        return {name: _stored(large[name] + packed[name]) for name in self._groups}

    def _store_immutable(
        self,
        name: str,
        path: Path,
        shared: Mapping[tuple[str, int], str],
        known: KnownHashes,
        source: SnapshotSource | None,
    ) -> tuple[FileRef, int]:
        sha256, size = _identity(name, path, known)
        return self._upload(name, path, size, sha256, shared, source)

    def _store_copy(
        self,
        name: str,
        path: Path,
        shared: Mapping[tuple[str, int], str],
        known: KnownHashes,
        source: SnapshotSource | None,
    ) -> tuple[FileRef, int]:
        # The file is copied first, because its owner may change it later and the store may keep a hard link to what
        # is uploaded.
        with scratch_directory("upload") as folder:
            copy = folder / "copy"
            size, sha256 = copy_hashed(path, copy)
            return self._upload(name, copy, size, sha256, shared, source)

    def _upload(
        self,
        name: str,
        path: Path,
        size: int,
        sha256: str,
        shared: Mapping[tuple[str, int], str],
        source: SnapshotSource | None,
    ) -> tuple[FileRef, int]:
        if (key := shared.get((sha256, size))) is not None:
            return FileRef(name, key, size, sha256), 0
        file = FileRef(name, shared_key(sha256), size, sha256)
        if not self._is_first(sha256):
            return file, 0
        if source is None or not self._copied(file, source):
            self._store.upload(path, file.key)
        if self._cache and is_immutable(name):
            self._cache.put(sha256, path)
        return file, size

    def _is_first(self, sha256: str) -> bool:
        with self._lock:
            first = sha256 not in self._uploaded
            self._uploaded.add(sha256)
            return first

    def _copied(self, file: FileRef, source: SnapshotSource) -> bool:
        if (key := _shared(source.handle).get((file.sha256, file.size))) is None:
            return False
        try:
            return self._store.copy(source.store, key, file.key)
        except (StorageError, OSError) as error:
            # Retention may have dropped it, or it may not be readable there. The local file can be uploaded.
            _log.info(
                "could not copy a file, uploading it", key=key, source=source.store.uri, error=str(error)
            )
            return False

    def _copied_file(self, file: FileRef, source: Store) -> tuple[FileRef, int] | None:
        # A file that is twice in a snapshot is copied twice, because the first copy may still fail.
        own = attrs.evolve(file, key=shared_key(file.sha256))
        is_copied = verified(source, file.key, lambda source: self._store.copy(source, file.key, own.key))
        return (own, file.size) if is_copied else None

    def _relayed(self, file: FileRef, source: Store, cache: FileCache | None) -> tuple[FileRef, int]:
        own = attrs.evolve(file, key=shared_key(file.sha256))
        if not self._is_first(file.sha256):
            return own, 0
        with scratch_directory("relay") as folder:
            restore_files(source, Handle((file,)), folder, cache, threads=1)
            self._store.upload(folder / file.name, own.key)
        return own, file.size

    def _write_pack(self) -> dict[str, list[tuple[FileRef, int]]]:
        unchanged = {
            (group, name): file
            for group, data in self._groups.items()
            for name, path in data.small
            if data.packed and (file := data.packed.get(_identity(name, path, data.known)))
        }
        kept = packs_to_keep(unchanged.values())
        offsets: dict[str, int] = {}
        refs: dict[str, list[tuple[FileRef, int]]] = {name: [] for name in self._groups}
        end = 0
        with SpooledTemporaryFile(PACK_IN_MEMORY, prefix="chandy-pack-") as pack:
            for group, data in self._groups.items():
                for name, path in sorted(data.small):
                    stored = unchanged.get((group, name))
                    if stored is not None and stored.key in kept:
                        refs[group].append((attrs.evolve(stored, name=name), 0))
                        continue
                    content = path.read_bytes()
                    sha256 = hashlib.sha256(content).hexdigest()
                    new = sha256 not in offsets
                    if new:
                        offsets[sha256] = end
                        end += len(content)
                        pack.write(content)
                    file = FileRef(name, self._pack_key, len(content), sha256, offsets[sha256])
                    refs[group].append((file, len(content) if new else 0))
            pack.seek(0)
            if offsets and end <= PACK_IN_MEMORY:
                self._store.write(self._pack_key, pack.read())
            elif offsets:
                self._upload_pack(pack)
        return refs

    def _upload_pack(self, pack: IO[bytes]) -> None:
        with scratch_directory("pack") as folder:
            path = folder / "pack"
            with path.open("xb") as file:
                shutil.copyfileobj(pack, file, PART)
            self._store.upload(path, self._pack_key)


def copy_snapshot(
    source: Store,
    handle: Handle,
    writer: SnapshotWriter,
    group: str,
    scratch: Path,
    cache: FileCache | None = None,
) -> None:
    """Copy a snapshot from another store.

    The service copies large files itself if it can; their bytes are then not verified. Otherwise they come through this
    machine, a few at a time. All files but those that the service copies are verified.

    Args:
        source: the store that the handle's keys are relative to.
        handle: the files to copy. It stays valid in ``source``.
        writer: writes into the other store. Its ``finish`` returns the new handle of the group.
        group: as in ``SnapshotWriter.add``.
        scratch: an empty or missing directory for small files, which the caller deletes after ``writer.finish``.
        cache: as in ``restore_files``.

    Raises:
        As ``restore_files``.
    """
    left = writer.copy(group, SnapshotSource(source, handle))
    writer.relay(group, source, [file for file in left if is_shared(file.key)], cache)
    small = [file for file in left if not is_shared(file.key)]
    restore_files(source, Handle(tuple(small)), scratch, cache)
    writer.add(group, {file.name: scratch / file.name for file in small})


def _shared(handle: Handle) -> dict[tuple[str, int], str]:
    """Return the keys of the shared files of a snapshot by SHA-256 and size."""
    return {(file.sha256, file.size): file.key for file in handle.files if is_shared(file.key)}


def _packed(handle: Handle) -> dict[tuple[str, int], FileRef]:
    """Return the packed files of a snapshot by SHA-256 and size."""
    return {(file.sha256, file.size): file for file in handle.files if not is_shared(file.key)}


def _identity(name: str, path: Path, known: KnownHashes) -> tuple[str, int]:
    """Return a file's SHA-256 and size. An immutable file is hashed once."""
    size = path.stat().st_size
    if not is_immutable(name):
        return file_sha256(path), size
    if (name, size) not in known:
        known[name, size] = file_sha256(path)
    return known[name, size], size


def _stored(files: list[tuple[FileRef, int]]) -> StoredSnapshot:
    refs = sorted((file for file, _ in files), key=lambda file: file.name)
    return StoredSnapshot(Handle(tuple(refs)), sum(new for _, new in files))
