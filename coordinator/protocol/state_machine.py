"""The protocol of a pipeline as a state machine: events in, instructions out; no I/O, no thread, no clock.

``handle`` is the only way to change it. Its owner passes one event at a time (under a lock) and carries out the
instructions afterwards. Instructions for one state host must be sent in their order. The other public methods only
read.

Each part of it owns its data: ``Membership`` the hosts, ``Placement`` the shards on them, ``Admission`` the requests
for checkpoints, ``Emptying`` those to drain machines, ``Checkpoints`` all checkpoints, ``Failover`` the life of the
pipeline. An event goes to the parts that it concerns. Then ``_go_on`` has each of them do what has waited for it, so no
part has to know what its changes allow others to do. A failure that a part notices on the way is decided before
``handle`` returns: no event meets a pipeline whose loss is known and not decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, cast

import attrs

from ...barrier.gate import Gate
from ...state.rpc import messages
from ...state.rpc.orders import ReleaseOrder, StopHost
from ...state.shards import ShardId
from ...storage.checkpoints.manifest import Manifest
from ...storage.ids import BatchId, CheckpointId
from . import events
from .acts import Acts
from .admission import Admission
from .checkpoints import Checkpoints
from .decisions import Decision, HostLost, RecoveryEvent
from .emptying import Emptying
from .failover import Failover
from .instructions import Decided, Instruction, Send
from .life import Life
from .limits import ProtocolLimits
from .membership import Membership
from .placement import Placement
from .publication import Publications
from .query_state import Queries, QueryState
from .reasons import Reason
from .requests import Request
from .retained import RetainedCheckpoints
from .shard_assignment import ShardAssignment
from .statistics import History


@attrs.frozen
class Outcome(Generic[events.Answer]):
    """What an event leads to."""

    answer: events.Answer
    """For the sender of the event."""
    instructions: tuple[Instruction, ...]


@attrs.define
class PipelineStateMachine:
    """The checkpoints of one pipeline, from request to outcome, and what is done about its failures."""

    pipeline: str
    generation: int
    root: str
    """URI of the pipeline's own store."""
    limits: ProtocolLimits
    next_id: CheckpointId
    """The id of the first checkpoint."""
    failover: Failover
    """The part that decides about failures."""
    completed: tuple[Manifest, ...] = ()
    """The completed checkpoints that there are at the start, oldest first; ``checkpoints`` has them from then on."""
    base: CheckpointId | None = None
    """The one of them that the state grows from at the start."""
    required: Mapping[str, CheckpointId] = attrs.field(factory=dict)
    """Queries that the restored checkpoint has: there is no checkpoint without them."""
    versions: dict[str, str] = attrs.field(factory=dict)
    follows_tasks: bool = False
    """See ``Moves``."""
    queries: Queries = attrs.field(factory=Queries, init=False)
    members: Membership = attrs.field(factory=Membership, init=False)
    placement: Placement = attrs.field(init=False)
    admission: Admission = attrs.field(init=False)
    emptying: Emptying = attrs.field(init=False)
    acts: Acts = attrs.field(factory=Acts, init=False)
    checkpoints: Checkpoints = attrs.field(init=False)
    _out: list[Instruction] = attrs.field(factory=list, init=False)
    """The instructions of the event that is being handled. All parts add to it."""

    def __attrs_post_init__(self) -> None:
        limits, out = self.limits, self._out
        retained = RetainedCheckpoints(limits.retained, self.completed, self.base)
        self.placement = Placement.of(
            self.failover, self.queries, self.members, limits, retained, out, follows_tasks=self.follows_tasks
        )
        self.admission = Admission.of(self.failover, limits, out)
        self.emptying = Emptying(self.placement, self.admission)
        self.checkpoints = Checkpoints(
            root=self.root,
            next_id=self.next_id,
            required=self.required,
            queries=self.queries,
            members=self.members,
            placement=self.placement,
            admission=self.admission,
            retained=retained,
            publications=Publications(limits.max_unpublished),
            history=History(limits.history),
            out=out,
        )

    def handle(self, event: events.Event[events.Answer], now: float) -> Outcome[events.Answer]:
        """Handle an event. Nothing else changes the state machine.

        Args:
            event: what has happened.
            now: when, in seconds since 1970; never earlier than the event before.

        Raises:
            DefinitionError: a query that is added cannot read what it says.
            StaleQueryError: a batch or a claim belongs to a run of a query that is over.
            StateLostError: the state of a shard that is claimed is lost; the pipeline must go back.
            ShardMovingError: a shard that is claimed is being handed over.
            HostDismissedError: the host has lost its shards to other hosts.
            NotTheOwnerError: a host that does not own a shard would drop its standby.
            PhaseError: the event does not fit the phase of its checkpoint.
            Nothing has changed after any other than a ``PhaseError``.
        """
        # The type of an event says which answer its method returns.
        answer = cast(events.Answer, self._change(event, now))
        while self.failover.noticed:
            noticed = self.failover.noticed.pop(0)
            self._out.append(Decided(noticed, self._recover(noticed, now)))
            self._go_on(now)
        instructions = tuple(self._out)
        self._out.clear()
        return Outcome(answer, instructions)

    def _change(self, event: events.Event[Any], now: float) -> object:
        answer: object = None
        match event:
            # A checkpoint of a large pipeline has thousands of these. They see themselves to what follows from them.
            case events.Acked(ack):
                return self.checkpoints.ack(ack, now)
            case events.BatchAsked(ask):
                return self._ask(ask, now)
            case events.QueryAdded():
                self._add_query(event)
            case events.QueryRemoved(query):
                self._remove_query(query, now)
            case events.QueryStopped(query, batch):
                self.checkpoints.query_stopped(query, batch, now)
            case events.HostJoined(hello):
                self._host_joined(hello, now)
            case events.HostLeft(hello, is_silent):
                self._host_left(hello, now, is_silent=is_silent)
            case messages.CopyReport():
                self.placement.reported(event)
            case messages.DropStandby():
                self.placement.drop_standby(event)
            case events.DrainRequested(machine, seconds):
                answer = self.emptying.drain(machine, seconds, now)
            case events.ActRequested(kind, name):
                answer = self.acts.ask(kind, name)
            case events.ActEnded(number, error):
                self.acts.ended(number, error)
            case events.ExecutorsLeaving(executors):
                self.placement.leave(executors)
            case events.ExecutorsGone(executors):
                self.members.gone |= executors
            case events.CheckpointRequested():
                answer = self._request(event, now)
            case events.ScheduleStarted(chance):
                self.admission.start_schedule(chance, now)
            case events.BacklogChanged(is_behind):
                self.admission.schedule.falls_behind(is_behind)
            case events.Tick():
                self._tick(now)
            case events.CutChosen(checkpoint, query, planned, current_batch):
                self.checkpoints.cut(checkpoint, query, planned, current_batch)
            case events.PlanningDone(checkpoint):
                self.checkpoints.planning_done(checkpoint, now)
            case messages.ClaimShards():
                answer = self.placement.claim(event)
            case events.ShardsRead(query_id, shards):
                self._shards_read(query_id, shards)
            case messages.ShardNotOpened(host, query_id, shard):
                self._shard_given_up(host, query_id, shard)
            case events.SourcesReadBack(query_id, whole):
                self._sources_read_back(query_id, whole)
            case events.BatchCommitted(query, batch):
                self._batch_committed(query, batch)
            case messages.Decline():
                self.checkpoints.decline(event, now)
            case events.ProgressStored():
                self.checkpoints.progress_stored(event, now)
            case events.ShardsCopied():
                self.checkpoints.shards_copied(event, now)
            case events.InstructionFailed(checkpoint, reason, detail):
                self.checkpoints.failed(checkpoint, reason, detail, now)
            case events.Finalized(manifest):
                self.checkpoints.finalized(manifest, now)
            case events.Published(checkpoint, query):
                self.checkpoints.published(checkpoint, query, now)
            case events.NotFinalized():
                self.checkpoints.not_finalized(event, now)
            case events.Discarded(checkpoints, remaining):
                self.checkpoints.discarded(checkpoints, remaining, now)
            case RecoveryEvent():
                answer = self._recover(event, now)
            case events.PipelineRestored(checkpoint):
                if checkpoint is not None:
                    self.checkpoints.restored(checkpoint)
            case events.Released(query_ids):
                self._release(query_ids)
            case _:
                raise TypeError(f"{type(event).__name__} is no event of the protocol")
        self._go_on(now)
        return answer

    def _go_on(self, now: float) -> None:
        """Have every part do what has waited for the event.

        The order matters: snapshots of cuts that have committed come before the shards are handed over, and moves of a
        checkpoint that has ended before the next one begins. What a part does here calls for nothing of an earlier one.
        """
        self._act_on_commits(now)
        self.checkpoints.go_on(now)
        self.emptying.end(now)

    def _act_on_commits(self, now: float) -> None:
        """Do what has waited for a batch to commit."""
        self.checkpoints.collect(now)
        self.placement.go_on(now, self.checkpoints.is_awaited)

    # --- reads ----------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When ``Tick`` is due at the earliest; None: not before another event."""
        times = self.checkpoints.deadlines()
        times += self.admission.deadlines(self.checkpoints.publications.are_full)
        times += self.emptying.deadlines(self.checkpoints.load())
        if (deadline := self.placement.next_deadline()) is not None:
            times.append(deadline)
        return min(times, default=None)

    def waiting_for_commits(self) -> dict[str, BatchId]:
        """The oldest cut by query, or batch after which a shard moves, that is not known to have committed."""
        waiting = self.checkpoints.waiting_for_commits()
        for name, query in self.queries.items():
            if query.committed < query.gate.passed and self.placement.waits_for_commit(name):
                waiting.setdefault(name, query.gate.passed)
        return waiting

    def holds(self, query_id: str) -> bool:
        """Whether the next batch of the query with this Spark id waits for a shard that is being handed over."""
        query = self.queries.running(query_id)
        return query is not None and self.placement.holds(query.name)

    def manifest(self, checkpoint: CheckpointId, now: float) -> Manifest | None:
        """The manifest to write for a checkpoint that all have acknowledged; None if it was aborted meanwhile.

        Raises:
            PhaseError: not all have acknowledged.
        """
        return self.checkpoints.manifest(
            checkpoint, pipeline=self.pipeline, generation=self.generation, now=now, versions=self.versions
        )

    @property
    def life(self) -> Life:
        """The pipeline's life."""
        return self.failover.life

    # --- queries and batches --------------------------------------------------------------------------------

    def _add_query(self, added: events.QueryAdded) -> None:
        self.queries.check_reads(added.name, added.reads)
        self.placement.query_over(added.name)
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
        self.checkpoints.query_removed(name, now)
        self.placement.query_over(name)
        self.queries.pop(name, None)

    def _ask(self, ask: messages.AskBatch, now: float) -> messages.BatchAnswer | None:
        query = self.queries.get_running(ask.query_id, ask.batch)
        self.members.check_not_dismissed(ask.host)
        # Spark begins a batch only after its predecessor has committed.
        query.committed = max(query.committed, BatchId(ask.batch - 1))
        self._act_on_commits(now)
        if ask.batch > query.gate.passed and self.placement.holds(query.name):
            return None
        orders = (
            self.checkpoints.order(query.name, barrier.checkpoint, ask.host)
            for barrier in query.gate.passes(ask.batch)
        )
        return messages.BatchAnswer(tuple(order for order in orders if order is not None))

    def _batch_committed(self, name: str, batch: BatchId) -> None:
        if (query := self.queries.get(name)) is not None:
            query.committed = max(query.committed, batch)

    def _shards_read(self, query_id: str, shards: tuple[ShardId, ...]) -> None:
        if (query := self.queries.running(query_id)) is not None:
            query.assignment.read(shards)

    def _shard_given_up(self, host: str, query_id: str, shard: ShardId) -> None:
        if (query := self.queries.running(query_id)) is not None:
            query.assignment.give_up(host, shard)

    def _sources_read_back(self, query_id: str, whole: bool) -> None:
        if (query := self.queries.running(query_id)) is not None:
            query.is_read_back = False
            if whole:
                query.verified()

    # --- hosts ----------------------------------------------------------------------------------------------

    def _host_joined(self, hello: messages.HostHello, now: float) -> None:
        if hello.host in self.members.dismissed:
            self._out.append(Send(hello.host, StopHost(is_replaced=True)))
            return
        is_new = hello.host not in self.members.hosts
        replaced = self.members.join(hello)
        if is_new:
            self.placement.host_joined()
        if replaced is not None:
            # What an earlier host has said may come in after the later host: that one lives, and must not go on.
            self._out.append(Send(replaced.host, StopHost(is_replaced=True)))
            self._host_lost(replaced, f"a new state host took the place of one on {hello.machine}", now)

    def _host_left(self, hello: messages.HostHello, now: float, *, is_silent: bool) -> None:
        if hello.host not in self.members.hosts:
            # Another one has taken its place: what it had is lost already.
            return
        self.members.leave(hello)
        why = f"state host {hello.host} on {hello.machine} is gone"
        self._host_lost(hello, why, now, is_silent=is_silent)

    def _host_lost(self, hello: messages.HostHello, why: str, now: float, *, is_silent: bool = False) -> None:
        """Give the shards that a host had other owners, or take the pipeline back."""
        found = self.placement.replacements(hello, is_silent=is_silent)
        if found is not None and found.shards:
            self.checkpoints.shards_lost(found.shards, why, now)
            self.placement.replace(found, hello, why, now)
        if self.placement.host_lost(hello.host) or found is None:
            self.failover.noticed.append(HostLost(why))

    # --- requests, time and life cycle ----------------------------------------------------------------------

    def _request(self, asked: events.CheckpointRequested, now: float) -> Request:
        request = self.admission.new_request(asked.kind, now, asked.target, is_final=asked.is_final)
        self.admission.request(request, self.checkpoints.load())
        return request

    def _tick(self, now: float) -> None:
        """Expire what is overdue, and request what is due."""
        self.checkpoints.expire(now)
        self.admission.expire(now, self.checkpoints.load())
        self.placement.expire(now)
        self.admission.request_what_is_due(now)
        self.emptying.request_what_is_due(now, self.checkpoints.load())

    def _recover(self, event: RecoveryEvent, now: float) -> Decision:
        """Decide about an event. No checkpoint and no move outlives that the pipeline goes back or ends."""
        before = self.life
        decision = self.failover.decide(event, now)
        if self.life is not before and not before.is_over:
            self._live(before, self.life, now)
        return decision

    def _live(self, before: Life, life: Life, now: float) -> None:
        self.acts.lives(life)
        if (reason := life.why_over) is not None:
            self.placement.give_up()
            self.admission.close(reason)
            self.checkpoints.abort_all(reason, life.because or "the coordinator is stopping", now)
            self.checkpoints.answer_all()
        elif before.takes_checkpoints and not life.takes_checkpoints:
            self.placement.give_up()
            self.checkpoints.abort_all(Reason.JOB_FAILOVER, life.because, now)
            self.admission.suspend(life.because)
        elif life.takes_checkpoints and not before.takes_checkpoints:
            self.admission.moved(now)

    def _release(self, query_ids: tuple[str, ...]) -> None:
        for query_id in query_ids:
            self.checkpoints.send_all(ReleaseOrder(query_id))
