"""The assignment of shards to partitions in contiguous ranges, as arithmetic and as a Spark expression.

It uses the formula of Flink's ``KeyGroupRangeAssignment``: shard ``s`` belongs to partition
``s * parallelism // shards``.
"""

from __future__ import annotations

from itertools import pairwise

from ..errors import invalid_argument

MAX_SHARDS = 32767
"""The most shards that an operator can have: their product with the parallelism fits into Spark's INT."""


def check(shards: int, parallelism: int) -> None:
    """Refuse numbers of shards and partitions that cannot be assigned.

    Raises:
        DefinitionError: unless ``1 <= parallelism <= shards <= MAX_SHARDS``.
    """
    for argument, number in (("shards", shards), ("parallelism", parallelism)):
        if not isinstance(number, int) or isinstance(number, bool):
            raise invalid_argument(argument, "a whole number", repr(number))
    if not 1 <= shards <= MAX_SHARDS:
        raise invalid_argument("shards", f"a number from 1 to {MAX_SHARDS}", str(shards))
    if not 1 <= parallelism <= shards:
        expected = f"a number from 1 to the number of shards, {shards}"
        raise invalid_argument("parallelism", expected, str(parallelism))


def partition_of(shard: int, shards: int, parallelism: int) -> int:
    """Return the partition that serves ``shard``, from 0 to ``parallelism - 1``."""
    return shard * parallelism // shards


def partition_expression(shard: str, shards: int, parallelism: int) -> str:
    """Return ``partition_of`` as a Spark SQL expression of type INT over the INT expression ``shard``."""
    return f"cast(({shard} * {parallelism}) div {shards} as int)"


def ranges(shards: int, parallelism: int) -> tuple[range, ...]:
    """Return the shards of each partition: disjoint ranges that cover all shards and differ in size by at most 1.

    Raises:
        DefinitionError: unless ``1 <= parallelism <= shards <= MAX_SHARDS``.
    """
    check(shards, parallelism)
    bounds = [-(-partition * shards // parallelism) for partition in range(parallelism + 1)]
    return tuple(range(start, stop) for start, stop in pairwise(bounds))
