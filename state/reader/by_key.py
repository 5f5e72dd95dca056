"""Reads all states of an operator out of the restored database of one shard, one row a key, as Arrow batches.

| column | type |
|---|---|
| the key columns | their own |
| a value state | ``struct<value: struct<its fields>, expires_at_ms: bigint>`` |
| a list state | ``array<struct<value: struct<its fields>, expires_at_ms: bigint>>``, in order |
| a map state | ``array<struct<key: struct<its fields>, value: struct<its fields>, expires_at_ms: bigint>>`` |
| ``timers`` | ``array<bigint>``, ascending |

Times are milliseconds since 1970, as PySpark's ``registerTimer`` takes them. ``expires_at_ms`` is null for what never
expires. A state is null for a key that has none. If a state has the name of a key column, its column gets the prefix
``state_``; ``timers`` gets ``operator_``. What has expired is returned until its shard has removed it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Final

import attrs
import numpy as np
import pyarrow as pa
from pyspark.sql.types import LongType, StructType
from rocksdict import Rdict

from ...storage.checkpoints.manifest import OperatorRecord, StateKind, StateRecord
from ..format import keyspace
from ..format.arrow import BYTES
from ..format.keys import KeyCodec
from ..format.packing import Packing, expiries
from ..format.schema import arrow_schema, from_json
from ..format.values import StateName
from .stored import ROWS, StoredState, distinct, opened, scan

TIMERS: Final = "timers"
EXPIRES: Final = "expires_at_ms"
_BYTES: Final = 8 << 20
"""The number of bytes of state after which a batch ends."""
_TIMERS_OF: Final = (keyspace.PROCESSING_TIMERS, keyspace.EVENT_TIMERS)

_Item = tuple[bytes, int, int | bytes, bytes]
"""A key, the number of the column, the place in a list or the key in a map, and the packed value."""


@attrs.define(slots=False)
class StoredKeys:
    """The keys of an operator, to read."""

    operator: OperatorRecord

    @property
    def states(self) -> dict[str, StateRecord]:
        """The state variables by name, in the order of their columns."""
        return {
            name: record
            for name, record in self.operator.states.items()
            if not name.startswith(keyspace.HIDDEN)
        }

    @cached_property
    def columns(self) -> dict[str, str]:
        """The column of each state variable by name; of the timers under ``keyspace.HIDDEN + TIMERS``."""
        keys = self._key_schema.fields
        wanted = [("", field.name, field.dataType) for field in keys]
        wanted += [("state_", name, LongType()) for name in self.states]
        wanted.append(("operator_", TIMERS, LongType()))
        names = distinct(wanted).names[len(keys) :]
        return dict(zip([*self.states, keyspace.HIDDEN + TIMERS], names, strict=True))

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""
        types = [*(_type(self._packing(name)) for name in self.states), pa.list_(pa.int64())]
        keys = list(arrow_schema(self._key_schema))
        own = [pa.field(name, type) for name, type in zip(self.columns.values(), types, strict=True)]
        return pa.schema([*(field.with_nullable(True) for field in keys), *own])

    def batches(self, directory: Path) -> Iterator[pa.RecordBatch]:
        """Yield the keys in a shard, given the directory of its restored files, which stays unchanged.

        All timers of the shard are in memory, and the state of a few thousand keys at a time.

        Raises:
            StateTypeError: the stored bytes do not fit the records of the states.
        """
        codec = KeyCodec(self._key_schema)
        with opened(directory) as db:
            for piece in _pieces(self._items(db)):
                keys = [key for key, _ in piece]
                columns = [
                    column.combine_chunks() for column in codec.decode_columns(pa.array(keys, BYTES)).columns
                ]
                for at, name in enumerate(self.states):
                    columns.append(self._column(name, [_of(at, items) for _, items in piece]))
                columns.append(_timers([_of(len(self.states), items) for _, items in piece]))
                yield pa.RecordBatch.from_arrays(columns, schema=self.schema)

    @cached_property
    def _key_schema(self) -> StructType:
        return from_json(self.operator.key_schema)

    def _items(self, db: Rdict) -> Iterator[_Item]:
        """Yield everything that is stored, by key."""
        found: list[Iterable[_Item]] = [
            _numbered(at, StoredState.of(self.operator, name).items(db))
            for at, name in enumerate(self.states)
        ]
        # They are stored by time.
        timers = [keyspace.split_timed(where) for prefix in _TIMERS_OF for where, _ in scan(db, prefix)]
        found.append(
            (key, len(self.states), time, b"") for key, time in sorted((key, time) for time, key in timers)
        )
        return heapq.merge(*found, key=itemgetter(0))

    def _packing(self, name: str) -> tuple[StateKind, Packing, Packing | None]:
        record, state = self.states[name], StateName(self.operator.uid, name)
        keys = None if record.map_key is None else Packing([from_json(record.map_key)], state)
        return record.kind, Packing([from_json(version) for version in record.versions], state), keys

    def _column(self, name: str, by_key: Sequence[Sequence[_Item]]) -> pa.Array:
        """Return the column of a state, given what each key has of it."""
        kind, values, keys = self._packing(name)
        if kind is StateKind.VALUE:
            packed = pa.array([items[0][3] if items else None for items in by_key], BYTES)
            return _struct({"value": values.unpack(packed), EXPIRES: expiries(packed)}, packed.is_null())
        items = [item for items in by_key for item in items]
        packed = pa.array([item[3] for item in items], BYTES)
        fields = {"value": values.unpack(packed), EXPIRES: expiries(packed)}
        if keys is not None:
            fields = {"key": keys.unpack(pa.array([item[2] for item in items], BYTES)), **fields}
        return _lists(by_key, _struct(fields))


def _type(packing: tuple[StateKind, Packing, Packing | None]) -> pa.DataType:
    kind, values, keys = packing
    fields = [pa.field("value", values.arrow_type), pa.field(EXPIRES, pa.int64())]
    if keys is not None:
        fields.insert(0, pa.field("key", keys.arrow_type))
    item = pa.struct(fields)
    return item if kind is StateKind.VALUE else pa.list_(item)


def _struct(fields: dict[str, pa.Array], mask: pa.Array | None = None) -> pa.StructArray:
    return pa.StructArray.from_arrays(list(fields.values()), names=list(fields), mask=mask)


def _timers(by_key: Sequence[Sequence[_Item]]) -> pa.Array:
    return _lists(by_key, pa.array([item[2] for items in by_key for item in items], pa.int64()))


def _lists(by_key: Sequence[Sequence[_Item]], values: pa.Array) -> pa.Array:
    """Return a list for each key that has something, null for one that has nothing."""
    lengths = np.array([len(items) for items in by_key], np.int64)
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(bounds), values, mask=pa.array(lengths == 0))


def _of(column: int, items: Sequence[_Item]) -> list[_Item]:
    return [item for item in items if item[1] == column]


def _numbered(column: int, items: Iterable[tuple[bytes, int | bytes, bytes]]) -> Iterator[_Item]:
    return ((key, column, place, value) for key, place, value in items)


def _pieces(items: Iterable[_Item]) -> Iterator[list[tuple[bytes, list[_Item]]]]:
    """Yield the keys with what each of them has, in lists for one batch each."""
    piece: list[tuple[bytes, list[_Item]]] = []
    size = 0
    for key, some in groupby(items, key=itemgetter(0)):
        found = list(some)
        piece.append((key, found))
        size += sum(len(item[3]) for item in found)
        if len(piece) == ROWS or size >= _BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
