"""Which state host has which shard, as users see it."""

from __future__ import annotations

import attrs

from .protocol.state_machine import CheckpointStateMachine


@attrs.frozen
class AssignedShard:
    """One shard of a running query, and who has it."""

    query: str
    operator: str
    """Uid of the operator."""
    shard: int
    machine: str | None
    """Host name of the machine that has it. None: no task has needed it yet, so its state is in the checkpoint."""
    executor: str | None
    """The executor that the state host was started for: its machine and its directory. It may have ended since."""


def assigned_shards(machine: CheckpointStateMachine) -> tuple[AssignedShard, ...]:
    """Return the shards of all running queries, sorted."""
    found: list[AssignedShard] = []
    for name, query in sorted(machine.queries.items()):
        owners = {
            shard: machine.hosts.get(host)
            for host, some in query.assignment.by_owner().items()
            for shard in some
        }
        for shard in sorted({*owners, *query.assignment.shards}):
            owner = owners.get(shard)
            where = (owner.machine, owner.executor) if owner else (None, None)
            found.append(AssignedShard(name, shard.uid, shard.shard, *where))
    return tuple(found)
