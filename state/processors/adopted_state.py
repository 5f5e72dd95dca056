"""Turns the state of one variable of Spark's own ``transformWithState`` into entries of shards, in a task.

Spark's reader of states gives a row for each key: the key's columns, and one column with the variable's state. What
comes out are the entries that the same processor would have written here, with the expiry that Spark has stored.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.ipc
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from ...storage.checkpoints.manifest import StateKind, StateRecord
from ..format.arrow import BYTES
from ..format.keys import KeyCodec
from ..format.schema import Schemas, from_json
from ..operators.chunks import chunks
from ..operators.dataframe import SHARD
from ..operators.entry_sizes import EntrySizes
from ..operators.grouping import Groups, group
from ..operators.task_state import TaskState
from ..operators.time_mode import TimeMode
from ..rpc.access import Entries, ShardColumn
from ..rpc.messages import BatchTimes
from ..rpc.metrics import OperatorMetrics
from .handle import StateHandle
from .processor import KeyedStates

STATE: Final = "__chandy_state"
"""The column with the state of a key's variable, or with the time of one of its timers in milliseconds."""
VALUE, EXPIRY = "value", "ttlExpirationMs"
"""What Spark wraps a value with a time to live in."""
WRITTEN: Final = StructType([StructField("shard", IntegerType()), StructField("path", StringType())])
"""Which file has entries of which shard."""
_ENTRIES: Final = pa.schema([("key", BYTES), ("value", BYTES)])


@attrs.frozen
class AdoptedVariable:
    """A function for ``mapInArrow``: takes keys with the state of a variable, and writes a file for each shard."""

    folder: str
    """An existing directory that the driver and all tasks see under this path."""
    operator: str
    """Uid of the operator."""
    key_schema: str
    """Schema of the key columns as Spark's JSON."""
    name: str | None
    """The variable; None: the rows are timers."""
    record: StateRecord | None
    mode: TimeMode

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the files, and yield which there are."""
        held = [batch for batch in batches if batch.num_rows]
        if not held:
            return
        codec = KeyCodec(from_json(self.key_schema))
        groups = group(pa.Table.from_batches(held), codec, SHARD)
        by_shard: dict[int, list[tuple[pa.Array, pa.Array]]] = {}
        for some in chunks(groups):
            for entries in self._entries(some):
                for shard, part in _by_shard(entries):
                    by_shard.setdefault(shard, []).append(part)
        written = [
            {"shard": shard, "path": _write(Path(self.folder), shard, parts)}
            for shard, parts in by_shard.items()
        ]
        schema = pa.schema([("shard", pa.int32()), ("path", pa.string())])
        yield pa.RecordBatch.from_pylist(written, schema=schema)

    def _entries(self, groups: Groups) -> list[Entries]:
        """Return the entries of some keys."""
        handle = StateHandle(self.operator, Schemas(parse=None), self.mode)
        variable = None if self.record is None else self._declare(handle, self.record)
        codec = KeyCodec(from_json(self.key_schema))
        state = TaskState(_Nothing(), EntrySizes(self.operator, codec))
        handle.current.begin(state, now=0)
        states = KeyedStates(handle)
        nothing = [pa.nulls(len(groups), BYTES) for _ in handle.variables]
        states.chunk(groups.shards, groups.keys, nothing)
        given, bounds = groups.rows.column(STATE).to_pylist(), groups.bounds.tolist()
        for index in range(len(groups)):
            states.enter(index)
            for item in given[bounds[index] : bounds[index + 1]]:
                if self.record is None:
                    handle.registerTimer(item)
                elif item is not None:
                    self._set(handle, variable, self.record, item)
            states.leave()
        states.flush(state)
        return state.changes()

    def _declare(self, handle: StateHandle, record: StateRecord) -> Any:
        name, schema = self.name or "", from_json(record.versions[-1])
        if record.kind is StateKind.VALUE:
            return handle.getValueState(name, schema, record.ttl_ms)
        if record.kind is StateKind.LIST:
            return handle.getListState(name, schema, record.ttl_ms)
        return handle.getMapState(name, from_json(record.map_key or ""), schema, record.ttl_ms)

    @staticmethod
    def _set(handle: StateHandle, variable: Any, record: StateRecord, given: Any) -> None:
        """Set the variable of the current key to what Spark's reader gives of it."""

        def opened(item: dict[str, Any]) -> tuple[Any, ...]:
            """Return a stored value, and let it expire when Spark would let it."""
            if record.ttl_ms is None:
                return tuple(item.values())
            # What is written now expires after the time to live.
            handle.current.now = item[EXPIRY] - record.ttl_ms
            return tuple(item[VALUE].values())

        if record.kind is StateKind.VALUE:
            variable.update(opened(given))
        elif record.kind is StateKind.LIST:
            for item in given:
                variable.appendValue(opened(item))
        else:
            for key, item in given:
                variable.updateValue(tuple(key.values()), opened(item))


@attrs.frozen
class _Nothing:
    """The shards of an operator that holds nothing yet."""

    times: BatchTimes = attrs.field(factory=BatchTimes)
    fresh: frozenset[int] = frozenset()
    metrics: OperatorMetrics = attrs.field(factory=OperatorMetrics)

    def fetch(self, shards: ShardColumn, keys: pa.Array) -> pa.Array:
        return pa.nulls(len(keys), BYTES)

    def scan(self, start: bytes, stop: bytes) -> Iterator[Entries]:
        return iter(())

    def apply(self, changes: object) -> None:
        raise AssertionError("nothing is applied here")


def _by_shard(entries: Entries) -> Iterator[tuple[int, tuple[pa.Array, pa.Array]]]:
    """Yield the keys and values of each shard; those of a shard are adjacent."""
    found, starts = np.unique(entries.shards, return_index=True)
    bounds: Sequence[int] = [*sorted(starts.tolist()), len(entries)]
    at = {int(entries.shards[start]): start for start in starts.tolist()}
    for shard in found.tolist():
        start = at[shard]
        stop = bounds[bounds.index(start) + 1]
        length = stop - start
        yield shard, (entries.keys.slice(start, length), entries.values.slice(start, length))


def _write(folder: Path, shard: int, parts: list[tuple[pa.Array, pa.Array]]) -> str:
    # An attempt that Spark gives up leaves its file behind, but the driver never learns of it.
    path = folder / f"{shard}-{uuid.uuid4().hex}.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, _ENTRIES) as writer:
        for keys, values in parts:
            writer.write_batch(pa.RecordBatch.from_arrays([keys, values], schema=_ENTRIES))
    return str(path)


def read_entries(paths: Sequence[str]) -> dict[bytes, bytes | None]:
    """Return the entries in files of one shard."""
    found: dict[bytes, bytes | None] = {}
    for path in paths:
        with pa.OSFile(path) as file, pa.ipc.open_file(file) as reader:
            table = reader.read_all()
        found.update(zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True))
    return found
