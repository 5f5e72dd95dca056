"""The engine of all keyed operators: groups a task's rows, fetches state, calls the operator, applies its changes.

A kind of operator (over rows, pandas or Arrow columns) implements ``Operator``. Its ``OperatorSpec`` is what travels
from the driver to the tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...storage.checkpoints.manifest import OperatorRecord, StateRecord
from ..format.arrow import BYTES, scalar
from ..format.keys import KeyCodec
from ..rpc.access import StateAccess
from ..rpc.messages import BatchTimes
from .attempts import Attempts, OnError, attempts_of
from .chunks import chunks, cuts, lengths
from .entry_sizes import EntrySizes
from .grouping import Groups, group
from .task_state import TaskState


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

    def __len__(self) -> int:
        return len(self.groups)

    def slice(self, start: int, stop: int) -> Chunk:
        """Return the keys from ``start`` up to, not including, ``stop``, without copying them."""
        if stop - start == len(self):
            return self
        held = tuple(values.slice(start, stop - start) for values in self.held)
        return Chunk(self.groups.slice(start, stop), held)


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

    def begin(self, state: TaskState, attempts: Attempts) -> None:
        """Prepare the state before the first key."""
        ...

    def process(self, chunk: Chunk, state: TaskState) -> Iterator[pa.RecordBatch]:
        """Process some keys: yield output and put changes. Each key of the batch comes in exactly one chunk.

        If it raises a ``UserError``, its changes may be forgotten, and the keys may come again in other chunks.
        """
        ...

    def finish(self, state: TaskState, attempts: Attempts) -> Iterator[pa.RecordBatch]:
        """Finish the batch after the last key (timers, expired state): yield output and put changes."""
        ...


class OperatorSpec(Protocol):
    """The definition of an operator, independent of where it runs. Created on the driver and pickled to every task.

    If a restored checkpoint has states of other versions, the coordinator sends what ``taking_up`` returns.
    """

    @property
    def output(self) -> str:
        """Schema of the output as Spark's JSON."""
        ...

    @property
    def states(self) -> Mapping[str, StateRecord]:
        """The operator's states, by name."""
        ...

    def taking_up(self, record: OperatorRecord) -> OperatorSpec:
        """Return the operator for the states of a record, which has all their versions."""
        ...

    def open(self, context: RuntimeContext) -> AbstractContextManager[Operator]:
        """Create the operator for one task; leaving the context manager closes it, even after an error."""
        ...


def run(
    operator: Operator,
    context: RuntimeContext,
    batches: Iterator[pa.RecordBatch],
    codec: KeyCodec,
    shard: str,
    access: StateAccess,
    on_error: OnError,
) -> Iterator[pa.RecordBatch]:
    """Run an operator over a task's rows: yield its output as it comes, and apply all changes at the very end.

    Args:
        context: where it runs.
        batches: the task's rows, with the shard of each.
        codec: of the operator's key columns.
        shard: name of the column with each row's shard.
        access: the task's shards, on which the batch has begun.
        on_error: what becomes of the errors of the user's code.

    Raises:
        UserError: the user's code has failed, or a value is too large to be stored.
        ChandyError: state could not be read.
    """
    state = TaskState(access, EntrySizes(context.uid, codec))
    attempts = attempts_of(on_error, state, codec, access, context.uid, context.batch)
    with state.trusted():
        operator.begin(state, attempts)
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
                chunk = Chunk(some.slice(first, last).narrowed(table.schema), part)
                yield from attempts.over(
                    len(chunk), partial(_process, operator, state, chunk), chunk.groups.lost
                )
        yield from operator.finish(state, attempts)
        attempts.finish()
    access.apply(state.changes())


def _process(
    operator: Operator, state: TaskState, chunk: Chunk, first: int, last: int
) -> Iterator[pa.RecordBatch]:
    return operator.process(chunk.slice(first, last), state)


def collect(batches: Iterator[pa.RecordBatch], empty: pa.Schema) -> pa.Table:
    """Return all batches as one table; if there are none, an empty table with the schema ``empty``."""
    held = list(batches)
    return pa.Table.from_batches(held) if held else empty.empty_table()


def with_prefix(prefix: bytes, keys: pa.Array) -> pa.Array:
    """Return keys with ``prefix`` in front of each; both of type ``BYTES``."""
    return pc.binary_join_element_wise(scalar(prefix, BYTES), keys, scalar(b"", BYTES))
