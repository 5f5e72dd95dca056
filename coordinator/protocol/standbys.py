"""Standbys of shards: each has all that its shard has, on another machine, so that a lost host takes no state along.

A standby comes into being like a move, through a checkpoint (``moves``), and then stays in step:

1. With each checkpoint, owned shards without a standby get one on another machine. It is restored from the checkpoint,
   gets what the owner has kept since, and from the same moment on all that tasks stage on the shard. Then it is
   *in sync*, and the coordinator is told.
2. A task hears that its changes are staged when the owner and the standby have them. Spark commits a batch only when
   all of its tasks have heard that. So whatever may have committed is at a standby that is in sync.
3. If the standby does not answer or has missed something, the owner asks the coordinator to drop it, and tells the task
   only then. The coordinator consents as long as the host owns the shard in this term.
4. If the owner's host is gone, the term rises and the standby is told to become the shard: what it has staged of a
   batch that has committed becomes its state, the rest stays staged. The next batch and all snapshots wait for its
   answer, and the tasks of the running batch for the new owner. Checkpoints that wait for the lost host are given up.

Nobody waits for the lost host's lease to run out. It may live on, cut off or frozen, and yet it can tell no task that
changes are staged: its standby refuses them once it is the shard, before that it has them, too, and the coordinator
does not consent to go on without the standby, because it has taken the shard away (3). It does not get the answer to
"begin batch" either, its snapshots have an old term, and when it comes back it is told to end. A lease would say the
same by two clocks, and each loss would take as long as the lease.

Where a shard has no standby that is in sync, the pipeline goes back to its checkpoint when the owner is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import ClassVar

import attrs

from ...state.rpc.messages import HostHello
from ...state.rpc.orders import EndStandby, Promote
from ...state.shards import ShardId
from .copies import Copies, CopyPhase, ShardCopy
from .instructions import Send
from .query_state import QueryState


@attrs.define
class Standbys(Copies):
    """The standbys of a pipeline: at most one for each shard."""

    are_standbys: ClassVar[bool] = True
    active: ClassVar[frozenset[CopyPhase]] = frozenset({CopyPhase.OPENING})

    def plan(
        self,
        queries: Mapping[str, QueryState],
        hosts: Mapping[str, HostHello],
        eligible: Collection[str],
        moving: Collection[tuple[str, ShardId]],
    ) -> None:
        """Plan standbys for the shards that have none.

        Args:
            queries: the queries, by name.
            hosts: the hosts that live.
            eligible: those that may have shards.
            moving: shards that are moving, each after its query. They get a standby where they have arrived.
        """
        served = {(one.query, one.shard) for one in self.under_way.values()}
        owners = [
            (name, shard, owner)
            for name, query in queries.items()
            for owner, shards in query.assignment.by_owner().items()
            for shard in shards
        ]
        # A standby costs its host as much as a shard.
        loads = Counter(owner for _, _, owner in owners) + Counter(
            one.target for one in self.under_way.values()
        )
        for name, shard, owner in owners:
            if (name, shard) in served or (name, shard) in moving or owner not in hosts:
                continue
            elsewhere = [host for host in eligible if hosts[host].machine != hosts[owner].machine]
            if elsewhere:
                target = min(elsewhere, key=lambda host: (loads[host], host))
                loads[target] += 1
                self.add(name, shard, owner, target)

    def in_sync(self, query: str, shard: ShardId, hosts: Collection[str]) -> ShardCopy | None:
        """Return the standby that has all of a shard, if there is one on a host that lives."""
        return next(
            (one for one in self.of(query, CopyPhase.READY) if one.shard == shard and one.target in hosts),
            None,
        )

    def count_in_sync(self, hosts: Collection[str]) -> int:
        """Return how many shards have a standby that has all of them, on a host that lives."""
        return sum(one.phase is CopyPhase.READY and one.target in hosts for one in self.under_way.values())

    def promote(self, standby: ShardCopy, query: QueryState, until: float) -> Send:
        """Make a standby the shard. Its owner is gone."""
        standby.enter(CopyPhase.HANDING_OVER, until)
        standby.term = query.assignment.raise_term(standby.shard)
        cut = query.surely_committed
        return Send(standby.target, Promote(standby.id, cut, standby.term))

    def ended(self, standbys: Collection[ShardCopy], queries: Mapping[str, QueryState]) -> Iterator[Send]:
        """Tell the hosts of standbys that have ended, and the owners of their shards."""
        for one in standbys:
            if one.phase is not CopyPhase.PLANNED and one.query in queries:
                order = EndStandby(queries[one.query].query_id, one.shard, one.id)
                yield Send(one.owner, order)
                yield Send(one.target, order)
