"""Snapshot rounds: from an order for some shards to one acknowledgement that all of them are durable."""

from __future__ import annotations

import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import attrs

from ...storage.files import FileCache
from ...storage.layout import pack_key
from ...storage.logs import logger
from ...storage.manifest import Handle
from ...storage.snapshots import SnapshotWriter, Source, StoredSnapshot
from ...storage.store import Store
from ..rpc.messages import Ack, Control, Decline, RestoreSource, ShardId, ShardSnapshot, SnapshotOrder
from .shard import Shard, check_together
from .shard_snapshot import Snapshot
from .shard_table import ShardKey

_log = logger(__name__)
_UPLOADS: Final = 4
_KEPT_HANDLES: Final = 32
_KEPT_ROUNDS: Final = 1000
K = TypeVar("K")
V = TypeVar("V")


@attrs.frozen
class LocalSnapshot:
    """The synchronous part of one shard's snapshot is done: what belongs to it cannot change any more."""

    snapshot: Snapshot
    started: float
    """Seconds since 1970."""
    sync_seconds: float
    ended: float
    """Monotonic seconds."""


class SnapshotTask:
    """One order in this host: each of its shards is snapshotted once, by whoever comes first."""

    def __init__(self, order: SnapshotOrder, directory: Path) -> None:
        self.order = order
        self.directory = directory
        self.cancelled = threading.Event()
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._taken: dict[ShardKey, Future[LocalSnapshot]] = {}

    @property
    def keys(self) -> list[ShardKey]:
        """The shards that the order names."""
        return [ShardKey(self.order.query_id, shard.uid, shard.shard) for shard in self.order.shards]

    def take(self, key: ShardKey, shard: Shard) -> Future[LocalSnapshot]:
        """Return a shard's finished local snapshot, taking it if nobody has; a failure is in the future."""
        with self._lock:
            future = self._taken.get(key)
            first = future is None
            if future is None:
                future = self._taken[key] = Future()
                place = self.directory / str(len(self._taken))
        if first:
            try:
                local = _take(shard, place, self.order.cut)
                future.set_result(local)
                if self.ended.is_set() or self.cancelled.is_set():
                    local.snapshot.cancel()
            except Exception as error:  # noqa: BLE001 - the round declines with it
                future.set_exception(error)
        else:
            future.exception()
        return future

    def cancel(self) -> None:
        """Give it up: snapshots that were taken are not written."""
        self.cancelled.set()
        self._give_up()

    def end(self) -> None:
        """Let go of all snapshots, written or not, and delete their files."""
        self.ended.set()
        self._give_up()
        with self._lock:
            # The round is remembered for long, and a snapshot would keep its shard in memory.
            self._taken.clear()

    def _give_up(self) -> None:
        with self._lock:
            taken = list(self._taken.values())
        for future in taken:
            if future.done() and future.exception() is None:
                future.result().snapshot.cancel()
        # A snapshot that is being written just now deletes its own.
        shutil.rmtree(self.directory, ignore_errors=True)


def _take(shard: Shard, place: Path, cut: int) -> LocalSnapshot:
    started, begin = time.time(), time.monotonic()
    snapshot = shard.snapshot(place, cut)
    ended = time.monotonic()
    return LocalSnapshot(snapshot, started, ended - begin, ended)


@attrs.define
class _History:
    """What was stored of a shard before, as long as it is open."""

    handles: OrderedDict[int, tuple[str, Handle]] = attrs.field(factory=OrderedDict)
    """By checkpoint: the store that the handle is relative to, and the handle."""
    known: dict[tuple[str, int], str] = attrs.field(factory=dict)
    """SHA-256 by name and size of its RocksDB's files: no name is used twice in its life."""


class SnapshotManager:
    """All rounds of a host. Only ``take`` and a snapshot's ``files`` touch a shard; uploads hold no lock."""

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
        self._lock = threading.Lock()
        self._snapshots: OrderedDict[tuple[int, str], SnapshotTask] = OrderedDict()
        self._aborted: OrderedDict[int, None] = OrderedDict()
        self._history: dict[ShardKey, _History] = {}
        self._pool = ThreadPoolExecutor(_UPLOADS, "chandy-upload")

    def accept(self, order: SnapshotOrder) -> SnapshotTask:
        """Start the round of an order in the background, or return the one that was started before."""
        key = (order.checkpoint, order.query_id)
        with self._lock:
            known = self._snapshots.get(key)
            if known is not None:
                return known
            started = self._snapshots[key] = SnapshotTask(
                order, self._directory / f"{order.checkpoint}-{order.query_id}"
            )
            _trim(self._snapshots, _KEPT_ROUNDS)
            if order.checkpoint in self._aborted:
                started.cancelled.set()
                started.ended.set()
                return started
        threading.Thread(
            target=self._run, args=(started,), name=f"round-{order.checkpoint}", daemon=True
        ).start()
        return started

    def snapshot_ahead(self, orders: Iterable[SnapshotOrder], shards: dict[ShardKey, Shard]) -> None:
        """Do the synchronous part of these orders for these shards, unless it is done or needless.

        A snapshot that fails is the checkpoint's failure, not the batch's.
        """
        for order in orders:
            started = self.accept(order)
            for key in started.keys:
                if key in shards and not started.ended.is_set():
                    started.take(key, shards[key])

    def learn(self, key: ShardKey, source: RestoreSource) -> None:
        """Remember what a shard was restored from: its files need not be hashed or uploaded again."""
        history = self._history_of(key)
        for file in source.handle.files:
            history.known[file.name, file.size] = file.sha256
        if source.checkpoint >= 0:
            self._remember(key, source.checkpoint, source.root, source.handle)

    def abort(self, checkpoint: int) -> None:
        """Give up the rounds of a checkpoint, those that come later too, and delete their files."""
        with self._lock:
            self._aborted[checkpoint] = None
            _trim(self._aborted, _KEPT_ROUNDS)
            snapshots = [found for (number, _), found in self._snapshots.items() if number == checkpoint]
            for history in self._history.values():
                history.handles.pop(checkpoint, None)
        for found in snapshots:
            # Uploads that have not begun fail without their files, which ends the round soon.
            found.cancel()

    def complete(self, checkpoint: int) -> list[tuple[ShardKey, int]]:
        """Drop the handles that a completed checkpoint replaces as a base; return the shards that are in it, each with
        its cut."""
        with self._lock:
            snapshots = [found for (number, _), found in self._snapshots.items() if number == checkpoint]
            for history in self._history.values():
                root, _ = history.handles.get(checkpoint, ("", None))
                for older in [
                    n for n, (other, _) in history.handles.items() if n < checkpoint and other == root
                ]:
                    del history.handles[older]
        return [(key, found.order.cut) for found in snapshots for key in found.keys]

    def forget(self, keys: Iterable[ShardKey]) -> None:
        """Drop what is remembered of shards that are no longer here."""
        with self._lock:
            for key in keys:
                self._history.pop(key, None)

    def _run(self, this: SnapshotTask) -> None:
        order = this.order
        log = _log.bind(checkpoint=order.checkpoint, query=order.query)
        try:
            snapshots = self._store(this)
            if this.cancelled.is_set():
                return
            # Before the acknowledgement: after it, the next order may name this checkpoint as its base. A savepoint is
            # never one, and nothing is copied from it: it is the user's to move, to delete or to lose.
            if not order.is_savepoint:
                for snapshot in snapshots:
                    key = ShardKey(order.query_id, snapshot.shard.uid, snapshot.shard.shard)
                    self._remember(key, order.checkpoint, order.root, snapshot.handle)
            self._control.ack(Ack(self._host, order.checkpoint, order.query_id, snapshots))
            log.info("acknowledged", shards=len(snapshots), new_bytes=sum(s.new_bytes for s in snapshots))
        except Exception as error:  # noqa: BLE001 - every failure declines the checkpoint
            if not this.cancelled.is_set():
                log.warning("declined", error=repr(error))
                self._decline(order, f"{type(error).__name__}: {error}")
        finally:
            this.end()
            # What was uploaded is cached, too, and only here does a pipeline that keeps running drop what is old. It
            # scans the cache: nobody waits for this thread any more.
            self._cache.trim()

    def _store(self, this: SnapshotTask) -> tuple[ShardSnapshot, ...]:
        order = this.order
        key = pack_key(order.checkpoint, f"{self._host}-{order.query_id}")
        store = self._open_store(order.root).within(order.seconds_left)
        writer = SnapshotWriter(store, key, pool=self._pool, cache=self._cache)
        files: dict[ShardKey, dict[str, Path]] = {}
        try:
            found = {key: self._find(key) for key in this.keys}
            for uid in {key.uid for key in found}:
                check_together([shard for key, shard in found.items() if key.uid == uid], order.cut)
            # First what is quick, for all: writing one shard must not keep another from its cut.
            taken = {key: this.take(key, shard).result() for key, shard in found.items()}
            for shard, local in taken.items():
                if this.cancelled.is_set():
                    break
                files[shard] = local.snapshot.files()
                history = self._history_of(shard)
                writer.add(
                    str(shard),
                    files[shard],
                    self._base(order, history),
                    history.known,
                    self._source(order, history),
                )
        finally:
            # The files must stay until every upload that was begun has ended.
            stored = writer.finish()
        for shard, names in files.items():
            self._prune(shard, names)
        return tuple(_snapshot(shard, taken[shard], stored[str(shard)], order) for shard in files)

    def _base(self, order: SnapshotOrder, history: _History) -> Handle | None:
        with self._lock:
            root, handle = (
                history.handles.get(order.base, ("", None)) if order.base is not None else ("", None)
            )
        # A handle is relative to its store: in another one, its files are not there.
        return handle if root == order.root else None

    def _source(self, order: SnapshotOrder, history: _History) -> Source | None:
        """Where a savepoint's files may be already: what the pipeline's own store has, its service can copy.

        A checkpoint has nothing copied: the service looks at no bytes, and the shard's own are here.
        """
        if not order.is_savepoint:
            return None
        with self._lock:
            root, handle = next(reversed(history.handles.values()), ("", None))
        return None if handle is None else Source(self._open_store(root), handle)

    def _history_of(self, key: ShardKey) -> _History:
        with self._lock:
            return self._history.setdefault(key, _History())

    def _remember(self, key: ShardKey, checkpoint: int, root: str, handle: Handle) -> None:
        history = self._history_of(key)
        with self._lock:
            history.handles[checkpoint] = (root, handle)
            _trim(history.handles, _KEPT_HANDLES)

    def _prune(self, key: ShardKey, names: Container[str]) -> None:
        history = self._history_of(key)
        for name, size in list(history.known):
            if name not in names:
                history.known.pop((name, size), None)

    def _decline(self, order: SnapshotOrder, text: str) -> None:
        try:
            self._control.decline(Decline(self._host, order.checkpoint, order.query_id, text))
        except Exception as error:  # noqa: BLE001 - the checkpoint times out then
            _log.warning("decline not delivered", checkpoint=order.checkpoint, error=repr(error))


def _snapshot(
    key: ShardKey, local: LocalSnapshot, stored: StoredSnapshot, order: SnapshotOrder
) -> ShardSnapshot:
    return ShardSnapshot(
        shard=ShardId(key.uid, key.shard),
        handle=stored.handle,
        new_bytes=stored.new_bytes,
        start_delay=local.started - order.triggered_at,
        sync_seconds=local.sync_seconds,
        async_seconds=time.monotonic() - local.ended,
    )


def _trim(entries: OrderedDict[K, V], limit: int) -> None:
    while len(entries) > limit:
        entries.popitem(last=False)
