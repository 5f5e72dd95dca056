"""What differs between the versions of PySpark that Chandy runs on. No other module asks which version there is.

PySpark 4.1 differs from those after it in four things. It asks a streaming source in Python for its latest offset
without saying where the last batch ended. It makes no Arrow timestamps in other time zones than UTC. Its conversions
between pandas and Arrow belong to serializers. It reads the logs of queries in older formats only.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StructField, StructType

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

_IS_4_1: Final = pyspark.__version__.startswith("4.1.")

LOG_VERSIONS: Final = {"offsets": 1, "commits": 2} if _IS_4_1 else {"offsets": 2, "commits": 3}
"""The newest formats that Spark reads of the logs in a query's checkpoint directory."""


# --- streaming sources --------------------------------------------------------------------------------------

if TYPE_CHECKING or not _IS_4_1:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as SupportsTriggerAvailableNow
else:

    class SupportsTriggerAvailableNow:
        """Stands for what 4.1 lacks: there, Spark takes the first latest offset for the end of such a query."""


def stream_reader(reader: DataSourceStreamReader) -> DataSourceStreamReader:
    """Return a reader that this PySpark can call, given one with the methods that 4.2 and later call."""
    return _ReaderOf41(reader) if _IS_4_1 else reader


class _ReaderOf41(DataSourceStreamReader):
    """Remembers where the last batch has ended, for a reader that wants to be told."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._end: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        found: dict[str, Any] = self._reader.initialOffset()
        return found

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        # Spark has shown nothing before the first batch, nor where it decides by itself when the query ends.
        start = self.initialOffset() if self._end is None else self._end
        self._end = self._reader.latestOffset(start, None)
        return self._end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        # Spark calls this also when a query goes on, with the end of the last batch that was planned.
        self._end = end
        found: Sequence[InputPartition] = self._reader.partitions(start, end)
        return found

    def read(self, partition: InputPartition) -> Any:
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._reader.commit(end)

    def stop(self) -> None:
        self._reader.stop()


# --- Arrow types --------------------------------------------------------------------------------------------


def arrow_type(dtype: DataType, timezone: str) -> pa.DataType:
    """Return the Arrow type of a Spark type, with timestamps in a time zone."""
    if _IS_4_1:
        return _in_zone(to_arrow_type(dtype), timezone)
    return to_arrow_type(dtype, timezone=timezone)


def _in_zone(dtype: pa.DataType, timezone: str) -> pa.DataType:
    """Return an Arrow type with its timestamps in another time zone; those without one stay."""

    def moved(field: pa.Field) -> pa.Field:
        return field.with_type(_in_zone(field.type, timezone))

    if pa.types.is_timestamp(dtype) and dtype.tz is not None:
        return pa.timestamp(dtype.unit, timezone)
    if pa.types.is_struct(dtype):
        return pa.struct([moved(field) for field in dtype])
    if pa.types.is_list(dtype):
        return pa.list_(moved(dtype.value_field))
    if pa.types.is_map(dtype):
        return pa.map_(moved(dtype.key_field), moved(dtype.item_field))
    return dtype


# --- pandas -------------------------------------------------------------------------------------------------


def to_pandas(table: pa.Table, schema: StructType, timezone: str) -> list[pd.Series[Any]]:
    """Return the columns of a table as ``transformWithStateInPandas`` makes them.

    Args:
        table: has the columns of the schema.
        schema: the types in Spark.
        timezone: the session's time zone. Timestamps are naive and local to it.
    """
    if _IS_4_1:
        serializer = _serializer(timezone, True, False)
        return [
            serializer.arrow_to_pandas(column, at, spark_type=field.dataType)
            for at, (column, field) in enumerate(zip(table.columns, schema.fields, strict=True))
        ]
    from pyspark.sql.conversion import ArrowBatchTransformer

    return ArrowBatchTransformer.to_pandas(table, timezone=timezone, schema=schema)


def from_pandas(
    column: pd.Series[Any], field: StructField, *, timezone: str, safe: bool, int_to_decimal: bool
) -> pa.Array:
    """Return a column that ``transformWithStateInPandas`` would take, as Arrow.

    Args:
        column: the values.
        field: the name and the type in Spark.
        timezone: the time zone of naive timestamps.
        safe: whether a conversion that loses something is refused.
        int_to_decimal: whether integers are accepted in a decimal column.

    Raises:
        PySparkException, pyarrow.ArrowException, ValueError, TypeError, OverflowError, AttributeError: a value does
            not fit.
    """
    if _IS_4_1:
        serializer = _serializer(timezone, safe, int_to_decimal)
        return serializer._create_array(
            column, to_arrow_type(field.dataType), field.dataType, arrow_cast=True
        )
    from pyspark.sql.conversion import PandasToArrowConversion

    batch = PandasToArrowConversion.convert(
        [column],
        StructType([field]),
        timezone=timezone,
        safecheck=safe,
        arrow_cast=True,
        int_to_decimal_coercion_enabled=int_to_decimal,
    )
    return batch.column(0)


@lru_cache
def _serializer(timezone: str, safe: bool, int_to_decimal: bool) -> Any:
    # Of 4.1 alone: a later PySpark has no such class, or one with other arguments.
    serializers = import_module("pyspark.sql.pandas.serializers")
    return serializers.ArrowStreamPandasSerializer(timezone, safe, int_to_decimal)
