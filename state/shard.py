"""A shard: one RocksDB that holds an operator's state as of a batch, and the changes staged for the next."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
from rocksdict import Checkpoint, DbClosedError, Rdict, WriteBatch, WriteOptions

from .errors import (
    CannotGoBackError,
    CutPassedError,
    NotAppliedError,
    ReservedKeyError,
    ShardBrokenError,
    ShardClosedError,
    StaleBatchError,
)
from .memory import Memory

POSITION_KEY: Final = b"\x00chandy/position"
"""Where a shard keeps the last batch that changed it, as decimal digits. No other key may be this one."""

NOTHING: Final = -1
"""The position of a shard that no batch has been applied to."""


def snapshot_files(directory: Path) -> dict[str, Path]:
    """Return what a snapshot has to keep of a RocksDB checkpoint, by name.

    RocksDB opens from these three kinds; options are given at opening, and there is no write-ahead log.
    """
    return {
        path.name: path
        for path in sorted(directory.iterdir())
        if path.name == "CURRENT" or path.name.startswith("MANIFEST-") or path.suffix == ".sst"
    }


class Changes:
    """The changes that one attempt makes to one shard, collected before they are staged as a whole."""

    def __init__(self, shard: str) -> None:
        self._shard = shard
        self._batch = WriteBatch(raw_mode=True)

    def __len__(self) -> int:
        return len(self._batch)

    def add(self, keys: Sequence[bytes], values: Iterable[bytes | None]) -> None:
        """Add changes, later ones winning over earlier; None deletes the key.

        Raises:
            ReservedKeyError: a key is the shard's own; nothing was added.
        """
        if POSITION_KEY in keys:
            raise ReservedKeyError(self._shard, repr(POSITION_KEY))
        put, delete = self._batch.put, self._batch.delete
        for key, value in zip(keys, values, strict=True):
            if value is None:
                delete(key)
            else:
                put(key, value)

    def at(self, batch: int) -> WriteBatch:
        """Close the collection: its changes and the position that they lead to, one atomic write."""
        self._batch.put(POSITION_KEY, str(batch).encode())
        return self._batch


@attrs.frozen
class _Staged:
    batch: int
    changes: WriteBatch | None
    """None: the batch left the shard as it was."""


class Shard:
    """State after the last batch that is known to be committed, plus at most one batch staged on top.

    RocksDB holds the state at ``position``. What a batch changes is only staged, in memory; it is written
    when the next batch begins, because only then it is known to be committed. Hence going back is free, and
    reads of several attempts at one batch do not disturb each other. A batch that is begun again keeps what
    an earlier attempt has staged until the new one stages its own: an attempt that is killed or ends early
    takes nothing away.

    A batch that changes nothing writes nothing: it only moves the position in memory.

    All methods may be called from many threads. Reads take no lock.
    """

    def __init__(self, name: str, directory: Path, memory: Memory, position: int = NOTHING) -> None:
        """Open the RocksDB in a directory, which may be missing, empty, or hold restored snapshot files.

        ``position`` is the last batch that the files are known to contain, when it is later than the last
        one that changed them.
        """
        self.name = name
        self.directory = directory
        self._memory = memory
        self._lock = threading.Lock()
        directory.mkdir(parents=True, exist_ok=True)
        options = memory.options()
        # On reopening, the options of the default column family are ignored unless they are named here.
        self._db = Rdict(str(directory), options=options, column_families={"default": options})
        no_log = WriteOptions()
        # A property, whatever its type stub says.
        setattr(no_log, "disable_wal", True)  # noqa: B010
        self._db.set_write_options(no_log)
        self._get: Callable[[Any], Any] = self._db.get
        stored = self._get(POSITION_KEY)
        self._changed_by = NOTHING if stored is None else int(stored)
        self._position = max(position, self._changed_by)
        self._begun: int | None = None
        self._staged: _Staged | None = None
        self._broken: ShardBrokenError | None = None
        self._closed = False

    @property
    def position(self) -> int:
        """The last batch whose effect is in RocksDB."""
        return self._position

    @property
    def changed_by(self) -> int:
        """The last batch that changed anything, of those up to the position."""
        return self._changed_by

    def begin(self, batch: int) -> None:
        """Make ready for a batch: Spark runs it only after every earlier one has committed.

        Raises:
            CannotGoBackError: the state before the batch is gone.
            NotAppliedError: an earlier batch began here and Spark counts it as done, but its task did not run to
                its end: going on would lose what it should have changed.
        """
        with self._lock:
            self._check()
            latest = max(self._position, self._begun if self._begun is not None else NOTHING)
            if batch < latest or batch == self._position:
                raise CannotGoBackError(self.name, batch, latest)
            self._promote(batch - 1)
            if self._begun is not None and self._position < self._begun < batch:
                raise NotAppliedError(self.name, self._begun, batch)
            self._begun = batch

    def fetch(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of keys at the position, None for a key that is not there."""
        try:
            found: list[bytes | None] = self._get(keys)
        except DbClosedError:
            raise ShardClosedError(self.name) from None
        return found

    def stage(self, batch: int, changes: Changes | None = None) -> None:
        """Take all that a batch changes, in place of what an earlier attempt at it has staged.

        Raises:
            StaleBatchError: the batch is not the one that has begun, or it is in RocksDB already.
        """
        with self._lock:
            self._check()
            if batch == self._position:
                # A snapshot has written it, for it has committed; an attempt that is left over has perhaps
                # read its effect and would add to it.
                raise StaleBatchError(self.name, batch, batch + 1)
            if batch != self._begun:
                raise StaleBatchError(self.name, batch, self._begun)
            self._staged = _Staged(batch, changes.at(batch) if changes else None)

    def promote(self, upto: int) -> None:
        """Write the staged batch if it is not after ``upto``, which has committed."""
        with self._lock:
            self._check()
            self._promote(upto)

    def checkpoint(self, directory: Path, cut: int) -> None:
        """Write the state after batch ``cut``, which has committed, to a new directory by hard links.

        Raises:
            CutPassedError: a later batch is in the shard already.
        """
        with self._lock:
            self._check()
            self._promote(cut)
            if self._position > cut:
                raise CutPassedError(self.name, cut, self._position)
            # Flushing first, without the GIL, leaves little to create_checkpoint, which holds it.
            self._db.flush()
            # Held in no variable: RocksDB stays open while a Checkpoint lives.
            Checkpoint(self._db).create_checkpoint(str(directory))

    def close(self) -> None:
        """Close RocksDB; what is staged is gone. Closing twice is no error."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._staged = None
                self._db.close()

    def destroy(self) -> None:
        """Close and delete the files."""
        self.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _check(self) -> None:
        if self._closed:
            raise ShardClosedError(self.name)
        if self._broken is not None:
            raise self._broken

    def _promote(self, upto: int) -> None:
        staged = self._staged
        if staged is None or staged.batch > upto:
            return
        self._staged = None
        if staged.changes is not None:
            try:
                self._db.write(staged.changes)
            except Exception as error:
                # The batch is committed in Spark and its changes are lost: no later call may go on without
                # them.
                self._broken = ShardBrokenError(self.name, staged.batch, str(error))
                raise self._broken from error
            self._changed_by = staged.batch
            if self._memory.should_flush():
                self._db.flush()
        self._position = staged.batch
