"""One shard's RocksDB: opening, reading, scanning and writing."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from rocksdict import DbClosedError, Rdict, ReadOptions, WriteBatch, WriteOptions

from ...storage.ids import NO_BATCH, BatchId
from ..errors import ShardClosedError, ShardUnreadableError
from ..rpc.metrics import OperatorMetrics
from .cache import Value
from .changes import POSITION_KEY
from .memory import Memory

_PIECE: Final = 1000
"""Changes in one write. RocksDB holds the GIL while it takes them, for about half a millisecond."""


class ShardDatabase:
    """A RocksDB without a write-ahead log. It may be read from many threads, and is written by one at a time.

    Args:
        shard: the shard's name, for error messages.
        directory: where the files are. It may be missing, empty, or hold the files of a snapshot.
        memory: the budget that RocksDB's caches and buffers belong to.
    """

    def __init__(self, shard: str, directory: Path, memory: Memory) -> None:
        self._shard = shard
        self._memory = memory
        directory.mkdir(parents=True, exist_ok=True)
        options = memory.options()
        # On reopening, the options of the default column family are ignored unless they are named here.
        self.db = Rdict(str(directory), options=options, column_families={"default": options})
        no_log = WriteOptions()
        # A property, whatever its type stub says.
        setattr(no_log, "disable_wal", True)  # noqa: B010
        self.db.set_write_options(no_log)
        self.get: Callable[[Any], Any] = self.db.get
        stored = self.get(POSITION_KEY)
        self.empty = stored is None
        """Whether RocksDB holds nothing and need not be asked."""
        self.position = NO_BATCH if stored is None else BatchId(int(stored))
        """The last batch that had changed anything when the database was opened."""
        self.metrics = OperatorMetrics()
        """Keys and seconds of reads and writes. Slightly inexact: threads add to it without a lock."""

    def read(self, keys: list[bytes]) -> list[Value]:
        """Return the values of keys, None for a key that is not there.

        Raises:
            ShardClosedError: the database is closed.
            ShardUnreadableError: its files are damaged, or the disk is.
        """
        begun = time.perf_counter()
        with self._explained():
            found: list[Value] = self.get(keys)
        self.metrics.read_keys += len(keys)
        self.metrics.read_seconds += time.perf_counter() - begun
        return found

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys from ``start`` up to, not including, ``stop`` with their values, in the order of keys.

        Close it before the database: RocksDB stays open as long as it lives.

        Raises:
            ShardClosedError: the database is closed.
            ShardUnreadableError: its files are damaged, or the disk is.
        """
        if self.empty or start >= stop:
            return
        options = ReadOptions()
        options.set_iterate_upper_bound(stop)
        with self._explained():
            entries = self.db.iter(options)
        entries.seek(start)
        while entries.valid():
            key = entries.key()
            if key != POSITION_KEY:
                yield key, entries.value()
            entries.next()
        with self._explained():
            entries.status()

    def write(self, entries: Mapping[bytes, Value], batch: BatchId) -> None:
        """Write the changes of batches up to ``batch``; None deletes a key.

        Raises:
            Exception: whatever RocksDB raises; any part of the changes may have been written.
        """
        self.empty = False
        begun = time.perf_counter()
        for piece in _pieces(entries):
            self.db.write(piece)
            if self._memory.should_flush():
                self.db.flush()
        position = WriteBatch(raw_mode=True)
        position.put(POSITION_KEY, str(batch).encode())
        self.db.write(position)
        self.metrics.written_keys += len(entries)
        self.metrics.write_seconds += time.perf_counter() - begun

    def close(self) -> None:
        """Close RocksDB."""
        self.db.close()

    @contextmanager
    def _explained(self) -> Generator[None]:
        try:
            yield
        except DbClosedError:
            raise ShardClosedError(self._shard) from None
        except Exception as error:
            # RocksDB's errors have no class of their own.
            raise ShardUnreadableError(self._shard, str(error)) from error


def _pieces(entries: Mapping[bytes, Value]) -> Iterator[WriteBatch]:
    """Yield changes in the order of keys, which RocksDB writes in half of the time."""
    keys, values = list(entries), list(entries.values())
    # Arrow sorts without the GIL. Only the order is taken from it: turning its binaries into bytes takes longer.
    order = pc.sort_indices(pa.array(keys, pa.large_binary())).to_numpy().tolist()
    for start in range(0, len(keys), _PIECE):
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        some: Sequence[int] = order[start : start + _PIECE]
        for key, value in zip(map(keys.__getitem__, some), map(values.__getitem__, some), strict=True):
            if value is None:
                delete(key)
            else:
                put(key, value)
        yield batch
