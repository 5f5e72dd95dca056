"""Where the shards are, and where they are to be: claims, moves, standbys, and hosts that are lost or leave.

It tells the hosts of a shard what becomes of it. It knows nothing of checkpoints but which of them wait for a shard,
because the hand-over of a shard and its snapshot exclude each other (``moves``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import attrs

from ...state.errors import ShardMovingError
from ...state.rpc.messages import ClaimAnswer, ClaimShards, CopyReport, CopyStep, DropStandby, HostHello
from ...state.rpc.orders import ConfirmOwner
from ...state.shards import ShardId
from ...storage.checkpoints.manifest import Manifest
from ...storage.ids import CheckpointId
from .copies import HAND_OVER_SECONDS, CopyIds, CopyPhase, ShardCopy
from .decisions import HostLost
from .errors import NotTheOwnerError, StateLostError
from .failover import Failover
from .instructions import Instruction, ReplaceHost, Send, StandbysInSync
from .limits import ProtocolLimits
from .membership import Membership
from .moves import Moves, confirmed_owner
from .query_state import Queries, QueryState, StoredCheckpoint
from .reopenings import AWAIT_HOST_SECONDS, Reopenings
from .retained import RetainedCheckpoints
from .shard_assignment import ShardLocations
from .standbys import Standbys
from .whereabouts import PlacedShard, whereabouts


@attrs.frozen
class Replacements:
    """How the shards of a lost host get other owners."""

    standbys: tuple[ShardCopy, ...]
    """The standbys that take the place of some."""
    reopened: tuple[tuple[str, ShardId], ...]
    """Those that another host on the machine is to open, each after its query."""

    @property
    def shards(self) -> list[tuple[str, ShardId]]:
        """All of them."""
        return [*((one.query, one.shard) for one in self.standbys), *self.reopened]


@attrs.define
class Placement:
    """The shards of a pipeline on its hosts."""

    _failover: Failover
    queries: Queries
    members: Membership
    limits: ProtocolLimits
    moves: Moves
    standbys: Standbys
    reopenings: Reopenings
    _retained: RetainedCheckpoints
    _out: list[Instruction]
    promoted: int = attrs.field(default=0, init=False)
    """How many standbys have taken the place of lost shards."""
    reopened: int = attrs.field(default=0, init=False)
    """How many lost shards another host on their machine has opened again."""

    @classmethod
    def of(
        cls,
        failover: Failover,
        queries: Queries,
        members: Membership,
        limits: ProtocolLimits,
        retained: RetainedCheckpoints,
        out: list[Instruction],
        *,
        follows_tasks: bool,
    ) -> Placement:
        """Make it without moves and standbys; see ``Moves`` for ``follows_tasks``."""
        ids = CopyIds()
        moves = Moves(follows_tasks, ids=ids)
        return cls(
            failover, queries, members, limits, moves, Standbys(ids=ids), Reopenings(ids=ids), retained, out
        )

    # --- reads ----------------------------------------------------------------------------------------------

    @property
    def plans(self) -> bool:
        """Whether moves and standbys are planned: the pipeline neither goes back nor has ended."""
        return self._failover.life.takes_checkpoints

    @property
    def copies(self) -> tuple[Moves, Standbys, Reopenings]:
        """All that is on its way from one host to another."""
        return self.moves, self.standbys, self.reopenings

    def next_deadline(self) -> float | None:
        """When something is given up unless it ends before; None: nothing will be."""
        deadlines = [copies.next_deadline() for copies in self.copies]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def holds(self, query: str) -> bool:
        """Whether a query's next batch and its snapshots wait for a shard that gets another owner."""
        return any(copies.holds(query) for copies in self.copies)

    def waits_for_commit(self, query: str) -> bool:
        """Whether a shard of a query moves as soon as its running batch has committed."""
        return bool(self.moves.of(query, CopyPhase.READY))

    def placed(self) -> list[PlacedShard]:
        """Return where the state of the shards is; those whose state is in a checkpoint alone are left out."""
        return list(whereabouts(self.queries, self.members.hosts, *self.copies))

    def shards_on(self, machine: str) -> list[PlacedShard]:
        """Return the shards that the loss of a machine may take along."""
        return [one for one in self.placed() if one.may_be_on(machine)]

    def is_empty(self, machine: str) -> bool:
        """Whether no state would be lost with a machine. While the pipeline goes back, nobody can tell."""
        if not self.plans or self._own_shards(self.members.on(machine)):
            return False
        return not self.shards_on(machine)

    def shards_leaving(self) -> list[PlacedShard]:
        """Return the shards on hosts that are to have none; none if there is no other host."""
        leave = self.members.hosts.keys() - set(self.moves.may_have_shards(self.members.hosts))
        taking = {
            one.target for copies in (self.standbys, self.reopenings) for one in copies.under_way.values()
        }
        if leave == self.members.hosts.keys() or not (leave & taking or self._own_shards(leave)):
            return []
        return [one for one in self.placed() if one.host in leave]

    def _own_shards(self, hosts: Collection[str]) -> bool:
        """Whether hosts that live own shards."""
        return any(query.assignment.owns(host) for host in hosts for query in self.queries.values())

    def empty_hosts(self, executors: Collection[str]) -> list[str]:
        """Return the hosts of executors, by Spark's ids, that have neither shards nor standbys."""
        owners = {host for query in self.queries.values() for host in query.assignment.owners()}
        targets = {one.target for copies in self.copies for one in copies.under_way.values()}
        return sorted(self.members.of_executors(executors) - owners - targets)

    def locations(self, name: str, uid: str) -> ShardLocations:
        """Return where the state of an operator of a query is now.

        Raises:
            StateLostError: a shard's host is gone; the pipeline is about to go back.
        """
        query = self.queries[name]
        assignment, hosts = query.assignment, []
        for host, shards in assignment.by_owner().items():
            owned = next((shard for shard in shards if shard.uid == uid), None)
            if owned is None:
                continue
            if host not in self.members.hosts:
                raise StateLostError(uid, owned.shard, f"its state host {host} is gone")
            hosts.append(self.members.hosts[host])
        untouched = {
            shard.shard: assignment.sources.get(shard) for shard in assignment.unowned() if shard.uid == uid
        }
        return ShardLocations(query.query_id, tuple(hosts), untouched, assignment.resume_point)

    # --- claims and hosts -----------------------------------------------------------------------------------

    def claim(self, claim: ClaimShards) -> ClaimAnswer:
        """Grant a host the shards that no other host has.

        Raises:
            StaleQueryError, HostDismissedError, ShardMovingError, StateLostError: nothing was granted.
        """
        query = self.queries.get_running(claim.query_id)
        self.members.check_not_dismissed(claim.host)
        wanted = [ShardId(claim.uid, shard) for shard in claim.shards]
        moving = {
            one.shard
            for copies in self.copies
            for one in copies.of(query.name, CopyPhase.LOST, CopyPhase.HANDING_OVER)
        }
        for shard in wanted:
            if shard in moving:
                raise ShardMovingError(shard.uid, shard.shard)
        hosts, instead = self.members.hosts, self._instead_of(claim.host)
        return query.assignment.claim(claim.host, wanted, query.gate.passed, hosts, claim.aside, instead)

    def _instead_of(self, host: str) -> list[str]:
        """Hosts that take over the shards claimed by ``host`` if it may own none; empty if it keeps them."""
        hello = self.members.hosts.get(host)
        if hello is None or self.moves.may_have_shards({host: hello}):
            return []
        return sorted(self.moves.may_have_shards(self.members.hosts))

    def host_joined(self) -> None:
        """Give a new host its part of the shards, with the next checkpoint."""
        # As long as shards have no owner, the host gets its part of them when its tasks begin.
        assignments = [query.assignment for query in self.queries.values() if query.assignment.shards]
        if assignments and all(assignment.is_owned for assignment in assignments):
            self.moves.is_uneven = True

    def replacements(self, lost: HostHello, *, is_silent: bool) -> Replacements | None:
        """Return how the shards of a lost host get other owners; None if state is lost with it.

        Args:
            lost: what the host reported when it joined.
            is_silent: whether its machine may be lost, too.
        """
        shards = [
            (query.name, shard)
            for query in self.queries.values()
            if query.assignment.owns(lost.host)
            for shard in query.assignment.by_owner()[lost.host]
            if not self._is_replaced(query.name, shard)
        ]
        found = {
            (query, shard): self.standbys.in_sync(query, shard, self.members.hosts) for query, shard in shards
        }
        others = tuple(shard for shard, standby in found.items() if standby is None)
        if others and (is_silent or lost.changelogs is None or not self.plans):
            return None
        return Replacements(tuple(one for one in found.values() if one is not None), others)

    def _is_replaced(self, query: str, shard: ShardId) -> bool:
        """Whether a shard's next owner is about to take its place, because its owner is lost."""
        return any(
            one.shard == shard
            for copies in (self.standbys, self.reopenings)
            for one in copies.of(query, CopyPhase.LOST, CopyPhase.HANDING_OVER)
        )

    def replace(self, replacements: Replacements, lost: HostHello, why: str, now: float) -> None:
        """Have others take the place of the shards of a lost host."""
        self.members.dismissed.add(lost.host)
        for one in replacements.standbys:
            self._out.append(self.standbys.promote(one, self.queries[one.query], now + HAND_OVER_SECONDS))
        if replacements.reopened:
            self.reopenings.lose(replacements.reopened, lost, now + AWAIT_HOST_SECONDS)
        if replacements.shards:
            promoted = tuple(one.shard for one in replacements.standbys)
            self._out.append(ReplaceHost(why, promoted, tuple(shard for _, shard in replacements.reopened)))

    def host_lost(self, host: str) -> bool:
        """End what a lost host had part in; return whether one of its standbys was to take a shard's place."""
        was_promoted = self._end_standbys(
            lambda one: one.target == host or (one.owner == host and one.phase is not CopyPhase.HANDING_OVER)
        )
        self.reopenings.await_another(host)
        self._end_moves(lambda move: host in (move.owner, move.target))
        return was_promoted

    # --- moves ----------------------------------------------------------------------------------------------

    def drain(self, machine: str) -> None:
        """Have all shards leave a machine.

        Raises:
            DrainError: it has no host, or there is no other machine.
        """
        self.moves.drain(machine, self.members.hosts)
        self._vacate(self.members.on(machine))

    def leave(self, executors: Collection[str]) -> None:
        """Have all shards leave executors, by Spark's ids."""
        self.moves.leaving |= set(executors)
        self._vacate(self.members.of_executors(executors))

    def _vacate(self, hosts: Collection[str]) -> None:
        """Take from hosts that are to have no shards what is on its way there, and plan where all else goes."""
        self._give_up_moves(lambda move: move.target in hosts)
        self._end_standbys(lambda one: one.phase is not CopyPhase.HANDING_OVER and one.target in hosts)
        self.plan_moves()

    def plan_moves(self) -> None:
        """Plan what is to move, besides what is under way."""
        if not self.plans:
            return
        if len(self.members.hosts) > 1:
            self.moves.plan(self.queries, self.members.hosts, self._retained.sizes)
        targets = {(move.query, move.shard): move.target for move in self.moves.under_way.values()}
        # A shard is on a host once, and its owner keeps what follows for one purpose.
        self._end_standbys(
            lambda one: (
                one.phase is not CopyPhase.HANDING_OVER
                and (target := targets.get((one.query, one.shard))) is not None
                and (one.phase is not CopyPhase.READY or target == one.target)
            )
        )

    def follow(self, query: str, checkpoint: CheckpointId) -> tuple[ShardId, ...]:
        """Return the shards of a query whose owners must keep what follows their snapshots in a checkpoint."""
        if self.limits.standbys and self.plans:
            moving = {(move.query, move.shard) for move in self.moves.under_way.values()}
            eligible = self.moves.may_have_shards(self.members.hosts)
            self.standbys.plan(self.queries, self.members.hosts, eligible, moving)
        return tuple({*self.moves.follow(query, checkpoint), *self.standbys.follow(query, checkpoint)})

    def stored(self, manifest: Manifest, root: str) -> None:
        """Go on with the shards on their way that a completed checkpoint has, and plan what else is to move.

        Args:
            manifest: of the checkpoint.
            root: URI of the store that has it.
        """
        stored = StoredCheckpoint(root, manifest)
        for query in self.queries.values():
            if (cut := stored.cut(query.name)) is not None and cut >= query.started_after:
                query.stored = stored
        for copies in self.copies:
            copies.stored(stored)
        self.plan_moves()

    def not_stored(self, checkpoint: CheckpointId) -> None:
        """Have what was to go through a checkpoint wait for the next one: this one was aborted."""
        self.moves.not_stored(checkpoint)
        self.standbys.not_stored(checkpoint)

    def go_on(self, now: float, is_awaited: Callable[[str, ShardId], bool]) -> None:
        """Advance every move, standby and reopening that is ready.

        Args:
            now: seconds since 1970.
            is_awaited: whether a pending checkpoint waits for a shard of a query.
        """
        self._forget_drained()
        for query in self.queries.values():
            self._hand_over(query, now, is_awaited)
        until = now + self.limits.timeout
        if self.reopenings.under_way:
            self._reopen(now, until)
        self._out.extend(self.moves.open(self.queries, self.members.hosts, until))
        self._out.extend(self.standbys.open(self.queries, self.members.hosts, until))

    def _forget_drained(self) -> None:
        """Drain no machine any more that has no host and gets none: when it is back, it is like any other."""
        if self.moves.draining:
            waiting = {self.reopenings.machine_of(one) for one in self.reopenings.under_way.values()}
            self.moves.draining = {
                machine
                for machine in self.moves.draining
                if machine in waiting or self.members.may_have_hosts(machine)
            }

    def _reopen(self, now: float, until: float) -> None:
        """Have hosts open the shards of lost ones, and go back if no host will come for some."""
        leaving = self.moves.leaving
        # A machine that is drained opens them, too, and then they move.
        hosts = {id: one for id, one in self.members.hosts.items() if one.spark_executor not in leaving}
        self._out.extend(self.reopenings.hand_over(self.queries, hosts, now, until))
        hopeless = self.reopenings.hopeless(lambda lost: self.members.may_be_followed(lost, leaving))
        if self._end_reopenings(lambda one: one.id in hopeless):
            self._lost("a state host is lost, and its executor with it")

    def _hand_over(self, query: QueryState, now: float, is_awaited: Callable[[str, ShardId], bool]) -> None:
        """Hand shards over that are ready, if no batch of their query runs."""
        if query.committed >= query.gate.passed and not self.holds(query.name):
            self._out.extend(self.moves.hand_over(query, is_awaited, now + HAND_OVER_SECONDS))

    def reported(self, report: CopyReport) -> None:
        """Take in how far the target of a move or of a standby is."""
        match report.step:
            case CopyStep.OPENED:
                if self.moves.opened(report) is None and self.standbys.opened(report) is not None:
                    self._out.extend(self._all_in_sync())
            case CopyStep.TAKEN:
                self._handed_over(report)
            case CopyStep.FAILED:
                self._end_moves(lambda move: (move.id, move.target) == (report.copy_id, report.host))
                if self._end_standbys(lambda one: (one.id, one.target) == (report.copy_id, report.host)):
                    self._failover.noticed.append(
                        HostLost(f"the standby of a shard cannot take its place: {report.why}")
                    )
                if self._end_reopenings(lambda one: (one.id, one.target) == (report.copy_id, report.host)):
                    self._failover.noticed.append(
                        HostLost(f"the shard of a lost host cannot be opened again: {report.why}")
                    )

    def _all_in_sync(self) -> Iterator[StandbysInSync]:
        """Yield what says that each shard that a host has has a standby in sync; nothing if one has none."""
        in_sync = self.standbys.count_in_sync(self.members.hosts)
        owned = sum(
            len(some) for query in self.queries.values() for some in query.assignment.by_owner().values()
        )
        if in_sync == owned:
            yield StandbysInSync(owned)

    def _handed_over(self, report: CopyReport) -> None:
        if (move := self.moves.handed_over(report)) is not None:
            query = self.queries[move.query]
            query.assignment.hand_over(move.shard, move.target, move.term)
            self._out.extend(confirmed_owner(move, query, move.target))
            # It was the standby of the owner before.
            self._end_standbys(lambda one: (one.query, one.shard) == (move.query, move.shard))
        elif (one := self.standbys.handed_over(report)) is not None:
            self.promoted += 1
            self._own(one)
        elif (one := self.reopenings.handed_over(report)) is not None:
            self.reopened += 1
            self._own(one)

    def _own(self, one: ShardCopy) -> None:
        """Have the new host of a lost shard own it."""
        query = self.queries[one.query]
        query.assignment.hand_over(one.shard, one.target, one.term)
        self._out.append(Send(one.target, ConfirmOwner(query.query_id, one.shard, one.target, one.term)))

    def drop_standby(self, drop: DropStandby) -> None:
        """Consent that an owner goes on without its standby.

        Raises:
            StaleQueryError: the run of the query is over.
            NotTheOwnerError: the host does not own the shard in this term.
        """
        assignment = self.queries.get_running(drop.query_id).assignment
        # An owner whose stream is broken may have lost the shard already.
        if drop.host not in self.members.hosts or not assignment.is_owner(drop.shard, drop.host, drop.term):
            raise NotTheOwnerError(drop.host, drop.shard.uid, drop.shard.shard, drop.term)
        self._end_standbys(lambda one: one.id == drop.copy_id)

    # --- ends -----------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """End what has taken too long."""
        self._end_moves(lambda move: move.deadline is not None and now >= move.deadline)
        if self._end_standbys(lambda one: one.deadline is not None and now >= one.deadline):
            self._failover.noticed.append(
                HostLost(f"the standby of a shard has not taken its place in {HAND_OVER_SECONDS:g} s")
            )
        if self._end_reopenings(lambda one: one.deadline is not None and now >= one.deadline):
            self._failover.noticed.append(
                HostLost("no state host on its machine has opened the shard of a lost one in time")
            )

    def query_over(self, query: str) -> None:
        """End all that has to do with a run of a query."""
        self._give_up_moves(lambda move: move.query == query)
        self._end_standbys(lambda one: one.query == query)
        self._end_reopenings(lambda one: one.query == query)

    def give_up(self) -> None:
        """End everything that is on its way."""
        self.moves.is_uneven = False
        self._give_up_moves(lambda move: True)
        self._end_standbys(lambda one: True)
        self._end_reopenings(lambda one: True)

    def _give_up_moves(self, which: Callable[[ShardCopy], bool]) -> None:
        self._out.extend(self.moves.give_up(which, self.queries))

    def _lost(self, why: str) -> None:
        self._failover.noticed.append(HostLost(why))

    def _end_moves(self, which: Callable[[ShardCopy], bool]) -> None:
        if any(map(which, self.moves.under_way.values())):
            # The next checkpoint sees what still has to move, and where to.
            self.moves.is_uneven = True
            self._give_up_moves(which)

    def _end_standbys(self, which: Callable[[ShardCopy], bool]) -> bool:
        """End standbys; return whether one of them was to take the place of a lost shard."""
        ended = self.standbys.pop(which)
        self._out.extend(self.standbys.ended(ended, self.queries))
        return any(one.phase is CopyPhase.HANDING_OVER for one in ended)

    def _end_reopenings(self, which: Callable[[ShardCopy], bool]) -> bool:
        """Give up opening shards of lost hosts again; return whether there were any."""
        ended = self.reopenings.pop(which)
        self._out.extend(self.reopenings.ended(ended, self.queries))
        return bool(ended)
