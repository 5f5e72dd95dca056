"""The style of processors over rows, as in PySpark's ``transformWithState``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, repeat
from typing import Any

import pyarrow as pa
from pyspark.sql.types import Row, StructType

from ..format.rows import SLICE, RowReader, RowWriter, row_type, to_pylist


class RowStyle:
    """Rows come as ``Row``, keys as tuples of Arrow's Python values."""

    def __init__(self, output: StructType, operator: str) -> None:
        self._output = output
        self._operator = operator

    def keys(self, columns: pa.Table) -> list[tuple[Any, ...]]:
        """Return keys as ``handleInputRows`` gets them."""
        return list(zip(*map(to_pylist, columns.columns), strict=True))

    def timer_keys(self, columns: pa.Table) -> list[Row]:
        """Return keys as ``handleExpiredTimer`` gets them."""
        return list(map(tuple.__new__, repeat(row_type(columns.column_names)), self.keys(columns)))

    def reader(self, schema: StructType) -> RowReader:
        """Return a reader that creates rows."""
        return RowReader(schema.names)

    def writer(self) -> RowCollector:
        """Return a writer that collects rows."""
        return RowCollector(RowWriter(self._output, self._operator))


class RowCollector:
    """Collects the rows that a processor yields."""

    def __init__(self, writer: RowWriter) -> None:
        self._writer = writer
        self._rows: list[Any] = []

    def __len__(self) -> int:
        return len(self._rows)

    def pull(self, results: Iterator[Any]) -> bool:
        """Take rows until there are ``SLICE``; return False when there are no more."""
        self._rows.extend(islice(results, SLICE - len(self._rows)))
        return len(self._rows) >= SLICE

    def batch(self) -> pa.RecordBatch:
        """Return the rows as a record batch.

        Raises:
            OutputTypeError: a row does not fit the output schema.
        """
        rows, self._rows = self._rows, []
        return self._writer.batch(rows)
