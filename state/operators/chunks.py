"""Cuts a task's keys into chunks that are processed one after the other, by their number and their bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..format.arrow import to_numpy
from .grouping import Groups

CHUNK: Final = 20_000
"""The most keys of a chunk."""
CHUNK_BYTES: Final = 1 << 29
"""The most bytes of the rows, or of the stored values, of a chunk's keys, unless it is one key that has more."""

Sizes = npt.NDArray[np.int64]


def cuts(sizes: Sizes) -> Iterator[tuple[int, int]]:
    """Yield the first and the last key, not included, of each chunk of keys that have so many bytes each."""
    ends, first = np.cumsum(sizes), 0
    while first < len(sizes):
        before = int(ends[first - 1]) if first else 0
        fitting = int(np.searchsorted(ends, before + CHUNK_BYTES, side="right"))
        last = min(first + CHUNK, len(sizes), max(fitting, first + 1))
        yield first, last
        first = last


def chunks(groups: Groups) -> Iterator[Groups]:
    """Yield the groups in chunks."""
    for first, last in cuts(_sizes(groups)):
        yield groups.slice(first, last)


def lengths(values: pa.Array) -> Sizes:
    """Return the length of each of the bytes, 0 for null."""
    return to_numpy(pc.binary_length(values)).astype(np.int64)


def _sizes(groups: Groups) -> Sizes:
    """Return about how many bytes the rows and the key of each group have."""
    if groups.rows.nbytes + groups.keys.nbytes <= CHUNK_BYTES:
        return np.zeros(len(groups), np.int64)
    rows = np.zeros(len(groups.rows), np.int64)
    for column in groups.rows.columns:
        if _is_bytes(column.type):
            rows += lengths(column)
        else:
            # Nested values are taken to be of one size.
            rows += column.nbytes // max(len(column), 1)
    return np.diff(np.concatenate(([0], np.cumsum(rows)))[groups.bounds]) + lengths(groups.keys)


def _is_bytes(dtype: pa.DataType) -> bool:
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(kind(dtype) for kind in kinds)
