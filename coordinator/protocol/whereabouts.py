"""Where the state of each shard is: the one answer that a drain, executors that leave, the API and the pages go by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from ...state.rpc.messages import HostHello
from ...state.shards import ShardId
from .copies import CopyPhase, ShardCopy
from .moves import Moves
from .query_state import QueryState
from .reopenings import Reopenings
from .standbys import Standbys


@attrs.frozen
class PlacedShard:
    """A shard with state that is not, or not only, in a checkpoint."""

    query: str
    shard: ShardId
    machine: str | None
    """The machine whose loss would take the state along; None: nobody knows, so that it may be any."""
    host: str | None
    """The state host that has it, or is about to; None if there is none now."""
    phase: CopyPhase | None
    """How far it is on its way to another host; None if it stays."""

    def may_be_on(self, machine: str) -> bool:
        """Whether the loss of a machine may take it along."""
        return self.machine in (machine, None)

    @property
    def waits_for_checkpoint(self) -> bool:
        """Whether a checkpoint would bring it on its way."""
        return self.host is not None and self.phase in (None, CopyPhase.PLANNED)


def whereabouts(
    queries: Mapping[str, QueryState],
    hosts: Mapping[str, HostHello],
    moves: Moves,
    standbys: Standbys,
    reopenings: Reopenings,
) -> Iterator[PlacedShard]:
    """Yield where the state of shards is; shards whose state is that of a checkpoint, or empty, are left out.

    * A host that lives has its shards, until a move has ended.
    * The shard of a lost host is on the disk of its machine while it waits for a host there, and then with the host
      that opens it, or with the standby that takes its place.
    * If nobody takes the place of a lost host, or a query resumes from changelogs that no host has opened yet, nobody
      knows.

    Args:
        queries: the queries, by name.
        hosts: the hosts that live, by id.
        moves, standbys, reopenings: the shards on their way.
    """
    moving = {(one.query, one.shard): one for one in moves.under_way.values()}
    replacing = {
        (one.query, one.shard): one
        for copies in (standbys, reopenings)
        for one in copies.under_way.values()
        if one.phase in (CopyPhase.LOST, CopyPhase.HANDING_OVER)
    }
    for name, query in queries.items():
        for owner, shards in query.assignment.by_owner().items():
            for shard in shards:
                if (next_owner := replacing.get((name, shard))) is not None:
                    yield _replaced(next_owner, hosts, reopenings)
                    continue
                move, hello = moving.get((name, shard)), hosts.get(owner)
                machine = hello.machine if hello else None
                yield PlacedShard(
                    name, shard, machine, owner if hello else None, move.phase if move else None
                )
        if query.assignment.resume_point is not None:
            for shard in query.assignment.unowned():
                yield PlacedShard(name, shard, None, None, None)


def _replaced(one: ShardCopy, hosts: Mapping[str, HostHello], reopenings: Reopenings) -> PlacedShard:
    """Return where the shard of a lost host is that another one is to have."""
    target = hosts.get(one.target)
    machine = target.machine if target else reopenings.machine_of(one)
    return PlacedShard(one.query, one.shard, machine, one.target if target else None, one.phase)
