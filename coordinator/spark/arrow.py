"""The Arrow schema in which Spark hands the rows of a DataFrame to Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from ...state.pyspark_versions import arrow_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TIMEZONE = "spark.sql.session.timeZone"


def arrow_schema(df: DataFrame) -> pa.Schema:
    """Return the schema of a DataFrame's rows, with timestamps in the session's time zone."""
    zone = df.sparkSession.conf.get(_TIMEZONE) or "UTC"
    fields = [pa.field(one.name, arrow_type(one.dataType, zone), one.nullable) for one in df.schema.fields]
    return pa.schema(fields)
