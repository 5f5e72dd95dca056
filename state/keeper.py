"""What a state host does, apart from how it is reached: batches begun, orders obeyed, shards handed out."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from ..storage.files import FileCache
from ..storage.logs import logger
from ..storage.open import open_store
from ..storage.snapshots import restore_files
from ..storage.store import Store
from .answers import Answers
from .errors import RestoredTooFarError
from .memory import Memory
from .messages import (
    AbortOrder,
    BeginTask,
    Begun,
    CompleteOrder,
    Control,
    Heartbeat,
    Order,
    Origin,
    ReleaseOrder,
    SnapshotOrder,
    StopOrder,
    TaskFailure,
)
from .ownership import ShardKey, ShardTable
from .rounds import Rounds
from .shard import Shard

_log = logger(__name__)


class Keeper:
    """Keeps the shards of one host in the directory that it is given."""

    def __init__(
        self,
        host: str,
        control: Control,
        directory: Path,
        memory: Memory,
        cache: FileCache,
        open_store: Callable[[str], Store] = open_store,
    ) -> None:
        self.stopped = threading.Event()
        """Set when the coordinator has ordered the end of the process."""
        self._host = host
        self._control = control
        self._directory = directory
        self._memory = memory
        self._cache = cache
        self._open_store = open_store
        self._numbers = itertools.count()
        self._answers = Answers(host, control.ask)
        self._table = ShardTable(host, control, self._open_shard)
        self._rounds = Rounds(host, control, self._table.get, directory / "snapshots", open_store, cache)

    def begin(self, task: BeginTask) -> Begun:
        """Make the task's shards ready for its batch: first the snapshots ahead of it, then the batch.

        Raises:
            CannotGoBackError: a shard has gone on beyond the batch.
            ChandyError: the coordinator refused, or a shard could not be restored.
        """
        answer = self._answers.get(task.query_id, task.batch)
        for order in answer.orders:
            self._rounds.accept(order)
        acquired = self._table.acquire(task.query_id, task.uid, task.shards)
        shards = {ShardKey(task.query_id, task.uid, shard): found for shard, found in acquired.here.items()}
        self._rounds.snapshot_ahead(answer.orders, shards)
        for found in shards.values():
            found.begin(task.batch)
        return Begun(acquired.elsewhere)

    def shards(self, task: BeginTask) -> dict[int, Shard]:
        """Return shards that were begun here.

        Raises:
            ShardMissingError: one is not here.
        """
        return {shard: self._table.get(ShardKey(task.query_id, task.uid, shard)) for shard in task.shards}

    def report(self, failure: TaskFailure) -> None:
        """Pass on that a processor raised."""
        self._control.report(failure)

    def obey(self, order: Order) -> None:
        """Carry out an order; one that takes time goes on in the background."""
        match order:
            case SnapshotOrder():
                self._rounds.accept(order)
            case CompleteOrder(checkpoint):
                self._rounds.complete(checkpoint)
            case AbortOrder(checkpoint):
                self._rounds.abort(checkpoint)
            case ReleaseOrder(query_id):
                self._rounds.forget(self._table.release(query_id))
                self._answers.forget(query_id)
            case StopOrder():
                self.stopped.set()
            case Heartbeat():
                pass

    def close(self) -> None:
        """Close all shards; the directory is the caller's to delete."""
        self._table.close()

    def _open_shard(self, key: ShardKey, origin: Origin | None) -> Shard:
        # Numbered, because uids are the user's and need not be names of files.
        directory = self._directory / "shards" / str(next(self._numbers))
        try:
            if origin is None:
                return Shard(str(key), directory, self._memory)
            report = restore_files(self._open_store(origin.root), origin.handle, directory, self._cache)
            shard = Shard(str(key), directory, self._memory, origin.batch)
            if shard.changed_by > origin.batch:
                shard.close()
                raise RestoredTooFarError(str(key), origin.batch, shard.changed_by)
            self._rounds.learn(key, origin)
            _log.info(
                "restored",
                shard=str(key),
                checkpoint=origin.checkpoint,
                bytes=report.bytes,
                cached=report.cached_bytes,
            )
            return shard
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
