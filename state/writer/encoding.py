"""Encodes the rows of a DataFrame as items of one state, in tasks of Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...storage.checkpoints.manifest import StateKind, StateRecord
from ..errors import StateTypeError
from ..format.arrow import BYTES, from_numpy, to_numpy
from ..format.keys import KeyCodec
from ..format.packing import Packing
from ..format.schema import from_json
from ..format.values import StateName
from ..reader.stored import MODES
from . import entries

_SIGN: Final = 1 << 63
_PREFIXES: Final = {name: prefix for prefix, name in MODES.items()}


@attrs.frozen
class Encoder:
    """A function for ``mapInArrow``: takes rows of one state, and yields its items as ``entries`` says.

    The columns are the shard, those of ``StoredState.schema``, in this order, and for all but timers when the item
    expires. What does not fit is not raised but yielded as a ``PROBLEM``, so that Spark does not try it again.
    """

    number: int
    """The state's position among those that are written."""
    operator: str
    name: str
    key_schema: str
    record: StateRecord | None
    """None: timers."""
    null_keys: bool
    """Whether a column of a key may be null."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the items of the rows."""
        keys = KeyCodec(from_json(self.key_schema))
        try:
            for batch in batches:
                if batch.num_rows:
                    yield self._encoded(keys, batch)
        except StateTypeError as error:
            yield entries.batch([[0], [entries.PROBLEM], [b""], [b""], [entries.problem(error)]])
            for _ in batches:
                pass

    def _encoded(self, codec: KeyCodec, batch: pa.RecordBatch) -> pa.RecordBatch:
        shards, *columns = batch.columns
        width = len(codec.schema.fields)
        keys = columns[:width]
        if not self.null_keys:
            for name, column in zip(codec.schema.names, keys, strict=True):
                self._check_no_null(
                    column,
                    f"key column {name!r}",
                    "filter such rows out; or allow them by null_keys=True: as for GROUP BY, null is a key like others",
                )
        items, values = self._items(columns[width:])
        number = np.full(batch.num_rows, self.number, np.int32)
        return entries.batch([shards, from_numpy(number), codec.encode_columns(keys), items, values])

    def _items(self, columns: list[pa.Array]) -> tuple[pa.Array, pa.Array]:
        rows = len(columns[0])
        empty = pa.array([b""] * rows, BYTES)
        if self.record is None:
            return self._timers(*columns), empty
        *columns, expires_at = columns
        places, columns = self._places(self.record, columns, empty)
        packing = Packing([from_json(version) for version in self.record.versions], self._name)
        values = pa.StructArray.from_arrays(columns, names=packing.schema.names)
        return places, packing.pack(values, _milliseconds(expires_at))

    def _places(
        self, record: StateRecord, columns: list[pa.Array], empty: pa.Array
    ) -> tuple[pa.Array, list[pa.Array]]:
        """Return where in its key each item belongs, and the columns of its value."""
        if record.kind is StateKind.LIST:
            self._check_no_null(columns[0], "column 'position'")
            return _ordered(columns[0]), columns[1:]
        if record.map_key is None:
            return empty, columns
        packing = Packing([from_json(record.map_key)], self._name)
        width = len(packing.schema.fields)
        keys = pa.StructArray.from_arrays(columns[:width], names=packing.schema.names)
        return packing.pack(keys), columns[width:]

    def _timers(self, mode: pa.Array, time: pa.Array) -> pa.Array:
        self._check_no_null(mode, "column 'mode'")
        self._check_no_null(time, "column 'timer'")
        unknown = set(pc.unique(mode).to_pylist()) - _PREFIXES.keys()
        if unknown:
            expected = " or ".join(map(repr, _PREFIXES))
            raise self._refused("column 'mode'", expected, repr(min(unknown)))
        times = _ordered(_milliseconds(time)).to_pylist()
        found = [_PREFIXES[name] + at for name, at in zip(mode.to_pylist(), times, strict=True)]
        return pa.array(found, BYTES)

    @property
    def _name(self) -> StateName:
        return StateName(self.operator, self.name)

    def _check_no_null(self, column: pa.Array, what: str, advice: str = "") -> None:
        if column.null_count:
            raise self._refused(what, "a value in every row", "null", advice)

    def _refused(self, what: str, expected: str, found: str, advice: str = "") -> StateTypeError:
        where = f"{what} for state {self.name!r} of operator {self.operator!r}"
        return StateTypeError(f"cannot write {where}", expected, found, advice)


def _milliseconds(moments: pa.Array) -> pa.Array:
    """Return timestamps as int64 in milliseconds since 1970, null for null."""
    micros = to_numpy(moments.cast(pa.timestamp("us", moments.type.tz)).view(pa.int64()))
    nulls = to_numpy(moments.is_null()) if moments.null_count else None
    return from_numpy(micros // 1000, nulls)


def _ordered(numbers: pa.Array) -> pa.Array:
    """Return integers as 8 bytes each, which sort as the numbers do."""
    biased = to_numpy(numbers.cast(pa.int64())).astype(np.uint64) + np.uint64(_SIGN)
    data = biased.astype(">u8")
    bounds = np.arange(len(data) + 1, dtype=np.int64) * 8
    return pa.Array.from_buffers(BYTES, len(data), [None, pa.py_buffer(bounds), pa.py_buffer(data)])
