"""What differs between processors of rows and those of pandas DataFrames; each style is a module of its own."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import attrs
import pyarrow as pa
from pyspark.sql.types import Row, StructType


class StyleName(enum.StrEnum):
    """Which of PySpark's two methods a processor is written for."""

    ROWS = "row"
    """``transformWithState``: rows come and go as ``Row``."""
    PANDAS = "pandas"
    """``transformWithStateInPandas``: rows come and go as DataFrames."""


@attrs.frozen
class PandasSettings:
    """The session's settings that PySpark goes by where pandas and Arrow meet."""

    timezone: str = "UTC"
    """Of the session; timestamps are naive and local to it."""
    by_name: bool = True
    """Whether output columns are found by name, if the DataFrame has names, or by position."""
    safe: bool = False
    """Whether a conversion that loses something (1.5 to an integer) is refused."""
    int_to_decimal: bool = False
    """Whether integers are taken in a decimal column."""

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
        )


class Reader(Protocol):
    """Makes what a processor gets of rows with one schema."""

    def groups(self, table: pa.Table, bounds: Sequence[int]) -> Iterator[Iterator[Any]]:
        """Yield an iterator over the rows of each group, where group i has rows bounds[i] to bounds[i+1].

        Groups have to be taken in order; one may be left before its end.
        """
        ...


class Writer(Protocol):
    """Collects what a processor gives, and makes record batches of it."""

    def __len__(self) -> int:
        """Return how many rows are waiting."""
        ...

    def pull(self, results: Iterator[Any]) -> bool:
        """Take results until a batch is full; return False when there are no more results.

        Raises:
            OutputTypeError: a result is not of the kind that the style has.
        """
        ...

    def batch(self) -> pa.RecordBatch:
        """Return the rows that are waiting, and let go of them.

        Raises:
            OutputTypeError: one does not fit the output schema.
        """
        ...


class Style(Protocol):
    """How a processor sees keys and rows."""

    def keys(self, columns: pa.Table) -> list[tuple[Any, ...]]:
        """Return keys as ``handleInputRows`` gets them, from one row of key columns for each."""
        ...

    def timer_keys(self, columns: pa.Table) -> list[Row]:
        """Return keys as ``handleExpiredTimer`` gets them: the same values, which can be had by column name, too."""
        ...

    def reader(self, schema: StructType) -> Reader:
        """Return what makes a processor's input of rows with this schema."""
        ...

    def writer(self) -> Writer:
        """Return what collects a processor's output."""
        ...
