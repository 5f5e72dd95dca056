"""What the coordinator needs of a Spark session: where its driver is, and the Python of its workers."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...state.operators import daemon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


DAEMON: Final = "spark.python.daemon.module"
"""Spark's setting for the module that starts its Python workers."""


def use_this_python(spark: SparkSession) -> None:
    """Have local workers run by this interpreter, with the PySpark that it has.

    PySpark takes the ``python3`` of the PATH, which is another one, without Chandy, wherever a virtual
    environment is used without being activated. What the user has chosen stays.
    """
    if not is_local_mode(spark):
        return
    context = spark.sparkContext
    if "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable
    if is_this_python(context.pythonExec):
        # Spark looks for this one whenever it needs a worker; PySpark has no way to it once the session is there.
        context._jsc.sc().conf().setIfMissing(DAEMON, daemon.__name__)


def is_this_python(command: str) -> bool:
    """Whether a command for Python starts the interpreter that runs this, with the packages that it has.

    Virtual environments have links to one file: the folder tells them apart, not the name.
    """
    found = shutil.which(command)
    own = Path(sys.executable)
    return found is not None and Path(found).parent == own.parent and own.samefile(found)


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
