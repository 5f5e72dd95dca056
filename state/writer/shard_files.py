"""Writes the files of shards from sorted items, in tasks of Spark, through the RocksDB of the state hosts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Final

import attrs
import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructType

from ...storage.backends.open import open_store
from ...storage.checkpoints.layout import pack_key
from ...storage.checkpoints.manifest import Handle, StateKind
from ...storage.checkpoints.restore import restore_files
from ...storage.checkpoints.snapshots import SnapshotSource, SnapshotWriter, StoredSnapshot
from ...storage.codec import to_json
from ...storage.disk.scratch import scratch_directory
from ...storage.ids import NO_BATCH, BatchId, CheckpointId
from ..errors import StateTypeError
from ..format import keyspace
from ..format.keys import KeyCodec
from ..format.packing import expiry_of
from ..format.schema import from_json
from ..host.cache import Value
from ..host.database import ShardDatabase
from ..host.rocksdb import RocksDatabases
from ..host.shard_snapshot import snapshot_files
from ..operators.expiry_index import rounded
from ..processors.timers import hidden_list, listed, times_of
from . import entries
from .layout import Layout, list_layout, list_parts, map_layout, map_parts, part_keys

RESULT: Final = StructType().add("shard", LongType()).add("stored", StringType()).add("problem", StringType())
"""For each shard that was written its ``StoredSnapshot`` as JSON, or why nothing may be written."""
_ARROW: Final = pa.schema([("shard", pa.int64()), ("stored", pa.string()), ("problem", pa.string())])

_MEMORY: Final = 32 << 20
"""Bytes of memory for the RocksDB of the shard that a task writes."""
_WRITE: Final = 20_000
"""The number of changes that are handed to RocksDB at a time."""

_TIMERS: Final = (keyspace.EVENT_TIMERS, keyspace.PROCESSING_TIMERS)

_Row = tuple[int, int, bytes, bytes, bytes]
_Changes = Iterable[tuple[bytes, Value]]


@attrs.frozen
class WrittenState:
    """A state that is written, or removed, in every shard."""

    name: str
    kind: StateKind | None
    """None: timers."""
    ttl_ms: int | None = None
    keeps_other_keys: bool = False
    """Whether keys without items stay as they are. Otherwise the items are all that the state has from now on."""
    has_ends: bool = False
    """Whether the watermark ends what its keys have: windows, sessions, times to live of event time."""


@attrs.frozen
class ShardFiles:
    """A function for ``mapInArrow``: takes rows as ``entries`` says, sorted, and yields rows of ``RESULT``."""

    operator: str
    key_schema: str
    states: tuple[WrittenState, ...]
    """By the numbers of the rows. Those that get no items lose what they have."""
    shards: tuple[Handle | None, ...]
    """The files of the operator's shards until now."""
    source: str
    """URI of the store that they are in; empty if there are none."""
    target: str
    """URI of the store to write to."""
    checkpoint: CheckpointId
    """Id of the checkpoint to write."""
    batch: BatchId
    """The position of shards that have held nothing until now."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the shards of these rows."""
        rows = _rows(batches)
        try:
            for shard, items in groupby(rows, itemgetter(0)):
                stored = self._write(shard, items)
                if stored is not None:
                    yield _result(shard, to_json(stored).decode(), None)
        except StateTypeError as error:
            yield _result(0, None, entries.problem(error).decode())
            for _ in rows:
                pass

    def _write(self, shard: int, items: Iterator[_Row]) -> StoredSnapshot | None:
        handle = self.shards[shard]
        first = next(items)
        if first[1] == entries.PROBLEM:
            raise entries.raised(first[4])
        # The first row is the mark of the shard.
        second = next(items, None)
        if second is None and self._may_stay(handle):
            return None
        with scratch_directory("write") as folder:
            directory = folder / "shard"
            if handle is not None:
                restore_files(open_store(self.source), handle, directory)
            database = RocksDatabases(_MEMORY).open(f"{self.operator}/{shard}", directory)
            try:
                self._change(database, [] if second is None else _chained(second, items))
                database.checkpoint(folder / "snapshot")
                return self._store(shard, handle, snapshot_files(folder / "snapshot"))
            finally:
                database.close()

    def _may_stay(self, handle: Handle | None) -> bool:
        """Whether a shard for which there are no rows is right as it is."""
        if handle is None:
            # All shards of an operator must have come to the same batch, also those that hold nothing.
            return self.batch == NO_BATCH
        return all(state.keeps_other_keys for state in self.states)

    def _store(self, shard: int, handle: Handle | None, files: Mapping[str, Path]) -> StoredSnapshot:
        writer = SnapshotWriter(
            open_store(self.target), pack_key(self.checkpoint, f"{self.operator}-{shard}")
        )
        source = None if handle is None else SnapshotSource(open_store(self.source), handle)
        writer.add("shard", files, source=source)
        return writer.finish()["shard"]

    def _change(self, database: ShardDatabase, items: Iterable[_Row]) -> None:
        # A shard that has held something keeps the last batch that changed it.
        batch = self.batch if database.empty else database.position
        writer = _ShardWriter(database, self.operator, KeyCodec(from_json(self.key_schema)), batch)
        for state in self.states:
            if not state.keeps_other_keys:
                writer.remove(state)
        for number, of_state in groupby(items, itemgetter(1)):
            writer.put(self.states[number], of_state)
        writer.flush()


class _ShardWriter:
    """Changes the database of one shard."""

    def __init__(self, database: ShardDatabase, operator: str, codec: KeyCodec, batch: BatchId) -> None:
        self._database = database
        self._operator = operator
        self._codec = codec
        self._batch = batch
        self._changes: dict[bytes, Value] = {}

    def remove(self, state: WrittenState) -> None:
        """Remove all that the shard has of a state."""
        prefixes = (
            [prefix for index in _TIMERS for prefix in (index, hidden_list(index))]
            if state.kind is None
            else [keyspace.value_prefix(state.name), keyspace.part_prefix(state.name)]
        )
        for prefix in prefixes:
            self._add((key, None) for key, _ in self._database.scan(prefix, keyspace.after(prefix)))
        if state.kind is not None:
            mine = keyspace.value_prefix(state.name)
            found = self._database.scan(keyspace.EXPIRY, keyspace.after(keyspace.EXPIRY))
            self._add(
                (key, None) for key, _ in found if keyspace.variable_of(keyspace.split_timed(key)[1]) == mine
            )
        # What is put afterwards must not be overtaken.
        self.flush()

    def put(self, state: WrittenState, rows: Iterable[_Row]) -> None:
        """Put the items of a state: all those of a key at once, in place of what the key had.

        Raises:
            StateTypeError: two items have the same place.
        """
        for key, of_key in groupby(rows, itemgetter(2)):
            items = [(item, value) for _, _, _, item, value in of_key]
            for (one, _), (other, _) in pairwise(items):
                if one == other:
                    raise self._twice(state, key)
            if state.kind is None:
                self._add(self._timers(state, key, [item for item, _ in items]))
            else:
                self._add(self._items(state, state.kind, key, items))

    def flush(self) -> None:
        """Hand what was put or removed to RocksDB."""
        # Also without changes: a database that holds its position is one that has been written.
        self._database.write(self._changes, self._batch)
        self._changes = {}

    def _items(
        self, state: WrittenState, kind: StateKind, key: bytes, items: Sequence[tuple[bytes, bytes]]
    ) -> _Changes:
        where = keyspace.value_prefix(state.name) + key
        if kind is StateKind.VALUE:
            yield where, items[0][1]
            if state.has_ends:
                # The first batch with a watermark looks at all keys, and enters when they end.
                yield keyspace.timed_key(keyspace.WINDOWS, 0, key), b""
        else:
            layout = (
                list_layout(value for _, value in items)
                if kind is StateKind.LIST
                else map_layout(dict(items))
            )
            if state.keeps_other_keys:
                yield from ((part, None) for part in self._parts(state, kind, key, where))
            yield where, layout.header
            yield from _further(state.name, key, layout)
        moments = [expiry for expiry in (expiry_of(value) for _, value in items) if expiry is not None]
        if moments:
            time = rounded(min(moments), state.ttl_ms or 0)
            yield keyspace.timed_key(keyspace.EXPIRY, time, where), b""

    def _parts(self, state: WrittenState, kind: StateKind, key: bytes, where: bytes) -> list[bytes]:
        """Return the keys of the further parts that a key has until now."""
        (header,) = self._database.read([where])
        if header is None:
            return []
        numbers = list_parts(header) if kind is StateKind.LIST else map_parts(header)
        return part_keys(state.name, key, numbers)

    def _timers(self, state: WrittenState, key: bytes, items: Sequence[bytes]) -> _Changes:
        for index in _TIMERS:
            list_key = hidden_list(index) + key
            if state.keeps_other_keys:
                (held,) = self._database.read([list_key])
                yield from ((keyspace.timed_key(index, time, key), None) for time in times_of(held))
            mine = [item + key for item in items if item.startswith(index)]
            times = [keyspace.split_timed(timer)[0] for timer in mine]
            yield list_key, listed(times)
            yield from ((timer, b"") for timer in mine)

    def _add(self, changes: _Changes) -> None:
        for key, value in changes:
            self._changes[key] = value
            if len(self._changes) >= _WRITE:
                self.flush()

    def _twice(self, state: WrittenState, key: bytes) -> StateTypeError:
        what = {
            StateKind.VALUE: "one row of a key",
            StateKind.LIST: "one row of a position in the list of a key",
            StateKind.MAP: "one row of a map's key for each key",
            None: "one row of a timer of a key",
        }[state.kind]
        return StateTypeError(
            f"cannot write state {state.name!r} of operator {self._operator!r}",
            what,
            f"more than one for key {self._codec.decode(key)}",
            "drop duplicates, or decide by an aggregate which row counts",
        )


def _further(name: str, key: bytes, layout: Layout) -> _Changes:
    return zip(part_keys(name, key, layout.parts), layout.parts.values(), strict=True)


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[_Row]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _chained(first: _Row, rest: Iterator[_Row]) -> Iterator[_Row]:
    yield first
    yield from rest


def _result(shard: int, stored: str | None, problem: str | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"shard": shard, "stored": stored, "problem": problem}], schema=_ARROW)
