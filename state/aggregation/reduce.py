"""Reduces groups of adjacent rows to one value each: exact sums, least and greatest, first and last values.

In all functions, group ``i`` has rows ``bounds[i]`` to ``bounds[i + 1]``, at least one, and nulls are ignored.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..format.arrow import bitmap, from_numpy, to_numpy, valid

Bounds = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_LOW: Final = np.uint64(0xFFFFFFFF)
_HALF: Final = np.uint64(32)


def array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def any_valid(column: pa.Array, bounds: Bounds) -> Mask | None:
    """Return for each group whether it has a row that is not null; None if no row is null."""
    if column.null_count == 0:
        return None
    found: Mask = np.logical_or.reduceat(valid(column), bounds[:-1])
    return found


def with_nulls(values: npt.NDArray[Any], not_null: Mask | None) -> pa.Array:
    """Return NumPy values as an Arrow array that is null where ``not_null`` is false."""
    return from_numpy(values, None if not_null is None else ~not_null)


def group_numbers(bounds: Bounds) -> Bounds:
    """Return for each row the number of its group."""
    return np.repeat(np.arange(len(bounds) - 1, dtype=np.int64), np.diff(bounds))


# --- sums ---------------------------------------------------------------------------------------------------


def sum_integers(values: npt.NDArray[np.int64], bounds: Bounds) -> tuple[npt.NDArray[np.int64], Mask | None]:
    """Return the sum of each group, and a mask of the sums that do not fit into 64 bits (None: all fit)."""
    if not len(values):
        return values, None
    greatest = max(abs(int(values.max())), abs(int(values.min())))
    if greatest * int(np.diff(bounds).max()) < 1 << 63:
        return np.add.reduceat(values, bounds[:-1]), None
    high = np.add.reduceat(values >> 32, bounds[:-1])
    low = np.add.reduceat(values & 0xFFFFFFFF, bounds[:-1])
    high += low >> 32
    beyond = (high < -(1 << 31)) | (high >= 1 << 31)
    sums = (high << 32) | (low & 0xFFFFFFFF)
    return sums, beyond if beyond.any() else None


def sum_decimals(column: pa.Array, bounds: Bounds, dtype: pa.DataType) -> tuple[pa.Array, Mask]:
    """Return the sum of each group as a decimal, null for a group of nulls, and a mask of those with too many digits.

    Args:
        column: of type decimal128.
        bounds: of the groups.
        dtype: the sums' type: decimal128 of the same scale.
    """
    halves = _halves(column)
    # Four digits of 32 bits, the highest one signed: sums of 2^31 rows do not overflow.
    digits = [
        np.add.reduceat(part, bounds[:-1])
        for part in (
            (halves[:, 0] & _LOW).astype(np.int64),
            (halves[:, 0] >> _HALF).astype(np.int64),
            (halves[:, 1] & _LOW).astype(np.int64),
            halves[:, 1].view(np.int64) >> 32,
        )
    ]
    for position in range(3):
        digits[position + 1] += digits[position] >> 32
        digits[position] &= 0xFFFFFFFF
    beyond = (digits[3] < -(1 << 31)) | (digits[3] >= 1 << 31)
    sums = np.empty((len(bounds) - 1, 2), np.int64)
    sums[:, 0] = digits[0] | (digits[1] << 32)
    sums[:, 1] = digits[2] | (digits[3] << 32)
    widest = pa.decimal128(38, dtype.scale)
    found = any_valid(column, bounds)
    validity = None if found is None else bitmap(found)
    total = pa.Array.from_buffers(widest, len(sums), [validity, pa.py_buffer(sums)])
    beyond |= ~fits(total, dtype)
    return with_type(total, dtype), beyond


def fits(column: pa.Array, dtype: pa.DataType) -> Mask:
    """Return for each decimal whether it fits into ``dtype``, which has the same scale."""
    halves = _halves(column)
    low, high = halves[:, 0], halves[:, 1].view(np.int64)
    limit = 10**dtype.precision
    top, bottom = limit >> 64, np.uint64(limit & (2**64 - 1))
    below = (high < top) | ((high == top) & (low < bottom))
    negative = -limit
    top, bottom = negative >> 64, np.uint64(negative & (2**64 - 1))
    above = (high > top) | ((high == top) & (low > bottom))
    mask: Mask = below & above
    return mask


def with_type(column: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Return decimal128 values with another precision, without a check."""
    return pa.Array.from_buffers(dtype, len(column), column.buffers(), offset=column.offset)


def _halves(column: pa.Array) -> npt.NDArray[np.uint64]:
    """Return decimal128 values as pairs of their low and high 64 bits, zero for null."""
    data = column.buffers()[1]
    if data is None:
        return np.zeros((len(column), 2), np.uint64)
    halves = np.frombuffer(data, np.uint64)[2 * column.offset : 2 * (column.offset + len(column))].reshape(
        -1, 2
    )
    if column.null_count:
        halves = np.where(valid(column)[:, None], halves, np.uint64(0))
    return halves


# --- least and greatest -------------------------------------------------------------------------------------


def min_max(column: pa.Array, bounds: Bounds, greatest: bool) -> pa.Array:
    """Return the least or the greatest value of each group in Spark's order, null for a group of nulls.

    NaN is greater than every other number; strings compare by their bytes.
    """
    dtype = column.type
    if pa.types.is_floating(dtype):
        return _min_max_floats(column, bounds, greatest)
    plain = _as_integers(column)
    if plain is None:
        return _min_max_ranks(column, bounds, greatest)
    limits = np.iinfo(plain.type.to_pandas_dtype())
    values = to_numpy(plain, limits.min if greatest else limits.max)
    best = (np.maximum if greatest else np.minimum).reduceat(values, bounds[:-1])
    found = with_nulls(best, any_valid(column, bounds))
    return found.cast(dtype) if pa.types.is_boolean(dtype) else found.view(dtype)


def _min_max_floats(column: pa.Array, bounds: Bounds, greatest: bool) -> pa.Array:
    # maximum returns NaN if there is one, fmin only if there is nothing else.
    values = to_numpy(column, -np.inf if greatest else np.nan)
    best = (np.maximum if greatest else np.fmin).reduceat(values, bounds[:-1])
    return with_nulls(best, any_valid(column, bounds))


def _as_integers(column: pa.Array) -> pa.Array | None:
    """Return a column's values as integers in the same order; None if they are not stored as integers."""
    dtype = column.type
    if pa.types.is_integer(dtype):
        return column
    if pa.types.is_boolean(dtype):
        return column.cast(pa.int8())
    if pa.types.is_date32(dtype) or pa.types.is_time32(dtype):
        return column.view(pa.int32())
    if pa.types.is_timestamp(dtype) or pa.types.is_duration(dtype) or pa.types.is_time64(dtype):
        return column.view(pa.int64())
    return None


def _min_max_ranks(column: pa.Array, bounds: Bounds, greatest: bool) -> pa.Array:
    """Do the same as ``min_max`` for any type that Arrow can sort."""
    encoded = column.dictionary_encode()
    order = to_numpy(pc.array_sort_indices(encoded.dictionary))
    ranks = np.empty(len(order) + 1, np.int64)
    ranks[order] = np.arange(len(order))
    # The last rank is that of nulls.
    ranks[-1] = -1 if greatest else len(order)
    mine = ranks[to_numpy(encoded.indices, len(order))]
    best = (np.maximum if greatest else np.minimum).reduceat(mine, bounds[:-1])
    no_value = (best < 0) | (best >= len(order))
    return encoded.dictionary.take(from_numpy(order).take(from_numpy(best, no_value)))


# --- first and last -----------------------------------------------------------------------------------------


def first_last_rows(seen: Mask, bounds: Bounds, last: bool) -> pa.Array:
    """Return the index of the first or the last row in each group where ``seen`` is true, null if there is none."""
    rows = np.arange(len(seen), dtype=np.int64)
    if last:
        found = np.maximum.reduceat(np.where(seen, rows, -1), bounds[:-1])
        return from_numpy(found, found < 0)
    found = np.minimum.reduceat(np.where(seen, rows, len(seen)), bounds[:-1])
    return from_numpy(found, found == len(seen))
