"""The one budget of memory that all shards of a state host share: RocksDB's, hot values, unwritten changes."""

from __future__ import annotations

import threading
from typing import Final, Protocol

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options, WriteBufferManager

_ROCKSDB_SHARE: Final = 0.5
"""The part of the budget that is RocksDB's: cached blocks of files, and write buffers."""
_WRITE_SHARE: Final = 0.25
"""The part of RocksDB's that write buffers may take."""
_HOT_SHARE: Final = 0.25
_UNWRITTEN_SHARE: Final = 0.25
_ARENA_BLOCK: Final = 64 * 1024
_MANIFEST_LIMIT: Final = 64 * 1024
_FILE_TARGET: Final = 16 * 1024 * 1024
_NEW_FILES: Final = 8
"""Files, one of each checkpoint, that lie beside each other until they are compacted; with keys at random that rewrites
the shard. RocksDB's own 4 store a third more bytes, which takes longer; reads, with Bloom filters, are as fast."""


class Holder(Protocol):
    """A shard, as the budget sees it."""

    @property
    def hot(self) -> int:
        """Bytes of its hot cache."""
        ...

    @property
    def unwritten(self) -> int:
        """Bytes of committed changes that RocksDB does not have yet, at most."""
        ...

    def measure(self) -> None:
        """Make ``unwritten`` exact."""
        ...

    def rotate(self) -> None:
        """Give up the older half of the hot cache."""
        ...

    def spill(self) -> None:
        """Write all committed changes to RocksDB. A failure is the shard's own: nothing is raised."""
        ...


class Memory:
    """What shards hold in memory is charged here, and whoever adds to it calls ``balance``.

    RocksDB keeps its part by evicting blocks; write buffers are kept to their part by whoever writes: after a
    write, ``should_flush`` says whether the writer has to flush. Hot caches and unwritten changes are Python
    objects and counted as such (``cache.weight``). So usage goes beyond the budget by no more than the
    batches that are being served at the time: what is staged is not counted.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        rocksdb = int(budget * _ROCKSDB_SHARE)
        self._hot_limit = int(budget * _HOT_SHARE)
        self._unwritten_limit = int(budget * _UNWRITTEN_SHARE)
        self._cache = Cache(rocksdb)
        self._buffers = WriteBufferManager.new_write_buffer_manager_with_cache(
            int(rocksdb * _WRITE_SHARE), False, self._cache
        )
        self._lock = threading.Lock()
        self._balancing = threading.Lock()
        self._holders: tuple[Holder, ...] = ()
        self._turn = 0

    @property
    def used(self) -> int:
        """Bytes in use: RocksDB's blocks and buffers, hot caches, unwritten changes."""
        return int(self._cache.get_usage()) + self.hot + self.unwritten

    @property
    def buffered(self) -> int:
        """Bytes in write buffers."""
        return int(self._buffers.get_usage())

    @property
    def hot(self) -> int:
        """Bytes in hot caches."""
        return sum(holder.hot for holder in self._holders)

    @property
    def unwritten(self) -> int:
        """Bytes of committed changes that RocksDB does not have yet, at most."""
        return sum(holder.unwritten for holder in self._holders)

    def add(self, holder: Holder) -> None:
        """Charge what a shard holds from now on."""
        with self._lock:
            self._holders = (*self._holders, holder)

    def remove(self, holder: Holder) -> None:
        """Charge it no more."""
        with self._lock:
            self._holders = tuple(other for other in self._holders if other is not holder)

    def balance(self) -> None:
        """Bring hot caches and unwritten changes back to their parts of the budget.

        Hot caches rotate in turn, so that each has time to take over what is in use. Of unwritten changes,
        the largest are written first. May take as long as that. To be called without any shard's lock.
        """
        if self.hot > self._hot_limit or self.unwritten > self._unwritten_limit:
            with self._balancing:
                self._spill()
                self._rotate()

    def should_flush(self) -> bool:
        """Say whether write buffers have outgrown their part of the budget."""
        return self.buffered > self._buffers.get_buffer_size()

    def options(self) -> Options:
        """Return the RocksDB options of one shard; all take from this budget."""
        table = BlockBasedOptions()
        table.set_block_cache(self._cache)
        # Without this, index and filter blocks live outside of the cache and outside of the budget.
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(True)
        table.set_bloom_filter(10, False)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_block_based_table_factory(table)
        options.set_write_buffer_manager(self._buffers)
        options.set_arena_block_size(_ARENA_BLOCK)
        options.set_compression_type(DBCompressionType.lz4())
        # Small files of a level share better between checkpoints: a compaction rewrites fewer bytes.
        options.set_target_file_size_base(_FILE_TARGET)
        options.set_level_zero_file_num_compaction_trigger(_NEW_FILES)
        # The MANIFEST is uploaded with every snapshot: it must not grow for the life of the shard.
        options.set_max_manifest_file_size(_MANIFEST_LIMIT)
        options.set_max_open_files(256)
        options.set_max_background_jobs(2)
        options.set_keep_log_file_num(1)
        options.set_stats_dump_period_sec(0)
        return options

    def _rotate(self) -> None:
        holders = self._holders
        # Twice round empties every cache.
        for _ in range(2 * len(holders)):
            if self.hot <= self._hot_limit:
                return
            self._turn = (self._turn + 1) % len(holders)
            holders[self._turn].rotate()

    def _spill(self) -> None:
        if self.unwritten <= self._unwritten_limit:
            return
        # Changes are counted in full as they come, which is quick, but too much when keys change again. So it
        # is counted anew now, and for that not to be needed at every batch, half of the limit is the aim.
        for holder in self._holders:
            holder.measure()
        for holder in sorted(self._holders, key=lambda holder: holder.unwritten, reverse=True):
            if self.unwritten <= self._unwritten_limit / 2:
                return
            holder.spill()
            # What was written is hot now.
            self._rotate()
