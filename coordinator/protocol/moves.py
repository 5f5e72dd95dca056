"""Shards that move from one host to another while their query runs: how far each is, and what comes next.

A shard moves between two batches. Most of it goes ahead, while its owner serves it:

1. A checkpoint takes the shard's snapshot, and from that cut on the owner keeps what each batch changes.
2. When the checkpoint has completed, the target restores the shard from it, and follows the owner. Nobody who is asked
   by a task waits for that, and if it fails, nothing has happened. A standby stays at this point (``standbys``).
3. When the newest batch that has begun is known to have committed, no task uses the shard. Until the move is over, the
   next batch waits where every batch waits for barriers: the answer to "begin batch" is held. The shard's term rises,
   the owner sets the shard aside, and the target takes the rest over, which is one batch as a rule.
4. When the target has all, it owns the shard in the new term. The owner's next claim is told where the shard is. If the
   target fails before, or takes too long, the owner stays, and its next claim gets the shard back as it is.

There is one owner at any time, because nothing but a ``CopyReport`` changes it, and what arrives after a
move was given up belongs to no move. A snapshot and the third step exclude each other per shard: the step does not
begin while a pending checkpoint waits for the shard, and no snapshot is ordered while the step lasts. So the host that
is told to take a snapshot is the one that has the shard at that cut, and it alone.

The other way would be to name the new owner in the answer to "begin batch" and let it fetch the rest when a task needs
the shard. Nothing would have to be held, but if the target failed then, the shard would be gone with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import ClassVar

import attrs

from ...state.rpc.messages import HostHello
from ...state.rpc.orders import ConfirmOwner, TakeOver
from ...state.shards import ShardId
from .balance import wanted_owners
from .copies import Copies, CopyPhase, ShardCopy
from .errors import DrainError
from .instructions import Send
from .query_state import QueryState


@attrs.define
class Moves(Copies):
    """The moves of a pipeline."""

    active: ClassVar[frozenset[CopyPhase]] = frozenset(
        {CopyPhase.OPENING, CopyPhase.READY, CopyPhase.HANDING_OVER}
    )
    follows_tasks: bool = False
    """Whether a task runs where it ran in the batch before, so that its shards are best where it is. If not, each host
    is to have as many shards as any other."""
    draining: set[str] = attrs.field(factory=set)
    """Names of machines that are to have no shards."""
    leaving: set[str] = attrs.field(factory=set)
    """Spark's ids of executors that it has decommissioned. Their hosts are to have no shards, whenever they join."""
    is_uneven: bool = False
    """Whether a host has joined that is to get its part of what others have."""

    # --- which ----------------------------------------------------------------------------------------------

    def may_have_shards(self, hosts: Mapping[str, HostHello]) -> list[str]:
        """Return the hosts that do not leave, on machines that are not drained."""
        return [
            host
            for host, hello in hosts.items()
            if hello.machine not in self.draining and hello.spark_executor not in self.leaving
        ]

    def drain(self, machine: str, hosts: Mapping[str, HostHello]) -> None:
        """Let a machine have no shards any more.

        Raises:
            DrainError: it has no state host, or there is no other machine.
        """
        machines = {hello.machine for hello in hosts.values()}
        if machine not in machines:
            raise DrainError(
                f"machine {machine!r} cannot be drained",
                "one that has a state host",
                f"state hosts on {', '.join(sorted(machines)) or 'no machine'}",
                "see coordinator.assignment() for the names",
            )
        if not machines - self.draining - {machine}:
            raise DrainError(
                f"machine {machine!r} cannot be drained",
                "another machine with a state host, which is not drained itself",
                "none",
                "add an executor elsewhere first",
            )
        self.draining.add(machine)

    def plan(
        self,
        queries: Mapping[str, QueryState],
        hosts: Mapping[str, HostHello],
        sizes: Callable[[], Mapping[tuple[str, ShardId], int]],
    ) -> None:
        """Plan the moves that tasks, a join, a leave or a drain call for, besides those that are under way."""
        eligible = self.may_have_shards(hosts)
        needed = self._needed_elsewhere(queries, eligible)
        if not eligible or not (needed or self.is_uneven or len(eligible) < len(hosts)):
            return
        owners = {
            (name, shard): owner
            for name, query in queries.items()
            for owner, shards in query.assignment.by_owner().items()
            for shard in shards
        }
        # As it will be when what is under way has moved.
        moving = {(one.query, one.shard): one.target for one in self.under_way.values()}
        wanted = wanted_owners(
            owners | {shard: moving[shard] for shard in moving if shard in owners}, eligible, sizes()
        )
        for (name, shard), owner in owners.items():
            target = wanted[name, shard]
            if self.follows_tasks and owner in eligible:
                target = needed.get((name, shard), owner)
            if target != owner and owner in hosts and (name, shard) not in moving:
                self.add(name, shard, owner, target)
        self.is_uneven = False

    def _needed_elsewhere(
        self, queries: Mapping[str, QueryState], eligible: Collection[str]
    ) -> dict[tuple[str, ShardId], str]:
        """Return the shards that are to follow their tasks, and the host beside which these run."""
        return {
            (name, shard): host
            for name, query in (queries.items() if self.follows_tasks else ())
            for shard, host in query.assignment.needed_elsewhere(query.gate.passed).items()
            if host in eligible
        }

    # --- how far --------------------------------------------------------------------------------------------

    def hand_over(
        self, query: QueryState, is_awaited: Callable[[str, ShardId], bool], until: float
    ) -> Iterator[Send]:
        """Hand shards over: the query's newest batch has committed, and none has begun after it.

        Args:
            is_awaited: whether a pending checkpoint waits for a shard.
            until: when the moves are given up.
        """
        for move in self.of(query.name, CopyPhase.READY):
            if not is_awaited(query.name, move.shard):
                move.enter(CopyPhase.HANDING_OVER, until)
                move.term = query.assignment.raise_term(move.shard)
                yield Send(move.target, TakeOver(move.id, query.gate.passed, move.term))

    def give_up(
        self, which: Callable[[ShardCopy], bool], queries: Mapping[str, QueryState]
    ) -> Iterator[Send]:
        """End moves early: the owner stays."""
        for move in self.pop(which):
            if move.phase is not CopyPhase.PLANNED and move.query in queries:
                yield from confirmed_owner(move, queries[move.query], move.owner)


def confirmed_owner(move: ShardCopy, query: QueryState, owner: str) -> Iterator[Send]:
    """Tell both hosts of a move who has the shard now."""
    order = ConfirmOwner(query.query_id, move.shard, owner, query.assignment.owner_term(move.shard))
    yield Send(move.owner, order)
    yield Send(move.target, order)
