"""The difference between processors over rows and over pandas DataFrames; each style is a separate module."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import sub
from typing import Any, Final, Protocol

import attrs
import pyarrow as pa
from pyspark.sql.types import Row, StructType

from ...storage.sizes import size_in_bytes

UNLIMITED: Final = (1 << 31) - 1
"""No limit."""
_ARROW: Final = "spark.sql.execution.arrow"


class StyleName(enum.StrEnum):
    """The PySpark method for which a processor is written."""

    ROWS = "row"
    """``transformWithState``: gets and yields ``Row``."""
    PANDAS = "pandas"
    """``transformWithStateInPandas``: gets and yields DataFrames."""


@attrs.frozen
class FrameLimits:
    """How large the DataFrames that a processor gets may be."""

    rows: int = 10_000
    bytes: int = UNLIMITED
    """Bytes of the rows in Arrow's format."""

    @classmethod
    def read(cls, conf: Any) -> FrameLimits:
        """Return the limits that a session sets for all of Spark's ways to pandas, given its ``conf``."""
        # Without a default of our own: Spark would prefer it to its own.
        rows = int(conf.get(f"{_ARROW}.maxRecordsPerBatch"))
        size = size_in_bytes(conf.get(f"{_ARROW}.maxBytesPerBatch"), without_suffix=1)
        return cls(rows if rows > 0 else UNLIMITED, size)

    def hold(self, table: pa.Table, bounds: Sequence[int]) -> bool:
        """Return whether each group surely fits into one DataFrame; group i has rows bounds[i] to bounds[i+1]."""
        return table.nbytes <= self.bytes and max(map(sub, bounds[1:], bounds), default=0) <= self.rows

    def cuts(self, table: pa.Table, bounds: Sequence[int]) -> list[range]:
        """Return for each group where its DataFrames begin; group i has rows bounds[i] to bounds[i+1].

        As in PySpark, a DataFrame takes rows until it has reached the limit, by the average size of a row. The average
        is that of the group, so that other groups make no difference.
        """
        fits = table.nbytes <= self.bytes
        return [
            range(start, stop, self.rows if fits else self._rows(table.slice(start, stop - start)))
            for start, stop in pairwise(bounds)
        ]

    def _rows(self, group: pa.Table) -> int:
        size: int = max(1, group.nbytes)
        return min(self.rows, max(1, -(-self.bytes * len(group) // size)))


@attrs.frozen
class PandasSettings:
    """The session's settings for PySpark's conversions between pandas and Arrow."""

    timezone: str = "UTC"
    """The session's time zone; timestamps are naive and local to it."""
    by_name: bool = True
    """Whether output columns are found by name, if the DataFrame has names, or by position."""
    safe: bool = False
    """Whether a conversion that loses something (1.5 to an integer) is refused."""
    int_to_decimal: bool = False
    """Whether integers are accepted in a decimal column."""
    limits: FrameLimits = FrameLimits()

    @classmethod
    def read(cls, conf: Any) -> PandasSettings:
        """Return the settings of a session, given its ``conf``."""
        return cls(
            timezone=conf.get("spark.sql.session.timeZone"),
            by_name=conf.get("spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName", "true")
            == "true",
            safe=conf.get("spark.sql.execution.pandas.convertToArrowArraySafely", "false") == "true",
            int_to_decimal=conf.get(
                "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled", "false"
            )
            == "true",
            limits=FrameLimits.read(conf),
        )


class Reader(Protocol):
    """Converts rows of one schema to the input of a processor."""

    def groups(self, table: pa.Table, bounds: Sequence[int]) -> Iterator[Iterator[Any]]:
        """Yield an iterator over the rows of each group, where group i has rows bounds[i] to bounds[i+1].

        Groups must be taken in order; the caller may stop before the end of one.
        """
        ...


class Writer(Protocol):
    """Collects a processor's results and converts them to record batches."""

    def __len__(self) -> int:
        """Return the number of collected rows."""
        ...

    def pull(self, results: Iterator[Any]) -> bool:
        """Take results until a batch is full; return False when there are no more results.

        Raises:
            OutputTypeError: a result has a type that the style does not accept.
        """
        ...

    def batch(self) -> pa.RecordBatch:
        """Return the collected rows, and remove them from the writer.

        Raises:
            OutputTypeError: a row does not fit the output schema.
        """
        ...


class Style(Protocol):
    """The form in which a processor gets keys and rows, and yields results."""

    def keys(self, columns: pa.Table) -> list[tuple[Any, ...]]:
        """Return keys as ``handleInputRows`` gets them, given one row of key columns for each key."""
        ...

    def timer_keys(self, columns: pa.Table) -> list[Row]:
        """Return keys as ``handleExpiredTimer`` gets them: the same values, which also have column names."""
        ...

    def reader(self, schema: StructType) -> Reader:
        """Return a reader for rows with this schema."""
        ...

    def writer(self) -> Writer:
        """Return a writer for the processor's output."""
        ...
