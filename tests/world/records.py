"""The input of a world, and what follows from it alone: the reference that the product is held to.

A query's input is the numbers from 0 on. A state's value is the list of the records that made it, so it is right if it
is exactly that of the records before the query's offset at the cut, in their order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final

from chandy.coordinator.spark.logs.offset_log import offsets_in
from chandy.state.shards import ShardId
from chandy.storage.checkpoints.manifest import OperatorRecord

KEYS: Final = 5
SHARDS: Final = {"orders": 3, "totals": 2}
"""Queries, upstream first, and the shards of the one operator of each."""
READS: Final[dict[str, tuple[str, ...]]] = {"orders": (), "totals": ("orders",)}
"""Whose output each query reads. The output of a record is the record."""

State = dict[int, list[int]]
"""Records by key."""


def uid_of(query: str) -> str:
    """Return the uid of a query's operator."""
    return f"{query}-operator"


def shards_of(query: str) -> tuple[ShardId, ...]:
    """Return the shards of a query's operator."""
    return tuple(ShardId(uid_of(query), number) for number in range(SHARDS[query]))


def operators_of(query: str) -> tuple[OperatorRecord, ...]:
    """Return what a query declares."""
    return (OperatorRecord(uid_of(query), query, "{}", {}, (None,) * SHARDS[query]),)


def end_of(entry: str) -> int:
    """Return the end of the records of a batch, given its entry in the offset log."""
    [source] = offsets_in(entry)
    return int(source.offset or 0)


def added_to(
    query: str, shards: Sequence[int], start: int, end: int
) -> tuple[dict[int, list[bytes]], Callable[[int, bytes, bytes | None], bytes]]:
    """Return the keys of the records from ``start`` to before ``end`` by shard, and what becomes of their values."""
    new = {shard: records_of(query, shard, start, end) for shard in shards}

    def update(shard: int, key: bytes, value: bytes | None) -> bytes:
        return json.dumps([*(json.loads(value) if value else []), *new[shard][int(key)]]).encode()

    return {shard: [str(key).encode() for key in keys] for shard, keys in new.items()}, update


def records_of(query: str, shard: int, start: int, end: int) -> State:
    """Return the records from ``start`` to before ``end`` that a shard gets."""
    found: State = {}
    for record in range(start, end):
        key = (record + record // 3) % KEYS
        if key % SHARDS[query] == shard:
            found.setdefault(key, []).append(record)
    return found
