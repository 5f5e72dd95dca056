"""The format of a row as bytes, as shards store keys and values; rows and Arrow columns pack to the same bytes.

| bytes | what |
|---|---|
| 1 | version of the schema in the low 7 bits; the high bit says that an expiry follows |
| 8, or 0 | expiry: milliseconds since 1970, little-endian, signed |
| one for each 8 fields | null bitmap: bit ``i % 8`` of byte ``i // 8`` is set if field ``i`` is null |
| a slot a field, in schema order | little-endian, zero if the field is null; see below |
| the rest | values without a fixed width, one after the other in schema order |

| type | slot |
|---|---|
| boolean, byte | 1 byte |
| short; int, float; long, double | 2; 4; 8 bytes |
| date | 4 bytes: days since 1970 |
| timestamp, timestamp_ntz, interval day to second | 8 bytes: microseconds |
| time | 8 bytes: nanoseconds since midnight |
| decimal | 16 bytes: the unscaled integer |
| void | none |
| string (UTF-8), binary | 4 bytes: how many bytes it has behind the slots |
| array, map, struct | the same; the bytes are msgpack of the stored value, see ``values`` |

The version is the position of the row's schema among all schemas that the state has had, see ``evolution``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import StructType

from .arrow import bounds_of, from_numpy, to_numpy
from .evolution import column_converter, row_converter
from .packed_columns import ColumnPacker, records
from .packed_rows import RowPacker, expiry_of
from .slots import EXPIRES
from .values import StateName

__all__ = ["Packing", "expiries", "expiry_of"]

_EXPIRING: Final = np.dtype([("head", "u1"), ("expiry", "<i8")])
_VERSION: Final = EXPIRES - 1


class Packing:
    """Converts the rows of one state, or the keys of one operator, to bytes and back."""

    def __init__(self, versions: Sequence[StructType], name: StateName) -> None:
        """Compile the packing.

        Args:
            versions: the schemas that stored rows may have, oldest first. Rows are packed with the last schema, and
                older rows are converted to it when they are read; see ``evolution.evolve``.
            name: the state, for errors.

        Raises:
            DefinitionError: a field has a type that a state cannot hold.
        """
        self.schema = versions[-1]
        """The schema of rows that are packed and of rows that are returned."""
        self._name = name
        self._rows = [RowPacker(schema, number, name) for number, schema in enumerate(versions)]
        self._columns = [ColumnPacker(schema, number, name) for number, schema in enumerate(versions)]
        self._row_converters = [row_converter(schema, self.schema) for schema in versions]
        self._column_converters = [column_converter(schema, self.schema) for schema in versions]
        self._newest = len(versions) - 1
        self._pack_row = self._rows[-1].pack
        self._unpack_row = self._rows[-1].unpack
        self.arrow_type: pa.StructType = self._columns[-1].type
        """The Arrow type of the rows that ``unpack`` returns."""

    def pack_row(self, row: Any, expiry_ms: int | None = None) -> bytes:
        """Return the bytes of ``row``: a tuple, Row, list, array or Series with one item a field, in schema order.

        Args:
            row: as ``ValueState.update`` takes it.
            expiry_ms: when the row expires, in milliseconds since 1970; None: never.

        Raises:
            StateTypeError: the row has another shape, or an item has another type than its field.
        """
        return self._pack_row(row, expiry_ms)

    def unpack_row(self, data: bytes) -> tuple[Any, ...]:
        """Return the row with these bytes, as PySpark's ``ValueState.get`` would return it.

        Raises:
            StateTypeError: the bytes are no row of a known version of the schema.
        """
        if not data:
            raise self._name.error("", "a packed row", "no bytes")
        version = data[0] & _VERSION
        if version == self._newest:
            return self._unpack_row(data)
        return self._row_converters[self._known(version)](self._rows[version].unpack(data))

    def pack(self, rows: pa.StructArray, expiry_ms: pa.Array | None = None) -> pa.Array:
        """Return the bytes of each row, null for a row that is null; of type ``BYTES``.

        Args:
            rows: one child for each field, by position; of the type ``arrow_type``, or of one with the same kinds of
                values (other widths of integers or of strings' offsets, other time zones).
            expiry_ms: when each row expires, as int64 in milliseconds since 1970. Null, or None for all, means never.

        Raises:
            StateTypeError: a column has another type than its field, or a value that does not fit the field.
        """
        if rows.null_count:
            nulls = to_numpy(rows.is_null())
            keep = from_numpy(~nulls)
            return _spread(
                self.pack(rows.filter(keep), None if expiry_ms is None else expiry_ms.filter(keep)), nulls
            )
        if rows.type.num_fields != len(self.schema.fields):
            expected = f"columns of {self.schema.simpleString()}"
            raise self._name.error("", expected, f"{rows.type.num_fields} columns: {rows.type}")
        columns = [rows.field(at) for at in range(rows.type.num_fields)]
        packer = self._columns[-1]
        if expiry_ms is None or expiry_ms.null_count == len(rows):
            return packer.pack(columns, None, len(rows))
        if not expiry_ms.null_count:
            return packer.pack(columns, to_numpy(expiry_ms), len(rows))
        never = to_numpy(expiry_ms.is_null())
        positions = [np.flatnonzero(never), np.flatnonzero(~never)]
        return _merged(
            [self.pack(rows.take(from_numpy(at)), expiry_ms.take(from_numpy(at))) for at in positions],
            positions,
        )

    def unpack(self, data: pa.Array) -> pa.StructArray:
        """Return the rows with these bytes, null for null, of the type ``arrow_type``.

        Args:
            data: of type ``BYTES``.

        Raises:
            StateTypeError: some bytes are no row of a known version of the schema.
        """
        if data.null_count == len(data):
            return pa.nulls(len(data), self.arrow_type)
        if data.null_count:
            return _spread(self.unpack(data.drop_null()), to_numpy(data.is_null()))
        heads = _heads(data, self._name)
        if (heads == heads[0]).all():
            return self._unpack_alike(data, int(heads[0]))
        kinds = np.unique(heads)
        positions = [np.flatnonzero(heads == kind) for kind in kinds]
        parts = [
            self._unpack_alike(data.take(from_numpy(at)), int(kind))
            for kind, at in zip(kinds, positions, strict=True)
        ]
        return _merged(parts, positions)

    def _unpack_alike(self, data: pa.Array, head: int) -> pa.StructArray:
        version = self._known(head & _VERSION)
        return self._column_converters[version](self._columns[version].unpack(data))

    def _known(self, version: int) -> int:
        if version > self._newest:
            expected = f"rows of versions 0 to {self._newest} of its schema"
            raise self._name.error("", expected, f"one of version {version}, which something newer wrote")
        return version


def expiries(data: pa.Array) -> pa.Array:
    """Return when packed rows (of type ``BYTES``) expire, as int64 in milliseconds since 1970.

    The expiry is null for a row that never expires or is null.
    """
    if data.null_count == len(data):
        return pa.nulls(len(data), pa.int64())
    bounds = bounds_of(data)
    body = data.buffers()[2]
    present = np.flatnonzero(to_numpy(data.is_valid()) & (np.diff(bounds) > 0))
    expiring = present[(np.frombuffer(body, np.uint8)[bounds[present]] & EXPIRES) != 0]
    found = np.zeros(len(data), np.int64)
    never = np.ones(len(data), np.bool_)
    if len(expiring):
        found[expiring] = records(body, bounds[expiring], _EXPIRING)["expiry"]
        never[expiring] = False
    return from_numpy(found, never)


def _heads(data: pa.Array, name: StateName) -> npt.NDArray[np.uint8]:
    """Return the first byte of each row."""
    bounds = bounds_of(data)
    if not np.diff(bounds).all():
        raise name.error("", "a packed row", "no bytes")
    return np.frombuffer(data.buffers()[2], np.uint8)[bounds[:-1]]


def _spread(dense: pa.Array, nulls: npt.NDArray[np.bool_]) -> pa.Array:
    """Return an array that is null where ``nulls`` is true, with the items of ``dense`` elsewhere."""
    return dense.take(from_numpy(np.cumsum(~nulls) - 1, nulls))


def _merged(parts: Sequence[pa.Array], positions: Sequence[npt.NDArray[np.int64]]) -> pa.Array:
    """Return one array with the items of all parts, each at the position given for it."""
    return pa.concat_arrays(parts).take(from_numpy(np.argsort(np.concatenate(positions))))
