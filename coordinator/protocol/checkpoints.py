"""The checkpoints of a pipeline, from trigger to outcome, and what becomes of those that have completed.

The phases of a checkpoint are in ``pending.PHASES``. A transactional sink takes part by two-phase commit. Pre-commit is
part of what a query acknowledges: ``ProgressStored`` brings what its sinks have to publish, and the manifest says it.
Commit follows ``Finalized``: the checkpoint is complete, a restore would go to it, and ``Publish`` has its output
published, in the order of ids. Its request is answered once ``Published`` has come from every query, or its time is
up. While a target stays away, checkpoints complete until ``ProtocolLimits.max_unpublished`` wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import attrs

from ...state.rpc.messages import Ack, Decline
from ...state.rpc.orders import AbortOrder, CompleteOrder, ReleaseOrder, SnapshotOrder
from ...state.shards import RestoreSource, ShardId
from ...storage.checkpoints.manifest import Handle, Manifest
from ...storage.ids import NO_BATCH, BatchId, CheckpointId
from . import instructions
from .admission import Admission, Load
from .events import NotFinalized, ProgressStored, ShardsCopied
from .membership import Membership
from .pending import AckResult, CheckpointPhase, PendingCheckpoint
from .placement import Placement
from .publication import Publication, Publications
from .query_state import Queries, QueryState
from .reasons import Reason
from .requests import Request
from .retained import RetainedCheckpoints
from .statistics import CheckpointStatistics, History, ShardStatistics


@attrs.define(kw_only=True)
class Checkpoints:
    """All checkpoints of a pipeline: pending, completed, and those whose output is being published."""

    root: str
    """URI of the pipeline's own store."""
    next_id: CheckpointId
    required: Mapping[str, CheckpointId]
    """Queries that the restored checkpoint has, with its id: there is no checkpoint without them."""
    queries: Queries
    members: Membership
    placement: Placement
    admission: Admission
    retained: RetainedCheckpoints
    publications: Publications
    history: History
    _out: list[instructions.Instruction]
    pending: dict[CheckpointId, PendingCheckpoint] = attrs.field(factory=dict, init=False)

    # --- reads ----------------------------------------------------------------------------------------------

    def load(self) -> Load:
        """Return what is under way, by which requests are admitted."""
        return Load(
            pending=tuple(self.pending.values()),
            deletions=self.retained.deletions,
            unpublished=len(self.publications.under_way),
            is_output_full=self.publications.are_full,
            state_is_known=self.queries.all_claimed,
        )

    def deadlines(self) -> list[float]:
        """Return when pending checkpoints and publications are overdue."""
        pending = [one.deadline for one in self.pending.values() if one.is_awaited]
        return pending + self.publications.deadlines()

    def waiting_for_commits(self) -> dict[str, BatchId]:
        """Return the oldest cut by query that is not known to have committed."""
        waiting: dict[str, BatchId] = {}
        for pending in self.pending.values():
            for name, part in pending.parts.items():
                if not pending.has_committed(name):
                    waiting[name] = min(part.cut, waiting.get(name, part.cut))
        return waiting

    def is_awaited(self, query: str, shard: ShardId) -> bool:
        """Whether a pending checkpoint waits for a shard's snapshot, which its host has been told to take."""
        return any(pending.waits_for(query, shard) for pending in self.pending.values())

    def order(self, query: str, checkpoint: CheckpointId, host: str) -> SnapshotOrder | None:
        """Return what a host has to do for a checkpoint whose barrier a query's tasks pass; None: nothing."""
        pending = self.pending.get(checkpoint)
        return pending.parts[query].orders.get(host) if pending else None

    def manifest(
        self,
        checkpoint: CheckpointId,
        *,
        pipeline: str,
        generation: int,
        now: float,
        versions: dict[str, str],
    ) -> Manifest | None:
        """Return the manifest to write for a checkpoint that all have acknowledged; None if it was aborted meanwhile.

        Raises:
            PhaseError: not all have acknowledged.
        """
        pending = self.pending.get(checkpoint)
        if pending is None:
            return None
        return pending.manifest(
            pipeline=pipeline,
            generation=generation,
            completed_at=now,
            versions=versions,
            # Nobody reads on for a query that is gone.
            unverified=any(name not in self.queries or self.queries[name].unread() for name in pending.parts),
        )

    def doomed(self, manifest: Manifest) -> frozenset[str]:
        """Return the objects that a manifest to be written needs, but that retention may have deleted meanwhile.

        Objects are named by their content: a checkpoint can upload what a dropped one had, too.
        """
        pending = self.pending[manifest.id]
        return frozenset() if pending.is_savepoint else manifest.keys() & pending.doomed

    @property
    def _revocable(self) -> list[PendingCheckpoint]:
        return [pending for pending in self.pending.values() if pending.is_revocable]

    # --- trigger and cut ------------------------------------------------------------------------------------

    def go_on(self, now: float) -> None:
        """Begin the checkpoints whose requests have their turn."""
        while (request := self.admission.next(self.load())) is not None:
            self._trigger(request, now)

    @property
    def are_queries_there(self) -> bool:
        """Whether all queries that a checkpoint must have have been started."""
        return bool(self.queries) and self.required.keys() <= self.queries.keys()

    @property
    def has_something_to_keep(self) -> bool:
        """Whether all queries are there, and a completed checkpoint has a batch of one: there is more than a start."""
        return self.are_queries_there and any(
            record.batch > NO_BATCH for one in self.retained.manifests for record in one.queries
        )

    def _trigger(self, request: Request, now: float) -> None:
        if not self.are_queries_there:
            detail = "no query has been started yet"
            if missing := {
                name: at for name, at in sorted(self.required.items()) if name not in self.queries
            }:
                detail = (
                    f"the restored checkpoint has queries that have not started yet: {', '.join(missing)}; start "
                    f"them, or, if the pipeline no longer has them, pass permit=Permit(dropped_queries={missing})"
                )
            self.admission.reject(request, Reason.NOT_ALL_REQUIRED_TASKS_RUNNING, detail)
            return
        pending = PendingCheckpoint(
            id=self.next_id,
            request=request,
            root=request.target or self.root,
            base=None if request.is_savepoint else self.retained.base,
            triggered_at=now,
            deadline=now + self.admission.timeout(request),
        )
        self.next_id = CheckpointId(self.next_id + 1)
        self.admission.moved(now)
        pending.doomed |= self.retained.being_deleted()
        self.pending[pending.id] = pending
        order = self.queries.downstream_first()
        self._out.append(instructions.ChooseCut(pending.id, order, pending.root, pending.is_savepoint))
        self._count(lambda history: history.started(pending.id, pending.kind, now))

    def cut(
        self, checkpoint: CheckpointId, query: str, planned: BatchId, current_batch: BatchId | None
    ) -> None:
        """Fix a query's cut and place its barrier."""
        pending = self.pending.get(checkpoint)
        if pending is None or pending.phase is not CheckpointPhase.PLANNING:
            return
        gate = self.queries[query].gate
        barrier = (
            gate.place(checkpoint, planned)
            if current_batch is None
            else gate.place_at(checkpoint, current_batch)
        )
        pending.cut_at(query, barrier.cut)

    def planning_done(self, checkpoint: CheckpointId, now: float) -> None:
        """Collect acknowledgements: the cut is chosen."""
        pending = self.pending.get(checkpoint)
        if pending is not None and pending.phase is CheckpointPhase.PLANNING:
            pending.enter(CheckpointPhase.COLLECTING, now)
            self.collect(now)
            self._finish_if_complete(pending, now)

    def collect(self, now: float) -> None:
        """Tell the participants of each cut that has committed."""
        for query in self.queries.values():
            # The next owner of a shard that is being handed over takes its snapshots.
            if self.placement.holds(query.name):
                continue
            for pending in list(self.pending.values()):
                part = pending.parts.get(query.name)
                if part is None or part.cut > query.committed or pending.has_committed(query.name):
                    continue
                self._collect(pending, query, now)

    def _collect(self, pending: PendingCheckpoint, query: QueryState, now: float) -> None:
        """Tell the participants: they are known once the cut of the query has committed."""
        assignment, cut = query.assignment, pending.parts[query.name].cut
        # A savepoint may be gone when the shard is restored from it.
        follow = () if pending.is_savepoint else self.placement.follow(query.name, pending.id)
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
        self._out.extend(instructions.Send(host, order) for host, order in orders.items())
        to_copy: list[tuple[ShardId, RestoreSource]] = []
        for shard in list(assignment.unowned()):
            source = assignment.sources.get(shard)
            if source is not None and source.root != pending.root:
                to_copy.append((shard, source))
            else:
                pending.acknowledge_shard(query.name, shard, source.handle if source else None)
        if to_copy:
            self._out.append(instructions.CopyShards(pending.id, query.name, tuple(to_copy), pending.root))
        base = self.retained.find(pending.base)
        record = next((q for q in base.queries if q.name == query.name), None) if base else None
        self._out.append(
            instructions.StoreProgress(
                pending.id, query.name, cut, pending.root, record.files if record else None
            )
        )

    # --- acknowledgements -----------------------------------------------------------------------------------

    def ack(self, ack: Ack, now: float) -> tuple[AckResult, ...]:
        """Take in what a host has stored; return what each of its snapshots counts for."""
        pending, query = self.pending.get(ack.checkpoint), self.queries.running(ack.query_id)
        if pending is None:
            self._discard_late(ack.checkpoint)
        if pending is None or query is None:
            return tuple(AckResult.UNKNOWN for _ in ack.snapshots)
        results = []
        for snapshot in ack.snapshots:
            shard = snapshot.shard
            is_owner = query.assignment.is_owner(shard, ack.host, snapshot.term)
            if pending.waits_for(query.name, shard) and not is_owner:
                results.append(AckResult.FENCED)
                continue
            result = pending.acknowledge_shard(query.name, shard, snapshot.handle, snapshot.new_bytes)
            if result is AckResult.ACCEPTED:
                pending.snapshots.append((snapshot, now))
            results.append(result)
        self._finish_if_complete(pending, now)
        return tuple(results)

    def progress_stored(self, stored: ProgressStored, now: float) -> None:
        """Take in that the progress of a query is durable."""
        if (pending := self.pending.get(stored.checkpoint)) is None:
            self._discard_late(stored.checkpoint)
            return
        pending.acknowledge_query(stored.progress, stored.new_bytes)
        self._finish_if_complete(pending, now)

    def shards_copied(self, copied: ShardsCopied, now: float) -> None:
        """Take in that shards without an owner are durable."""
        if (pending := self.pending.get(copied.checkpoint)) is None:
            self._discard_late(copied.checkpoint)
            return
        for shard, handle in copied.handles.items():
            pending.acknowledge_shard(copied.query, shard, handle)
        pending.new_bytes += copied.new_bytes
        self._finish_if_complete(pending, now)

    def decline(self, decline: Decline, now: float) -> None:
        """Abort a checkpoint that a state host cannot do its part of.

        A decline can be late, as any failure: a host that has acknowledged and got no answer declines afterwards, and
        the manifest may be durable by then.
        """
        host = self.members.hosts.get(decline.host)
        where = f"state host {decline.host} on {host.machine}: " if host else ""
        self.failed(decline.checkpoint, Reason.DECLINED, where + decline.error, now)

    def failed(self, checkpoint: CheckpointId, reason: Reason, detail: str, now: float) -> None:
        """Abort a checkpoint, unless it has ended or its manifest may be durable."""
        pending = self.pending.get(checkpoint)
        if pending is not None and pending.is_revocable:
            self._abort(pending, reason, detail, now)

    def _discard_late(self, checkpoint: CheckpointId) -> None:
        """Delete what was stored for a checkpoint that has ended."""
        if 0 < checkpoint < self.next_id and not self.retained.may_exist(checkpoint):
            self._out.append(instructions.DiscardAborted(checkpoint, self.root, is_savepoint=False))

    # --- outcomes -------------------------------------------------------------------------------------------

    def _finish_if_complete(self, pending: PendingCheckpoint, now: float) -> None:
        if pending.phase is CheckpointPhase.COLLECTING and pending.is_fully_acknowledged:
            pending.enter(CheckpointPhase.FINALIZING, now)
            self._out.append(instructions.Finalize(pending.id, pending.root))

    def finalized(self, manifest: Manifest, now: float) -> None:
        """Complete a checkpoint: its manifest is durable."""
        pending = self.pending.pop(manifest.id)
        is_awaited = pending.is_awaited
        pending.enter(CheckpointPhase.COMPLETED, now)
        self.admission.moved(now)
        self._lift(pending)
        if not pending.is_savepoint:
            self.admission.completed(manifest.id, now)
            self.retained.add(manifest)
            self.send_all(CompleteOrder(manifest.id))
            for older in [p for p in self.pending.values() if p.id < manifest.id and not p.is_savepoint]:
                self._abort(older, Reason.SUBSUMED, f"checkpoint {manifest.id} completed first", now)
            self._retain()
            if manifest.unverified:
                self._read_back(manifest)
            self.placement.stored(manifest, self.root)
        request = pending.request if is_awaited else None
        queries = {query.name for query in manifest.queries if query.outputs}
        if queries and not pending.is_savepoint:
            publication = self.publications.begin(manifest, queries, pending.deadline, request)
            self._out.append(instructions.Publish(manifest.id, tuple(sorted(queries))))
            if self.admission.life.is_over:
                # Nobody looks at deadlines any more, and the next start publishes what is left.
                self._answer(publication)
        elif request is not None:
            self._out.append(instructions.Resolve(request, manifest, pending.root))
        self._count(
            lambda history: history.completed(
                manifest.id,
                now,
                size=manifest.size,
                new_bytes=manifest.new_bytes,
                shards=_shard_statistics(pending),
                phases=pending.seconds(now),
            )
        )

    def not_finalized(self, event: NotFinalized, now: float) -> None:
        """Abort a checkpoint without a manifest. If there may be one, all that it names stays."""
        pending = self.pending[event.manifest.id]
        if not event.is_known and not pending.is_savepoint:
            self.retained.leave_undecided(event.manifest)
        self._abort(pending, event.reason, event.detail, now, discards=event.is_known)

    def published(self, checkpoint: CheckpointId, query: str, now: float) -> None:
        """Take in that a query's sinks have published what a checkpoint has."""
        if (publication := self.publications.published(checkpoint, query)) is not None:
            self._answer(publication)
            self.admission.moved(now)

    def _answer(self, publication: Publication) -> None:
        """Answer the request of a completed checkpoint, whether its output is published or not."""
        if (request := publication.take_request()) is not None:
            self._out.append(instructions.Resolve(request, publication.manifest, self.root))

    def expire(self, now: float) -> None:
        """Abort what has taken too long, and answer requests whose output takes longer."""
        for pending in [one for one in self.pending.values() if one.is_awaited and now >= one.deadline]:
            self._expire(pending, now)
        for publication in self.publications.overdue(now):
            self._answer(publication)

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
            pending.enter(CheckpointPhase.OVERDUE, now)
            detail = f"all have acknowledged, but {after} {pending.root} has not said whether the manifest is written"
            self._fail_request(pending, Reason.EXPIRED, f"{detail}; it may still appear", now)

    def _abort(
        self, pending: PendingCheckpoint, reason: Reason, detail: str, now: float, *, discards: bool = True
    ) -> None:
        del self.pending[pending.id]
        is_awaited = pending.is_awaited
        self.admission.moved(now)
        self.placement.not_stored(pending.id)
        pending.enter(CheckpointPhase.ABORTED, now, reason)
        self._lift(pending)
        latest = self.retained.latest
        self.send_all(AbortOrder(pending.id, latest.id if latest else None))
        if discards:
            self._out.append(instructions.DiscardAborted(pending.id, pending.root, pending.is_savepoint))
        if is_awaited:
            self._fail_request(pending, reason, detail, now)

    def _fail_request(self, pending: PendingCheckpoint, reason: Reason, detail: str, now: float) -> None:
        self.admission.reject(pending.request, reason, detail, pending.id)
        self._count(
            lambda history: history.failed(
                pending.id, now, reason, shards=_shard_statistics(pending), phases=pending.seconds(now)
            )
        )

    def _lift(self, pending: PendingCheckpoint) -> None:
        for name in pending.parts:
            if name in self.queries:
                self.queries[name].gate.lift(pending.id)

    # --- what ends others -----------------------------------------------------------------------------------

    def query_removed(self, query: str, now: float) -> None:
        """Abort the checkpoints of a query that could not be started; its next start publishes what is left."""
        for pending in self._revocable:
            # While the cut is being chosen, the query may still be part of it.
            if query in pending.parts or pending.phase is CheckpointPhase.PLANNING:
                detail = f"query {query!r} could not be started"
                self._abort(pending, Reason.NOT_ALL_REQUIRED_TASKS_RUNNING, detail, now)
        for publication in self.publications.removed(query):
            self._answer(publication)

    def query_stopped(self, query: str, batch: BatchId, now: float) -> None:
        """Abort the checkpoints whose cut a stopped query will not reach."""
        for pending in list(self.pending.values()):
            part = pending.parts.get(query)
            if part is not None and part.cut > batch and not pending.has_committed(query):
                detail = f"query {query!r} was stopped before its batch {part.cut} had committed"
                # This is not a failure of the checkpoint: the query was stopped on purpose.
                self._abort(pending, Reason.NOT_ALL_REQUIRED_TASKS_RUNNING, detail, now)

    def shards_lost(self, shards: Collection[tuple[str, ShardId]], why: str, now: float) -> None:
        """Abort the checkpoints that wait for shards whose host is lost; their next owners have no snapshot."""
        for pending in self._revocable:
            if any(pending.waits_for(query, shard) for query, shard in shards):
                self._abort(pending, Reason.JOB_FAILOVER, f"{why}, and other hosts take its shards", now)

    def abort_all(self, reason: Reason, detail: str, now: float) -> None:
        """Abort all checkpoints whose manifest cannot be durable yet."""
        for pending in self._revocable:
            self._abort(pending, reason, detail, now)

    def answer_all(self) -> None:
        """Answer the requests of completed checkpoints without waiting for their output."""
        for publication in self.publications.under_way.values():
            self._answer(publication)

    def restored(self, checkpoint: CheckpointId) -> None:
        """Record that the pipeline was restored from a checkpoint."""
        self._count(lambda history: history.restored(checkpoint))

    # --- retention ------------------------------------------------------------------------------------------

    def _retain(self) -> None:
        bases = [pending.base for pending in self.pending.values() if pending.base is not None]
        acknowledged = [key for pending in self.pending.values() for key in pending.acknowledged_keys()]
        if (discard := self.retained.drop(bases, acknowledged)) is not None:
            for pending in self.pending.values():
                pending.doomed |= self.retained.being_deleted()
            self._out.append(discard)

    def discarded(
        self, checkpoints: tuple[CheckpointId, ...], remaining: Collection[Manifest], now: float
    ) -> None:
        """Take in that dropped checkpoints are deleted, but for those that are still there."""
        self.retained.deleted(checkpoints, remaining)
        self.admission.moved(now)

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
                self._out.append(instructions.ReadBack(query.query_id, left))
            else:
                query.verified()

    # --- shared ---------------------------------------------------------------------------------------------

    def send_all(self, order: CompleteOrder | AbortOrder | ReleaseOrder) -> None:
        """Send an order to all hosts."""
        self._out.extend(instructions.Send(host, order) for host in sorted(self.members.hosts))

    def _count(self, record: Callable[[History], CheckpointStatistics | None]) -> None:
        """Keep the statistics, and tell of those that are final. Whatever goes wrong with them, checkpoints go on."""
        try:
            if (ended := record(self.history)) is not None:
                self._out.append(instructions.ReportStatistics(ended))
        except Exception as error:  # noqa: BLE001 (see above)
            self._out.append(instructions.ReportStatisticsFailure(error))


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
            entries=snapshot.entries,
        )
        for snapshot, at in pending.snapshots
    )
