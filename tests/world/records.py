"""The input of a world, and what follows from it alone: the reference that the product is held to.

A query's input is the numbers from 0 on. A state's value is the list of the records that made it, so it is right if it
is exactly that of the records before the query's offset at the cut, in their order.
"""

from __future__ import annotations

from typing import Final

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


def records_of(query: str, shard: int, start: int, end: int) -> State:
    """Return the records from ``start`` to before ``end`` that a shard gets."""
    found: State = {}
    for record in range(start, end):
        key = (record + record // 3) % KEYS
        if key % SHARDS[query] == shard:
            found.setdefault(key, []).append(record)
    return found
