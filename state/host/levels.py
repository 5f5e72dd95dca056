"""The levels in which a shard holds its state: layers of unwritten changes, the hot cache, RocksDB.

A lookup goes from above to below. The uppermost layer takes each committed batch; a snapshot freezes it and begins
another one. Layers reach RocksDB one after the other, and the files of a snapshot are linked when RocksDB holds its
layer and nothing later. So a key costs RocksDB one write between two checkpoints, and no batch waits for it. When
memory runs short (``memory``), layers are written early, and the cache forgets what was not used lately. Keys that
are scanned (timers, the index of expiries) are kept in order by the layers; a scan merges them with RocksDB's, and
skips ranges in which it has found nothing left (``gaps``).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from ...storage import runtime
from ...storage.ids import BatchId
from ...storage.logs import logger
from ..errors import ShardBrokenError, ShardClosedError
from ..rpc.metrics import OperatorMetrics
from .cache import MISSING, HotCache, Value, lookup
from .changes import Changes
from .gaps import Gaps
from .layers import Layer, Layers, is_ordered
from .memory import Memory
from .shard_snapshot import Snapshot

_log = logger(__name__)


class Levels:
    """The committed state of a shard. An upper level hides the ones below it.

    From the top: layers of changes that RocksDB does not have yet, newest first; the hot cache; RocksDB. A snapshot
    freezes the layer that grows and is written later. So a key costs RocksDB one write between two snapshots,
    however often it changes. Frozen layers are written in their order. The files of a snapshot are linked when its
    layer is written and nothing later is, by whichever thread comes first. Changes are put into the level below
    before they are taken out of the one above, so a reader that looks from the top down needs no lock.

    All methods may be called from many threads. There are two locks: ``_disk``, taken first, is held while RocksDB
    is written; ``_lock`` guards what is in memory and is held only briefly.

    Args:
        shard: the shard's name, for error messages.
        directory: where the files of RocksDB are.
        memory: the budget that the memory in use is charged to.
    """

    def __init__(self, shard: str, directory: Path, memory: Memory) -> None:
        self._shard = shard
        self._memory = memory
        self._lock = runtime.lock()
        self._disk = runtime.lock()
        self.database = memory.databases.open(shard, directory)
        self.changed_by = self.database.position
        """The last batch that changed anything."""
        self.version = 0
        """Grows with every batch that is added."""
        self._layers = Layers()
        self._cache = HotCache()
        self._gaps = Gaps()
        self._broken: ShardBrokenError | None = None
        self._closed = False
        memory.add(self)

    @property
    def metrics(self) -> OperatorMetrics:
        """What RocksDB was used for."""
        return self.database.metrics

    def check(self) -> None:
        """Check that the state can be used.

        Raises:
            ShardClosedError: the shard was closed.
            ShardBrokenError: RocksDB has lost changes.
        """
        if self._closed:
            raise ShardClosedError(self._shard)
        if self._broken is not None:
            raise self._broken

    # --- reading --------------------------------------------------------------------------------------------

    def fetch(self, keys: Sequence[bytes]) -> list[Value]:
        """Return the values of keys, None for a key that is not there."""
        self.check()
        version, stack, recent = self.version, self._layers.stack, self._cache.recent
        found = lookup(keys, [*(layer.entries for layer in stack), recent])
        if MISSING not in found:
            return found
        missing = [key for key, value in zip(keys, found, strict=True) if value is MISSING]
        read = self._read(missing, version)
        return [read.get(key) if value is MISSING else value for key, value in zip(keys, found, strict=True)]

    def scan(self, start: bytes, stop: bytes) -> Generator[tuple[bytes, bytes]]:
        """Yield keys from ``start`` up to, not including, ``stop`` with their values, in the order of keys.

        Close it before the shard: RocksDB stays open as long as it lives.
        """
        with self._lock:
            self.check()
            stack = self._layers.stack
            between = [layer.between(start, stop) for layer in stack]
            # Gaps are kept only for keys that are scanned again and again.
            ordered = is_ordered(start, stop)
            behind, version = self._gaps.behind(start) if ordered else start, self._gaps.version
        levels = [
            _changes_of(layer, keys, level)
            for level, (layer, keys) in enumerate(zip(stack, between, strict=True))
        ]
        rest = ((key, len(levels), value) for key, value in self.database.scan(behind, stop))
        first = next(rest, None)
        stored = rest if first is None else chain([first], rest)
        if ordered:
            with self._lock:
                self._gaps.learn(start, max(behind, stop if first is None else first[0]), version)
        last: bytes | None = None
        for key, _, value in heapq.merge(*levels, stored):
            if key != last and value is not None:
                yield key, value
            last = key

    def _read(self, keys: list[bytes], version: int) -> Mapping[bytes, Value]:
        """Return what lies below the layers and the recent part of the cache, and keep it in the cache."""
        older = self._cache.older
        found = {key: older[key] for key in keys if key in older} if older else {}
        if not self.database.empty:
            unknown = [key for key in keys if key not in found] if found else keys
            if unknown:
                found.update(zip(unknown, self.database.read(unknown), strict=True))
        if found:
            with self._lock:
                # If a batch was added meanwhile, these values may be older than what the cache must hold now.
                if self.version == version and not self._closed:
                    self._cache.put(found)
            self._memory.balance()
        return found

    # --- writing --------------------------------------------------------------------------------------------

    def add(self, batch: BatchId, changes: Changes) -> None:
        """Add the changes of a batch that has committed. Afterwards nobody may change them."""
        with self._lock:
            self.check()
            self._layers.add(changes.entries, changes.ordered, batch)
            self.changed_by = batch
            # Last: a reader that sees the new version sees all of the changes.
            self.version += 1

    def snapshot(self, directory: Path) -> Snapshot:
        """Fix the state as it is now. Nothing is written yet.

        Args:
            directory: a new directory for the files.
        """
        with self._lock:
            self.check()
            taken = Snapshot(directory, self._flush_for)
            self._layers.freeze(taken)
            return taken

    def close(self) -> None:
        """Close RocksDB. What is only in memory is gone. Closing twice is no error."""
        with self._disk, self._lock:
            if not self._closed:
                self._closed = True
                self._memory.remove(self)
                self._forget()
                self.database.close()

    # --- memory ---------------------------------------------------------------------------------------------

    @property
    def hot(self) -> int:
        """Bytes of the hot cache."""
        return self._cache.size

    @property
    def unwritten(self) -> int:
        """An upper bound of the bytes of committed changes that RocksDB does not have yet."""
        return self._layers.size

    def measure(self) -> None:
        """Make ``unwritten`` exact."""
        with self._lock:
            self._layers.measure()

    def rotate(self) -> None:
        """Drop the older half of the hot cache."""
        with self._lock:
            self._cache.rotate()

    def spill(self) -> None:
        """Write all changes to RocksDB, along with the snapshots that wait among them.

        A failure is kept: later calls raise it.
        """
        try:
            with self._lock:
                self.check()
                self._layers.freeze(None)
            self._flush_until(lambda: False)
        except (ShardBrokenError, ShardClosedError) as error:
            _log.warning("not spilled", shard=self._shard, error=str(error))

    # --- inside ---------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._layers.clear()
        self._cache.clear()

    def _flush_for(self, snapshot: Snapshot) -> None:
        if not snapshot.done:
            self._flush_until(lambda: snapshot.done)
            self._memory.balance()

    def _flush_until(self, done: Callable[[], bool]) -> None:
        """Write frozen layers, oldest first, and link the snapshots among them, until ``done`` or none is left.

        Raises:
            ShardBrokenError: RocksDB did not take the changes.
            ShardClosedError: the shard was closed before.
        """
        with self._disk:
            while not done():
                with self._lock:
                    self.check()
                    layers = self._layers.next()
                if not layers:
                    return
                self._write(layers)
                last = layers[-1].purpose
                if isinstance(last, Snapshot):
                    last.link(self.database)
                with self._lock:
                    for layer in layers:
                        self._cache.put(layer.entries)
                        self._gaps.fill(layer.put())
                    self._layers.drop(len(layers))

    def _write(self, layers: Sequence[Layer]) -> None:
        entries: Mapping[bytes, Value] = layers[0].entries
        if len(layers) > 1:
            entries = {key: value for layer in layers for key, value in layer.entries.items()}
        if not entries:
            return
        batch = max(layer.batch for layer in layers)
        try:
            self.database.write(entries, batch)
        except Exception as error:
            # These batches are committed in Spark, and nobody knows what of them is on the disk. No later call may
            # go on without them.
            with self._lock:
                self._broken = ShardBrokenError(self._shard, batch, str(error))
                self._forget()
            raise self._broken from error


def _changes_of(layer: Layer, keys: list[bytes], level: int) -> Iterator[tuple[bytes, int, Value]]:
    return ((key, level, layer.entries[key]) for key in keys)
