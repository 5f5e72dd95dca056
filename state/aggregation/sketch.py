"""HyperLogLog sketches: the approximate number of distinct values of many sets at a time, in at most 2 KB each.

A sketch is made from 64-bit hashes. It has one of two formats, which differ in their length:

* sparse, up to 511 values: a sorted list of 32-bit little-endian integers, one for each value. The high 26 bits are the
  first 26 bits of its hash. The low 6 bits are one more than the number of leading zeros of the other 38 bits, so 39 if
  all of them are zero.
* dense, 2,048 bytes: one register for each value of the first 11 bits of a hash. It has the greatest such number (one
  more than the leading zeros) of the other 53 bits.

So small sets take little space and are counted almost exactly, and large sets with a standard error of
1.04 / sqrt(2048) = 2.3 %. Dense sketches use the improved raw estimator of O. Ertl, "New cardinality estimation
algorithms for HyperLogLog sketches" (2017), algorithm 6, which needs no correction tables. Sparse sketches use linear
counting.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..format.arrow import bitmap, scalar, to_numpy, valid
from .reduce import Bounds, group_numbers

PRECISION: Final = 11
REGISTERS: Final = 1 << PRECISION
SPARSE_LIMIT: Final = REGISTERS // 4 - 1
"""The most values in a sparse sketch: with one more it would be as long as a dense one."""

_FINE: Final = 26
"""The number of bits of the hash that choose a place in a sparse sketch."""
_BELOW: Final = _FINE - PRECISION
_SATURATED: Final = 64 - PRECISION + 1
_POWERS: Final = np.ldexp(1.0, -np.arange(_SATURATED + 1))

U32 = npt.NDArray[np.uint32]
U8 = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]


def of_hashes(hashes: pa.Array) -> pa.Array:
    """Return a sketch of one value for each hash, null for null.

    Args:
        hashes: of type int64; any good hash.
    """
    present = valid(hashes)
    values = np.asarray(to_numpy(hashes.drop_null()), np.int64).view(np.uint64)
    places = (values >> np.uint64(64 - _FINE)).astype(np.uint32)
    rest = values & np.uint64((1 << (64 - _FINE)) - 1)
    entries = (places << np.uint32(6)) | (_zeros(rest, 64 - _FINE) + 1).astype(np.uint32)
    return _binary(entries, np.where(present, 4, 0), None if hashes.null_count == 0 else present)


def union(sketches: pa.Array, bounds: Bounds) -> pa.Array:
    """Return the union of the sketches of each group, null for a group of nulls.

    Args:
        sketches: of a binary type.
        bounds: group ``i`` has rows ``bounds[i]`` to ``bounds[i + 1]``, at least one.
    """
    data, lengths = _bytes(sketches)
    groups = group_numbers(bounds)
    is_dense = lengths == REGISTERS
    entries, owners = _sparse_entries(data, lengths, is_dense, groups)
    entries, owners = _distinct(entries, owners)
    size = len(bounds) - 1
    sparse_counts = np.bincount(owners, minlength=size)
    dense = np.bincount(groups[is_dense], minlength=size) > 0
    dense |= sparse_counts > SPARSE_LIMIT
    registers = _registers(data, lengths, is_dense, groups, entries, owners, dense)
    out_lengths = np.where(dense, REGISTERS, 4 * sparse_counts)
    out = np.empty(int(out_lengths.sum()) // 4, np.uint32)
    # Entries are sorted by group, as are the sketches of sparse groups.
    at_dense = np.repeat(dense, out_lengths // 4)
    out[~at_dense] = entries[~dense[owners]]
    out[at_dense] = registers.reshape(-1).view(np.uint32)
    present = None if sketches.null_count == 0 else np.logical_or.reduceat(valid(sketches), bounds[:-1])
    return _binary(out, out_lengths, present)


def estimates(sketches: pa.Array) -> npt.NDArray[np.int64]:
    """Return the approximate number of distinct values of each sketch, 0 for null."""
    data, lengths = _bytes(sketches)
    places = float(1 << _FINE)
    found = -places * np.log1p(-(lengths / 4) / places)
    is_dense = lengths == REGISTERS
    if is_dense.any():
        found[is_dense] = _ertl(_dense_rows(data, lengths, is_dense))
    return np.rint(found).astype(np.int64)


def _bytes(sketches: pa.Array) -> tuple[U8, npt.NDArray[np.int64]]:
    """Return the bytes of all sketches, one after the other, and the length of each sketch, 0 for null."""
    sketches = sketches.cast(pa.large_binary())
    if sketches.null_count:
        sketches = sketches.fill_null(scalar(b"", sketches.type))
    offsets = np.frombuffer(sketches.buffers()[1], np.int64)[
        sketches.offset : sketches.offset + len(sketches) + 1
    ]
    data = sketches.buffers()[2]
    if data is None or not len(offsets):
        return np.empty(0, np.uint8), np.zeros(len(sketches), np.int64)
    return np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]], np.diff(offsets)


def _binary(words: U32, lengths: npt.NDArray[Any], present: npt.NDArray[np.bool_] | None) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    validity = None if present is None else bitmap(present)
    words = np.ascontiguousarray(words.astype("<u4", copy=False))
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(words)]
    return pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)


def _sparse_entries(
    data: U8, lengths: npt.NDArray[np.int64], is_dense: npt.NDArray[np.bool_], groups: Bounds
) -> tuple[U32, Bounds]:
    """Return the entries of all sparse sketches, and the group of each entry."""
    sparse_lengths = np.where(is_dense, 0, lengths)
    mine = data if not is_dense.any() else data[np.repeat(~is_dense, lengths)]
    return np.ascontiguousarray(mine).view("<u4"), np.repeat(groups, sparse_lengths // 4)


def _distinct(entries: U32, owners: Bounds) -> tuple[U32, Bounds]:
    """Return entries sorted by group, only the greatest one for each place."""
    keys = np.sort((owners.astype(np.uint64) << np.uint64(32)) | entries)
    places = keys >> np.uint64(6)
    last = np.ones(len(keys), np.bool_)
    last[:-1] = places[1:] != places[:-1]
    keys = keys[last]
    return keys.astype(np.uint32), (keys >> np.uint64(32)).astype(np.int64)


def _registers(
    data: U8,
    lengths: npt.NDArray[np.int64],
    is_dense: npt.NDArray[np.bool_],
    groups: Bounds,
    entries: U32,
    owners: Bounds,
    dense: npt.NDArray[np.bool_],
) -> U8:
    """Return the registers of the groups where ``dense`` is true, one row for each group."""
    rows = np.cumsum(dense) - 1
    registers = np.zeros((int(dense.sum()), REGISTERS), np.uint8)
    if not len(registers):
        return registers
    if is_dense.any():
        own = rows[groups[is_dense]]
        starts = np.flatnonzero(np.r_[True, own[1:] != own[:-1]])
        registers[own[starts]] = np.maximum.reduceat(_dense_rows(data, lengths, is_dense), starts, axis=0)
    chosen = dense[owners]
    places, ranks = _coarse(entries[chosen])
    where = rows[owners[chosen]] * REGISTERS + places
    # The greatest rank of a place is written last.
    order = np.argsort(where * 64 + ranks)
    where, ranks = where[order], ranks[order]
    last = np.ones(len(where), np.bool_)
    last[:-1] = where[1:] != where[:-1]
    flat = registers.reshape(-1)
    flat[where[last]] = np.maximum(flat[where[last]], ranks[last].astype(np.uint8))
    return registers


def _dense_rows(data: U8, lengths: npt.NDArray[np.int64], is_dense: npt.NDArray[np.bool_]) -> U8:
    mine = data if is_dense.all() else data[np.repeat(is_dense, lengths)]
    return mine.reshape(-1, REGISTERS)


def _coarse(entries: U32) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return for each entry of a sparse sketch its register in a dense one, and the number for this register."""
    places = (entries >> np.uint32(6)).astype(np.uint64)
    between = places & np.uint64((1 << _BELOW) - 1)
    ranks = np.where(
        between == 0, _BELOW + (entries & np.uint32(63)).astype(np.int64), _zeros(between, _BELOW) + 1
    )
    return (places >> np.uint64(_BELOW)).astype(np.int64), ranks


def _zeros(values: npt.NDArray[np.uint64], bits: int) -> npt.NDArray[np.int64]:
    """Return the number of leading zeros of integers with ``bits`` bits, at most 53."""
    # Below 2^53 a double is exact, and its exponent is the position of the highest bit that is set.
    return bits - np.frexp(values.astype(np.float64))[1].astype(np.int64)


def _ertl(registers: U8) -> Floats:
    zero = (registers == 0).mean(axis=1)
    full = (registers == _SATURATED).mean(axis=1)
    weights = _POWERS.copy()
    # Empty and saturated registers count by sigma and tau.
    weights[0] = weights[_SATURATED] = 0.0
    z = weights[registers].sum(axis=1)
    z += REGISTERS * (_tau(1.0 - full) * 2.0 ** -(_SATURATED - 1) + _sigma(zero))
    with np.errstate(divide="ignore"):
        found: Floats = REGISTERS**2 / (2.0 * np.log(2.0) * z)
    return found


def _sigma(x: Floats) -> Floats:
    """Return x + the sum over k >= 1 of x^(2^k) * 2^(k-1), which is infinite at 1."""
    x = x.copy()
    total, factor = x.copy(), 1.0
    total[x == 1.0] = np.inf
    x[x == 1.0] = 0.0
    while True:
        x = x * x
        before = total
        total = total + x * factor
        factor += factor
        if np.array_equal(total, before):
            return total


def _tau(x: Floats) -> Floats:
    """Return (1 - x - the sum over k >= 1 of (1 - x^(2^-k))^2 * 2^-k) / 3."""
    end = (x == 0.0) | (x == 1.0)
    x = np.where(end, 1.0, x)
    total, factor = 1.0 - x, 1.0
    while True:
        x = np.sqrt(x)
        before = total
        factor *= 0.5
        total = total - (1.0 - x) ** 2 * factor
        if np.array_equal(total, before):
            return np.where(end, 0.0, total / 3.0)
