"""The same per-key counter for every interface: rows, pandas and Arrow columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

from chandy.state import ArrowInput, ArrowProcessor, ArrowResult

OUTPUT = "k long, n long"
_FILLER = "0123456789abcdef"


def payload(size: int, count: int) -> str:
    """Return a value of ``size`` characters that changes with the count."""
    return (f"{count:016}" + _FILLER * (size // len(_FILLER) + 1))[:size]


class _Counter(StatefulProcessor):
    """Counts rows by key. Stores ``size`` further bytes for each key, which change with every update.

    A count lives for ``ttl_ms`` milliseconds since its last change; None: for ever.
    """

    def __init__(self, size: int = 0, ttl_ms: int | None = None) -> None:
        self._size = size
        self._ttl_ms = ttl_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        schema = "n long, payload string" if self._size else "n long"
        self._state = handle.getValueState("count", schema, self._ttl_ms)

    def _add(self, rows: int) -> int:
        held = self._state.get()
        count: int = rows + (held[0] if held else 0)
        self._state.update((count, payload(self._size, count)) if self._size else (count,))
        return count

    def close(self) -> None:
        pass


class RowCounter(_Counter):
    """For ``transformWithState``."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        yield Row(k=key[0], n=self._add(sum(1 for _ in rows)))


class PandasCounter(_Counter):
    """For ``transformWithStateInPandas``."""

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        count = self._add(sum(len(frame) for frame in rows))
        yield pd.DataFrame({"k": [key[0]], "n": [count]})


class ArrowCounter(ArrowProcessor):
    """For ``coordinator.transform_with_arrow``."""

    states: ClassVar[Mapping[str, StructType | str]] = {"count": "n long"}

    def process(self, given: ArrowInput) -> ArrowResult:
        """Count all keys at once."""
        held = pc.fill_null(pc.struct_field(given.states["count"], "n"), 0)
        n = pc.add(held, pa.array(np.diff(given.bounds)))
        return ArrowResult(
            given.keys.append_column("n", n), {"count": pa.StructArray.from_arrays([n], names=["n"])}
        )
