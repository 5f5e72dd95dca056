"""The memory budget that all shards of a state host share: RocksDB, hot caches, unwritten changes."""

from __future__ import annotations

from typing import Final, Protocol

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options, WriteBufferManager

from ...storage import runtime

_ROCKSDB_SHARE: Final = 0.5
"""RocksDB's part of the budget: cached blocks of files, and write buffers."""
_WRITE_SHARE: Final = 0.25
"""The part of RocksDB's memory that write buffers may use."""
_HOT_SHARE: Final = 0.25
_UNWRITTEN_SHARE: Final = 0.25
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


class Holder(Protocol):
    """What uses memory of the budget: the state of one shard."""

    @property
    def hot(self) -> int:
        """Bytes of the hot cache."""
        ...

    @property
    def unwritten(self) -> int:
        """An upper bound of the bytes of committed changes that RocksDB does not have yet."""
        ...

    def measure(self) -> None:
        """Make ``unwritten`` exact."""
        ...

    def rotate(self) -> None:
        """Drop the older half of the hot cache."""
        ...

    def spill(self) -> None:
        """Write all committed changes to RocksDB. It raises nothing: a failure shows in the next use of the shard."""
        ...


class Memory:
    """The budget. A shard that has added to its memory calls ``balance``.

    RocksDB keeps to its part by evicting blocks. For write buffers, a writer asks ``should_flush`` after each write.
    Hot caches and unwritten changes are Python objects and are counted as such (``cache.weight``). Staged changes are
    not counted, so usage exceeds the budget by at most the batches that are being served, and by two of a standby.
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
        self._lock = runtime.lock()
        self._balancing = runtime.lock()
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
        """An upper bound of the bytes of committed changes that RocksDB does not have yet."""
        return sum(holder.unwritten for holder in self._holders)

    def add(self, holder: Holder) -> None:
        """Count a shard's memory from now on."""
        with self._lock:
            self._holders = (*self._holders, holder)

    def remove(self, holder: Holder) -> None:
        """Stop counting a shard's memory."""
        with self._lock:
            self._holders = tuple(other for other in self._holders if other is not holder)

    def balance(self) -> None:
        """Bring hot caches and unwritten changes back to their parts of the budget.

        Hot caches rotate in turn, so that each has time to keep what is in use. The shards with the most unwritten
        changes are written first, which may take a while. Call it without holding any shard's lock.
        """
        if self.hot > self._hot_limit or self.unwritten > self._unwritten_limit:
            with self._balancing:
                self._spill()
                self._rotate()

    def should_flush(self) -> bool:
        """Return whether write buffers exceed their part of the budget."""
        return self.buffered > self._buffers.get_buffer_size()

    def options(self) -> Options:
        """Return the options for one shard's RocksDB, which uses this budget."""
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

    def _rotate(self) -> None:
        holders = self._holders
        # Two rotations empty every cache.
        for _ in range(2 * len(holders)):
            if self.hot <= self._hot_limit:
                return
            self._turn = (self._turn + 1) % len(holders)
            holders[self._turn].rotate()

    def _spill(self) -> None:
        if self.unwritten <= self._unwritten_limit:
            return
        # For speed, a key that changes again is counted again. So measure exactly now, and write down to half of the
        # limit, so that this is not needed at every batch.
        for holder in self._holders:
            holder.measure()
        for holder in sorted(self._holders, key=lambda holder: holder.unwritten, reverse=True):
            if self.unwritten <= self._unwritten_limit / 2:
                return
            holder.spill()
            # Written changes have moved to the hot cache.
            self._rotate()
