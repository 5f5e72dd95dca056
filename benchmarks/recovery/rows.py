"""The rows for all contestants: the same keys, and values that hardly compress."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from .scenario import Course

SCHEMA: Final = "k long, v string"
FILL_BYTES: Final = 64 * 2**20
"""Bytes of values in one table while the state is filled."""
_LETTERS: Final = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8)


def fill(course: Course) -> Iterator[pa.Table]:
    """Yield every key once, in random order, as tables of ``k`` and ``v``."""
    random = np.random.default_rng(course.keys)
    keys = random.permutation(course.keys).astype(np.int64)
    step = max(1, FILL_BYTES // course.value_bytes)
    for start in range(0, course.keys, step):
        part = keys[start : start + step]
        yield _table(part, course.value_bytes, random)


def touch(course: Course, number: int) -> pa.Table:
    """Return the rows of the ``number``-th batch after the filling: random keys with new values."""
    random = np.random.default_rng((course.keys, number))
    return _table(random.integers(0, course.keys, course.touched), course.value_bytes, random)


def _table(keys: np.ndarray[Any, Any], size: int, random: np.random.Generator) -> pa.Table:
    letters = _LETTERS[random.integers(0, len(_LETTERS), (len(keys), size), np.uint8)]
    values = pa.Array.from_buffers(pa.binary(size), len(keys), [None, pa.py_buffer(letters.tobytes())])
    return pa.table({"k": pa.array(keys), "v": values.cast(pa.binary()).cast(pa.string())})
