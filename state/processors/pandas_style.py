"""The style of processors over pandas DataFrames, as in PySpark's ``transformWithStateInPandas``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql.types import Row, StructType

from ..errors import OutputTypeError
from ..format.rows import SLICE, row_type, to_pylist
from ..format.values import describe
from .frames import FrameReader, FrameWriter
from .style import PandasSettings


class PandasStyle:
    """Rows come as DataFrames, keys as tuples in which a timestamp is a ``pd.Timestamp``."""

    def __init__(self, output: StructType, operator: str, settings: PandasSettings) -> None:
        self._output = output
        self._operator = operator
        self._settings = settings

    def keys(self, columns: pa.Table) -> list[tuple[Any, ...]]:
        """Return keys as ``handleInputRows`` gets them; null is None for every type."""
        return list(zip(*map(self._values, columns.columns), strict=True))

    def timer_keys(self, columns: pa.Table) -> list[Row]:
        """Return keys as ``handleExpiredTimer`` gets them."""
        return list(map(tuple.__new__, repeat(row_type(columns.column_names)), self.keys(columns)))

    def reader(self, schema: StructType) -> FrameReader:
        """Return a reader that creates DataFrames."""
        return FrameReader(schema, self._settings.timezone, self._settings.limits)

    def writer(self) -> FrameCollector:
        """Return a writer that collects DataFrames."""
        settings = self._settings
        writer = FrameWriter(
            self._output,
            self._operator,
            timezone=settings.timezone,
            by_name=settings.by_name,
            safe=settings.safe,
            int_to_decimal=settings.int_to_decimal,
        )
        return FrameCollector(writer, self._operator)

    def _values(self, column: pa.ChunkedArray) -> list[Any]:
        if not pa.types.is_timestamp(column.type):
            return to_pylist(column)
        zone = self._settings.timezone if column.type.tz else None
        stamps = (None if value is None else pd.Timestamp(value) for value in to_pylist(column))
        return [
            stamp if stamp is None or zone is None else stamp.tz_convert(zone).tz_localize(None)
            for stamp in stamps
        ]


class FrameCollector:
    """Collects the DataFrames that a processor yields."""

    def __init__(self, writer: FrameWriter, operator: str) -> None:
        self._writer = writer
        self._operator = operator

    def __len__(self) -> int:
        return self._writer.waiting

    def pull(self, results: Iterator[Any]) -> bool:
        """Take DataFrames until there are ``SLICE`` rows; return False when there are no more.

        Raises:
            OutputTypeError: a result is no DataFrame, or a column of the output is missing in it.
        """
        add = self._writer.add
        for frame in results:
            if not isinstance(frame, pd.DataFrame):
                raise OutputTypeError(self._operator, "a result", "a pandas.DataFrame", describe(frame))
            add(frame)
            if self._writer.waiting >= SLICE:
                return True
        return False

    def batch(self) -> pa.RecordBatch:
        """Return the rows as a record batch.

        Raises:
            OutputTypeError: a value does not fit the output schema.
        """
        return self._writer.batch()
