"""Names for streaming sources, which newer versions of Spark may require."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

_REQUIRED: Final = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


def named(spark: SparkSession, reader: DataStreamReader, name: str) -> DataStreamReader:
    """Return a reader with a name if the session requires one: otherwise Spark refuses names.

    Args:
        spark: the session.
        reader: the reader, with its format.
        name: letters, digits and underscores.
    """
    return reader.name(name) if spark.conf.get(_REQUIRED, "false") == "true" else reader
