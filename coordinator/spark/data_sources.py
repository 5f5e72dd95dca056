"""What the session knows of data sources that were written in Python."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from pyspark import Broadcast

from ..errors import SetupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource


def registered(spark: SparkSession, name: str) -> type[DataSource] | None:
    """Return the class that is registered under a name, in any case; None if no class is.

    Raises:
        SetupError: it is too large for Spark to keep in the session.
    """
    session: Any = spark._jsparkSession
    manager = session.sessionState().dataSourceManager()
    if not manager.dataSourceExists(name):
        return None
    jvm: Any = spark.sparkContext._jvm
    command = manager.lookupDataSource(name).dataSourceCls().command()
    found = pickle.loads(bytes(command.toArray(jvm.scala.reflect.ClassTag.Byte())))
    if isinstance(found, Broadcast):
        raise SetupError(
            f"data source {name!r} cannot be the sink of a query",
            "a class that is small when it is pickled",
            "one that Spark has put into a broadcast",
            "pass the class itself",
        )
    made_by: type[DataSource] = found
    return made_by


def binary_as_bytes(spark: SparkSession) -> bool:
    """Return whether the session gives binary values to Python as ``bytes``, or else as ``bytearray``."""
    return spark.conf.get("spark.sql.execution.pyspark.binaryAsBytes", "true") == "true"
