"""The one budget of RocksDB memory that all shards of a state host share."""

from __future__ import annotations

from typing import Final

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options, WriteBufferManager

_WRITE_SHARE: Final = 0.25
"""The part of the budget that write buffers may take; the rest caches blocks of files."""
_ARENA_BLOCK: Final = 64 * 1024
_MANIFEST_LIMIT: Final = 64 * 1024
_FILE_TARGET: Final = 16 * 1024 * 1024


class Memory:
    """Block cache, index and filter blocks, and write buffers of every shard, charged to one cache.

    The budget is a target that RocksDB keeps by evicting blocks; write buffers are kept to their part of it
    by whoever writes: after a write, ``should_flush`` says whether the writer has to flush. So usage goes
    beyond the budget by no more than the batches that are being written at the time.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._cache = Cache(budget)
        self._buffers = WriteBufferManager.new_write_buffer_manager_with_cache(
            int(budget * _WRITE_SHARE), False, self._cache
        )

    @property
    def used(self) -> int:
        """Bytes in use: cached blocks and write buffers."""
        return int(self._cache.get_usage())

    @property
    def buffered(self) -> int:
        """Bytes in write buffers."""
        return int(self._buffers.get_usage())

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
        # The MANIFEST is uploaded with every snapshot: it must not grow for the life of the shard.
        options.set_max_manifest_file_size(_MANIFEST_LIMIT)
        options.set_max_open_files(256)
        options.set_max_background_jobs(2)
        options.set_keep_log_file_num(1)
        options.set_stats_dump_period_sec(0)
        return options
