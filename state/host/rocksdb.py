"""The RocksDBs of a state host: opening, reading, scanning, writing and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from rocksdict import (
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DbClosedError,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from ...storage.ids import NO_BATCH, BatchId
from ..errors import ShardClosedError, ShardUnreadableError
from ..rpc.metrics import OperatorMetrics
from .cache import Value
from .changes import POSITION_KEY

_WRITE_SHARE: Final = 0.25
"""The part of the memory that write buffers may use."""
_ARENA_BLOCK: Final = 64 * 1024
_MANIFEST_LIMIT: Final = 1024
"""Bytes from which RocksDB begins a new MANIFEST, with one record for each file that there is, instead of one for each
that there has been. Every snapshot of a shard that has changed stores the MANIFEST again."""
_FILE_TARGET: Final = 16 * 1024 * 1024
_NEW_FILES: Final = 16
"""How many files, one per checkpoint, are kept before they are compacted, which with random keys rewrites the shard.
With 8 a stream whose keys repeat little stores 1.4 times as many bytes, and RocksDB's default of 4 another third more.
Just before a compaction, reads of keys that are there take a sixth longer than with 8. Reads of others do not, because
of the Bloom filters."""
_SLOW_FILES: Final = 2 * _NEW_FILES
"""How many such files there may be, while they are compacted, before RocksDB delays writes, for which it holds the GIL.
A host that cannot compact as fast as it takes checkpoints must slow down then."""
_MOST_FILES: Final = 3 * _NEW_FILES
"""With how many RocksDB writes nothing before some are compacted."""
_PIECE: Final = 1000
"""Changes in one write. RocksDB holds the GIL while it takes them, for about half a millisecond."""


class RocksDatabases:
    """RocksDBs with one cache of blocks and one limit of write buffers.

    They keep to their memory by evicting blocks. For write buffers, a writer asks ``should_flush`` after each write.

    Args:
        memory: bytes for cached blocks of files, and write buffers.
    """

    def __init__(self, memory: int) -> None:
        self._cache = Cache(memory)
        self._buffers = WriteBufferManager.new_write_buffer_manager_with_cache(
            int(memory * _WRITE_SHARE), False, self._cache
        )

    @property
    def used(self) -> int:
        """Bytes of blocks and buffers."""
        return int(self._cache.get_usage())

    @property
    def buffered(self) -> int:
        """Bytes in write buffers."""
        return int(self._buffers.get_usage())

    def open(self, shard: str, directory: Path) -> RocksDatabase:  # noqa: D102 - see Databases
        return RocksDatabase(shard, directory, self)

    def should_flush(self) -> bool:
        """Return whether write buffers exceed their part of the memory."""
        return self.buffered > self._buffers.get_buffer_size()

    def options(self) -> Options:
        """Return the options for one shard's RocksDB."""
        table = BlockBasedOptions()
        table.set_block_cache(self._cache)
        # Otherwise index and filter blocks are outside the cache and the budget.
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(True)
        table.set_bloom_filter(10, False)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_block_based_table_factory(table)
        options.set_write_buffer_manager(self._buffers)
        options.set_arena_block_size(_ARENA_BLOCK)
        options.set_compression_type(DBCompressionType.lz4())
        # With small files, checkpoints share more: a compaction rewrites fewer bytes.
        options.set_target_file_size_base(_FILE_TARGET)
        options.set_level_zero_file_num_compaction_trigger(_NEW_FILES)
        options.set_level_zero_slowdown_writes_trigger(_SLOW_FILES)
        options.set_level_zero_stop_writes_trigger(_MOST_FILES)
        options.set_max_manifest_file_size(_MANIFEST_LIMIT)
        options.set_max_open_files(256)
        options.set_max_background_jobs(2)
        options.set_keep_log_file_num(1)
        options.set_stats_dump_period_sec(0)
        return options


class RocksDatabase:
    """A ``ShardDatabase`` that is a RocksDB without a write-ahead log, one of ``databases``."""

    def __init__(self, shard: str, directory: Path, databases: RocksDatabases) -> None:
        self._shard = shard
        self._databases = databases
        directory.mkdir(parents=True, exist_ok=True)
        options = databases.options()
        # On reopening, the options of the default column family are ignored unless they are named here.
        self.db = Rdict(str(directory), options=options, column_families={"default": options})
        no_log = WriteOptions()
        # A property, whatever its type stub says.
        setattr(no_log, "disable_wal", True)  # noqa: B010
        self.db.set_write_options(no_log)
        self.get: Callable[[Any], Any] = self.db.get
        stored = self.get(POSITION_KEY)
        self.empty = stored is None
        self.position = NO_BATCH if stored is None else BatchId(int(stored))
        self.metrics = OperatorMetrics()

    def read(self, keys: list[bytes]) -> list[Value]:  # noqa: D102 - see ShardDatabase
        begun = time.perf_counter()
        with self._explained():
            found: list[Value] = self.get(keys)
        self.metrics.read_keys += len(keys)
        self.metrics.read_seconds += time.perf_counter() - begun
        return found

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:  # noqa: D102 - see ShardDatabase
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

    def write(self, entries: Mapping[bytes, Value], batch: BatchId) -> None:  # noqa: D102 - see ShardDatabase
        self.empty = False
        begun = time.perf_counter()
        for piece in _pieces(entries):
            self.db.write(piece)
            if self._databases.should_flush():
                self.db.flush()
        position = WriteBatch(raw_mode=True)
        position.put(POSITION_KEY, str(batch).encode())
        self.db.write(position)
        self.metrics.written_keys += len(entries)
        self.metrics.write_seconds += time.perf_counter() - begun

    def checkpoint(self, directory: Path) -> int:  # noqa: D102 - see ShardDatabase
        # Flushing first, without the GIL, leaves little to create_checkpoint, which holds it.
        self.db.flush()
        # Not kept in a variable: RocksDB stays open as long as a Checkpoint lives.
        Checkpoint(self.db).create_checkpoint(str(directory))
        # An entry that was written again counts twice until a compaction has met both, and a deletion takes one away.
        # The entry with the position does not count.
        estimated = self.db.property_int_value("rocksdb.estimate-num-keys")
        return max(0, (estimated or 0) - 1)

    def close(self) -> None:  # noqa: D102 - see ShardDatabase
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
