"""Spark's ``xxhash64`` over Arrow columns, which computes a row's shard in Python.

The algorithm is XXH64 by Y. Collet (specified in the repository Cyan4973/xxHash, doc/xxhash_spec.md), with Spark's
rules: the seed is 42; the hash of one column is the seed of the next; nulls are skipped; types of up to 32 bits are one
4-byte word, and all other types of fixed width are one 8-byte word; -0.0 is 0.0, and every NaN is the same NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import types

from ..format.arrow import scalar, to_numpy, valid

Hashes = npt.NDArray[np.uint64]

SEED: Final = 42
_U64: Final = np.uint64
_P1: Final = _U64(0x9E3779B185EBCA87)
_P2: Final = _U64(0xC2B2AE3D27D4EB4F)
_P3: Final = _U64(0x165667B19E3779F9)
_P4: Final = _U64(0x85EBCA77C2B2AE63)
_P5: Final = _U64(0x27D4EB2F165667C5)
_STRIPE: Final = 32
_LONG_DECIMAL: Final = 18
"""The most digits of a decimal that Spark keeps in 8 bytes."""
_WIDTHS: Final = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
_KNOWN: Final = (
    types.BooleanType,
    types.ByteType,
    types.ShortType,
    types.IntegerType,
    types.LongType,
    types.FloatType,
    types.DoubleType,
    types.DateType,
    types.TimestampType,
    types.TimestampNTZType,
    types.DayTimeIntervalType,
    types.BinaryType,
)


def can_hash(schema: types.StructType) -> bool:
    """Return whether ``xxhash64`` supports rows with these columns."""
    return all(_can_hash(field.dataType) for field in schema.fields)


def _can_hash(dtype: types.DataType) -> bool:
    if isinstance(dtype, types.StringType):
        return dtype.isUTF8BinaryCollation()
    if isinstance(dtype, types.DecimalType):
        return dtype.precision <= _LONG_DECIMAL
    return isinstance(dtype, _KNOWN)


def shards_of(columns: Sequence[pa.Array], shards: int) -> npt.NDArray[np.int32]:
    """Return ``pmod(xxhash64(columns), shards)`` of each row."""
    return (xxhash64(columns) % shards).astype(np.int32)


def xxhash64(columns: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
    """Return Spark's ``xxhash64`` of each row; ``can_hash`` must have accepted the types of the columns."""
    hashes = np.full(len(columns[0]), SEED, np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            found = _hash(column, hashes)
            hashes = found if column.null_count == 0 else np.where(valid(column), found, hashes)
    return hashes.view(np.int64)


def _hash(column: pa.Array, seed: Hashes) -> Hashes:
    dtype = column.type
    if pa.types.is_boolean(dtype):
        return _hash_words4(to_numpy(column, False).astype(np.int32), seed)
    if pa.types.is_floating(dtype):
        # Adding zero turns -0.0 into 0.0.
        values = to_numpy(column, 0.0) + dtype.to_pandas_dtype()(0)
        values = np.where(np.isnan(values), dtype.to_pandas_dtype()(np.nan), values)
        return (
            _hash_words4(values.view(np.int32), seed) if dtype.bit_width == 32 else _hash_words8(values, seed)
        )
    if pa.types.is_decimal(dtype):
        return _hash_words8(_low_halves(column), seed)
    if _is_variable(dtype):
        return _hash_bytes(column, seed)
    width = dtype.bit_width // 8
    plain = column if pa.types.is_integer(dtype) else column.view(pa.from_numpy_dtype(_WIDTHS[width]))
    values = to_numpy(plain)
    return _hash_words8(values, seed) if width == 8 else _hash_words4(values.astype(np.int32), seed)


def _is_variable(dtype: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(dtype)
        or pa.types.is_large_string(dtype)
        or pa.types.is_binary(dtype)
        or pa.types.is_large_binary(dtype)
    )


def _low_halves(column: pa.Array) -> npt.NDArray[np.int64]:
    data = np.frombuffer(column.buffers()[1], np.int64)
    return data[2 * column.offset : 2 * (column.offset + len(column)) : 2].copy()


def _hash_words4(words: npt.NDArray[np.int32], seed: Hashes) -> Hashes:
    return _avalanche(_add4(seed + _P5 + _U64(4), words.view(np.uint32).astype(np.uint64)))


def _hash_words8(words: npt.NDArray[Any], seed: Hashes) -> Hashes:
    return _avalanche(_add8(seed + _P5 + _U64(8), words.view(np.uint64)))


def _hash_bytes(column: pa.Array, seed: Hashes) -> Hashes:
    column = column.cast(pa.large_binary())
    if column.null_count:
        column = column.fill_null(scalar(b"", column.type))
    starts = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]
    lengths = np.diff(starts)
    at = starts[:-1] - starts[0]
    body = column.buffers()[2]
    # Zeros behind the data let a whole word be read from wherever a value begins or ends.
    size = int(starts[-1] - starts[0])
    data = np.zeros(size + _STRIPE, np.uint8)
    if size:
        data[:size] = np.frombuffer(body, np.uint8)[starts[0] : starts[-1]]
    words = np.ndarray((size + _STRIPE - 7,), "<u8", data, strides=(1,))
    halves = np.ndarray((size + _STRIPE - 3,), "<u4", data, strides=(1,))
    hashes = seed + _P5
    long = np.flatnonzero(lengths >= _STRIPE)
    if len(long):
        hashes[long] = _stripes(words, at[long], lengths[long], seed[long])
    hashes = hashes + lengths.astype(np.uint64)
    at, rest = at + lengths // _STRIPE * _STRIPE, lengths % _STRIPE
    for add, width, source in ((_add8, 8, words), (_add4, 4, halves), (_add1, 1, data)):
        while (more := np.flatnonzero(rest >= width)).size:
            hashes[more] = add(hashes[more], source[at[more]].astype(np.uint64))
            at[more] += width
            rest[more] -= width
    return _avalanche(hashes)


def _stripes(
    words: Hashes, at: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], seed: Hashes
) -> Hashes:
    lanes = [seed + _P1 + _P2, seed + _P2, seed + _U64(0), seed - _P1]
    counts = lengths // _STRIPE
    for stripe in range(int(counts.max())):
        more = np.flatnonzero(counts > stripe)
        for lane, state in enumerate(lanes):
            word = words[at[more] + stripe * _STRIPE + lane * 8]
            state[more] = _rotated(state[more] + word * _P2, 31) * _P1
    hashes = _rotated(lanes[0], 1) + _rotated(lanes[1], 7) + _rotated(lanes[2], 12) + _rotated(lanes[3], 18)
    for state in lanes:
        hashes = (hashes ^ (_rotated(state * _P2, 31) * _P1)) * _P1 + _P4
    return hashes


def _add8(hashes: Hashes, words: Hashes) -> Hashes:
    return _rotated(hashes ^ (_rotated(words * _P2, 31) * _P1), 27) * _P1 + _P4


def _add4(hashes: Hashes, words: Hashes) -> Hashes:
    return _rotated(hashes ^ (words * _P1), 23) * _P2 + _P3


def _add1(hashes: Hashes, words: Hashes) -> Hashes:
    return _rotated(hashes ^ (words * _P5), 11) * _P1


def _avalanche(hashes: Hashes) -> Hashes:
    hashes = (hashes ^ (hashes >> _U64(33))) * _P2
    hashes = (hashes ^ (hashes >> _U64(29))) * _P3
    return hashes ^ (hashes >> _U64(32))


def _rotated(words: Hashes, bits: int) -> Hashes:
    return (words << _U64(bits)) | (words >> _U64(64 - bits))
