"""What the coordinator needs of a Spark session: where its driver is, and the Python of its workers."""

from __future__ import annotations

import os
import re
import socket
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def use_this_python(spark: SparkSession) -> None:
    """Have local workers run by this interpreter.

    PySpark takes the ``python3`` of the PATH, which is another one, without Chandy, wherever a virtual
    environment is used without being activated. What the user has chosen stays.
    """
    if is_local_mode(spark) and "PYSPARK_PYTHON" not in os.environ:
        spark.sparkContext.pythonExec = sys.executable


def is_local_mode(spark: SparkSession) -> bool:
    """Whether driver and executor are one process; ``local-cluster`` has executors of its own."""
    return re.fullmatch(r"local(\[.*\])?", str(spark.sparkContext.master)) is not None


def java_process(spark: SparkSession) -> int:
    """Return the process id of the JVM that Spark runs in."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None, "a classic session has one"
    return int(jvm.java.lang.ProcessHandle.current().pid())


def driver_host(spark: SparkSession) -> str:
    """The address at which executors reach this driver; loopback in local mode."""
    if is_local_mode(spark):
        return "127.0.0.1"
    return str(spark.sparkContext.getConf().get("spark.driver.host", socket.gethostname()))
