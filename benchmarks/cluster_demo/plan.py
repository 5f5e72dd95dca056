"""What the demo and its driver tell each other: the driver's argument, and which machine has which shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from chandy.coordinator import AssignedShard

Shards = Mapping[str, Sequence[int]]
"""The shards of each machine that has any, ascending, by its name."""


@attrs.frozen
class Plan:
    """The argument of the driver."""

    folder: str
    storage: str
    """URI where checkpoints go."""
    days: int
    """Number of files in the whole stream."""
    days_per_batch: int
    settings: dict[str, str]
    """Of the Spark session."""
    machines: tuple[str, ...]
    """The names of all machines, also of those that will join."""


def by_machine(assigned: Iterable[AssignedShard], machines: Sequence[str]) -> dict[str, list[int]]:
    """Return the shards of each machine.

    Args:
        assigned: which machine has which shard, as the coordinator says.
        machines: their names. Machines that share this one's host name have folders of these names.
    """
    found: dict[str, list[int]] = {}
    for one in assigned:
        if one.machine is None or one.executor is None:
            continue
        parts = one.executor.split("/")
        name = next((name for name in machines if name in parts), one.machine)
        found.setdefault(name, []).append(one.shard)
    return {name: sorted(shards) for name, shards in sorted(found.items())}


def shown(shards: Sequence[int]) -> str:
    """Return ascending numbers as text, with ranges: ``0-3, 7``; ``-`` for none."""
    ranges: list[list[int]] = []
    for shard in shards:
        if ranges and shard == ranges[-1][-1] + 1:
            ranges[-1][1:] = [shard]
        else:
            ranges.append([shard])
    return ", ".join("-".join(map(str, one)) for one in ranges) or "-"


def most_loaded(shards: Shards, spared: str) -> str:
    """Return the machine that has the most shards, and that is not ``spared``.

    Raises:
        ValueError: there is none.
    """
    return max((name for name in shards if name != spared), key=lambda name: len(shards[name]))
