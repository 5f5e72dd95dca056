"""Which state host has which shard, as users see it."""

from __future__ import annotations

import attrs

from ..storage.html import table
from .protocol.state_machine import PipelineStateMachine


@attrs.frozen
class AssignedShard:
    """One shard of a running query, and who has it."""

    query: str
    operator: str
    """Uid of the operator."""
    shard: int
    machine: str | None
    """Name of the machine that has it: its host name, or what ``CHANDY_MACHINE`` says there; None if no task has
    needed it yet, so its state is in the checkpoint, or nobody can say. A shard that waits on a machine for the next
    state host is on it."""
    executor: str | None
    """The executor that the state host was started for: its machine and its directory. It may have ended since."""
    term: int = 0
    """The number of its owner's term, which rises whenever it gets another owner; 0: it has none."""
    size: int | None = None
    """Bytes in the latest checkpoint; None if it is in none."""
    moves_to: str | None = None
    """Name of the machine that it is about to move to."""
    progress: str | None = None
    """How far it is on its way to another state host."""
    standby: str | None = None
    """Name of the machine that has its standby; None if it has none that is in sync."""


class Assignment(tuple[AssignedShard, ...]):
    """The shards of all running queries, sorted by query, operator and shard."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        columns = [field.name for field in attrs.fields(AssignedShard) if field.name != "executor"]
        rows = [[getattr(one, name) for name in columns] for one in self]
        return table("Shards", [name.replace("_", " ") for name in columns], rows)


def assigned_shards(state: PipelineStateMachine) -> Assignment:
    """Return the shards of all running queries."""
    found: list[AssignedShard] = []
    sizes = state.checkpoints.retained.sizes()
    placed = {(one.query, one.shard): one for one in state.placement.placed()}
    moves = {(move.query, move.shard): move for move in state.placement.moves.under_way.values()}
    for name, query in sorted(state.queries.items()):
        for shard in sorted(query.assignment.shards):
            place = placed.get((name, shard))
            owner = state.members.hosts.get(place.host) if place and place.host else None
            move = moves.get((name, shard))
            target = state.members.hosts.get(move.target) if move else None
            standby = state.placement.standbys.in_sync(name, shard, state.members.hosts)
            found.append(
                AssignedShard(
                    query=name,
                    operator=shard.uid,
                    shard=shard.shard,
                    machine=place.machine if place else None,
                    executor=owner.executor if owner else None,
                    term=query.assignment.owner_term(shard),
                    size=sizes.get((name, shard)),
                    moves_to=target.machine if target else None,
                    progress=place.phase.value if place and place.phase else None,
                    standby=state.members.hosts[standby.target].machine if standby else None,
                )
            )
    return Assignment(found)
