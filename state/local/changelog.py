"""A shard's changelog: the changes of each batch since the latest checkpoint, on the machine's own disk.

With it a query resumes after a killed process, or a host opens the shard of a killed host on the same machine: the
state after a batch is that of the checkpoint plus the changes of the batches since. Nothing is forced to the disk, so a
changelog outlives processes but not machines. Its reader makes sure that the machine has not been restarted since.

A changelog is a directory of segments, ``<number>.log``, each one record after the other::

    4 bytes  b"CHJ2"
    8 bytes  the batch                          (these two little-endian)
    8 bytes  length of the changes
   16 bytes  XXH3 (128 bits) of all the rest of the record
             the changes: keys and values as one Arrow IPC record batch, null deletes; empty if there are none

Each attempt at a batch writes a record, and the last one counts. A segment may end in the middle of a record. Its
writer was then killed before the task learned that its changes were applied.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import attrs
import pyarrow as pa
import xxhash

from ...storage.disk.directories import private_directory
from ...storage.ids import NO_BATCH, BatchId
from ...storage.logs import logger
from ..errors import ChangelogBrokenError
from ..format.arrow import BYTES
from ..format.columns import Columns
from ..host.cache import Value
from ..shards import NotResumable, ResumePoint

_log = logger(__name__)
FOLDER: Final = "journals"
"""Name of the folder of all changelogs. It is the first version's word, kept so that an upgrade finds them."""
LIMIT: Final = 256 * 1024 * 1024
"""Default limit of one shard's changelog in bytes. Reading more may take longer than running the batches again."""
_GONE: Final = ".gone-"
_ADMISSIONS: Final = 5
"""How often a run is admitted while other drivers sweep at the same moment."""
_OWNER: Final = "owner"
_MAGIC: Final = b"CHJ2"
_HEAD: Final = struct.Struct("<4sqq16s")
_SCHEMA: Final = pa.schema([("key", BYTES), ("value", BYTES)])


def shard_folder(root: Path, query_id: str, uid: str, shard: int) -> Path:
    """Return the folder of one shard's changelog in the run with this Spark id, below the folder of all changelogs."""
    # The user chooses the uid, which need not be a valid file name.
    return root / query_id / f"{hashlib.sha256(uid.encode()).hexdigest()[:16]}-{shard}"


def admit(root: Path, query_id: str, owner: Path) -> None:
    """Allow the shards of a run to have changelogs as long as the directory ``owner`` exists.

    The owner outlives the run: the next run of the query reads its changelogs when its shards are opened, which is
    long after the run has ended.

    Raises:
        OSError, UnsafeDirectoryError: the folder of all changelogs cannot be used.
    """
    private_directory(root)
    for attempt in itertools.count(1):
        # If this process is killed here, ``sweep`` deletes the folder.
        new = root / f"{_GONE}new-{query_id}"
        try:
            new.mkdir()
            (new / _OWNER).write_text(str(owner))
            new.rename(root / query_id)
            return
        except FileNotFoundError:
            # Another driver on the machine has just swept it.
            if attempt == _ADMISSIONS:
                raise


def remove(root: Path, query_id: str) -> None:
    """Delete the changelogs of a run. A host that is about to begin another one for it finds no folder."""
    gone = root / f"{_GONE}{query_id}"
    with contextlib.suppress(OSError):
        (root / query_id).rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def sweep(root: Path) -> None:
    """Delete the changelogs whose owner is gone, and what killed processes have left half deleted."""
    for gone in root.glob(f"{_GONE}*"):
        shutil.rmtree(gone, ignore_errors=True)
    for folder, owner in runs(root):
        with contextlib.suppress(OSError):
            if not owner.exists():
                remove(root, folder.name)


def runs(root: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the folder of each run that has changelogs, and the directory that owns them, which may be gone."""
    for owner in sorted(root.glob(f"*/{_OWNER}")):
        with contextlib.suppress(OSError):
            yield owner.parent, Path(owner.read_text())


@attrs.define
class _Segment:
    newest: BatchId = NO_BATCH
    """The newest batch in the segment."""
    size: int = 0
    """Bytes."""


@attrs.frozen
class _Record:
    path: Path
    batch: BatchId
    start: int
    """Offset of the changes in the file."""
    length: int
    digest: bytes


class Changelog:
    """The changelog of an open shard.

    If it cannot be written, or has grown too long, it is deleted, because a changelog with a gap is useless. The next
    snapshot begins a new one. Until then a killed process means going back to the checkpoint.
    """

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        """Begin an empty changelog.

        Args:
            folder: a folder of its own, see ``shard_folder``, in a run that was admitted. Its contents are deleted.
            limit: how many bytes it may have.
        """
        self._folder = folder
        self._limit = limit
        self._segments: dict[Path, _Segment] = {}
        self._growing: tuple[Path, BinaryIO] | None = None
        self._number = 0
        self._ended = False
        self._closed = False
        self._begin()

    def inherit(self, folder: Path) -> None:
        """Begin with the segments of another changelog, which is not changed."""
        if self._ended:
            return
        try:
            for path in _segments(folder):
                own = self._next()
                own.hardlink_to(path)
                newest = max((record.batch for record in _records(own)), default=NO_BATCH)
                self._segments[own] = _Segment(newest, own.stat().st_size)
        except OSError as error:
            self._end(str(error))

    def append(self, batch: BatchId, columns: Columns | None = None) -> None:
        """Write the changes of an attempt at a batch, which replace those of an earlier attempt."""
        if self._ended:
            return
        changes = _encoded(columns)
        try:
            if self._growing is None:
                path = self._next()
                self._growing = path, path.open("xb", buffering=0)
                self._segments[path] = _Segment()
            path, stream = self._growing
            _write(stream, _HEAD.pack(_MAGIC, batch, len(changes), _digest(batch, changes)))
            _write(stream, changes)
        except OSError as error:
            self._end(str(error))
            return
        segment = self._segments[path]
        segment.newest = max(batch, segment.newest)
        segment.size += _HEAD.size + len(changes)
        if (size := sum(one.size for one in self._segments.values())) > self._limit:
            self._end(f"it has grown to {size} bytes since the last checkpoint")

    def cut(self) -> None:
        """End the segment, because what follows is not in the snapshot that is taken now."""
        self._end_segment()
        if self._ended and not self._closed:
            self._begin()

    def forget(self, upto: BatchId) -> None:
        """Delete the segments that end at ``upto`` or before: a completed checkpoint contains their batches."""
        growing = None if self._growing is None else self._growing[0]
        for path, segment in list(self._segments.items()):
            if segment.newest <= upto and path != growing:
                path.unlink(missing_ok=True)
                del self._segments[path]

    def close(self) -> None:
        """Stop writing. The files stay."""
        self._end_segment()
        self._ended = self._closed = True

    def _begin(self) -> None:
        self._ended = False
        try:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir()
        except OSError as error:
            self._end(str(error))

    def _end(self, why: str) -> None:
        _log.warning("no changelog is kept until the next checkpoint", folder=str(self._folder), reason=why)
        self._end_segment()
        self._ended = True
        self._segments.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end_segment(self) -> None:
        if self._growing is not None:
            self._growing[1].close()
            self._growing = None

    def _next(self) -> Path:
        self._number += 1
        return self._folder / f"{self._number}.log"


def gap(folder: Path, after: BatchId, upto: BatchId) -> NotResumable | None:
    """Return what a changelog lacks of the batches after ``after`` up to ``upto``; None if it has all of them.

    It reads only the records' heads.
    """
    needed = range(after + 1, upto + 1)
    try:
        found = _latest(folder)
    except (OSError, ChangelogBrokenError) as error:
        return NotResumable(f"has a changelog that cannot be read: {error}")
    if needed and not folder.is_dir():
        return NotResumable(f"has no changelog {folder}")
    missing = next((batch for batch in needed if batch not in found), None)
    return None if missing is None else NotResumable(f"has a changelog {folder} without batch {missing}")


def read(folder: Path, resume_point: ResumePoint) -> Iterator[tuple[BatchId, dict[bytes, Value]]]:
    """Yield the batches that lead to a resume point with their changes, in order.

    Raises:
        ChangelogBrokenError: a batch is missing or damaged.
    """
    try:
        records = _latest(folder)
        for batch in map(BatchId, range(resume_point.after + 1, resume_point.batch + 1)):
            if batch not in records:
                raise ChangelogBrokenError(str(folder), batch, "no record")
            yield batch, _read(records[batch])
    except OSError as error:
        raise ChangelogBrokenError(str(folder), resume_point.batch, str(error)) from error


def newest(folder: Path, cut: BatchId) -> tuple[BatchId, dict[bytes, Value]] | None:
    """Return the newest batch of a changelog with its changes; None if it is not after ``cut``.

    Raises:
        ChangelogBrokenError: it is damaged.
    """
    try:
        records = _latest(folder)
        batch = max(records, default=cut)
        return (batch, _read(records[batch])) if batch > cut else None
    except OSError as error:
        raise ChangelogBrokenError(str(folder), BatchId(cut + 1), str(error)) from error


def _latest(folder: Path) -> dict[BatchId, _Record]:
    """Return the last record of each batch of a changelog: it counts."""
    return {record.batch: record for path in _segments(folder) for record in _records(path)}


def _segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"), key=lambda path: int(path.stem)) if folder.is_dir() else []


def _records(path: Path) -> Iterator[_Record]:
    """Yield the complete records of a segment."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        while len(head := stream.read(_HEAD.size)) == _HEAD.size:
            magic, batch, length, digest = _HEAD.unpack(head)
            if magic != _MAGIC or length < 0:
                raise ChangelogBrokenError(str(path), batch, f"a record that does not begin with {_MAGIC!r}")
            start = stream.tell()
            if start + length > size:
                return
            yield _Record(path, batch, start, length, digest)
            stream.seek(length, 1)


def _read(record: _Record) -> dict[bytes, Value]:
    with record.path.open("rb") as stream:
        stream.seek(record.start)
        changes = stream.read(record.length)
    if _digest(record.batch, changes) != record.digest:
        raise ChangelogBrokenError(
            str(record.path), record.batch, "bytes that are not those that were written"
        )
    if not changes:
        return {}
    return Columns(*pa.ipc.read_record_batch(pa.py_buffer(changes), _SCHEMA)).entries()


def _encoded(columns: Columns | None) -> pa.Buffer | bytes:
    if not columns:
        return b""
    return pa.record_batch([columns.keys, columns.values], schema=_SCHEMA).serialize()


def _digest(batch: BatchId, changes: pa.Buffer | bytes) -> bytes:
    found = xxhash.xxh3_128(struct.pack("<4sqq", _MAGIC, batch, len(changes)))
    found.update(changes)
    return found.digest()


def _write(stream: BinaryIO, data: pa.Buffer | bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[stream.write(left) :]
