"""The checkpoint protocol as a state machine: events in, instructions out; no I/O, no thread, no clock.

``handle`` is the only way to change it. Its owner passes one event at a time (under a lock) and carries out the
instructions afterwards. Instructions for one state host must be sent in their order. The other public methods only
read.

The phases of a checkpoint are in ``pending.PHASES``. A transactional sink takes part by two-phase commit. Pre-commit is
part of what a query acknowledges: ``ProgressStored`` brings what its sinks have to publish, and the manifest says it.
Commit follows ``Finalized``: the checkpoint is complete, a restore would go to it, and ``Publish`` has its output
published, in the order of ids. Its request is answered once ``Published`` has come from every query, or its time is
up. While a target stays away, checkpoints complete until ``Limits.max_unpublished`` wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, Generic, cast

import attrs

from ...barrier.cut import downstream_first
from ...barrier.gate import Gate
from ...state.errors import HostDismissedError, ShardMovingError
from ...state.rpc.messages import (
    AbortOrder,
    Ack,
    AskBatch,
    BatchAnswer,
    ClaimAnswer,
    ClaimShards,
    CompleteOrder,
    Decline,
    DropStandby,
    HostHello,
    MoveReport,
    MoveStep,
    ReleaseOrder,
    RestoreSource,
    Settle,
    ShardId,
    SnapshotOrder,
    StopOrder,
)
from ...storage.checkpoints.manifest import CheckpointKind, Handle, Manifest
from . import requests
from .copies import HAND_OVER_SECONDS, Move, MovePhase, Numbers
from .errors import CheckpointError, NotTheOwnerError, StaleQueryError, StateLostError
from .events import (
    Acked,
    Answer,
    BatchAsked,
    BatchCommitted,
    CheckpointFailed,
    CheckpointRequested,
    Closed,
    CutChosen,
    Declined,
    Discarded,
    DrainRequested,
    Event,
    ExecutorsLeaving,
    Finalized,
    HostJoined,
    HostLeft,
    MoveReported,
    NotFinalized,
    PlanningDone,
    ProgressStored,
    Published,
    QueryAdded,
    QueryRemoved,
    QueryStopped,
    Released,
    Restored,
    ScheduleStarted,
    ShardGivenUp,
    ShardsClaimed,
    ShardsCopied,
    ShardsRead,
    SourcesReadBack,
    StandbyDropped,
    Suspended,
    Tick,
)
from .failures import FailureCounter
from .instructions import (
    ChooseCut,
    CopyShards,
    DiscardAborted,
    FailPipeline,
    Finalize,
    GoBack,
    Instruction,
    Promoted,
    Publish,
    ReadBack,
    Reject,
    ReportStatisticsFailure,
    Resolve,
    Send,
    StoreProgress,
)
from .limits import Limits
from .moves import Moves, settled
from .pending import AckResult, PendingCheckpoint, Phase
from .publication import Publication, Publications
from .query_state import QueryState
from .reasons import Reason
from .requests import Request, RequestQueue
from .retained import RetainedCheckpoints
from .schedule import Schedule
from .shard_assignment import ShardAssignment, ShardLocations
from .standbys import Standbys
from .statistics import History, ShardStatistics


@attrs.frozen
class Outcome(Generic[Answer]):
    """What an event leads to."""

    answer: Answer
    """For the sender of the event."""
    instructions: tuple[Instruction, ...]


@attrs.define
class CheckpointStateMachine:
    """The checkpoints of one pipeline, from request to outcome."""

    pipeline: str
    generation: int
    root: str
    """URI of the pipeline's own store."""
    limits: Limits
    next_id: int
    _completed: tuple[Manifest, ...] = ()
    """The completed checkpoints that there are at the start, oldest first; ``retained`` has them from then on."""
    _base: int | None = None
    """The one of them that the state grows from."""
    required: frozenset[str] = frozenset()
    """Queries that the restored checkpoint has: there is no checkpoint without them."""
    versions: dict[str, str] = attrs.field(factory=dict)
    follows_tasks: bool = False
    """See ``Moves``."""
    queries: dict[str, QueryState] = attrs.field(factory=dict, init=False)
    hosts: dict[str, HostHello] = attrs.field(factory=dict, init=False)
    pending: dict[int, PendingCheckpoint] = attrs.field(factory=dict, init=False)
    suspended: bool = attrs.field(default=False, init=False)
    """Whether the pipeline is going back: no checkpoint is triggered meanwhile."""
    closed: Reason | None = attrs.field(default=None, init=False)
    """Why no request is accepted any more."""
    schedule: Schedule = attrs.field(init=False)
    history: History = attrs.field(init=False)
    failures: FailureCounter = attrs.field(init=False)
    queue: RequestQueue = attrs.field(init=False)
    moves: Moves = attrs.field(init=False)
    retained: RetainedCheckpoints = attrs.field(init=False)
    publications: Publications = attrs.field(init=False)
    standbys: Standbys = attrs.field(init=False)
    replaced: set[str] = attrs.field(factory=set, init=False)
    """Hosts whose shards others have by their standbys. What they say counts no more."""
    _host_of: dict[str, str] = attrs.field(factory=dict, init=False)
    """The host of each executor: there is one at a time."""
    _requests: int = attrs.field(default=0, init=False)
    """How many requests there have been."""
    _last_completed_at: float | None = attrs.field(default=None, init=False)
    _moved_at: float = attrs.field(default=-math.inf, init=False)
    """When a checkpoint last began or ended, or the pipeline was restored: requests that wait have come closer."""
    _out: list[Instruction] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        limits = self.limits
        self.schedule = Schedule(limits.interval, limits.min_pause, limits.initial_delay)
        self.history = History(limits.history)
        self.failures = FailureCounter(limits.tolerable_failures)
        self.queue = RequestQueue(limits.max_queued)
        self.retained = RetainedCheckpoints(limits.retained, self._completed, self._base)
        self.publications = Publications(limits.max_unpublished)
        numbers = Numbers()
        self.moves = Moves(self.follows_tasks, numbers=numbers)
        self.standbys = Standbys(numbers=numbers)

    def handle(self, event: Event[Answer], now: float) -> Outcome[Answer]:
        """Handle an event. Nothing else changes the state machine.

        Args:
            event: what has happened.
            now: when, in seconds since 1970; never earlier than the event before.

        Raises:
            DefinitionError: a query that is added cannot read what it says.
            StaleQueryError: a batch or a claim belongs to a run of a query that is over.
            StateLostError: the state of a shard that is claimed is lost; the pipeline must go back.
            ShardMovingError: a shard that is claimed is being handed over.
            HostDismissedError: the host has lost its shards to their standbys.
            NotTheOwnerError: a host that does not own a shard would drop its standby.
            DrainError: a machine cannot be drained.
            CheckpointStateError: the event does not fit the phase of its checkpoint.
            Nothing has changed after any other than a ``CheckpointStateError``.
        """
        # The type of an event says which answer its method returns.
        answer = cast(Answer, self._change(event, now))
        instructions, self._out = tuple(self._out), []
        return Outcome(answer, instructions)

    def _change(self, event: Event[Any], now: float) -> object:
        match event:
            # The frequent ones first: a checkpoint of a large pipeline has thousands of them.
            case Acked(ack):
                return self._ack(ack, now)
            case BatchAsked(ask):
                return self._ask(ask, now)
            case QueryAdded():
                self._add_query(event)
            case QueryRemoved(query):
                self._remove_query(query, now)
            case QueryStopped(query, batch):
                self._query_stopped(query, batch, now)
            case HostJoined(hello):
                self._host_joined(hello, now)
            case HostLeft(hello):
                self._host_left(hello, now)
            case MoveReported(report):
                self._move_reported(report, now)
            case StandbyDropped(drop):
                self._drop_standby(drop, now)
            case DrainRequested(machine):
                self._drain(machine)
            case ExecutorsLeaving(executors):
                self._leave(executors)
            case CheckpointRequested(kind, target, of_stop):
                return self._request(kind, target, now, of_stop=of_stop)
            case ScheduleStarted(chance):
                self._start_schedule(chance, now)
            case Tick():
                self._tick(now)
            case CutChosen(checkpoint, query, planned, stands_at):
                self._cut(checkpoint, query, planned, stands_at)
            case PlanningDone(checkpoint):
                self._planning_done(checkpoint, now)
            case ShardsClaimed(claim):
                return self._claim(claim, now)
            case ShardsRead(query_id, shards):
                self._shards_read(query_id, shards)
            case ShardGivenUp(host, query_id, shard):
                self._shard_given_up(host, query_id, shard)
            case SourcesReadBack(query_id, whole):
                self._sources_read_back(query_id, whole)
            case BatchCommitted(query, batch):
                self._batch_committed(query, batch, now)
            case Declined(decline):
                self._decline(decline, now)
            case ProgressStored():
                self._progress_stored(event)
            case ShardsCopied():
                self._shards_copied(event)
            case CheckpointFailed(checkpoint, reason, detail):
                self._failed(checkpoint, reason, detail, now)
            case Finalized(manifest):
                self._finalized(manifest, now)
            case Published(checkpoint, query):
                self._published(checkpoint, query, now)
            case NotFinalized():
                self._not_finalized(event, now)
            case Discarded(checkpoints):
                self._discarded(checkpoints, now)
            case Suspended(cause):
                self._suspend(cause, now)
            case Restored(checkpoint):
                self._restored(checkpoint, now)
            case Released(query_ids):
                self._release(query_ids)
            case Closed(reason):
                self._close(reason, now)
            case _:
                raise TypeError(f"{type(event).__name__} is no event of the checkpoint protocol")
        return None

    # --- reads ----------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When ``Tick`` is due at the earliest; None: not before another event."""
        times = [pending.deadline for pending in self.pending.values() if pending.is_awaited]
        times += self.publications.deadlines()
        times += [self._waits_until(request) for request in self.queue if not self._waits_for_output(request)]
        if self.closed is None and self.schedule.next_at is not None:
            times.append(self.schedule.next_at)
        deadlines = self.moves.next_deadline(), self.standbys.next_deadline()
        times += [deadline for deadline in deadlines if deadline is not None]
        return min(times, default=None)

    def waiting_for_commits(self) -> dict[str, int]:
        """The oldest cut by query, or batch after which a shard moves, that is not known to have committed."""
        waiting: dict[str, int] = {}
        for pending in self.pending.values():
            for name, part in pending.parts.items():
                if not pending.has_committed(name):
                    waiting[name] = min(part.cut, waiting.get(name, part.cut))
        for name, query in self.queries.items():
            if query.committed < query.gate.passed and self.moves.of(name, MovePhase.READY):
                waiting.setdefault(name, query.gate.passed)
        return waiting

    def holds(self, query_id: str) -> bool:
        """Whether the next batch of the query with this Spark id waits for a shard that is being handed over."""
        query = self._run(query_id)
        return query is not None and self._is_held(query.name)

    def _is_held(self, query: str) -> bool:
        return self.moves.holds(query) or self.standbys.holds(query)

    def shards_on(self, machine: str) -> list[tuple[str, ShardId, MovePhase | None]]:
        """The shards on a machine, each after the name of its query, and how far its move is; None: it stays."""
        return self._shards_of(self._hosts(lambda hello: hello.machine == machine))

    def shards_leaving(self) -> list[tuple[str, ShardId, MovePhase | None]]:
        """The shards on hosts whose executors leave, as ``shards_on``; none if there is no other host."""
        leaving = self._hosts(lambda hello: hello.spark_executor in self.moves.leaving)
        return self._shards_of(leaving) if self.moves.may_have_shards(self.hosts) else []

    def empty_hosts(self, executors: Collection[str]) -> list[str]:
        """The hosts of executors, by Spark's ids, that have neither shards nor standbys."""
        hosts = self._hosts(lambda hello: hello.spark_executor in executors)
        owners = {host for query in self.queries.values() for host in query.assignment.owners()}
        targets = {one.target for one in [*self.moves.under_way.values(), *self.standbys.under_way.values()]}
        return sorted(hosts - owners - targets)

    def _hosts(self, which: Callable[[HostHello], bool]) -> set[str]:
        return {host for host, hello in self.hosts.items() if which(hello)}

    def _shards_of(self, hosts: Collection[str]) -> list[tuple[str, ShardId, MovePhase | None]]:
        moves = {(move.query, move.shard): move.phase for move in self.moves.under_way.values()}
        return [
            (name, shard, moves.get((name, shard)))
            for name, query in self.queries.items()
            for host, shards in query.assignment.by_owner().items()
            if host in hosts
            for shard in shards
        ]

    def sizes(self) -> dict[tuple[str, ShardId], int]:
        """Bytes of each shard in the checkpoint that the state grew from, by the name of its query."""
        manifest = self.retained.base_manifest
        return {
            (operator.query, ShardId(operator.uid, number)): handle.size if handle else 0
            for operator in (manifest.operators if manifest else ())
            for number, handle in enumerate(operator.shards)
        }

    def check_reads(self, name: str, reads: tuple[str, ...]) -> None:
        """Check that a query can read the output of others.

        Raises:
            DefinitionError: it cannot.
        """
        downstream_first({**{n: query.reads for n, query in self.queries.items()}, name: reads})

    def places(self, name: str, uid: str) -> ShardLocations:
        """Where the state of an operator of a query is now.

        Raises:
            StateLostError: a shard's host is gone; the pipeline is about to go back.
        """
        query = self.queries[name]
        assignment = query.assignment
        hosts: dict[str, HostHello] = {}
        for host, shards in assignment.by_owner().items():
            owned = next((shard for shard in shards if shard.uid == uid), None)
            if owned is None:
                continue
            if host not in self.hosts:
                raise StateLostError(uid, owned.shard, f"its state host {host} is gone")
            hosts[host] = self.hosts[host]
        untouched = {
            shard.shard: assignment.sources.get(shard) for shard in assignment.unowned() if shard.uid == uid
        }
        return ShardLocations(query.query_id, tuple(hosts.values()), untouched, assignment.resume_point)

    def manifest(self, checkpoint: int, now: float) -> Manifest | None:
        """The manifest to write for a checkpoint that all have acknowledged; None if it was aborted meanwhile.

        Raises:
            CheckpointStateError: not all have acknowledged.
        """
        pending = self.pending.get(checkpoint)
        if pending is None:
            return None
        return pending.manifest(
            pipeline=self.pipeline,
            generation=self.generation,
            completed_at=now,
            versions=self.versions,
            # Nobody reads on for a query that is gone.
            unverified=any(name not in self.queries or self.queries[name].unread() for name in pending.parts),
        )

    def doomed(self, manifest: Manifest) -> frozenset[str]:
        """Objects that a manifest to be written needs, but that retention may have deleted meanwhile.

        Objects are named by their content: a checkpoint can upload what a dropped one had, too.
        """
        pending = self.pending[manifest.id]
        return frozenset() if pending.is_savepoint else manifest.keys() & pending.doomed

    @property
    def _state_is_known(self) -> bool:
        """Whether hosts have claimed all shards that have changelogs.

        A checkpoint takes a shard that no host has from its source, which is not all of the state of such a shard.
        """
        return all(query.assignment.complete for query in self.queries.values())

    def _timeout(self, request: Request) -> float:
        return self.limits.savepoint_timeout if request.is_savepoint else self.limits.timeout

    def _run(self, query_id: str) -> QueryState | None:
        """The query whose current run has this Spark id; None if that run is over."""
        return next((query for query in self.queries.values() if query.query_id == query_id), None)

    def _waits_until(self, request: Request) -> float:
        """When a request that waits fails, unless a checkpoint begins or ends before."""
        return max(request.created_at, self._moved_at) + self._timeout(request)

    def _waits_for_output(self, request: Request) -> bool:
        """Whether a request waits, for as long as it takes, until the queries go on: nobody asked for it."""
        return request.is_periodic and self.publications.are_full

    def _query(self, query_id: str, batch: int | None) -> QueryState:
        query = self._run(query_id)
        if query is None:
            raise StaleQueryError(query_id, batch)
        return query

    @property
    def _revocable(self) -> list[PendingCheckpoint]:
        return [pending for pending in self.pending.values() if pending.is_revocable]

    # --- queries and hosts ----------------------------------------------------------------------------------

    def _add_query(self, added: QueryAdded) -> None:
        self.check_reads(added.name, added.reads)
        self._give_up_moves(lambda move: move.query == added.name)
        self._end_standbys(lambda one: one.query == added.name)
        shards = tuple(ShardId(op.uid, number) for op in added.operators for number in range(len(op.shards)))
        self.queries[added.name] = QueryState(
            added.name,
            added.query_id,
            Gate(added.batch),
            added.operators,
            added.batch,
            added.restored,
            ShardAssignment(shards, dict(added.sources), added.resume_point),
            added.reads,
            added.batch,
            added.progress,
        )

    def _remove_query(self, name: str, now: float) -> None:
        for pending in self._revocable:
            # While the cut is being chosen, the query may still be part of it.
            if name in pending.parts or pending.phase is Phase.PLANNING:
                detail = f"query {name!r} could not be started"
                self._abort(pending, Reason.NOT_ALL_REQUIRED_TASKS_RUNNING, detail, now)
        self._give_up_moves(lambda move: move.query == name)
        self._end_standbys(lambda one: one.query == name)
        self.queries.pop(name, None)
        # Its next start publishes what is left.
        for publication in self.publications.removed(name):
            self._answer(publication)
        self._advance(now)

    def _query_stopped(self, name: str, batch: int, now: float) -> None:
        for pending in list(self.pending.values()):
            part = pending.parts.get(name)
            if part is not None and part.cut > batch and not pending.has_committed(name):
                detail = f"query {name!r} was stopped before its batch {part.cut} had committed"
                # This is not a failure of the checkpoint: the query was stopped on purpose.
                self._abort(pending, Reason.NOT_ALL_REQUIRED_TASKS_RUNNING, detail, now)
        self._advance(now)

    def _host_joined(self, hello: HostHello, now: float) -> None:
        if hello.host in self.replaced:
            self._out.append(Send(hello.host, StopOrder()))
            return
        before = self._host_of.get(hello.executor)
        is_new = hello.host not in self.hosts
        self.hosts[hello.host] = hello
        self._host_of[hello.executor] = hello.host
        # As long as shards have no owner, the host gets its part of them when its tasks begin.
        assignments = [query.assignment for query in self.queries.values() if query.assignment.shards]
        if is_new and assignments and all(assignment.is_owned for assignment in assignments):
            self.moves.is_uneven = True
        if before is not None and before != hello.host:
            self.hosts.pop(before, None)
            self._host_lost(before, f"a new state host took the place of one on {hello.machine}", now)

    def _host_left(self, hello: HostHello, now: float) -> None:
        self.hosts.pop(hello.host, None)
        if self._host_of.get(hello.executor) == hello.host:
            del self._host_of[hello.executor]
        if self.moves.draining:
            self.moves.draining &= {one.machine for one in self.hosts.values()}
        self._host_lost(hello.host, f"state host {hello.host} on {hello.machine} is gone", now)

    def _host_lost(self, host: str, why: str, now: float) -> None:
        """Promote the standbys of the shards that a host had, or take the pipeline back."""
        lost = [
            (query, shard)
            for query in self.queries.values()
            if query.assignment.owns(host)
            for shard in query.assignment.by_owner()[host]
            if not self._is_promoted(query.name, shard)
        ]
        found = [self.standbys.in_sync(query.name, shard, self.hosts) for query, shard in lost]
        standbys = [one for one in found if one is not None]
        is_lost = len(standbys) < len(lost)
        if standbys and not is_lost:
            self._promote(standbys, host, why, now)
        is_lost |= self._end_standbys(
            lambda one: one.target == host or (one.owner == host and one.phase is not MovePhase.HANDING_OVER)
        )
        self._end_moves(lambda move: host in (move.owner, move.target), now)
        if is_lost:
            self._out.append(GoBack(why))
        self._advance(now)

    # --- requests and time ----------------------------------------------------------------------------------

    def _request(
        self, kind: CheckpointKind, target: str | None, now: float, *, of_stop: bool = False
    ) -> Request:
        request = self._new_request(kind, target, now, of_stop=of_stop)
        if self.closed is not None:
            self._reject(request, self.closed, "the coordinator takes no more requests")
        elif of_stop and self.suspended:
            self._reject(request, Reason.JOB_FAILOVER, "it is going back to a checkpoint")
        elif request.is_savepoint and self._savepoints >= self.limits.max_queued:
            detail = f"{self._savepoints} savepoints are waiting or being written already"
            self._reject(request, Reason.TOO_MANY_REQUESTS, detail)
        elif (refused := self.queue.admit(request)) is not None:
            self._reject(refused, Reason.TOO_MANY_REQUESTS, f"{len(self.queue)} requests are waiting already")
        self._advance(now)
        return request

    def _new_request(
        self, kind: CheckpointKind, target: str | None, now: float, *, of_stop: bool = False
    ) -> Request:
        self._requests += 1
        return Request(self._requests, kind, now, target, of_stop)

    @property
    def _savepoints(self) -> int:
        """How many savepoints wait or are pending: they take no places, so nothing else bounds them."""
        running = sum(pending.is_savepoint for pending in self.pending.values())
        return running + self.queue.count(CheckpointKind.SAVEPOINT)

    def _start_schedule(self, chance: float, now: float) -> None:
        if self.closed is None and self.schedule.next_at is None:
            self.schedule.start(now, chance)

    def _tick(self, now: float) -> None:
        """Expire what is overdue, and trigger what is due."""
        for pending in [one for one in self.pending.values() if one.is_awaited and now >= one.deadline]:
            self._expire(pending, now)
        for publication in self.publications.overdue(now):
            self._answer(publication)
        for request in self.queue:
            if now >= self._waits_until(request) and not self._waits_for_output(request):
                self.queue.remove(request)
                self._reject(request, self._why_expired(), self._why_requests_wait())
        self._end_moves(lambda move: move.deadline is not None and now >= move.deadline, now)
        self._end_late_standbys(now)
        if self.closed is None and self.schedule.due(now):
            self.schedule.ticked(now)
            self._request_periodic(now)
        self._advance(now)

    def _expire(self, pending: PendingCheckpoint, now: float) -> None:
        after = f"after {pending.deadline - pending.triggered_at:g} s"
        if pending.is_revocable:
            missing = list(pending.missing())
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            detail = f"{after} still missing: " + ", ".join(missing[:5]) + more
            if not missing:
                detail = (
                    f"{after} its cut was not chosen: the driver waits for {pending.root} or for its own disk"
                )
            self._abort(pending, Reason.EXPIRED, detail, now)
        else:
            # It completes if the manifest appears after all, so nothing of it may be deleted.
            pending.move(Phase.OVERDUE)
            detail = f"all have acknowledged, but {after} {pending.root} has not said whether the manifest is written"
            self._fail_request(pending, Reason.EXPIRED, f"{detail}; it may still appear", now)

    def _why_expired(self) -> Reason:
        if self.suspended:
            return Reason.JOB_FAILOVER
        # No participant has failed while a target is away.
        return Reason.TOO_MANY_REQUESTS if self.publications.are_full else Reason.EXPIRED

    def _why_requests_wait(self) -> str:
        if self.suspended:
            return "the pipeline has been going back to a checkpoint for longer than the request may wait"
        if not self._state_is_known:
            return "no state host has opened the shards that have changelogs"
        if self.publications.are_full:
            return f"{len(self.publications.under_way)} checkpoints have output that its targets have not taken yet"
        if (deletions := self.retained.deletions) > self.limits.max_concurrent:
            return f"{deletions} dropped checkpoints are still to be deleted, which the store does not do"
        pending = ", ".join(f"{one.id} ({one.phase})" for one in self.pending.values())
        return f"no checkpoint could begin before these have ended: {pending}"

    def _request_periodic(self, now: float) -> None:
        if self.queue.holds(CheckpointKind.PERIODIC):
            return
        request = self._new_request(CheckpointKind.PERIODIC, None, now)
        if (refused := self.queue.admit(request)) is not None:
            self._reject(refused, Reason.TOO_MANY_REQUESTS, "the queue is full")

    # --- trigger and cut ------------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        """Go on with what has waited: moves, which checkpoints keep waiting, and requests, as the policy allows."""
        for query in self.queries.values():
            self._hand_over(query, now)
        while not self.suspended and self._state_is_known:
            decision = requests.decide(
                self.queue,
                now,
                pending=sum(not p.is_savepoint for p in self.pending.values()),
                max_concurrent=self.limits.max_concurrent,
                triggering=any(p.phase is Phase.PLANNING for p in self.pending.values()),
                last_completed_at=self._last_completed_at,
                min_pause=self.limits.min_pause,
                deletions_waiting=self.retained.deletions,
                is_output_full=self.publications.are_full,
            )
            match decision:
                case requests.Start(request):
                    self.queue.remove(request)
                    self._trigger(request, now)
                case requests.Drop(request, reason, retry_at):
                    self.queue.remove(request)
                    self.schedule.postpone(retry_at)
                    self._reject(request, reason, f"the minimum pause ends at {retry_at:.3f}")
                case requests.Wait():
                    return

    def _trigger(self, request: Request, now: float) -> None:
        missing = self.required - self.queries.keys()
        if missing or not self.queries:
            detail = "no query has been started yet"
            if missing:
                detail = (
                    f"the restored checkpoint has queries that have not started yet: {', '.join(sorted(missing))}; "
                    "start them, or name those that the pipeline no longer has in CheckpointConfig.dropped_queries"
                )
            self._reject(request, Reason.NOT_ALL_REQUIRED_TASKS_RUNNING, detail)
            return
        pending = PendingCheckpoint(
            id=self.next_id,
            request=request,
            root=request.target or self.root,
            base=None if request.is_savepoint else self.retained.base,
            triggered_at=now,
            deadline=now + self._timeout(request),
        )
        self.next_id += 1
        self._moved_at = now
        pending.doomed |= self.retained.being_deleted()
        self.pending[pending.id] = pending
        order = downstream_first({name: query.reads for name, query in self.queries.items()})
        self._out.append(ChooseCut(pending.id, order, pending.root, pending.is_savepoint))
        self._count(lambda history: history.started(pending.id, pending.kind, now))

    def _cut(self, checkpoint: int, query: str, planned: int, stands_at: int | None) -> None:
        """Fix a query's cut and place its barrier."""
        pending = self.pending.get(checkpoint)
        if pending is None or pending.phase is not Phase.PLANNING:
            return
        gate = self.queries[query].gate
        barrier = (
            gate.place(checkpoint, planned) if stands_at is None else gate.place_at(checkpoint, stands_at)
        )
        pending.cut_at(query, barrier.cut)

    def _planning_done(self, checkpoint: int, now: float) -> None:
        pending = self.pending.get(checkpoint)
        if pending is not None and pending.phase is Phase.PLANNING:
            pending.move(Phase.COLLECTING)
            for name in pending.parts:
                self._committed(self.queries[name], self.queries[name].committed, now)
            self._finish_if_complete(pending)
            self._advance(now)

    # --- batches --------------------------------------------------------------------------------------------

    def _ask(self, ask: AskBatch, now: float) -> BatchAnswer | None:
        query = self._query(ask.query_id, ask.batch)
        if ask.host in self.replaced:
            raise HostDismissedError(ask.host)
        # Spark begins a batch only after its predecessor has committed.
        self._committed(query, ask.batch - 1, now)
        if ask.batch > query.gate.passed and self._is_held(query.name):
            return None
        barriers = query.gate.passes(ask.batch)
        orders = (
            self.pending[barrier.checkpoint].parts[query.name].orders.get(ask.host)
            for barrier in barriers
            if barrier.checkpoint in self.pending
        )
        return BatchAnswer(tuple(order for order in orders if order is not None))

    def _claim(self, claim: ClaimShards, now: float) -> ClaimAnswer:
        query = self._query(claim.query_id, None)
        if claim.host in self.replaced:
            raise HostDismissedError(claim.host)
        wanted = [ShardId(claim.uid, shard) for shard in claim.shards]
        moving = {
            one.shard
            for copies in (self.moves, self.standbys)
            for one in copies.of(query.name, MovePhase.HANDING_OVER)
        }
        for shard in wanted:
            if shard in moving:
                raise ShardMovingError(shard.uid, shard.shard)
        answer = query.assignment.claim(
            claim.host, wanted, query.gate.passed, self.hosts, claim.aside, self._instead_of(claim.host)
        )
        # Requests may have waited for these shards.
        self._advance(now)
        return answer

    def _instead_of(self, host: str) -> list[str]:
        """Hosts that take over the shards claimed by ``host`` if it may own none; empty if it keeps them."""
        hello = self.hosts.get(host)
        if hello is None or self.moves.may_have_shards({host: hello}):
            return []
        return sorted(self.moves.may_have_shards(self.hosts))

    def _shards_read(self, query_id: str, shards: Sequence[ShardId]) -> None:
        if (query := self._run(query_id)) is not None:
            query.assignment.read(shards)

    def _shard_given_up(self, host: str, query_id: str, shard: ShardId) -> None:
        if (query := self._run(query_id)) is not None:
            query.assignment.give_up(host, shard)

    def _sources_read_back(self, query_id: str, whole: bool) -> None:
        if (query := self._run(query_id)) is not None:
            query.is_read_back = False
            if whole:
                query.verified()

    def _batch_committed(self, name: str, batch: int, now: float) -> None:
        if name in self.queries:
            self._committed(self.queries[name], batch, now)

    def _committed(self, query: QueryState, batch: int, now: float) -> None:
        query.committed = max(query.committed, batch)
        if self._is_held(query.name):
            # The next owner of a shard that is being handed over takes its snapshots.
            return
        for pending in list(self.pending.values()):
            part = pending.parts.get(query.name)
            if part is None or part.cut > query.committed or pending.has_committed(query.name):
                continue
            self._collect(pending, query, now)
        self._hand_over(query, now)

    def _hand_over(self, query: QueryState, now: float) -> None:
        """Hand shards over that are ready, if no batch of their query runs."""
        if query.committed >= query.gate.passed and not self._is_held(query.name):
            self._out.extend(self.moves.hand_over(query, self._is_awaited, now + HAND_OVER_SECONDS))

    def _is_awaited(self, query: str, shard: ShardId) -> bool:
        """Whether a pending checkpoint waits for a shard's snapshot, which its host has been told to take."""
        return any(pending.waits_for(query, shard) for pending in self.pending.values())

    def _collect(self, pending: PendingCheckpoint, query: QueryState, now: float) -> None:
        """Tell the participants: they are known once the cut of the query has committed."""
        assignment, cut = query.assignment, pending.parts[query.name].cut
        # A savepoint may be gone when the shard is restored from it.
        follow: tuple[ShardId, ...] = ()
        if not pending.is_savepoint:
            self._plan_standbys()
            follow = tuple(
                {*self.moves.follow(query.name, pending.id), *self.standbys.follow(query.name, pending.id)}
            )
        orders = {
            host: SnapshotOrder(
                checkpoint=pending.id,
                query=query.name,
                query_id=query.query_id,
                cut=cut,
                shards=shards,
                root=pending.root,
                base=pending.base,
                triggered_at=pending.triggered_at,
                seconds_left=max(0.0, pending.deadline - now),
                is_savepoint=pending.is_savepoint,
                follow=tuple(shard for shard in follow if shard in shards),
            )
            for host, shards in assignment.by_owner().items()
        }
        pending.expect(query.name, assignment.shards, orders, query.operators_at(cut))
        self._out.extend(Send(host, order) for host, order in orders.items())
        to_copy: list[tuple[ShardId, RestoreSource]] = []
        for shard in list(assignment.unowned()):
            source = assignment.sources.get(shard)
            if source is not None and source.root != pending.root:
                to_copy.append((shard, source))
            else:
                pending.acknowledge_shard(query.name, shard, source.handle if source else None)
        if to_copy:
            self._out.append(CopyShards(pending.id, query.name, tuple(to_copy), pending.root))
        base = self.retained.find(pending.base)
        record = next((q for q in base.queries if q.name == query.name), None) if base else None
        self._out.append(
            StoreProgress(pending.id, query.name, cut, pending.root, record.files if record else None)
        )

    # --- moves ----------------------------------------------------------------------------------------------

    def _drain(self, machine: str) -> None:
        self.moves.drain(machine, self.hosts)
        self._vacate(self._hosts(lambda hello: hello.machine == machine))

    def _leave(self, executors: Collection[str]) -> None:
        self.moves.leaving |= set(executors)
        self._vacate(self._hosts(lambda hello: hello.spark_executor in executors))

    def _vacate(self, hosts: Collection[str]) -> None:
        """Take from hosts that are to have no shards what is on its way there, and plan where all else goes."""
        self._give_up_moves(lambda move: move.target in hosts)
        self._end_standbys(lambda one: one.phase is not MovePhase.HANDING_OVER and one.target in hosts)
        self._plan_moves()

    def _plan_moves(self) -> None:
        if self.suspended or self.closed is not None:
            return
        if len(self.hosts) > 1:
            self.moves.plan(self.queries, self.hosts, self.sizes)
        targets = {(move.query, move.shard): move.target for move in self.moves.under_way.values()}
        # A shard is on a host once, and its owner keeps what follows for one purpose.
        self._end_standbys(
            lambda one: (
                one.phase is not MovePhase.HANDING_OVER
                and (target := targets.get((one.query, one.shard))) is not None
                and (one.phase is not MovePhase.READY or target == one.target)
            )
        )

    def _open_moves(self, now: float) -> None:
        until = now + self.limits.timeout
        self._out.extend(self.moves.open(self.queries, self.hosts, until))
        self._out.extend(self.standbys.open(self.queries, self.hosts, until))

    def _moves_stored(self, manifest: Manifest, now: float) -> None:
        """Go on with the moves whose shards a completed checkpoint has, and see whether there are more to make."""
        cuts = {query.name: query.batch for query in manifest.queries}
        both = (self.moves, self.standbys)
        waiting = {
            one.query
            for copies in both
            for one in copies.under_way.values()
            if one.phase is MovePhase.STORING
        }
        sources = {
            (operator.query, ShardId(operator.uid, number)): RestoreSource(
                self.root, manifest.id, cuts[operator.query], handle
            )
            for operator in manifest.operators
            if operator.query in waiting
            for number, handle in enumerate(operator.shards)
            if handle is not None
        }
        for copies in both:
            copies.stored(manifest.id, sources)
        self._plan_moves()
        self._open_moves(now)

    def _move_reported(self, report: MoveReport, now: float) -> None:
        match report.step:
            case MoveStep.OPENED:
                if (move := self.moves.opened(report)) is not None:
                    query = self.queries[move.query]
                    self._committed(query, query.committed, now)
                elif self.standbys.opened(report) is not None:
                    self._open_moves(now)
            case MoveStep.TAKEN:
                if (move := self.moves.taken(report)) is not None:
                    query = self.queries[move.query]
                    query.assignment.hand_over(move.shard, move.target, move.term)
                    self._out.extend(settled(move, query, move.target))
                    # It was the standby of the owner before.
                    self._end_standbys(lambda one: (one.query, one.shard) == (move.query, move.shard))
                    self._moves_ended(now)
                elif (standby := self.standbys.taken(report)) is not None:
                    query = self.queries[standby.query]
                    query.assignment.hand_over(standby.shard, standby.target, standby.term)
                    order = Settle(query.query_id, standby.shard, standby.target, standby.term)
                    self._out.append(Send(standby.target, order))
                    self._moves_ended(now)
            case MoveStep.FAILED:
                self._end_moves(lambda move: (move.id, move.target) == (report.move, report.host), now)
                if self._end_standbys(lambda one: (one.id, one.target) == (report.move, report.host)):
                    self._out.append(GoBack(f"the standby of a shard cannot take its place: {report.why}"))

    def _give_up_moves(self, which: Callable[[Move], bool]) -> None:
        self._out.extend(self.moves.give_up(which, self.queries))

    def _end_moves(self, which: Callable[[Move], bool], now: float) -> None:
        if any(map(which, self.moves.under_way.values())):
            # The next checkpoint sees what still has to move, and where to.
            self.moves.is_uneven = True
            self._give_up_moves(which)
            self._moves_ended(now)

    def _moves_ended(self, now: float) -> None:
        """Go on with what has waited for moves: snapshots, and other moves."""
        for query in self.queries.values():
            self._committed(query, query.committed, now)
        self._open_moves(now)

    # --- standbys -------------------------------------------------------------------------------------------

    def _plan_standbys(self) -> None:
        if self.limits.standbys and not self.suspended:
            moving = {(move.query, move.shard) for move in self.moves.under_way.values()}
            eligible = self.moves.may_have_shards(self.hosts)
            self.standbys.plan(self.queries, self.hosts, eligible, moving)

    def _is_promoted(self, query: str, shard: ShardId) -> bool:
        """Whether a shard's standby is about to take its place."""
        return any(one.shard == shard for one in self.standbys.of(query, MovePhase.HANDING_OVER))

    def _promote(self, standbys: Sequence[Move], host: str, why: str, now: float) -> None:
        """Have standbys take the place of the shards of a lost host."""
        self.replaced.add(host)
        for pending in self._revocable:
            if any(pending.waits_for(one.query, one.shard) for one in standbys):
                self._abort(pending, Reason.JOB_FAILOVER, f"{why}, and standbys take its place", now)
        for one in standbys:
            self._out.append(self.standbys.promote(one, self.queries[one.query], now + HAND_OVER_SECONDS))
        self._out.append(Promoted(why, tuple(one.shard for one in standbys)))

    def _drop_standby(self, drop: DropStandby, now: float) -> None:
        """Consent that an owner goes on without its standby."""
        assignment = self._query(drop.query_id, None).assignment
        # An owner whose stream is broken may have lost the shard already.
        if drop.host not in self.hosts or not assignment.is_owner(drop.shard, drop.host, drop.term):
            raise NotTheOwnerError(drop.host, drop.shard.uid, drop.shard.shard, drop.term)
        self._end_standbys(lambda one: one.id == drop.standby)
        self._open_moves(now)

    def _end_late_standbys(self, now: float) -> None:
        if self._end_standbys(lambda one: one.deadline is not None and now >= one.deadline):
            self._out.append(
                GoBack(f"the standby of a shard has not taken its place in {HAND_OVER_SECONDS:g} s")
            )

    def _end_standbys(self, which: Callable[[Move], bool]) -> bool:
        """End standbys; return whether one of them was to take the place of a lost shard."""
        ended = self.standbys.pop(which)
        self._out.extend(self.standbys.ended(ended, self.queries))
        return any(one.phase is MovePhase.HANDING_OVER for one in ended)

    # --- acknowledgements -----------------------------------------------------------------------------------

    def _ack(self, ack: Ack, now: float) -> tuple[AckResult, ...]:
        pending = self.pending.get(ack.checkpoint)
        name = next((n for n, q in self.queries.items() if q.query_id == ack.query_id), None)
        if pending is None or name is None:
            if pending is None:
                self._discard_late(ack.checkpoint)
            return tuple(AckResult.UNKNOWN for _ in ack.snapshots)
        results = []
        assignment = self.queries[name].assignment
        for snapshot in ack.snapshots:
            shard = snapshot.shard
            if pending.waits_for(name, shard) and not assignment.is_owner(shard, ack.host, snapshot.term):
                results.append(AckResult.FENCED)
                continue
            result = pending.acknowledge_shard(name, snapshot.shard, snapshot.handle, snapshot.new_bytes)
            if result is AckResult.ACCEPTED:
                pending.snapshots.append((snapshot, now))
            results.append(result)
        self._finish_if_complete(pending)
        return tuple(results)

    def _progress_stored(self, stored: ProgressStored) -> None:
        if (pending := self.pending.get(stored.checkpoint)) is None:
            self._discard_late(stored.checkpoint)
            return
        pending.acknowledge_query(stored.progress, stored.new_bytes)
        self._finish_if_complete(pending)

    def _shards_copied(self, copied: ShardsCopied) -> None:
        if (pending := self.pending.get(copied.checkpoint)) is None:
            self._discard_late(copied.checkpoint)
            return
        for shard, handle in copied.handles.items():
            pending.acknowledge_shard(copied.query, shard, handle)
        pending.new_bytes += copied.new_bytes
        self._finish_if_complete(pending)

    def _decline(self, decline: Decline, now: float) -> None:
        """Abort a checkpoint that a state host cannot do its part of.

        A decline can be late, as any failure: a host that has acknowledged and got no answer declines afterwards, and
        the manifest may be durable by then.
        """
        host = self.hosts.get(decline.host)
        where = f"state host {decline.host} on {host.machine}: " if host else ""
        self._failed(decline.checkpoint, Reason.DECLINED, where + decline.error, now)

    def _failed(self, checkpoint: int, reason: Reason, detail: str, now: float) -> None:
        pending = self.pending.get(checkpoint)
        if pending is not None and pending.is_revocable:
            self._abort(pending, reason, detail, now)
            self._advance(now)

    def _discard_late(self, checkpoint: int) -> None:
        """Delete what was stored for a checkpoint that has ended."""
        if 0 < checkpoint < self.next_id and not self.retained.may_exist(checkpoint):
            self._out.append(DiscardAborted(checkpoint, self.root, is_savepoint=False))

    # --- outcomes -------------------------------------------------------------------------------------------

    def _finish_if_complete(self, pending: PendingCheckpoint) -> None:
        if pending.phase is Phase.COLLECTING and pending.is_fully_acknowledged:
            pending.move(Phase.FINALIZING)
            self._out.append(Finalize(pending.id, pending.root))

    def _finalized(self, manifest: Manifest, now: float) -> None:
        """Complete a checkpoint: its manifest is durable."""
        pending = self.pending.pop(manifest.id)
        is_awaited = pending.is_awaited
        pending.move(Phase.COMPLETED)
        self._moved_at = now
        self._lift(pending)
        if not pending.is_savepoint:
            self.failures.completed(manifest.id)
            self._last_completed_at = now
            self.retained.add(manifest)
            self._send_all(CompleteOrder(manifest.id))
            for older in [p for p in self.pending.values() if p.id < manifest.id and not p.is_savepoint]:
                self._abort(older, Reason.SUBSUMED, f"checkpoint {manifest.id} completed first", now)
            self._retain()
            if manifest.unverified:
                self._read_back(manifest)
            self._moves_stored(manifest, now)
        request = pending.request if is_awaited else None
        queries = {query.name for query in manifest.queries if query.outputs}
        if queries and not pending.is_savepoint:
            publication = self.publications.begin(manifest, queries, pending.deadline, request)
            self._out.append(Publish(manifest.id, tuple(sorted(queries))))
            if self.closed is not None:
                # Nobody looks at deadlines any more, and the next start publishes what is left.
                self._answer(publication)
        elif request is not None:
            self._out.append(Resolve(request, manifest, pending.root))
        self._count(
            lambda history: history.completed(
                manifest.id,
                now,
                size=manifest.size,
                new_bytes=manifest.new_bytes,
                shards=_shard_statistics(pending),
            )
        )
        self._advance(now)

    def _published(self, checkpoint: int, query: str, now: float) -> None:
        if (publication := self.publications.published(checkpoint, query)) is not None:
            self._answer(publication)
            self._moved_at = now
            self._advance(now)

    def _answer(self, publication: Publication) -> None:
        """Answer the request of a completed checkpoint, whether its output is published or not."""
        if (request := publication.take_request()) is not None:
            self._out.append(Resolve(request, publication.manifest, self.root))

    def _not_finalized(self, event: NotFinalized, now: float) -> None:
        """Abort a checkpoint without a manifest. If there may be one, all that it names stays."""
        pending = self.pending[event.manifest.id]
        if not event.is_known and not pending.is_savepoint:
            self.retained.leave_undecided(event.manifest)
        self._abort(pending, event.reason, event.detail, now, discards=event.is_known)
        self._advance(now)

    def _retain(self) -> None:
        bases = [pending.base for pending in self.pending.values() if pending.base is not None]
        if (discard := self.retained.drop(bases)) is not None:
            for pending in self.pending.values():
                pending.doomed |= self.retained.being_deleted()
            self._out.append(discard)

    def _read_back(self, manifest: Manifest) -> None:
        """Have the driver read what a checkpoint has taken over from the restored one and nobody has read.

        Hosts verify what they open. A query without input may never need its shards, and files that a machine has kept
        are not read in the store. What the checkpoint has not taken over may be deleted by now, and no later one will.
        """
        needed = manifest.keys()
        for query in [self.queries[part.name] for part in manifest.queries if part.name in self.queries]:
            if query.is_read_back:
                continue
            sources = [
                _part(source, needed) if source.root == self.root else source for source in query.unread()
            ]
            if left := tuple(source for source in sources if source.handle.files):
                query.is_read_back = True
                self._out.append(ReadBack(query.query_id, left))
            else:
                query.verified()

    def _discarded(self, checkpoints: tuple[int, ...], now: float) -> None:
        self.retained.deleted(checkpoints)
        self._moved_at = now
        self._advance(now)

    def _abort(
        self, pending: PendingCheckpoint, reason: Reason, detail: str, now: float, *, discards: bool = True
    ) -> None:
        del self.pending[pending.id]
        is_awaited = pending.is_awaited
        self._moved_at = now
        self.moves.not_stored(pending.id)
        self.standbys.not_stored(pending.id)
        pending.move(Phase.ABORTED, reason)
        self._lift(pending)
        latest = self.retained.latest
        self._send_all(AbortOrder(pending.id, latest.id if latest else None))
        if discards:
            self._out.append(DiscardAborted(pending.id, pending.root, pending.is_savepoint))
        if is_awaited:
            self._fail_request(pending, reason, detail, now)

    def _fail_request(self, pending: PendingCheckpoint, reason: Reason, detail: str, now: float) -> None:
        self._reject(pending.request, reason, detail, pending.id)
        self._count(
            lambda history: history.failed(pending.id, now, reason, shards=_shard_statistics(pending))
        )

    def _reject(self, request: Request, reason: Reason, detail: str, id: int | None = None) -> None:
        error = CheckpointError(id, reason, detail)
        self._out.append(Reject(request, error))
        # As in Flink: a savepoint to a bad place is its user's problem, not the pipeline's.
        if not request.is_savepoint and self.failures.failed(id, reason):
            self._out.append(FailPipeline(error))

    def _count(self, record: Callable[[History], None]) -> None:
        """Keep the statistics. Whatever goes wrong with them, checkpoints go on."""
        try:
            record(self.history)
        except Exception as error:  # noqa: BLE001 (see above)
            self._out.append(ReportStatisticsFailure(error))

    def _lift(self, pending: PendingCheckpoint) -> None:
        for name in pending.parts:
            if name in self.queries:
                self.queries[name].gate.lift(pending.id)

    def _send_all(self, order: CompleteOrder | AbortOrder | ReleaseOrder) -> None:
        self._out.extend(Send(host, order) for host in sorted(self.hosts))

    # --- life cycle -----------------------------------------------------------------------------------------

    def _suspend(self, cause: str, now: float) -> None:
        """End pending checkpoints; requests that wait are kept until ``Restored``, but for those of a stop."""
        self.suspended = True
        self.moves.is_uneven = False
        self._give_up_moves(lambda move: True)
        self._end_standbys(lambda one: True)
        for pending in self._revocable:
            self._abort(pending, Reason.JOB_FAILOVER, cause, now)
        for request in self.queue:
            if request.of_stop:
                self.queue.remove(request)
                self._reject(request, Reason.JOB_FAILOVER, cause)

    def _restored(self, checkpoint: int | None, now: float) -> None:
        self.suspended = False
        self._moved_at = now
        if checkpoint is not None:
            self._count(lambda history: history.restored(checkpoint))
        self._advance(now)

    def _release(self, query_ids: Sequence[str]) -> None:
        for query_id in query_ids:
            self._send_all(ReleaseOrder(query_id))

    def _close(self, reason: Reason, now: float) -> None:
        """Accept no more requests, and end those that wait and the pending checkpoints."""
        self.closed = reason
        self.schedule.stop()
        self._give_up_moves(lambda move: True)
        self._end_standbys(lambda one: True)
        for request in self.queue.clear():
            self._reject(request, reason, "the coordinator is stopping")
        for pending in self._revocable:
            self._abort(pending, reason, "the coordinator is stopping", now)
        for publication in self.publications.under_way.values():
            self._answer(publication)


def _part(source: RestoreSource, keys: Collection[str]) -> RestoreSource:
    """The files of a source that are in these objects."""
    files = tuple(file for file in source.handle.files if file.key in keys)
    return attrs.evolve(source, handle=Handle(files))


def _shard_statistics(pending: PendingCheckpoint) -> tuple[ShardStatistics, ...]:
    return tuple(
        ShardStatistics(
            uid=snapshot.shard.uid,
            shard=snapshot.shard.shard,
            trigger=pending.triggered_at,
            start_delay=snapshot.start_delay,
            sync=snapshot.sync_seconds,
            async_=snapshot.async_seconds,
            ack=at,
            bytes=snapshot.handle.size,
            new_bytes=snapshot.new_bytes,
        )
        for snapshot, at in pending.snapshots
    )
