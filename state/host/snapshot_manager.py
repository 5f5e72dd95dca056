"""Carries out snapshot orders: takes the snapshots, uploads them, and tells the coordinator."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Final

import attrs

from ...storage import runtime
from ...storage.checkpoints.files import FileCache
from ...storage.checkpoints.layout import pack_key
from ...storage.checkpoints.snapshots import SnapshotSource, SnapshotWriter, StoredSnapshot
from ...storage.ids import BatchId, CheckpointId
from ...storage.logs import logger
from ...storage.store import Store
from ..rpc.messages import Ack, Control, Decline, ShardSnapshot
from ..rpc.orders import SnapshotOrder
from ..shards import RestoreSource, ShardId, Term
from .batches import check_together
from .shard import Shard
from .shard_key import ShardKey
from .shard_snapshot import Snapshot
from .snapshot_bases import SnapshotBases
from .snapshot_orders import AcceptedOrder, SnapshotOrders

_log = logger(__name__)
_UPLOADS: Final = 4
_WRITERS: Final = 4
"""How many shards are written at once. Writing one waits for RocksDB, the disk and Python's global lock, so that more
of them than there are processors make a checkpoint shorter."""


@attrs.frozen
class LocalSnapshot:
    """One shard's snapshot after its synchronous part: its contents cannot change any more."""

    snapshot: Snapshot
    started: float
    """Seconds since 1970."""
    sync_seconds: float
    ended: float
    """Monotonic seconds."""


class SnapshotTask:
    """Takes the snapshots of one order and keeps their files until they are uploaded.

    Args:
        accepted: how far the order is; shared with the manager.
        directory: for the files of the snapshots.
        lock: guards ``accepted``.
    """

    def __init__(self, accepted: AcceptedOrder, directory: Path, lock: runtime.Lock) -> None:
        self.accepted = accepted
        self._directory = directory
        self._lock = lock
        self._taken: dict[ShardKey, Future[LocalSnapshot]] = {}

    def take(self, key: ShardKey, shard: Shard) -> Future[LocalSnapshot]:
        """Take a shard's snapshot, or wait for the thread that takes it.

        The future is done when this returns. It holds the error if the snapshot failed, or a ``CancelledError`` if
        the order had ended before.
        """
        with self._lock:
            first = self.accepted.begin(key)
            future = self._taken.get(key)
            if future is None:
                future = self._taken[key] = runtime.future()
                if not first:
                    future.set_exception(CancelledError())
            directory = self._directory / str(len(self._taken))
        if first:
            follow = ShardId(key.uid, key.shard) in self.accepted.order.follow
            self._take(shard, directory, future, follow=follow)
        else:
            future.exception()
        return future

    def give_up(self) -> None:
        """Cancel the snapshots and delete their files. Call it when the order is not open any more."""
        with self._lock:
            taken = list(self._taken.values())
        for future in taken:
            if future.done() and future.exception() is None:
                future.result().snapshot.cancel()
        # A snapshot that is being written just now deletes its own files.
        shutil.rmtree(self._directory, ignore_errors=True)

    def _take(self, shard: Shard, directory: Path, future: Future[LocalSnapshot], *, follow: bool) -> None:
        started, begin = runtime.time(), runtime.monotonic()
        try:
            snapshot = shard.snapshot(directory, self.accepted.order.cut, follow=follow)
        except Exception as error:  # noqa: BLE001 - the order is declined with it
            future.set_exception(error)
            return
        ended = runtime.monotonic()
        future.set_result(LocalSnapshot(snapshot, started, ended - begin, ended))
        if not self.accepted.is_open:
            snapshot.cancel()


class SnapshotManager:
    """Carries out all snapshot orders of a host, each on a thread of its own. No lock is held during uploads.

    Args:
        host: id of this host.
        control: the coordinator.
        find: returns a shard of this host.
        directory: for the files of snapshots until they are uploaded.
        open_store: opens the store at a URI.
        cache: the machine's cache of files.
    """

    def __init__(
        self,
        host: str,
        control: Control,
        find: Callable[[ShardKey], Shard],
        directory: Path,
        open_store: Callable[[str], Store],
        cache: FileCache,
    ) -> None:
        self._host = host
        self._control = control
        self._find = find
        self._directory = directory
        self._open_store = open_store
        self._cache = cache
        self._lock = runtime.lock()
        self._orders = SnapshotOrders()
        self._bases = SnapshotBases()
        self._running: dict[AcceptedOrder, SnapshotTask] = {}
        self._hashes: defaultdict[ShardKey, dict[tuple[str, int], str]] = defaultdict(dict)
        """By shard: SHA-256 by name and size of its RocksDB's files. RocksDB uses no name twice."""
        self._uploads = runtime.pool(_UPLOADS, "chandy-upload")
        # Apart from the uploads, which may wait for a store that does not answer.
        self._writers = runtime.pool(_WRITERS, "chandy-write")

    def accept(self, order: SnapshotOrder) -> SnapshotTask | None:
        """Return the task of an order, starting it if the order is new. None: the order has ended."""
        with self._lock:
            accepted = self._orders.accept(order)
            if not accepted.is_open:
                return None
            task = self._running.get(accepted)
            if task is not None:
                return task
            directory = self._directory / f"{order.checkpoint}-{order.query_id}"
            task = self._running[accepted] = SnapshotTask(accepted, directory, self._lock)
        runtime.thread(target=self._run, args=(task,), name=f"snapshot-{order.checkpoint}").start()
        return task

    def snapshot_ahead(self, orders: Iterable[SnapshotOrder], shards: dict[ShardKey, Shard]) -> None:
        """Take the snapshots that these orders still need of these shards. The uploads follow in the background.

        A snapshot that fails fails its checkpoint, not the batch.
        """
        for order in orders:
            if (task := self.accept(order)) is not None:
                for key in task.accepted.shards:
                    if key in shards:
                        task.take(key, shards[key])

    def add_restored(self, key: ShardKey, source: RestoreSource) -> None:
        """Remember what a shard was restored from. Its files need not be hashed or uploaded again."""
        with self._lock:
            self._hashes[key].update({(file.name, file.size): file.sha256 for file in source.handle.files})
            self._bases.add_restored(key, source)

    def abort(self, checkpoint: CheckpointId) -> None:
        """Give up the orders of a checkpoint, also those that are still to come, and delete their files."""
        with self._lock:
            self._orders.abort(checkpoint)
            self._bases.abort(checkpoint)
            tasks = [
                task for accepted, task in self._running.items() if accepted.order.checkpoint == checkpoint
            ]
        for task in tasks:
            # Uploads that have not begun fail without their files, so the task ends soon.
            task.give_up()

    def complete(self, checkpoint: CheckpointId) -> list[tuple[ShardKey, BatchId]]:
        """Drop the bases that a completed checkpoint replaces; return the shards in it, each with its cut."""
        with self._lock:
            self._bases.complete(checkpoint)
            return self._orders.included(checkpoint)

    def forget(self, keys: Collection[ShardKey]) -> None:
        """Drop everything about shards that this host no longer has."""
        with self._lock:
            for key in keys:
                self._hashes.pop(key, None)
            self._bases.forget(keys)

    def _run(self, task: SnapshotTask) -> None:
        accepted, order = task.accepted, task.accepted.order
        log = _log.bind(checkpoint=order.checkpoint, query=order.query)
        try:
            snapshots = self._store(task)
            with self._lock:
                acknowledges = accepted.succeed()
                if acknowledges:
                    # Before the acknowledgement: after it, the next order may name this checkpoint as its base.
                    self._bases.add_stored(order, snapshots)
            if acknowledges:
                self._control.send(Ack(self._host, order.checkpoint, order.query_id, snapshots))
                new_bytes = sum(snapshot.new_bytes for snapshot in snapshots)
                log.info("acknowledged", shards=len(snapshots), new_bytes=new_bytes)
        except Exception as error:  # noqa: BLE001 - every failure declines the checkpoint
            with self._lock:
                declines = accepted.fail()
            if declines:
                log.warning("declined", error=repr(error))
                self._decline(order, f"{type(error).__name__}: {error}")
        finally:
            with self._lock:
                del self._running[accepted]
            task.give_up()
            # Uploaded files are cached, too, and this is the only place where a pipeline that keeps running drops old
            # ones. Scanning the cache takes time, but nobody waits for this thread any more.
            self._cache.trim()

    def _store(self, task: SnapshotTask) -> tuple[ShardSnapshot, ...]:
        accepted, order = task.accepted, task.accepted.order
        pack = pack_key(order.checkpoint, f"{self._host}-{order.query_id}")
        store = self._open_store(order.root).within(order.seconds_left)
        writer = SnapshotWriter(store, pack, pool=self._uploads, cache=self._cache)
        files: dict[ShardKey, dict[str, Path]] = {}
        writing: dict[ShardKey, Future[dict[str, Path]]] = {}
        try:
            shards = {key: self._find(key) for key in accepted.shards}
            for uid in {key.uid for key in shards}:
                operator = [shard for key, shard in shards.items() if key.uid == uid]
                check_together({shard.name: shard.reached(order.cut) for shard in operator}, order.cut)
            # First what is quick, for all shards: writing one must not delay the cut of another.
            taken = {key: task.take(key, shard).result() for key, shard in shards.items()}
            for key, local in taken.items():
                writing[key] = self._writers.submit(self._write, key, local.snapshot, order, writer)
            for key, written in writing.items():
                if not accepted.is_open:
                    break
                files[key] = written.result()
        finally:
            for written in writing.values():
                written.cancel()
            # The files must stay until every upload that has begun has ended, and none may begin later.
            runtime.wait(writing.values())
            stored = writer.finish()
        for key, names in files.items():
            self._drop_hashes(key, names)
        return tuple(_snapshot(key, taken[key], stored[str(key)], order, shards[key].term) for key in files)

    def _write(
        self, key: ShardKey, snapshot: Snapshot, order: SnapshotOrder, writer: SnapshotWriter
    ) -> dict[str, Path]:
        """Write the files of a shard's snapshot, begin to upload them, and return them by name."""
        files = snapshot.files()
        with self._lock:
            hashes = self._hashes[key]
            base, source = self._bases.base(key, order), self._bases.copy_source(key, order)
        copied = None if source is None else SnapshotSource(self._open_store(source.root), source.handle)
        writer.add(str(key), files, base, hashes, copied)
        return files

    def _drop_hashes(self, key: ShardKey, names: Container[str]) -> None:
        """Drop the hashes of files that a shard no longer has."""
        with self._lock:
            hashes = self._hashes[key]
        for name, size in list(hashes):
            if name not in names:
                hashes.pop((name, size), None)

    def _decline(self, order: SnapshotOrder, text: str) -> None:
        try:
            self._control.send(Decline(self._host, order.checkpoint, order.query_id, text))
        except Exception as error:  # noqa: BLE001 - the checkpoint times out then
            _log.warning("decline not delivered", checkpoint=order.checkpoint, error=repr(error))


def _snapshot(
    key: ShardKey, local: LocalSnapshot, stored: StoredSnapshot, order: SnapshotOrder, term: Term
) -> ShardSnapshot:
    return ShardSnapshot(
        shard=ShardId(key.uid, key.shard),
        handle=stored.handle,
        new_bytes=stored.new_bytes,
        start_delay=local.started - order.triggered_at,
        sync_seconds=local.sync_seconds,
        async_seconds=runtime.monotonic() - local.ended,
        term=term,
        entries=local.snapshot.entries,
    )
