"""A state host without its transport: begins batches, follows orders, opens shards."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from ...storage import runtime
from ...storage.backends.open import open_store
from ...storage.checkpoints.files import FileCache
from ...storage.checkpoints.restore import restore_files
from ...storage.errors import ChandyError
from ...storage.ids import NO_BATCH, BatchId
from ...storage.logs import logger
from ...storage.store import Store
from ..errors import ChangelogBrokenError, CopyGivenUpError, ShardMissingError, ShardRefusedError
from ..local.changelog import Changelog, newest, read
from ..rpc import messages, orders
from ..rpc.metrics import BatchMetrics, OperatorMetrics, RecentMetrics
from ..rpc.wire import HandedOver
from ..shards import FIRST_TERM, RestoreSource, ResumePoint
from .arrivals import Arrivals
from .batch_answers import BatchAnswers
from .batch_metrics import RecentBatches
from .batches import check_together
from .changelogs import HostChangelogs, RunChangelogs
from .changes import Changes
from .forwarding import Forwarding
from .memory import Memory
from .peers import Peers
from .restoring import RestoreLog, RestoreTally
from .shard import Shard
from .shard_key import ShardKey
from .shard_table import ShardTable
from .snapshot_manager import SnapshotManager

_log = logger(__name__)
_Replay = Callable[[Shard, Changelog | None], None]


class StateHost:
    """The shards of one host and everything that is done with them."""

    def __init__(
        self,
        host: str,
        control: messages.Control,
        directory: Path,
        memory: Memory,
        cache: FileCache,
        open_store: Callable[[str], Store] = open_store,
        changelogs: RunChangelogs | HostChangelogs | None = None,
        peers: Peers | None = None,
    ) -> None:
        """Start without shards.

        Args:
            host: id of this host.
            control: the coordinator.
            directory: for files that are deleted with the host.
            memory: the budget that all shards share.
            cache: the machine's cache of files.
            open_store: opens the store at a URI.
            changelogs: where changelogs are kept, which outlive the host. None: no changelogs.
            peers: the other hosts; None if there is none.
        """
        self.host = host
        """Its id."""
        self.stopped = runtime.flag()
        """Set when the coordinator has ordered the process to end."""
        self.is_replaced = False
        """Whether another host may then open its shards from its changelogs."""
        self._control = control
        self._directory = directory
        self._memory = memory
        self._cache = cache
        self._open_store = open_store
        self._changelogs = changelogs
        self._numbers = itertools.count()
        self._answers = BatchAnswers(host, control.send)
        self._table = ShardTable(host, control, self._open_shard)
        self._arrivals = (
            None
            if peers is None
            else Arrivals(
                host,
                control,
                self._open_arrival,
                self._open_lost,
                peers,
                self._table.set_aside,
                self._table.destroy,
            )
        )
        self._forwarding = Forwarding(host, control, peers)
        self._lock = runtime.lock()
        self._metrics: defaultdict[tuple[str, str], OperatorMetrics] = defaultdict(OperatorMetrics)
        self._recent = RecentBatches()
        self._snapshots = SnapshotManager(
            host, control, self._table.held, directory / "snapshots", open_store, cache
        )

    def begin(self, task: messages.BeginTask) -> messages.Begun:
        """Make the task's shards ready for its batch: first take the snapshots ahead of it, then begin it.

        Raises:
            CannotGoBackError: a shard has gone on beyond the batch.
            ShardRefusedError: a shard lacks an earlier batch, because the sink has read only some of its rows.
            ChandyError: the coordinator refused, or a shard could not be restored.
        """
        answer = self._answers.get(task.query_id, task.batch)
        for order in answer.orders:
            self._snapshots.accept(order)
        acquired = self._table.acquire(task.query_id, task.uid, task.shards)
        shards = {ShardKey(task.query_id, task.uid, shard): found for shard, found in acquired.here.items()}
        opened, before = self._table.opened(task.query_id, task.uid), BatchId(task.batch - 1)
        check_together({shard.name: shard.reached(before) for shard in opened}, before)
        self._snapshots.snapshot_ahead(answer.orders, shards)
        for found in shards.values():
            found.begin(task.batch)
        fresh = [key.shard for key, found in shards.items() if found.position == NO_BATCH]
        terms = {key.shard: found.term for key, found in shards.items() if found.term > FIRST_TERM}
        return messages.Begun(acquired.elsewhere, answer.times, tuple(fresh), terms)

    def open(self, request: messages.OpenShards) -> None:
        """Start to open shards that tasks will need soon."""
        self._table.open(request.query_id, request.uid, request.shards)

    def shards(self, task: messages.BeginTask) -> dict[int, Shard]:
        """Return the task's shards, which must have been begun here.

        Raises:
            ShardMissingError: one is not here, or not in the term in which it was begun.
        """
        found = {shard: self._table.get(ShardKey(task.query_id, task.uid, shard)) for shard in task.shards}
        for number, shard in found.items():
            if shard.term != task.terms.get(number, FIRST_TERM):
                raise ShardMissingError(
                    f"{shard.name} in term {task.terms.get(number, FIRST_TERM)}", self.host
                )
        return found

    def stage(
        self, task: messages.BeginTask, shards: Mapping[int, Shard], changes: Mapping[int, Changes]
    ) -> None:
        """Stage the changes of an attempt on its shards and on their standbys.

        Raises:
            ShardRefusedError: Spark has gone on without this attempt.
            ChandyError: a standby has missed something, and the coordinator does not consent to go on without it.
        """
        self._forwarding.stage(task, shards, changes)

    def follow(self, request: messages.Forward, changes: Mapping[int, Changes]) -> None:
        """Stage on standbys here what the owner of their shards has staged.

        Raises:
            MoveGivenUpError: one is not the standby of this owner, or has ended.
            ShardRefusedError: one has missed something.
        """
        if self._arrivals is None:
            raise CopyGivenUpError(min(one.copy_id for one in request.shards.values()))
        self._arrivals.follow(request, changes)

    def hand_over(self, request: messages.HandOver) -> HandedOver:
        """Return what another host does not have of a shard. With a cut no task gets it here from now on.

        Raises:
            ShardMissingError: the shard is not here, or in another term.
            ShardRefusedError: a batch after the cut has begun, or the batches were not kept.
        """
        key = ShardKey(request.query_id, request.shard.uid, request.shard.shard)
        shard = self._table.held(key)
        if shard.term != request.term:
            raise ShardMissingError(f"{key} in term {request.term}", self.host)
        found = shard.hand_over(request.after, request.cut, request.standby)
        if request.cut is not None:
            self._table.set_aside(key, shard)
        return found

    def read(self, request: messages.ReadValues) -> messages.Values:
        """Return the values of keys that the operator's shards here have. The caller need not know a key's shard."""
        keys = [bytes.fromhex(key) for key in request.keys]
        # A key is in at most one shard.
        return messages.Values(
            {
                key.hex(): value.hex()
                for shard in self._table.of_operator(request.query_id, request.uid)
                for key, value in shard.read(keys, request.committed, request.kind).items()
            }
        )

    def metrics(self, task: messages.BeginTask, metrics: BatchMetrics) -> None:
        """Add the metrics of a task that has ended."""
        with self._lock:
            self._metrics[task.query_id, task.uid].add(metrics.tasks)
        self._recent.add(task, metrics)

    def batches(self, request: messages.AskBatches) -> RecentMetrics:
        """Return what the operator's tasks did on this host in the latest batches."""
        return RecentMetrics(self._recent.of(request.query_id, request.uid))

    def operator_metrics(self, request: messages.AskMetrics) -> OperatorMetrics:
        """Return the metrics of the operator's tasks and shards on this host."""
        total = OperatorMetrics()
        with self._lock:
            total.add(self._metrics[request.query_id, request.uid])
        for shard in self._table.of_operator(request.query_id, request.uid):
            total.add(shard.metrics)
        return total

    def report(self, failure: messages.TaskFailure) -> None:
        """Tell the coordinator that a processor raised."""
        self._control.send(failure)

    def obey(self, order: orders.Order) -> None:
        """Carry out an order. Slow work goes on in the background."""
        match order:
            case orders.SnapshotOrder():
                self._snapshots.accept(order)
            case orders.CompleteOrder(checkpoint):
                for key, cut in self._snapshots.complete(checkpoint):
                    with contextlib.suppress(ShardMissingError):
                        self._table.held(key).durable(cut)
            case orders.AbortOrder(checkpoint):
                self._snapshots.abort(checkpoint)
            case orders.OpenAhead() | orders.Reopen() if self._arrivals is not None:
                key = ShardKey(order.query_id, order.shard.uid, order.shard.shard)
                # What was here of it before is not what comes.
                self._snapshots.forget([key])
                if isinstance(order, orders.OpenAhead):
                    self._arrivals.open(order)
                else:
                    self._arrivals.reopen(order)
            case orders.TakeOver() if self._arrivals is not None:
                self._arrivals.take_over(order)
            case orders.Promote() if self._arrivals is not None:
                self._arrivals.promote(order)
            case orders.EndStandby():
                self._end_standby(order)
            case orders.ConfirmOwner():
                self._confirm_owner(order)
            case orders.ReleaseOrder(query_id):
                if self._arrivals is not None:
                    self._arrivals.release(query_id)
                self._snapshots.forget(self._table.release(query_id))
                self._answers.forget(query_id)
                self._recent.forget(query_id)
                with self._lock:
                    for known in [known for known in self._metrics if known[0] == query_id]:
                        del self._metrics[known]
                if self._changelogs is not None:
                    self._changelogs.release(query_id)
            case orders.StopHost(is_replaced):
                self.is_replaced = is_replaced
                self.stopped.set()
            case orders.Heartbeat():
                pass

    def leave(self) -> None:
        """Delete the changelogs, unless another host may open its shards from them. The process ends."""
        if isinstance(self._changelogs, HostChangelogs) and not self.is_replaced:
            self._changelogs.delete()

    def close(self) -> None:
        """Close all shards. The caller deletes the directory."""
        if self._arrivals is not None:
            self._arrivals.close()
        self._table.close()

    def _confirm_owner(self, order: orders.ConfirmOwner) -> None:
        """Do what the end of a move means for this host, as its owner, its target, or both."""
        if self._arrivals is not None:
            self._arrivals.give_up_copy(order)
        key = ShardKey(order.query_id, order.shard.uid, order.shard.shard)
        is_own = order.owner == self.host
        self._table.keep_or_delete(key, order.term if is_own else None)
        if not is_own:
            self._snapshots.forget([key])
        else:
            with contextlib.suppress(ChandyError):
                self._table.held(key).stop_following()

    def _end_standby(self, order: orders.EndStandby) -> None:
        """Do what the end of a standby means for this host: it has the standby, or the shard."""
        key = ShardKey(order.query_id, order.shard.uid, order.shard.shard)
        if self._arrivals is not None and self._arrivals.end(order.copy_id):
            self._snapshots.forget([key])
        else:
            with contextlib.suppress(ChandyError):
                self._table.held(key).end_standby(order.copy_id)

    def _open_arrival(self, key: ShardKey, source: RestoreSource) -> Shard:
        return self._open(key, source, RestoreTally())

    def _open_lost(self, key: ShardKey, order: orders.Reopen) -> Shard:
        return self._open(key, order.source, RestoreTally(), partial(self._replay_lost, key, order))

    def _open_shard(
        self,
        key: ShardKey,
        source: RestoreSource | None,
        resume_point: ResumePoint | None,
        tally: RestoreTally,
    ) -> Shard:
        replay = None if resume_point is None else partial(self._replay, key, resume_point)
        return self._open(key, source, tally, replay)

    def _open(
        self, key: ShardKey, source: RestoreSource | None, tally: RestoreTally, replay: _Replay | None = None
    ) -> Shard:
        """Open a shard from a checkpoint; ``replay`` brings it from there to where it has been."""
        # Numbered: users choose uids, which need not be valid file names.
        directory = self._directory / "shards" / str(next(self._numbers))
        changelog = None if self._changelogs is None else self._changelogs.begin_shard(key)
        try:
            if source is not None:
                self._restore_files(key, source, directory, tally)
            begun = runtime.monotonic()
            shard = Shard(
                str(key), directory, self._memory, NO_BATCH if source is None else source.batch, changelog
            )
            try:
                if source is not None and shard.changed_by > source.batch:
                    raise ShardRefusedError(
                        f"the checkpoint that shard {key} is restored from is not what its manifest says",
                        f"files with the state after batch {source.batch}",
                        f"the state after batch {shard.changed_by}",
                        "restore another checkpoint",
                    )
                if replay is not None:
                    replay(shard, changelog)
            except BaseException:
                shard.close()
                raise
            tally.opened(runtime.monotonic() - begun)
            if source is not None:
                self._snapshots.add_restored(key, source)
            return shard
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise

    def _restore_files(
        self, key: ShardKey, source: RestoreSource, directory: Path, tally: RestoreTally
    ) -> None:
        begun = runtime.monotonic()
        store, progress = self._open_store(source.root), RestoreLog(str(key), source.handle.size)
        report = restore_files(store, source.handle, directory, self._cache, progress=progress)
        tally.files(key.shard, runtime.monotonic() - begun, report)
        _log.info(
            "restored",
            shard=str(key),
            checkpoint=source.checkpoint,
            bytes=report.bytes,
            cached=report.cached_bytes,
        )

    def _replay(
        self, key: ShardKey, resume_point: ResumePoint, shard: Shard, changelog: Changelog | None
    ) -> None:
        """Bring a shard from its checkpoint to the point where its query resumes."""
        if not isinstance(self._changelogs, RunChangelogs) or changelog is None:
            raise _without_changelogs(key, resume_point.batch)
        earlier = self._changelogs.of_run(resume_point.query_id, key)
        shard.replay(read(earlier, resume_point))
        # These batches are needed again if this host dies, too, before the next checkpoint.
        changelog.inherit(earlier)

    def _replay_lost(
        self, key: ShardKey, order: orders.Reopen, shard: Shard, changelog: Changelog | None
    ) -> None:
        """Bring the shard of a lost host from its checkpoint to where it was there."""
        if not isinstance(self._changelogs, HostChangelogs) or changelog is None:
            raise _without_changelogs(key, order.cut)
        lost = self._changelogs.of_lost(order.lost, key, order.cut)
        batches = read(lost, ResumePoint(order.query_id, order.after, order.cut))
        shard.reopen(batches, newest(lost, order.cut), order.begun)
        changelog.inherit(lost)
        # What this host has of them it forgets with the next checkpoint, and so the disk is free of them.
        shutil.rmtree(lost, ignore_errors=True)


def _without_changelogs(key: ShardKey, batch: BatchId) -> ChangelogBrokenError:
    return ChangelogBrokenError(str(key), batch, "that this state host keeps no changelogs")
