"""The engine of keyed operators: sends rows to shards, shards to tasks, and keys with their states to processors."""
