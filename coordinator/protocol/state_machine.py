"""The checkpoint protocol as a state machine: events in, instructions out; no I/O, no thread, no clock.

Whoever holds it calls one event at a time (under a lock) and carries out the instructions afterwards. The
order of instructions matters for those that go to one state host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import attrs

from ...barrier.cut import downstream_first
from ...barrier.gate import Gate
from ...state.rpc.messages import (
    AbortOrder,
    Ack,
    AskBatch,
    BatchAnswer,
    ClaimAnswer,
    ClaimShards,
    CompleteOrder,
    Decline,
    HostHello,
    ReleaseOrder,
    RestoreSource,
    ResumePoint,
    ShardId,
    SnapshotOrder,
)
from ...storage.manifest import CheckpointKind, Handle, Manifest, OperatorRecord, QueryRecord
from ...storage.retention import deletable
from ...storage.retention import dropped as dropped_ids
from ..config import CheckpointConfig
from ..errors import CheckpointError, StaleQueryError, StateLostError
from . import requests
from .failures import FailureCounter
from .instructions import (
    ChooseCut,
    CopyShards,
    Discard,
    DiscardAborted,
    FailPipeline,
    Finalize,
    Instruction,
    Reject,
    Resolve,
    Send,
    StoreProgress,
)
from .pending import AckResult, PendingCheckpoint, Phase
from .reasons import Reason
from .requests import Request, RequestQueue
from .schedule import Schedule
from .shard_assignment import ShardAssignment
from .statistics import History, ShardStatistics


@attrs.define
class QueryState:
    """What the protocol knows of one query."""

    name: str
    query_id: str
    """Spark's id; another one after the query went back to a checkpoint."""
    gate: Gate
    operators: tuple[OperatorRecord, ...]
    """The query's operators, without handles."""
    started_after: int
    """The batch that the query was restored at, -1 if it began anew."""
    restored: tuple[OperatorRecord, ...]
    """The operators as they were there; one that was not there is not among them."""
    assignment: ShardAssignment
    reads: tuple[str, ...] = ()
    committed: int = -1
    """The newest batch that is known to have committed."""

    def operators_at(self, cut: int) -> tuple[OperatorRecord, ...]:
        """The operators whose state a checkpoint with this cut has.

        As long as no batch has run, shards hold what was restored: no state is deleted or of a new schema yet, and
        an operator that is new has not begun.
        """
        return self.operators if cut > self.started_after else self.restored


@attrs.frozen
class ShardLocations:
    """Where the state of one operator is."""

    query_id: str
    """Spark's id of its query."""
    addresses: tuple[str, ...]
    """Of the hosts that own some of its shards."""
    untouched: dict[int, RestoreSource | None]
    """By shard that no batch has come to yet, where its state is to come from; None: it is empty."""
    resume_point: ResumePoint | None = None
    """What the changelogs of untouched shards lead to from there; None: nothing."""


@attrs.define
class CheckpointStateMachine:
    """One pipeline's checkpoints, from request to outcome."""

    pipeline: str
    generation: int
    root: str
    """URI of the pipeline's own store."""
    config: CheckpointConfig
    schedule: Schedule
    history: History
    failures: FailureCounter
    queue: RequestQueue
    next_id: int
    completed: tuple[Manifest, ...] = ()
    """Retained checkpoints, oldest first; savepoints are never among them."""
    base: int | None = None
    """The completed checkpoint that the current state grew from."""
    required: set[str] = attrs.field(factory=set)
    """Queries that the restored checkpoint has and that have not been started yet."""
    versions: dict[str, str] = attrs.field(factory=dict)
    queries: dict[str, QueryState] = attrs.field(factory=dict)
    hosts: dict[str, HostHello] = attrs.field(factory=dict)
    pending: dict[int, PendingCheckpoint] = attrs.field(factory=dict)
    suspended: bool = False
    """Whether the pipeline is going back: no checkpoint is triggered meanwhile."""
    closed: Reason | None = None
    """Why no request is taken any more."""
    _to_come: frozenset[str] = attrs.field(
        default=attrs.Factory(lambda self: frozenset(self.required), takes_self=True), init=False
    )
    """All queries that were required at the beginning."""
    _last_completed_at: float | None = None
    _deletions: int = 0
    _doomed: set[str] = attrs.field(factory=set)
    """Objects that are being deleted."""
    _out: list[Instruction] = attrs.field(factory=list)

    # --- who takes part -------------------------------------------------------------------------------------

    def add_query(
        self,
        name: str,
        query_id: str,
        *,
        batch: int,
        operators: tuple[OperatorRecord, ...],
        restored: tuple[OperatorRecord, ...] = (),
        sources: Mapping[ShardId, RestoreSource],
        reads: tuple[str, ...] = (),
        resume_point: ResumePoint | None = None,
    ) -> None:
        """A query is about to start, or to start again from a checkpoint, after ``batch``.

        ``restored`` are its operators as they were after ``batch``, without those that were not there; ``standing`` is
        where the query stood if that was behind the checkpoint.

        Raises:
            DefinitionError: ``reads`` cannot be.
        """
        self.check_reads(name, reads)
        shards = tuple(ShardId(op.uid, number) for op in operators for number in range(len(op.shards)))
        self.queries[name] = QueryState(
            name,
            query_id,
            Gate(batch),
            operators,
            batch,
            restored,
            ShardAssignment(shards, dict(sources), resume_point),
            reads,
            batch,
        )
        self.required.discard(name)

    def check_reads(self, name: str, reads: tuple[str, ...]) -> None:
        """Check that a query can read the output of others.

        Raises:
            DefinitionError: it cannot.
        """
        downstream_first({**{n: query.reads for n, query in self.queries.items()}, name: reads})

    def remove_query(self, name: str, now: float) -> list[Instruction]:
        """A query could not be started after all; checkpoints that wait for it end here."""
        for pending in list(self.pending.values()):
            begun = name in pending.parts or pending.phase is Phase.PLANNING
            # Whether one whose manifest is being written completes is not known any more before that is done.
            if begun and pending.phase is not Phase.FINALIZING:
                detail = f"query {name!r} could not be started"
                self._abort(pending, Reason.NOT_ALL_REQUIRED_TASKS_RUNNING, detail, now)
        self.queries.pop(name, None)
        # Else the next checkpoint would be without the state that the restored one has of it.
        self.required |= self._to_come & {name}
        self._advance(now)
        return self._take()

    def stands(self, name: str, batch: int, now: float) -> list[Instruction]:
        """A query has been stopped after ``batch``: a later batch that was planned will not commit now."""
        for pending in list(self.pending.values()):
            part = pending.parts.get(name)
            if part is not None and part.cut > batch and not pending.has_committed(name):
                detail = f"query {name!r} was stopped before its batch {part.cut} had committed"
                # No failure of the checkpoint: whoever stopped the query wanted that.
                self._abort(pending, Reason.NOT_ALL_REQUIRED_TASKS_RUNNING, detail, now)
        self._advance(now)
        return self._take()

    def host_joined(self, hello: HostHello) -> bool:
        """A state host has reported. Returns whether state was lost with an earlier one of its executor."""
        replaced = [h.host for h in self.hosts.values() if h.executor == hello.executor]
        self.hosts[hello.host] = hello
        # A list, for each of them has left.
        return any([self.host_left(host) for host in replaced if host != hello.host])  # noqa: C419

    def host_left(self, host: str) -> bool:
        """A state host is gone. Returns whether it owned shards, so that their state is lost."""
        self.hosts.pop(host, None)
        return any(host in query.assignment.owners() for query in self.queries.values())

    # --- requests and time ----------------------------------------------------------------------------------

    def request(self, request: Request, now: float) -> list[Instruction]:
        """Someone asks for a checkpoint."""
        if self.closed is not None:
            self._reject(request, self.closed, "the coordinator takes no more requests")
        elif (refused := self.queue.admit(request)) is not None:
            self._reject(refused, Reason.TOO_MANY_REQUESTS, f"{len(self.queue)} requests are waiting already")
        self._advance(now)
        return self._take()

    def start_schedule(self, now: float, random: Callable[[], float]) -> None:
        """Begin with periodic checkpoints, unless that has been done or there are to be none."""
        if self.closed is None and self.schedule.next_at is None:
            self.schedule.start(now, random)

    def tick(self, now: float) -> list[Instruction]:
        """Time has passed: expire what is overdue, trigger what is due."""
        for pending in list(self.pending.values()):
            if now >= pending.deadline and pending.phase is not Phase.FINALIZING:
                missing = list(pending.missing())
                detail = f"after {pending.deadline - pending.triggered_at:g} s still missing: "
                more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
                self._abort(pending, Reason.EXPIRED, detail + ", ".join(missing[:5]) + more, now)
        for request in self.queue if not self._state_is_known else ():
            if now >= request.created_at + self._timeout(request):
                self.queue.remove(request)
                detail = "no state host has opened the shards that changelogs belong to"
                self._reject(request, Reason.EXPIRED, detail)
        if self.closed is None and self.schedule.due(now):
            self.schedule.ticked(now)
            periodic = Request(CheckpointKind.PERIODIC, forced=False, created_at=now)
            if not self.queue.holds(CheckpointKind.PERIODIC) and (refused := self.queue.admit(periodic)):
                self._reject(refused, Reason.TOO_MANY_REQUESTS, "the queue is full")
        self._advance(now)
        return self._take()

    def next_deadline(self) -> float | None:
        """When ``tick`` has something to do at the earliest; None: only after another event."""
        # One whose manifest is being written does not expire any more.
        times = [p.deadline for p in self.pending.values() if p.phase is not Phase.FINALIZING]
        if not self._state_is_known:
            times += [request.created_at + self._timeout(request) for request in self.queue]
        if self.closed is None and self.schedule.next_at is not None:
            times.append(self.schedule.next_at)
        return min(times, default=None)

    # --- trigger and cut ------------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        """Start what the queue holds, as far as the policy lets it."""
        while not self.suspended and self._state_is_known:
            decision = requests.decide(
                self.queue,
                now,
                pending=sum(not p.is_savepoint for p in self.pending.values()),
                max_concurrent=self.config.max_concurrent,
                triggering=any(p.phase is Phase.PLANNING for p in self.pending.values()),
                last_completed_at=self._last_completed_at,
                min_pause=self.config.min_pause_seconds,
                deletions_waiting=self._deletions,
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

    @property
    def _state_is_known(self) -> bool:
        """Whether hosts have claimed all shards that changelogs belong to.

        What no host has is taken from the checkpoint that it comes from, and that is not all of such a shard.
        """
        return all(query.assignment.complete for query in self.queries.values())

    def _timeout(self, request: Request) -> float:
        savepoint = request.kind is CheckpointKind.SAVEPOINT
        return self.config.savepoint_timeout_seconds if savepoint else self.config.timeout_seconds

    def _trigger(self, request: Request, now: float) -> None:
        if not self.queries or self.required:
            missing = ", ".join(sorted(self.required)) or "any query"
            detail = f"not started yet: {missing}"
            self._reject(request, Reason.NOT_ALL_REQUIRED_TASKS_RUNNING, detail)
            return
        savepoint = request.kind is CheckpointKind.SAVEPOINT
        pending = PendingCheckpoint(
            id=self.next_id,
            request=request,
            root=request.target or self.root,
            base=None if savepoint else self.base,
            triggered_at=now,
            deadline=now + self._timeout(request),
        )
        self.next_id += 1
        pending.doomed |= self._doomed
        self.pending[pending.id] = pending
        self.history.started(pending.id, pending.kind, now)
        order = downstream_first({name: query.reads for name, query in self.queries.items()})
        self._out.append(ChooseCut(pending.id, order, pending.root, savepoint))

    def cut(self, checkpoint: int, query: str, *, planned: int, stands_at: int | None = None) -> None:
        """Fix a query's cut and place its barrier.

        Args:
            checkpoint: the checkpoint that is being planned.
            query: name of the query.
            planned: the newest batch that Spark has planned, read just now.
            stands_at: for a query that stands still, its newest committed batch.
        """
        pending = self.pending.get(checkpoint)
        if pending is None or pending.phase is not Phase.PLANNING:
            return
        gate = self.queries[query].gate
        barrier = (
            gate.place(checkpoint, planned) if stands_at is None else gate.place_at(checkpoint, stands_at)
        )
        pending.cut_at(query, barrier.cut)

    def planning_done(self, checkpoint: int, now: float) -> list[Instruction]:
        """Every query has its cut."""
        pending = self.pending.get(checkpoint)
        if pending is not None and pending.phase is Phase.PLANNING:
            pending.move(Phase.COLLECTING)
            for name in pending.parts:
                self._committed(self.queries[name], self.queries[name].committed, now)
            self._finish_if_complete(pending)
            self._advance(now)
        return self._take()

    def waiting_for_commits(self) -> dict[str, int]:
        """By query the oldest cut of which it is not known yet that it has committed."""
        waiting: dict[str, int] = {}
        for pending in self.pending.values():
            for name, part in pending.parts.items():
                if not pending.has_committed(name):
                    waiting[name] = min(part.cut, waiting.get(name, part.cut))
        return waiting

    # --- batches --------------------------------------------------------------------------------------------

    def ask(self, ask: AskBatch, now: float) -> tuple[BatchAnswer, list[Instruction]]:
        """A state host asks what stands ahead of a batch.

        Raises:
            StaleQueryError: the query has gone back to a checkpoint since; this task is left over.
        """
        query = self._query(ask.query_id, ask.batch)
        # Spark begins a batch only after its predecessor has committed.
        self._committed(query, ask.batch - 1, now)
        barriers = query.gate.passes(ask.batch)
        orders = (
            self.pending[barrier.checkpoint].parts[query.name].orders.get(ask.host)
            for barrier in barriers
            if barrier.checkpoint in self.pending
        )
        return BatchAnswer(tuple(order for order in orders if order is not None)), self._take()

    def claim(self, claim: ClaimShards) -> ClaimAnswer:
        """A state host wants to own shards.

        Raises:
            StaleQueryError: as for ``ask``.
            StateLostError: the state of a shard is gone; the pipeline must go back.
        """
        query = self._query(claim.query_id, None)
        wanted = [ShardId(claim.uid, shard) for shard in claim.shards]
        return query.assignment.claim(claim.host, wanted, query.gate.passed, self.hosts)

    def places(self, name: str, uid: str) -> ShardLocations:
        """Where the state of an operator of a query is now.

        Raises:
            StateLostError: a shard's host is gone; the pipeline is about to go back.
        """
        query = self.queries[name]
        assignment = query.assignment
        addresses: dict[str, None] = {}
        for host, shards in assignment.by_owner().items():
            owned = next((shard for shard in shards if shard.uid == uid), None)
            if owned is None:
                continue
            if host not in self.hosts:
                raise StateLostError(uid, owned.shard, f"its state host {host} is gone")
            addresses[self.hosts[host].address] = None
        untouched = {
            shard.shard: assignment.sources.get(shard) for shard in assignment.unowned() if shard.uid == uid
        }
        return ShardLocations(query.query_id, tuple(addresses), untouched, assignment.resume_point)

    def committed(self, name: str, batch: int, now: float) -> list[Instruction]:
        """A batch of a query is known to have committed."""
        if name in self.queries:
            self._committed(self.queries[name], batch, now)
        return self._take()

    def _committed(self, query: QueryState, batch: int, now: float) -> None:
        query.committed = max(query.committed, batch)
        for pending in list(self.pending.values()):
            part = pending.parts.get(query.name)
            if part is None or part.cut > query.committed or pending.has_committed(query.name):
                continue
            self._collect(pending, query, now)

    def _collect(self, pending: PendingCheckpoint, query: QueryState, now: float) -> None:
        """The cut of a query has committed: now it is known who must acknowledge, and they can be told."""
        assignment, cut = query.assignment, pending.parts[query.name].cut
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
            )
            for host, shards in assignment.by_owner().items()
        }
        pending.expect(query.name, assignment.shards, orders)
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
        base = next((m for m in self.completed if m.id == pending.base), None)
        record = next((q for q in base.queries if q.name == query.name), None) if base else None
        self._out.append(
            StoreProgress(pending.id, query.name, cut, pending.root, record.files if record else None)
        )

    def _query(self, query_id: str, batch: int | None) -> QueryState:
        for query in self.queries.values():
            if query.query_id == query_id:
                return query
        raise StaleQueryError(query_id, batch)

    # --- acknowledgements -----------------------------------------------------------------------------------

    def ack(self, ack: Ack, now: float) -> tuple[tuple[AckResult, ...], list[Instruction]]:
        """A state host says that shards are durable. Returns what became of each shard's word."""
        pending = self.pending.get(ack.checkpoint)
        name = next((n for n, q in self.queries.items() if q.query_id == ack.query_id), None)
        if pending is None or name is None:
            if pending is None:
                self._discard_late(ack.checkpoint)
            return tuple(AckResult.UNKNOWN for _ in ack.snapshots), self._take()
        results = []
        for snapshot in ack.snapshots:
            result = pending.acknowledge_shard(name, snapshot.shard, snapshot.handle, snapshot.new_bytes)
            if result is AckResult.ACCEPTED:
                pending.snapshots.append((snapshot, now))
            results.append(result)
        self._finish_if_complete(pending)
        return tuple(results), self._take()

    def progress_stored(self, checkpoint: int, progress: QueryRecord, new_bytes: int) -> list[Instruction]:
        """A query's progress at the cut is durable."""
        if (pending := self.pending.get(checkpoint)) is not None:
            pending.acknowledge_query(progress, new_bytes)
            self._finish_if_complete(pending)
        else:
            self._discard_late(checkpoint)
        return self._take()

    def shards_copied(
        self, checkpoint: int, query: str, handles: Mapping[ShardId, Handle], new_bytes: int
    ) -> list[Instruction]:
        """Shards that nobody had touched are durable in the checkpoint's own place."""
        if (pending := self.pending.get(checkpoint)) is not None:
            for shard, handle in handles.items():
                pending.acknowledge_shard(query, shard, handle)
            pending.new_bytes += new_bytes
            self._finish_if_complete(pending)
        else:
            self._discard_late(checkpoint)
        return self._take()

    def decline(self, decline: Decline, now: float) -> list[Instruction]:
        """A state host cannot do its part.

        It is too late to say so when all parts are durable: whoever acknowledged and did not hear that its
        word had arrived declines afterwards, and the manifest may be there by then.
        """
        pending = self.pending.get(decline.checkpoint)
        if pending is None or pending.phase is Phase.FINALIZING:
            return self._take()
        return self.failed(decline.checkpoint, Reason.DECLINED, decline.error, now)

    def failed(self, checkpoint: int, reason: Reason, detail: str, now: float) -> list[Instruction]:
        """A part of a checkpoint has failed."""
        if (pending := self.pending.get(checkpoint)) is not None:
            self._abort(pending, reason, detail, now)
            self._advance(now)
        return self._take()

    def _discard_late(self, checkpoint: int) -> None:
        """Something was stored for a checkpoint that has ended."""
        completed = any(manifest.id == checkpoint for manifest in self.completed)
        if 0 < checkpoint < self.next_id and not completed:
            self._out.append(DiscardAborted(checkpoint, self.root, is_savepoint=False))

    # --- outcomes -------------------------------------------------------------------------------------------

    def _finish_if_complete(self, pending: PendingCheckpoint) -> None:
        if pending.phase is Phase.COLLECTING and pending.is_fully_acknowledged:
            pending.move(Phase.FINALIZING)
            self._out.append(Finalize(pending.id))

    def finalize(self, checkpoint: int, now: float) -> Manifest | None:
        """The manifest to write; None where the checkpoint has been aborted meanwhile."""
        pending = self.pending.get(checkpoint)
        if pending is None:
            return None
        operators = [
            operator
            for name, query in self.queries.items()
            if name in pending.parts
            for operator in query.operators_at(pending.parts[name].cut)
        ]
        return pending.manifest(
            pipeline=self.pipeline,
            generation=self.generation,
            operators=operators,
            completed_at=now,
            versions=self.versions,
        )

    def doomed(self, manifest: Manifest) -> frozenset[str]:
        """Objects that a manifest about to be written needs, but that retention may have deleted meanwhile.

        An object is named by its content: what a checkpoint uploads can be what an old one had, too.
        """
        pending = self.pending[manifest.id]
        return frozenset() if pending.is_savepoint else manifest.keys() & pending.doomed

    def finalized(self, manifest: Manifest, now: float) -> list[Instruction]:
        """The manifest is durable: the checkpoint has completed."""
        pending = self.pending.pop(manifest.id)
        pending.move(Phase.COMPLETED)
        self._lift(pending)
        self.history.completed(
            manifest.id,
            now,
            size=manifest.size,
            new_bytes=manifest.new_bytes,
            shards=_shard_statistics(pending),
        )
        if not pending.is_savepoint:
            self.failures.completed(manifest.id)
            self._last_completed_at = now
            self.base = manifest.id
            self.completed = tuple(sorted((*self.completed, manifest), key=lambda m: m.id))
            self._send_all(CompleteOrder(manifest.id))
            for older in [p for p in self.pending.values() if p.id < manifest.id and not p.is_savepoint]:
                self._abort(older, Reason.SUBSUMED, f"checkpoint {manifest.id} completed first", now)
            self._retain()
        self._out.append(Resolve(pending.request, manifest, pending.root))
        self._advance(now)
        return self._take()

    def _retain(self) -> None:
        in_use = {p.base for p in self.pending.values() if p.base is not None}
        if self.base is not None:
            in_use.add(self.base)
        ids = dropped_ids([m.id for m in self.completed], self.config.retained, in_use)
        if ids:
            dropped = tuple(m for m in self.completed if m.id in ids)
            self.completed = tuple(m for m in self.completed if m.id not in ids)
            self._deletions += len(dropped)
            doomed = deletable(dropped, self.completed)
            self._doomed |= doomed
            for pending in self.pending.values():
                pending.doomed |= doomed
            self._out.append(Discard(dropped, self.completed))

    def discarded(self, count: int, now: float) -> list[Instruction]:
        """Checkpoints that retention dropped have been deleted, or could not be."""
        self._deletions -= count
        if not self._deletions:
            self._doomed.clear()
        self._advance(now)
        return self._take()

    def _abort(self, pending: PendingCheckpoint, reason: Reason, detail: str, now: float) -> None:
        del self.pending[pending.id]
        pending.move(Phase.ABORTED, reason)
        self._lift(pending)
        latest = self.completed[-1].id if self.completed else None
        self._send_all(AbortOrder(pending.id, latest))
        self._out.append(DiscardAborted(pending.id, pending.root, pending.is_savepoint))
        self.history.failed(pending.id, now, reason, shards=_shard_statistics(pending))
        self._reject(pending.request, reason, detail, pending.id)

    def _reject(self, request: Request, reason: Reason, detail: str, id: int | None = None) -> None:
        error = CheckpointError(id, reason, detail)
        self._out.append(Reject(request, error))
        # As in Flink, a savepoint to a bad place is its user's problem, not the pipeline's.
        if request.kind is not CheckpointKind.SAVEPOINT and self.failures.failed(id, reason):
            self._out.append(FailPipeline(error))

    def _lift(self, pending: PendingCheckpoint) -> None:
        for name in pending.parts:
            if name in self.queries:
                self.queries[name].gate.lift(pending.id)

    def _send_all(self, order: CompleteOrder | AbortOrder | ReleaseOrder) -> None:
        self._out.extend(Send(host, order) for host in sorted(self.hosts))

    # --- life cycle -----------------------------------------------------------------------------------------

    def suspend(self, cause: str, now: float) -> list[Instruction]:
        """The pipeline goes back: checkpoints on their way end here, and what is queued waits for ``resume``."""
        self.suspended = True
        for pending in list(self.pending.values()):
            if pending.phase is not Phase.FINALIZING:
                self._abort(pending, Reason.JOB_FAILOVER, cause, now)
        return self._take()

    def resume(self, now: float) -> list[Instruction]:
        """The queries are those of the restored checkpoint now."""
        self.suspended = False
        self._advance(now)
        return self._take()

    def release(self, query_ids: Iterable[str]) -> list[Instruction]:
        """Tell the hosts that runs of queries are over for good."""
        for query_id in query_ids:
            self._send_all(ReleaseOrder(query_id))
        return self._take()

    def close(self, reason: Reason, now: float) -> list[Instruction]:
        """Take no more requests, and end those that are waiting or on their way."""
        self.closed = reason
        self.schedule.stop()
        for request in self.queue.clear():
            self._reject(request, reason, "the coordinator is stopping")
        for pending in list(self.pending.values()):
            if pending.phase is not Phase.FINALIZING:
                self._abort(pending, reason, "the coordinator is stopping", now)
        return self._take()

    def _take(self) -> list[Instruction]:
        out, self._out = self._out, []
        return out


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
