"""The Arrow schema of a DataFrame's rows, as sinks get them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from ...state.pyspark_versions import arrow_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def arrow_schema(df: DataFrame) -> pa.Schema:
    """Return the schema of a DataFrame's rows, with timestamps in UTC, whatever the session's time zone.

    A timestamp is a moment. Spark's names of zones, such as ``GMT+2`` and ``PST``, are none that Arrow knows.
    """
    fields = [pa.field(one.name, arrow_type(one.dataType, "UTC"), one.nullable) for one in df.schema.fields]
    return pa.schema(fields)
