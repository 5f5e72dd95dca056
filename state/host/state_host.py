"""What a state host does, apart from how it is reached: batches begun, orders obeyed, shards handed out."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from ...storage.files import FileCache
from ...storage.logs import logger
from ...storage.open import open_store
from ...storage.snapshots import restore_files
from ...storage.store import Store
from ..errors import ChangelogBrokenError, RestoredTooFarError, ShardMissingError
from ..local.changelog import Changelog, read, shard_folder
from ..rpc.messages import (
    AbortOrder,
    AskAccount,
    BeginTask,
    Begun,
    CompleteOrder,
    Control,
    Heartbeat,
    OpenShards,
    Order,
    ReadValues,
    ReleaseOrder,
    RestoreSource,
    ResumePoint,
    SnapshotOrder,
    StopOrder,
    TaskFailure,
    Values,
)
from ..rpc.metrics import OperatorMetrics
from .batch_answers import Answers
from .memory import Memory
from .restoring import RestoreLog, RestoreTally
from .shard import NOTHING, Shard, check_together
from .shard_table import ShardKey, ShardTable
from .snapshot_manager import SnapshotManager

_log = logger(__name__)


class StateHost:
    """Keeps the shards of one host in the directory that it is given."""

    def __init__(
        self,
        host: str,
        control: Control,
        directory: Path,
        memory: Memory,
        cache: FileCache,
        open_store: Callable[[str], Store] = open_store,
        changelogs: Path | None = None,
    ) -> None:
        """Begin without shards.

        Args:
            host: id of this host.
            control: the coordinator.
            directory: for what dies with the host.
            memory: what all shards share.
            cache: files that the machine has already.
            open_store: opens the store at a URI.
            changelogs: the folder of all changelogs, which outlive the host; None: none are kept.
        """
        self.stopped = threading.Event()
        """Set when the coordinator has ordered the end of the process."""
        self._host = host
        self._control = control
        self._directory = directory
        self._memory = memory
        self._cache = cache
        self._open_store = open_store
        self._changelogs = changelogs
        self._numbers = itertools.count()
        self._answers = Answers(host, control.ask)
        self._table = ShardTable(host, control, self._open_shard)
        self._lock = threading.Lock()
        self._metrics: defaultdict[tuple[str, str], OperatorMetrics] = defaultdict(OperatorMetrics)
        self._snapshots = SnapshotManager(
            host, control, self._table.get, directory / "snapshots", open_store, cache
        )

    def begin(self, task: BeginTask) -> Begun:
        """Make the task's shards ready for its batch: first the snapshots ahead of it, then the batch.

        Raises:
            CannotGoBackError: a shard has gone on beyond the batch.
            NotAppliedError: a shard lacks an earlier batch, for the sink has taken only some of its rows.
            ChandyError: the coordinator refused, or a shard could not be restored.
        """
        answer = self._answers.get(task.query_id, task.batch)
        for order in answer.orders:
            self._snapshots.accept(order)
        acquired = self._table.acquire(task.query_id, task.uid, task.shards)
        shards = {ShardKey(task.query_id, task.uid, shard): found for shard, found in acquired.here.items()}
        check_together(self._table.opened(task.query_id, task.uid), task.batch - 1)
        self._snapshots.snapshot_ahead(answer.orders, shards)
        for found in shards.values():
            found.begin(task.batch)
        fresh = [key.shard for key, found in shards.items() if found.position == NOTHING]
        return Begun(acquired.elsewhere, answer.times, tuple(fresh))

    def open(self, request: OpenShards) -> None:
        """Begin to open shards that tasks are about to begin with."""
        self._table.open(request.query_id, request.uid, request.shards)

    def shards(self, task: BeginTask) -> dict[int, Shard]:
        """Return shards that were begun here.

        Raises:
            ShardMissingError: one is not here.
        """
        return {shard: self._table.get(ShardKey(task.query_id, task.uid, shard)) for shard in task.shards}

    def read(self, request: ReadValues) -> Values:
        """Return what the operator's shards here have; the shard of a key need not be known."""
        keys = [bytes.fromhex(key) for key in request.keys]
        values: list[bytes | None] = [None] * len(keys)
        for shard in self._table.of_operator(request.query_id, request.uid):
            # A key is in no more than one shard.
            values = [
                known if found is None else found
                for known, found in zip(values, shard.read(keys, request.committed), strict=True)
            ]
        return Values(tuple(None if value is None else value.hex() for value in values))

    def metrics(self, task: BeginTask, metrics: OperatorMetrics) -> None:
        """Enter what a task has spent its time on."""
        with self._lock:
            self._metrics[task.query_id, task.uid].add(metrics)

    def account(self, request: AskAccount) -> OperatorMetrics:
        """Return what the operator's tasks have spent here, and RocksDB for them."""
        total = OperatorMetrics()
        with self._lock:
            total.add(self._metrics[request.query_id, request.uid])
        for shard in self._table.of_operator(request.query_id, request.uid):
            total.add(shard.metrics)
        return total

    def report(self, failure: TaskFailure) -> None:
        """Pass on that a processor raised."""
        self._control.report(failure)

    def obey(self, order: Order) -> None:
        """Carry out an order; one that takes time goes on in the background."""
        match order:
            case SnapshotOrder():
                self._snapshots.accept(order)
            case CompleteOrder(checkpoint):
                for key, cut in self._snapshots.complete(checkpoint):
                    with contextlib.suppress(ShardMissingError):
                        self._table.get(key).durable(cut)
            case AbortOrder(checkpoint):
                self._snapshots.abort(checkpoint)
            case ReleaseOrder(query_id):
                self._snapshots.forget(self._table.release(query_id))
                self._answers.forget(query_id)
                with self._lock:
                    for known in [known for known in self._metrics if known[0] == query_id]:
                        del self._metrics[known]
            case StopOrder():
                self.stopped.set()
            case Heartbeat():
                pass

    def close(self) -> None:
        """Close all shards; the directory is the caller's to delete."""
        self._table.close()

    def _open_shard(
        self,
        key: ShardKey,
        source: RestoreSource | None,
        resume_point: ResumePoint | None,
        tally: RestoreTally,
    ) -> Shard:
        # Numbered, because uids are the user's and need not be names of files.
        directory = self._directory / "shards" / str(next(self._numbers))
        changelog = (
            None if self._changelogs is None else Changelog(_changelog(self._changelogs, key.query_id, key))
        )
        try:
            if source is not None:
                self._restore_files(key, source, directory, tally)
            begun = time.monotonic()
            shard = Shard(
                str(key), directory, self._memory, NOTHING if source is None else source.batch, changelog
            )
            try:
                if source is not None and shard.changed_by > source.batch:
                    raise RestoredTooFarError(str(key), source.batch, shard.changed_by)
                if resume_point is not None:
                    self._replay(key, shard, changelog, resume_point)
            except BaseException:
                shard.close()
                raise
            tally.opened(time.monotonic() - begun)
            if source is not None:
                self._snapshots.learn(key, source)
            return shard
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise

    def _restore_files(
        self, key: ShardKey, source: RestoreSource, directory: Path, tally: RestoreTally
    ) -> None:
        begun = time.monotonic()
        store, told = self._open_store(source.root), RestoreLog(str(key), source.handle.size)
        report = restore_files(store, source.handle, directory, self._cache, progress=told)
        tally.files(time.monotonic() - begun, report)
        _log.info(
            "restored",
            shard=str(key),
            checkpoint=source.checkpoint,
            bytes=report.bytes,
            cached=report.cached_bytes,
        )

    def _replay(
        self, key: ShardKey, shard: Shard, changelog: Changelog | None, resume_point: ResumePoint
    ) -> None:
        """Bring a shard from its checkpoint to where its query stood."""
        if self._changelogs is None or changelog is None:
            raise ChangelogBrokenError(str(key), resume_point.batch, "a state host without changelogs")
        earlier = _changelog(self._changelogs, resume_point.query_id, key)
        shard.replay(read(earlier, resume_point))
        # Until a checkpoint has them, these batches are needed again should this host die, too.
        changelog.take_up(earlier)


def _changelog(root: Path, query_id: str, key: ShardKey) -> Path:
    return shard_folder(root, query_id, key.uid, key.shard)
