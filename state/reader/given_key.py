"""A key as users give it: its values, and the shard that has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.types import StructType

from ..format.keys import KeyCodec


def key_values(schema: StructType, key: Any) -> tuple[Any, ...] | None:
    """Return the values of the key columns; None if these are others.

    Args:
        schema: of the key columns.
        key: a tuple in their order, a dict by column, or the value itself if there is one column.
    """
    if isinstance(key, Mapping):
        return tuple(key[name] for name in schema.names) if set(key) == set(schema.names) else None
    values = tuple(key) if isinstance(key, tuple | list) else (key,)
    return values if len(values) == len(schema) else None


def shard_of(spark: SparkSession, schema: StructType, key: bytes, shards: int) -> int:
    """Return the number of the shard of a key with these canonical bytes, computed by Spark's own hash function."""
    # Values as they were given may have local times, of which PySpark does not know which hour is meant.
    row = spark.createDataFrame([KeyCodec(schema).decode(key)], schema).toDF(
        *(f"c{at}" for at in range(len(schema)))
    )
    found = row.select(F.pmod(F.xxhash64(*row.columns), F.lit(shards))).first()
    assert found is not None, "a row was given"
    return int(found[0])
