"""Keyed state: shards on RocksDB, the hosts that keep them, and the processors that use them.

Nothing is imported here: every state host starts through this package, and needs no Spark.
"""
