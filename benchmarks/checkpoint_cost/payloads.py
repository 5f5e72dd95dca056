"""A processor with state of any size: a count by key, and bytes that change with it."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chandy.state import ArrowInput, ArrowProcessor, ArrowResult

OUTPUT: Final = "k long, n long"


class Payloads(ArrowProcessor):
    """Counts rows by key, and stores ``size`` random bytes with each count."""

    states: ClassVar = {"held": "n long, payload binary"}

    def __init__(self, size: int) -> None:
        self._size = size

    def process(self, given: ArrowInput) -> ArrowResult:
        """Count the keys' rows, and give each key a new payload."""
        before = pc.fill_null(pc.struct_field(given.states["held"], "n"), 0)
        counts = pc.add(before, pa.array(np.diff(given.bounds)))
        random = pa.py_buffer(np.random.default_rng().bytes(len(given) * self._size))
        payloads = pa.Array.from_buffers(pa.binary(self._size), len(given), [None, random]).cast(pa.binary())
        held = pa.StructArray.from_arrays([counts, payloads], ["n", "payload"])
        return ArrowResult(given.keys.append_column("n", counts), {"held": held})
