"""The engine of all keyed operators: groups a task's rows, fetches state, calls the operator, applies its changes.

A kind of operator (over rows, pandas or Arrow columns) implements ``Operator``. Its ``OperatorSpec`` is what travels
from the driver to the tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...storage.checkpoints.manifest import StateRecord
from ..format.arrow import BYTES, from_numpy, scalar
from ..format.keys import KeyCodec
from ..rpc.access import Entries, ShardColumn, StateAccess
from ..rpc.messages import BatchTimes
from .chunks import chunks, cuts, lengths
from .entry_sizes import check_sizes
from .grouping import Groups, group


@attrs.frozen
class RuntimeContext:
    """Where and when a task runs an operator: the query, the batch and its times, the partition and its shards."""

    uid: str
    query_id: str
    run_id: str
    """Spark's id of this run of the query; every restart has a new one."""
    batch: int
    partition: int
    shards: range
    times: BatchTimes
    """The watermarks are those of the operator's input, which may lag behind those of the query."""


@attrs.frozen(eq=False)
class Chunk:
    """Some of a task's keys, each with all its rows and its stored values."""

    groups: Groups
    held: tuple[pa.Array, ...]
    """For each of the operator's prefixes, the stored value of each key, of type ``BYTES``; null if there is none."""


class TaskState:
    """The state of a task's shards in one batch, as the task reads and changes it; reads see the task's own changes."""

    def __init__(self, access: StateAccess) -> None:
        self._access = access
        self._columns: list[Entries] = []
        self._rows: dict[tuple[int, bytes], bytes | None] = {}
        """The single changes since the last columns: only the last one of each key, which may have very many."""
        self._overlay: dict[bytes, bytes | None] = {}
        self._overlaid = 0

    @property
    def fresh(self) -> frozenset[int]:
        """The shards of the task to which no batch has ever been applied."""
        return self._access.fresh

    def fetch(self, shards: ShardColumn, keys: pa.Array) -> pa.Array:
        """Return the values of keys, null for a key that has none.

        Args:
            shards: the shard of each key; the keys of one shard are adjacent.
            keys: of type ``BYTES``.
        """
        found = self._access.fetch(shards, keys)
        changed = self._changed_columns()
        if not changed and not self._rows:
            return found
        # Only operators with timers, initial state or large collections come here: they read after they have written.
        missing, rows = object(), self._rows
        # Single changes are later than columns. They are not flushed here: a large list makes every key come here.
        own = [
            rows[shard, key] if (shard, key) in rows else changed.get(key, missing)
            for shard, key in zip(shards.tolist(), keys.to_pylist(), strict=True)
        ]
        if all(value is missing for value in own):
            return found
        merged = [
            held if value is missing else value for value, held in zip(own, found.to_pylist(), strict=True)
        ]
        return pa.array(merged, BYTES)

    def fetch_before(self, shards: ShardColumn, keys: pa.Array) -> pa.Array:
        """Return what ``fetch`` returns, as it was before the batch: without the task's own changes."""
        return self._access.fetch(shards, keys)

    def scan(self, start: bytes, stop: bytes) -> Iterator[Entries]:
        """Yield entries as they were before the batch, as ``StateAccess.scan`` does, without the task's own changes."""
        return self._access.scan(start, stop)

    def put(self, entries: Entries) -> None:
        """Record changes, as columns; a null value deletes the key."""
        if len(entries):
            self._flush_rows()
            self._columns.append(entries)

    def put_one(self, shard: int, key: bytes, value: bytes | None) -> None:
        """Record one change; None deletes the key."""
        self._rows[shard, key] = value

    def changes(self) -> list[Entries]:
        """Return all recorded changes, in order."""
        self._flush_rows()
        return self._columns

    def _flush_rows(self) -> None:
        if self._rows:
            shards, keys = zip(*self._rows, strict=True)
            values = pa.array(list(self._rows.values()), BYTES)
            self._columns.append(sorted_by_shard(np.asarray(shards, np.int32), pa.array(keys, BYTES), values))
            self._rows = {}

    def _changed_columns(self) -> dict[bytes, bytes | None]:
        for entries in self._columns[self._overlaid :]:
            self._overlay.update(zip(entries.keys.to_pylist(), entries.values.to_pylist(), strict=True))
        self._overlaid = len(self._columns)
        return self._overlay


class Operator(Protocol):
    """A keyed operator in one task: created by ``OperatorSpec.open``, used once, by one thread."""

    @property
    def prefixes(self) -> Sequence[bytes]:
        """The prefixes of the values to fetch for every key; a value's key is the prefix and then the key's bytes."""
        ...

    @property
    def late_rows(self) -> int:
        """How many rows ``prepare`` has left out because they were late."""
        ...

    def prepare(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        """Return the rows to process: all of them, or fewer (without late rows, or with rows combined).

        The columns are those of the input and then ``SHARD``.
        """
        ...

    def begin(self, state: TaskState) -> None:
        """Prepare the state before the first key."""
        ...

    def process(self, chunk: Chunk, state: TaskState) -> Iterator[pa.RecordBatch]:
        """Process some keys: yield output and put changes. Each key of the batch comes in exactly one chunk."""
        ...

    def finish(self, state: TaskState) -> Iterator[pa.RecordBatch]:
        """Finish the batch after the last key (timers, expired state): yield output and put changes."""
        ...


class OperatorSpec(Protocol):
    """The definition of an operator, independent of where it runs. Created on the driver and pickled to every task.

    It is an attrs class with the field ``states``. If a restored checkpoint has states of other versions, the
    coordinator replaces this field by records with all versions before it sends the operator.
    """

    @property
    def output(self) -> str:
        """Schema of the output as Spark's JSON."""
        ...

    @property
    def states(self) -> Mapping[str, StateRecord]:
        """The operator's states, by name."""
        ...

    def open(self, context: RuntimeContext) -> AbstractContextManager[Operator]:
        """Create the operator for one task; leaving the context manager closes it, even after an error."""
        ...


def run(
    operator: Operator,
    uid: str,
    batches: Iterator[pa.RecordBatch],
    codec: KeyCodec,
    shard: str,
    access: StateAccess,
) -> Iterator[pa.RecordBatch]:
    """Run an operator over a task's rows: yield its output as it comes, and apply all changes at the very end.

    Args:
        operator: the operator.
        uid: its uid, for errors.
        batches: the task's rows, with the shard of each.
        codec: of the operator's key columns.
        shard: name of the column with each row's shard.
        access: the task's shards, on which the batch has begun.

    Raises:
        StateTooLargeError: a value is too large to be stored.
    """
    state = TaskState(access)
    operator.begin(state)
    # No key is in two chunks, so the fetch for a chunk need not look at changes, unless ``begin`` has made some.
    fetch = state.fetch if state.changes() else access.fetch
    table = operator.prepare(access.metrics.on_input(batches))
    groups = group(table, codec, shard)
    access.metrics.keys += len(groups)
    access.metrics.late_rows += operator.late_rows
    for some in chunks(groups):
        held = tuple(fetch(some.shards, with_prefix(prefix, some.keys)) for prefix in operator.prefixes)
        # What the keys have stored may be far more than their rows.
        sizes = np.sum([np.zeros(len(some), np.int64), *map(lengths, held)], axis=0)
        for first, last in cuts(sizes):
            part = tuple(values.slice(first, last - first) for values in held)
            yield from operator.process(Chunk(some.slice(first, last).narrowed(table.schema), part), state)
    yield from operator.finish(state)
    changes = state.changes()
    check_sizes(changes, codec, uid)
    access.apply(changes)


def collect(batches: Iterator[pa.RecordBatch], empty: pa.Schema) -> pa.Table:
    """Return all batches as one table; if there are none, an empty table with the schema ``empty``."""
    held = list(batches)
    return pa.Table.from_batches(held) if held else empty.empty_table()


def sorted_by_shard(shards: ShardColumn, keys: pa.Array, values: pa.Array) -> Entries:
    """Return entries sorted by shard; entries of one shard stay in order, so a later change of a key stays later."""
    if (np.diff(shards) >= 0).all():
        return Entries(shards, keys, values)
    order = np.argsort(shards, kind="stable")
    at = from_numpy(order)
    return Entries(shards[order], keys.take(at), values.take(at))


def with_prefix(prefix: bytes, keys: pa.Array) -> pa.Array:
    """Return keys with ``prefix`` in front of each; both of type ``BYTES``."""
    return pc.binary_join_element_wise(scalar(prefix, BYTES), keys, scalar(b"", BYTES))
