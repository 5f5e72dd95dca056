"""Converts between Arrow and NumPy arrays without importing pandas or Spark.

pyarrow imports pandas, if it is installed, as soon as it makes an array or a scalar from Python's or NumPy's values,
or converts an array to NumPy. That costs a quarter of a second of processor time and 40 MB in each of Spark's Python
workers, while a restarted pipeline waits for its first batch. The functions of this module avoid it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

BYTES: Final = pa.large_binary()
"""Type of keys and values as bytes; with 64-bit offsets, one array can hold all bytes of a batch."""

Bits = npt.NDArray[np.bool_]


def from_numpy(values: npt.NDArray[Any], nulls: Bits | None = None) -> pa.Array:
    """Return booleans, integers or floats as an Arrow array of the same type, null where ``nulls`` is true.

    Contiguous numbers are not copied.
    """
    data = pa.py_buffer(np.ascontiguousarray(values)) if values.dtype != np.bool_ else bitmap(values)
    validity = None if nulls is None else bitmap(~nulls)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [validity, data])


def to_numpy(column: pa.Array | pa.ChunkedArray, null: bool | float = 0) -> npt.NDArray[Any]:
    """Return booleans, integers or floats as a NumPy array, with ``null`` for nulls.

    Numbers without nulls are not copied.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if array.null_count:
        array = array.fill_null(scalar(null, array.type))
    data, start, size = array.buffers()[1], array.offset, len(array)
    if pa.types.is_boolean(array.type):
        if data is None:
            return np.zeros(size, np.bool_)
        first, skipped = divmod(start, 8)
        packed = np.frombuffer(data, np.uint8)[first:]
        return np.unpackbits(packed, count=skipped + size, bitorder="little")[skipped:].view(np.bool_)
    dtype = np.dtype(array.type.to_pandas_dtype())
    if data is None:
        return np.zeros(size, dtype)
    return np.frombuffer(data, dtype, start + size)[start:]


def valid(column: pa.Array) -> Bits:
    """Return for each row whether it is not null."""
    if column.null_count == 0:
        return np.ones(len(column), np.bool_)
    return to_numpy(column.is_valid())


def nulled(values: pa.Array, gone: Bits) -> pa.Array:
    """Return an array of any type, null where ``gone`` is true."""
    return values.take(from_numpy(np.arange(len(values)), gone)) if gone.any() else values


def microseconds(times: pa.Array) -> npt.NDArray[np.int64]:
    """Return timestamps in microseconds since 1970, 0 for nulls."""
    return to_numpy(times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64()))


def milliseconds(times: pa.Array) -> npt.NDArray[np.int64]:
    """Return timestamps in milliseconds since 1970, rounded up; 0 for nulls."""
    return -(-microseconds(times) // 1000)


def bounds_of(data: pa.Array) -> npt.NDArray[np.int64]:
    """Return where the bytes of each row of a ``BYTES`` array begin in its data buffer, and where the last end."""
    offsets = np.frombuffer(data.buffers()[1], np.int64)
    return offsets[data.offset : data.offset + len(data) + 1]


def scalar(value: bool | float | bytes, dtype: pa.DataType) -> pa.Scalar:
    """Return a boolean, a number or bytes (then of type ``BYTES``) as a scalar."""
    if isinstance(value, bytes):
        bounds = pa.py_buffer(np.array([0, len(value)], np.int64))
        return pa.Array.from_buffers(BYTES, 1, [None, bounds, pa.py_buffer(value)])[0].cast(dtype)
    return from_numpy(np.array([value], dtype.to_pandas_dtype()))[0]


def bitmap(bits: Bits) -> pa.Buffer:
    """Return booleans as an Arrow bitmap, one bit each."""
    return pa.py_buffer(np.packbits(bits, bitorder="little"))


def listed(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return a column's Python values.

    If one of them is none, such as a time outside of the calendar or a text that is not UTF-8, all are what Arrow has
    for them: numbers, or bytes.
    """
    try:
        found: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            stored = pa.large_binary()
        else:
            stored = pa.int32() if pa.types.is_date32(column.type) else pa.int64()
        found = column.cast(stored).to_pylist()
    return found
