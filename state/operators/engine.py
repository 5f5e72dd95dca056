"""The one engine of all keyed operators: group a task's rows, fetch state, process, collect changes, apply them.

A kind of operator (rows, pandas, Arrow columns) implements ``Operator``, and ``OperatorSpec`` for what travels
from the driver to the tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...storage.manifest import StateRecord
from ..format.arrow import BYTES, from_numpy, scalar
from ..format.keys import KeyCodec
from ..rpc.access import Entries, ShardColumn, StateAccess
from ..rpc.messages import BatchTimes
from .grouping import Groups, group

CHUNK: Final = 20_000
"""Keys that are processed at a time."""


@attrs.frozen
class Run:
    """Where and when a task runs an operator: one partition of one batch."""

    uid: str
    query_id: str
    run_id: str
    """Spark's id of this run of the query; another one after every restart."""
    batch: int
    partition: int
    shards: range
    times: BatchTimes


@attrs.frozen(eq=False)
class Chunk:
    """Some keys of a task's part of a batch, each with all its rows, and what the state holds for them."""

    groups: Groups
    held: tuple[pa.Array, ...]
    """For each of the operator's prefixes the value of each key, of type ``BYTES``; null where there is none."""


class TaskState:
    """What a task reads and changes of its shards in one batch; its reads see its own changes."""

    def __init__(self, access: StateAccess) -> None:
        self._access = access
        self._columns: list[Entries] = []
        self._shards: list[int] = []
        self._keys: list[bytes] = []
        self._values: list[bytes | None] = []
        self._overlay: dict[bytes, bytes | None] = {}
        self._overlaid = 0
        self._rows_overlaid = 0

    @property
    def times(self) -> BatchTimes:
        """When the batch is, in processing time and in event time."""
        return self._access.times

    @property
    def fresh(self) -> frozenset[int]:
        """The task's shards that no batch has been applied to, in all their history."""
        return self._access.fresh

    def fetch(self, shards: ShardColumn, keys: pa.Array) -> pa.Array:
        """Return the values of keys, null for one that is not there.

        Args:
            shards: the shard of each key; those of one shard side by side.
            keys: of type ``BYTES``.
        """
        found = self._access.fetch(shards, keys)
        changed = self._changed()
        if not changed:
            return found
        # Only operators with timers, initial state or large collections read after they have written.
        missing = object()
        own = [changed.get(key, missing) for key in keys.to_pylist()]
        if all(value is missing for value in own):
            return found
        merged = [
            held if value is missing else value for value, held in zip(own, found.to_pylist(), strict=True)
        ]
        return pa.array(merged, BYTES)

    def scan(self, start: bytes, stop: bytes) -> Iterator[Entries]:
        """Yield what the shards held before the batch, as ``StateAccess.scan`` does; without own changes."""
        return self._access.scan(start, stop)

    def put(self, entries: Entries) -> None:
        """Take note of changes, as columns; a null value deletes the key."""
        if len(entries):
            self._flush_rows()
            self._columns.append(entries)

    def put_one(self, shard: int, key: bytes, value: bytes | None) -> None:
        """Take note of one change; None deletes the key."""
        self._shards.append(shard)
        self._keys.append(key)
        self._values.append(value)

    def changes(self) -> list[Entries]:
        """Return all changes in the order in which they were made."""
        self._flush_rows()
        return self._columns

    def _flush_rows(self) -> None:
        if self._shards:
            self._columns.append(
                side_by_side(
                    np.asarray(self._shards, np.int32),
                    pa.array(self._keys, BYTES),
                    pa.array(self._values, BYTES),
                )
            )
            self._shards, self._keys, self._values, self._rows_overlaid = [], [], [], 0

    def _changed(self) -> dict[bytes, bytes | None]:
        for entries in self._columns[self._overlaid :]:
            self._overlay.update(zip(entries.keys.to_pylist(), entries.values.to_pylist(), strict=True))
        self._overlaid = len(self._columns)
        # Rows are later than columns, and stay rows: a large list is read once a key.
        new = slice(self._rows_overlaid, None)
        self._overlay.update(zip(self._keys[new], self._values[new], strict=True))
        self._rows_overlaid = len(self._keys)
        return self._overlay


class Operator(Protocol):
    """A keyed operator in one task: made by ``OperatorSpec.open``, used once, from one thread."""

    @property
    def prefixes(self) -> Sequence[bytes]:
        """The values that every key has ready: those under each prefix with the key's bytes behind it."""
        ...

    def prepare(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        """Return the rows to process: all of them, or fewer (late ones gone, many combined into one).

        Columns are those of the input and then ``SHARD``.
        """
        ...

    def begin(self, state: TaskState) -> None:
        """Do what comes before the first key; may change state."""
        ...

    def process(self, chunk: Chunk, state: TaskState) -> Iterator[pa.RecordBatch]:
        """Process some keys: yield output, note changes. Each key of the batch comes in exactly one chunk."""
        ...

    def finish(self, state: TaskState) -> Iterator[pa.RecordBatch]:
        """Do what comes after the last key (timers, expired state): yield output, note changes."""
        ...


class OperatorSpec(Protocol):
    """What an operator is, apart from where it runs. Made on the driver; travels to every task by pickle.

    An attrs class with the field ``states``: where a restored checkpoint holds states of other versions, the
    coordinator puts the records with all versions in its place before the operator travels.
    """

    @property
    def output(self) -> str:
        """Schema of the output as Spark's JSON."""
        ...

    @property
    def states(self) -> Mapping[str, StateRecord]:
        """What the operator keeps for each key, by name."""
        ...

    def open(self, run: Run) -> AbstractContextManager[Operator]:
        """Make the operator for one task; leaving the context ends it, whatever has happened."""
        ...


def run(
    operator: Operator, batches: Iterator[pa.RecordBatch], codec: KeyCodec, shard: str, access: StateAccess
) -> Iterator[pa.RecordBatch]:
    """Run an operator over a task's rows; yield its output as it comes, and at the very end apply the changes.

    Args:
        operator: the operator.
        batches: the task's rows, with the shard of each.
        codec: of the operator's key columns.
        shard: name of the column that has each row's shard.
        access: the task's shards, begun.
    """
    state = TaskState(access)
    operator.begin(state)
    # No key is in two chunks: only what ``begin`` has changed can be seen by the fetch ahead.
    fetch = state.fetch if state.changes() else access.fetch
    groups = group(operator.prepare(access.metrics.on_input(batches)), codec, shard)
    access.metrics.keys += len(groups)
    for first in range(0, len(groups), CHUNK):
        some = groups.slice(first, min(first + CHUNK, len(groups)))
        held = tuple(fetch(some.shards, with_prefix(prefix, some.keys)) for prefix in operator.prefixes)
        yield from operator.process(Chunk(some, held), state)
    yield from operator.finish(state)
    access.apply(state.changes())


def collect(batches: Iterator[pa.RecordBatch], empty: pa.Schema) -> pa.Table:
    """Return all batches as one table; without any, an empty one of the schema ``empty``."""
    held = list(batches)
    return pa.Table.from_batches(held) if held else empty.empty_table()


def side_by_side(shards: ShardColumn, keys: pa.Array, values: pa.Array) -> Entries:
    """Return entries with those of one shard side by side; of two with one key, the later stays behind the earlier."""
    if (np.diff(shards) >= 0).all():
        return Entries(shards, keys, values)
    order = np.argsort(shards, kind="stable")
    at = from_numpy(order)
    return Entries(shards[order], keys.take(at), values.take(at))


def with_prefix(prefix: bytes, keys: pa.Array) -> pa.Array:
    """Return keys with ``prefix`` in front of each; both of type ``BYTES``."""
    return pc.binary_join_element_wise(scalar(prefix, BYTES), keys, scalar(b"", BYTES))
