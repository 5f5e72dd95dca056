"""The process that keeps shards beside an executor: RocksDB, hot cache, snapshots, and how tasks find it."""
