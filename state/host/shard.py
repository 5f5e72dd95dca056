"""A shard: an operator's state as of a batch, on RocksDB and in memory, and the changes staged for the next."""

from __future__ import annotations

import heapq
import shutil
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from rocksdict import DbClosedError, Rdict, ReadOptions, WriteBatch, WriteOptions

from ...storage.logs import logger
from ..errors import (
    CannotGoBackError,
    CutPassedError,
    NotAppliedError,
    ReservedKeyError,
    ShardBrokenError,
    ShardClosedError,
    StaleBatchError,
)
from ..local.changelog import Changelog
from ..rpc.metrics import OperatorMetrics
from .cache import MISSING, HotCache, Value, lookup
from .gaps import Gaps
from .layers import Layer, Layers, is_ordered, ordered_keys
from .memory import Memory
from .shard_snapshot import Snapshot

_log = logger(__name__)
POSITION_KEY: Final = b"\x00chandy/position"
"""Where a shard keeps the last batch that changed it, as decimal digits. No other key may be this one."""

NOTHING: Final = -1
"""The position of a shard that no batch has been applied to."""

_PIECE: Final = 1000
"""Changes in one write: RocksDB holds the GIL while it takes them, for about half a millisecond."""


class Changes:
    """The changes that one attempt makes to one shard, collected before they are staged as a whole."""

    def __init__(self, shard: str) -> None:
        self._shard = shard
        self.entries: dict[bytes, Value] = {}
        """By key, the later change having won over the earlier; None deletes the key."""
        self.ordered: list[bytes] = []
        """The keys that begin with ``layers.ORDERED``."""

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, keys: Sequence[bytes], values: Iterable[Value]) -> None:
        """Add changes, later ones winning over earlier; None deletes the key.

        Raises:
            ReservedKeyError: a key is the shard's own; nothing was added.
        """
        entries = dict(zip(keys, values, strict=True))
        if POSITION_KEY in entries:
            raise ReservedKeyError(self._shard, repr(POSITION_KEY))
        self.ordered += [key for key in ordered_keys(entries) if key not in self.entries]
        if self.entries:
            self.entries.update(entries)
        else:
            self.entries = entries


@attrs.frozen
class _Staged:
    batch: int
    changes: Changes | None
    """None: the batch left the shard as it was."""


class Shard:
    """State after the last batch that is known to be committed, plus at most one batch staged on top.

    What a batch changes is only staged; it becomes part of the state when the next batch begins, because only
    then it is known to be committed. Hence going back is free, and reads of several attempts at one batch do
    not disturb each other. A batch that is begun again keeps what an earlier attempt has staged until the new
    one stages its own: an attempt that is killed or ends early takes nothing away. A batch that changes
    nothing only moves the position.

    The state at ``position`` lies in levels, the upper ones hiding the lower: layers of changes that RocksDB
    does not have yet, newest first; the hot cache; RocksDB. A snapshot freezes the layer that grows, and
    later writes it: so between two snapshots a key costs RocksDB one write, however often it changes. Frozen
    layers are written in their order, and the files of a snapshot are linked when its layer has been written
    and nothing later, by whoever comes first. What goes down is put below before it is taken away above, so
    a reader that looks from above finds everything without a lock.

    All methods may be called from many threads. There are two locks: ``_lock`` for what is in memory, held
    shortly, and ``_disk``, taken first, for who writes RocksDB.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        memory: Memory,
        position: int = NOTHING,
        changelog: Changelog | None = None,
    ) -> None:
        """Open the RocksDB in a directory, which may be missing, empty, or hold restored snapshot files.

        Args:
            name: the shard, for people.
            directory: where its files are.
            memory: what its memory is charged to.
            position: the last batch that the files are known to contain, when it is later than the last one that
                changed them.
            changelog: keeps what batches change until a checkpoint has it; None: nothing does.
        """
        self.name = name
        self.directory = directory
        self._memory = memory
        self._changelog = changelog
        self._lock = threading.Lock()
        self._disk = threading.Lock()
        directory.mkdir(parents=True, exist_ok=True)
        options = memory.options()
        # On reopening, the options of the default column family are ignored unless they are named here.
        self._db = Rdict(str(directory), options=options, column_families={"default": options})
        no_log = WriteOptions()
        # A property, whatever its type stub says.
        setattr(no_log, "disable_wal", True)  # noqa: B010
        self._db.set_write_options(no_log)
        self._get: Callable[[Any], Any] = self._db.get
        stored = self._get(POSITION_KEY)
        self._empty = stored is None
        """Whether RocksDB holds nothing: then it is not asked."""
        self._changed_by = NOTHING if stored is None else int(stored)
        self._position = max(position, self._changed_by)
        self._begun: int | None = None
        self._staged: _Staged | None = None
        self._layers = Layers()
        self._cache = HotCache()
        self._gaps = Gaps()
        self._broken: ShardBrokenError | None = None
        self._closed = False
        self.metrics = OperatorMetrics()
        """What RocksDB took; about, for two threads may enter something at once."""
        memory.add(self)

    @property
    def position(self) -> int:
        """The last batch whose effect is in the state."""
        return self._position

    @property
    def changed_by(self) -> int:
        """The last batch that changed anything, of those up to the position."""
        return self._changed_by

    def reached(self, upto: int) -> int:
        """The last batch, of those up to ``upto``, that has run to its end here."""
        with self._lock:
            staged = self._staged
            return min(self._position, upto) if staged is None or staged.batch > upto else staged.batch

    # --- a batch --------------------------------------------------------------------------------------------

    def begin(self, batch: int) -> None:
        """Make ready for a batch: Spark runs it only after every earlier one has committed.

        Raises:
            CannotGoBackError: the state before the batch is gone.
            NotAppliedError: an earlier batch began here and Spark counts it as done, but its task did not run to
                its end: going on would lose what it should have changed.
        """
        with self._lock:
            self._check()
            latest = max(self._position, self._begun if self._begun is not None else NOTHING)
            if batch < latest or batch == self._position:
                raise CannotGoBackError(self.name, batch, latest)
            self._promote(batch - 1)
            self._check_applied(batch - 1)
            self._begun = batch
        self._memory.balance()
        self._check()

    def fetch(self, keys: Sequence[bytes]) -> list[Value]:
        """Return the values of keys at the position, None for a key that is not there."""
        self._check()
        position, stack, recent = self._position, self._layers.stack, self._cache.recent
        found = lookup(keys, [*(layer.entries for layer in stack), recent])
        if MISSING not in found:
            return found
        missing = [key for key, value in zip(keys, found, strict=True) if value is MISSING]
        read = self._read(missing, position)
        return [read.get(key) if value is MISSING else value for key, value in zip(keys, found, strict=True)]

    def scan(self, start: bytes, stop: bytes) -> Generator[tuple[bytes, bytes]]:
        """Yield keys from ``start`` up to, not including, ``stop`` with their values, in order of keys.

        To be closed before the shard: while it lives, RocksDB stays open.
        """
        with self._lock:
            self._check()
            stack = self._layers.stack
            between = [layer.between(start, stop) for layer in stack]
            # Gaps are kept for keys that are scanned again and again, and for no others.
            ordered = is_ordered(start, stop)
            behind, version = self._gaps.behind(start) if ordered else start, self._gaps.version
        levels = [
            _changes_of(layer, keys, level)
            for level, (layer, keys) in enumerate(zip(stack, between, strict=True))
        ]
        rest = ((key, len(levels), value) for key, value in self._stored(behind, stop))
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

    def read(self, keys: Sequence[bytes], committed: int) -> list[Value]:
        """Return the values of keys after the last batch up to ``committed``, which has committed."""
        while True:
            with self._lock:
                self._check()
                position, staged = self._position, self._staged
            values = self.fetch(keys)
            if position == self._position:
                break
        if staged is None or staged.batch > committed or staged.changes is None:
            return values
        changed = lookup(keys, [staged.changes.entries])
        return [old if new is MISSING else new for old, new in zip(values, changed, strict=True)]

    def stage(self, batch: int, changes: Changes | None = None) -> None:
        """Take all that a batch changes, in place of what an earlier attempt at it has staged.

        Raises:
            StaleBatchError: the batch is not the one that has begun, or it is part of the state already.
        """
        with self._lock:
            self._check()
            if batch == self._position:
                # A snapshot has made it so, for it has committed; an attempt that is left over has perhaps
                # read its effect and would add to it.
                raise StaleBatchError(self.name, batch, batch + 1)
            if batch != self._begun:
                raise StaleBatchError(self.name, batch, self._begun)
            if self._changelog is not None:
                # Under the lock: the attempt that is staged last must be the last in the changelog.
                self._changelog.append(batch, changes.entries if changes else {})
            self._staged = _Staged(batch, changes or None)

    def replay(self, batches: Iterable[tuple[int, dict[bytes, Value]]]) -> None:
        """Take what batches have changed that had committed before this shard was opened, in their order."""
        for batch, entries in batches:
            changes = Changes(self.name)
            changes.add(list(entries), entries.values())
            with self._lock:
                self._check()
                self._staged = _Staged(batch, changes or None)
                self._promote(batch)
            self._memory.balance()

    # --- a snapshot -----------------------------------------------------------------------------------------

    def snapshot(self, directory: Path, cut: int) -> Snapshot:
        """Fix the state after batch ``cut``, which has committed; nothing is written yet.

        Args:
            directory: a new one, for the files.
            cut: the batch.

        Raises:
            CutPassedError: a later batch is part of the state already.
            NotAppliedError: as for ``begin``: the state would lack a batch up to the cut.
        """
        with self._lock:
            self._check()
            self._promote(cut)
            self._check_applied(cut)
            if self._position > cut:
                raise CutPassedError(self.name, cut, self._position)
            taken = Snapshot(directory, self._settle)
            self._layers.freeze(taken)
            if self._changelog is not None:
                self._changelog.cut()
            return taken

    def durable(self, cut: int) -> None:
        """Take word that a completed checkpoint has the state after batch ``cut``."""
        with self._lock:
            if self._changelog is not None:
                self._changelog.forget(cut)

    # --- memory ---------------------------------------------------------------------------------------------

    @property
    def hot(self) -> int:
        """Bytes of the hot cache."""
        return self._cache.size

    @property
    def unwritten(self) -> int:
        """Bytes of committed changes that RocksDB does not have yet, at most."""
        return self._layers.size

    def measure(self) -> None:
        """Make ``unwritten`` exact."""
        with self._lock:
            self._layers.measure()

    def rotate(self) -> None:
        """Give up the older half of the hot cache."""
        with self._lock:
            self._cache.rotate()

    def spill(self) -> None:
        """Write all committed changes to RocksDB, with the snapshots that wait among them.

        A failure is kept: later calls raise it.
        """
        try:
            with self._lock:
                self._check()
                self._layers.freeze(None)
            self._settle_until(lambda: False)
        except (ShardBrokenError, ShardClosedError) as error:
            _log.warning("not spilled", shard=self.name, error=str(error))

    # --- the end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close RocksDB; what is only in memory is gone. Closing twice is no error."""
        with self._disk, self._lock:
            if not self._closed:
                self._closed = True
                self._memory.remove(self)
                self._forget()
                if self._changelog is not None:
                    self._changelog.close()
                self._db.close()

    def destroy(self) -> None:
        """Close and delete the files."""
        self.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    # --- inside ---------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._closed:
            raise ShardClosedError(self.name)
        if self._broken is not None:
            raise self._broken

    def _check_applied(self, upto: int) -> None:
        """Refuse to pass over a batch up to ``upto``, which has committed, that began here and staged nothing."""
        if self._begun is not None and self._position < self._begun <= upto:
            raise NotAppliedError(self.name, self._begun, upto + 1)

    def _forget(self) -> None:
        self._staged = None
        self._layers.clear()
        self._cache.clear()

    def _promote(self, upto: int) -> None:
        """Make the staged batch part of the state if it is not after ``upto``, which has committed."""
        staged = self._staged
        if staged is None or staged.batch > upto:
            return
        self._staged = None
        if staged.changes is not None:
            self._layers.add(staged.changes.entries, staged.changes.ordered, staged.batch)
            self._changed_by = staged.batch
        # Last: a reader that sees the new position sees all of the new state.
        self._position = staged.batch

    def _read(self, keys: list[bytes], position: int) -> Mapping[bytes, Value]:
        """Return what lies below the layers and the recent part of the cache; keep it in the cache."""
        older = self._cache.older
        found = {key: older[key] for key in keys if key in older} if older else {}
        if not self._empty:
            unknown = [key for key in keys if key not in found] if found else keys
            if unknown:
                begun = time.perf_counter()
                try:
                    found.update(zip(unknown, self._get(unknown), strict=True))
                except DbClosedError:
                    raise ShardClosedError(self.name) from None
                self.metrics.read_keys += len(unknown)
                self.metrics.read_seconds += time.perf_counter() - begun
        if found:
            with self._lock:
                # After a promotion these values may be those of before: whoever needs the cache then is
                # another one.
                if self._position == position and not self._closed:
                    self._cache.put(found)
            self._memory.balance()
        return found

    def _stored(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield what RocksDB holds from ``start`` up to, not including, ``stop``."""
        if self._empty or start >= stop:
            return
        options = ReadOptions()
        options.set_iterate_upper_bound(stop)
        try:
            entries = self._db.iter(options)
        except DbClosedError:
            raise ShardClosedError(self.name) from None
        entries.seek(start)
        while entries.valid():
            key = entries.key()
            if key != POSITION_KEY:
                yield key, entries.value()
            entries.next()
        entries.status()

    def _settle(self, snapshot: Snapshot) -> None:
        if not snapshot.done:
            self._settle_until(lambda: snapshot.done)
            self._memory.balance()

    def _settle_until(self, done: Callable[[], bool]) -> None:
        """Write frozen layers, oldest first, and link the snapshots among them, until ``done`` or none is left.

        Raises:
            ShardBrokenError: RocksDB did not take the changes.
            ShardClosedError: the shard was closed before.
        """
        with self._disk:
            while not done():
                with self._lock:
                    self._check()
                    layers = self._layers.next()
                if not layers:
                    return
                self._write(layers)
                last = layers[-1].purpose
                if isinstance(last, Snapshot):
                    last.link(self._db)
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
        self._empty = False
        begun = time.perf_counter()
        try:
            for piece in _pieces(entries):
                self._db.write(piece)
                if self._memory.should_flush():
                    self._db.flush()
            position = WriteBatch(raw_mode=True)
            position.put(POSITION_KEY, str(batch).encode())
            self._db.write(position)
        except Exception as error:
            # These batches are committed in Spark, and it is not known what of them is on the disk: no later
            # call may go on without them.
            with self._lock:
                self._broken = ShardBrokenError(self.name, batch, str(error))
                self._forget()
            raise self._broken from error
        self.metrics.written_keys += len(entries)
        self.metrics.write_seconds += time.perf_counter() - begun


def check_together(shards: Iterable[Shard], upto: int) -> None:
    """Check that shards of one operator have the same batches up to ``upto``, which has committed.

    Raises:
        NotAppliedError: one lacks a batch that another has: its task was not even begun.
    """
    reached = [(shard.reached(upto), shard.name) for shard in shards]
    newest = max(reached, default=(NOTHING, ""))[0]
    for batch, name in reached:
        if batch < newest:
            raise NotAppliedError(name, newest, upto + 1)


def _pieces(entries: Mapping[bytes, Value]) -> Iterator[WriteBatch]:
    """Yield changes in the order of keys, in which RocksDB takes them in half of the time."""
    keys, values = list(entries), list(entries.values())
    # Arrow sorts without the GIL. Only the order is taken from it: making its binaries bytes again takes longer.
    order = pc.sort_indices(pa.array(keys, pa.large_binary())).to_numpy().tolist()
    for start in range(0, len(keys), _PIECE):
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        some = order[start : start + _PIECE]
        for key, value in zip(map(keys.__getitem__, some), map(values.__getitem__, some), strict=True):
            if value is None:
                delete(key)
            else:
                put(key, value)
        yield batch


def _changes_of(layer: Layer, keys: list[bytes], level: int) -> Iterator[tuple[bytes, int, Value]]:
    return ((key, level, layer.entries[key]) for key in keys)
