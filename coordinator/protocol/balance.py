"""Which host is to have which shard: balanced, with as few moves as that takes.

Where a shard is at first is decided by where its tasks run: the first host that needs it has it. Only what changes the
machines changes that: one joins, or one is drained. Then every host is to have as many shards as any other, give or
take one. It keeps what it has up to its part, the largest shards first, so that few bytes move.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Any, TypeVar

Shard = TypeVar("Shard", bound=Hashable)


def wanted_owners(
    owners: Mapping[Shard, str],
    hosts: Collection[str],
    sizes: Mapping[Shard, int],
) -> dict[Shard, str]:
    """Return which host is to have each shard.

    Args:
        owners: the present owners by shard.
        hosts: the hosts that may have shards. Without any, all stays as it is.
        sizes: bytes by shard; 0 where nothing is known.
    """
    if not hosts:
        return dict(owners)
    order = _stable_order(owners)

    def heaviest(shard: Shard) -> tuple[int, int]:
        return -sizes.get(shard, 0), order[shard]

    present: dict[str, list[Shard]] = {host: [] for host in sorted(hosts)}
    for shard in sorted(owners, key=heaviest):
        if owners[shard] in present:
            present[owners[shard]].append(shard)
    part, more = divmod(len(owners), len(present))
    # Give the remainder to the hosts that own most shards, to avoid moves.
    fullest = sorted(present, key=lambda host: (-len(present[host]), host))
    parts = {host: part + (number < more) for number, host in enumerate(fullest)}
    wanted = {shard: host for host, some in present.items() for shard in some[: parts[host]]}
    counts = {host: min(len(some), parts[host]) for host, some in present.items()}
    weights = {
        host: sum(sizes.get(shard, 0) for shard in some[: parts[host]]) for host, some in present.items()
    }
    for shard in sorted((shard for shard in owners if shard not in wanted), key=heaviest):
        free = (host for host in present if counts[host] < parts[host])
        host = min(free, key=lambda one: (weights[one], counts[one], one))
        wanted[shard] = host
        counts[host] += 1
        weights[host] += sizes.get(shard, 0)
    return wanted


def _stable_order(shards: Collection[Any]) -> dict[Any, int]:
    return {shard: number for number, shard in enumerate(sorted(shards))}
