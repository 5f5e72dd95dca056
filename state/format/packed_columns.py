"""Packs and unpacks rows as Arrow columns, in the format of ``packing``; flat schemas need no Python call per row."""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BooleanType, DataType, DecimalType, NullType, StructType

from . import nested_columns
from .arrow import BYTES, Bits, bitmap, bounds_of, from_numpy, scalar, to_numpy
from .nulls import forbidden_nulls
from .schema import arrow_struct
from .slots import DECIMAL_BYTES, EXPIRES, Slots, is_fixed, is_nested
from .values import StateName, encoder

Offsets = npt.NDArray[np.int64]

_INTEGERS: dict[int, pa.DataType] = {1: pa.int8(), 2: pa.int16(), 4: pa.int32(), 8: pa.int64()}
_NOTHING: Final = scalar(b"", BYTES)


class ColumnPacker:
    """Packs and unpacks the rows of one schema, under one version number."""

    def __init__(self, schema: StructType, version: int, name: StateName) -> None:
        """Compile the packer.

        Raises:
            DefinitionError: a field has a type that a state cannot hold.
        """
        self.type: pa.StructType = arrow_struct(schema)
        """The Arrow type of the rows."""
        self._schema = schema
        self._version = version
        self._name = name
        self._slots = Slots.of(schema)
        for field in schema.fields:
            # Refuses what a state cannot hold.
            encoder(name, field.name, field.dataType, field.nullable)

    # --- rows to bytes --------------------------------------------------------------------------------------

    def pack(
        self, columns: Sequence[pa.Array], expiry_ms: npt.NDArray[np.int64] | None, rows: int
    ) -> pa.Array:
        """Return the bytes of rows, given as the columns of ``type``.

        Args:
            columns: one for each field.
            expiry_ms: when each row expires; None if no row does.
            rows: the number of rows.

        Raises:
            StateTypeError: a column has another type than its field, or a null that its field does not allow.
        """
        fixed = np.zeros(rows, self._slots.plain if expiry_ms is None else self._slots.expiring)
        fixed["head"] = self._version if expiry_ms is None else self._version | EXPIRES
        if expiry_ms is not None:
            fixed["expiry"] = expiry_ms
        tails = []
        for at, (field, column) in enumerate(zip(self._schema.fields, columns, strict=True)):
            column = self._fitting(at, column)
            if found := forbidden_nulls(column, field.dataType, field.nullable, field.name):
                raise self._name.value_error(found.path, found.expected, None)
            if column.null_count:
                nulls = to_numpy(column.is_null())
                fixed["nulls"][:, at // 8] |= nulls.astype(np.uint8) << (at % 8)
            if is_fixed(field.dataType):
                if not isinstance(field.dataType, NullType):
                    fixed[str(at)] = _numbers(column, field.dataType)
            else:
                tail = self._tail(at, column)
                fixed[str(at)] = to_numpy(pc.binary_length(tail))
                tails.append(tail)
        bounds = np.arange(rows + 1, dtype=np.int64) * fixed.itemsize
        packed = _strings(BYTES, bounds, pa.py_buffer(fixed), None)
        return pc.binary_join_element_wise(packed, *tails, _NOTHING) if tails else packed

    def _tail(self, at: int, column: pa.Array) -> pa.Array:
        """Return the values of a column without a fixed width as bytes, empty for null."""
        field = self._schema.fields[at]
        if not is_nested(field.dataType):
            tail = column.cast(pa.binary()).cast(BYTES)
            return tail.fill_null(_NOTHING) if tail.null_count else tail
        return pa.array(nested_columns.packed(column, field.dataType), BYTES)

    def _fitting(self, at: int, column: pa.Array) -> pa.Array:
        expected = self.type.field(at).type
        if column.type == expected:
            return column
        if _same_kind(column.type, expected):
            try:
                return column.cast(expected)
            except pa.ArrowInvalid as error:
                raise self._mismatch(at, str(error)) from error
        raise self._mismatch(at, f"a column of type {column.type}")

    def _mismatch(self, at: int, found: str) -> Exception:
        field = self._schema.fields[at]
        return self._name.error(field.name, field.dataType.simpleString(), found)

    # --- bytes to rows --------------------------------------------------------------------------------------

    def unpack(self, data: pa.Array) -> pa.StructArray:
        """Return the rows with these bytes, none of which is null. Either all have an expiry, or none has.

        Raises:
            StateTypeError: the bytes are no rows of this schema.
        """
        rows = len(data)
        if not rows:
            return pa.nulls(0, self.type)
        bounds = bounds_of(data)
        body = data.buffers()[2]
        dtype = self._slots.expiring if body[int(bounds[0])] & EXPIRES else self._slots.plain
        starts, lengths = bounds[:-1], np.diff(bounds)
        if lengths.min() < dtype.itemsize:
            raise self._damaged(data)
        fixed = records(body, starts, dtype)
        # For each row, where the bytes of each field behind the slots end.
        ends = np.empty((rows, 1 + len(self._slots.variable)), np.int64)
        ends[:, 0] = starts + dtype.itemsize
        for place, at in enumerate(self._slots.variable):
            ends[:, place + 1] = ends[:, place] + fixed[str(at)]
        if not np.array_equal(ends[:, -1], bounds[1:]):
            raise self._damaged(data)
        parts = _Parts(body, bounds[0], ends)
        columns = [
            self._column(at, field.dataType, fixed, parts) for at, field in enumerate(self._schema.fields)
        ]
        return pa.StructArray.from_arrays(columns, fields=list(self.type))

    def _column(self, at: int, dtype: DataType, fixed: npt.NDArray[np.void], parts: _Parts) -> pa.Array:
        nulls = (fixed["nulls"][:, at // 8] >> (at % 8) & 1).astype(np.bool_)
        arrow = self.type.field(at).type
        if isinstance(dtype, NullType):
            return pa.nulls(len(fixed))
        if is_fixed(dtype):
            return _typed(fixed[str(at)], nulls, dtype, arrow)
        taken = parts.take(self._slots.variable.index(at))
        if not is_nested(dtype):
            column = taken.cast(pa.binary()).view(arrow)
            if not nulls.any():
                return column
            return pa.Array.from_buffers(arrow, len(column), [_validity(nulls), *column.buffers()[1:]])
        items = [None if null else item for null, item in zip(nulls.tolist(), taken.to_pylist(), strict=True)]
        return nested_columns.unpacked(items, dtype, arrow)

    def _damaged(self, data: pa.Array) -> Exception:
        expected = f"a packed row of {self._schema.simpleString()}"
        return self._name.error("", expected, f"{data[0].as_py()[:40]!r} or others beside it")


class _Parts:
    """The fixed part and the variable fields of all rows, one after the other, as one array over their bytes."""

    def __init__(self, body: pa.Buffer, first: int, ends: Offsets) -> None:
        rows, self._each = ends.shape
        small = ends[-1, -1] < 1 << 31
        offsets = np.empty(rows * self._each + 1, np.int32 if small else np.int64)
        # A row, and its fixed part, begins where the one before ends.
        offsets[0] = first
        offsets[1:] = ends.ravel()
        self._all = _strings(pa.binary() if small else BYTES, offsets, body, None)

    def take(self, place: int) -> pa.Array:
        """Return each row's bytes of the field at this place among the fields without a fixed width."""
        return self._all.take(from_numpy(np.arange(place + 1, len(self._all), self._each)))


# --- columns and their bytes --------------------------------------------------------------------------------


def records(body: pa.Buffer, starts: Offsets, dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """Return the records that begin at these places of a data buffer."""
    # NumPy copies records of opaque bytes as a whole, not field by field.
    width = dtype.itemsize
    windows = np.ndarray((body.size - width + 1,), f"V{width}", body, strides=(1,))
    taken: npt.NDArray[np.void] = windows[starts].view(dtype)
    return taken


def _strings(
    arrow: pa.DataType, offsets: npt.NDArray[Any], body: pa.Buffer, validity: pa.Buffer | None
) -> pa.Array:
    return pa.Array.from_buffers(arrow, len(offsets) - 1, [validity, pa.py_buffer(offsets), body])


def _validity(nulls: Bits) -> pa.Buffer | None:
    return bitmap(~nulls) if nulls.any() else None


def _numbers(column: pa.Array, dtype: DataType) -> npt.NDArray[Any]:
    """Return the contents of the slots for a column's values."""
    if isinstance(dtype, DecimalType):
        filled = column.fill_null(pa.scalar(decimal.Decimal(0), column.type)) if column.null_count else column
        body = filled.buffers()[1]
        if body is None:
            return np.zeros(0, f"V{DECIMAL_BYTES}")
        return np.frombuffer(body, f"V{DECIMAL_BYTES}")[filled.offset : filled.offset + len(filled)]
    if not (pa.types.is_boolean(column.type) or pa.types.is_floating(column.type)):
        column = column.view(_INTEGERS[column.type.byte_width])
    return to_numpy(column)


def _typed(numbers: npt.NDArray[Any], nulls: Bits, dtype: DataType, arrow: pa.DataType) -> pa.Array:
    """Return the column whose slots hold these numbers."""
    if isinstance(dtype, BooleanType):
        return from_numpy(numbers.astype(np.bool_), nulls)
    body = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(arrow, len(numbers), [_validity(nulls), body])


def _same_kind(found: pa.DataType, expected: pa.DataType) -> bool:
    """Return whether values of one type can be values of the other; the cast finds out whether they fit."""
    if pa.types.is_null(found):
        return True
    if pa.types.is_dictionary(found):
        return found.value_type == expected or _same_kind(found.value_type, expected)
    for kind in _KINDS:
        if kind(found) and kind(expected):
            return True
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(expected):
        return (found.tz is None) == (expected.tz is None)
    if pa.types.is_struct(found) and pa.types.is_struct(expected):
        return [one.name for one in found] == [one.name for one in expected] and all(
            ours.type == theirs.type or _same_kind(ours.type, theirs.type)
            for ours, theirs in zip(found, expected, strict=True)
        )
    if _is_list(found) and pa.types.is_list(expected):
        return found.value_type == expected.value_type or _same_kind(found.value_type, expected.value_type)
    return bool(pa.types.is_map(found) and pa.types.is_map(expected))


def _is_text(arrow: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(arrow) or pa.types.is_large_string(arrow) or pa.types.is_string_view(arrow)
    )


def _is_binary(arrow: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(arrow) or pa.types.is_large_binary(arrow) or pa.types.is_binary_view(arrow)
    )


def _is_list(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_list(arrow) or pa.types.is_large_list(arrow))


_KINDS = (
    _is_text,
    _is_binary,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_duration,
)
"""Kinds of types; a value of one type is accepted for another type of the same kind."""
