"""The engine of keyed operators: rows to shards, shards to tasks, keys with their states to a processor."""
