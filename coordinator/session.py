"""What the coordinator needs of a Spark session: where its driver is, the Python of its workers, its data sources."""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from ..storage.logs import logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logger(__name__)


def prepare(spark: SparkSession) -> Future[None]:
    """Have local workers run by this interpreter, and begin to make ``spark.read.format("chandy")`` known.

    The future says when it is. A driver that comes back after a failure need not wait for that; what goes wrong with it
    is no reason to have no coordinator.

    PySpark takes the ``python3`` of the PATH, which is another one, without Chandy, wherever a virtual
    environment is used without being activated. What the user has chosen stays.
    """
    if is_local_mode(spark) and "PYSPARK_PYTHON" not in os.environ:
        spark.sparkContext.pythonExec = sys.executable
    known: Future[None] = Future()
    threading.Thread(target=_make_known, args=(spark, known), name="chandy-register", daemon=True).start()
    return known


def _make_known(spark: SparkSession, known: Future[None]) -> None:
    try:
        # With it comes what reads state, RocksDB too: no driver needs to wait for that.
        from ..state.reader.reading import register

        register(spark)
    except Exception as error:  # noqa: BLE001 (see ``prepare``)
        log.warning("state cannot be read by spark.read in this session", error=str(error))
    finally:
        known.set_result(None)


def is_local_mode(spark: SparkSession) -> bool:
    """Whether driver and executor are one process; ``local-cluster`` has executors of its own."""
    return re.fullmatch(r"local(\[.*\])?", str(spark.sparkContext.master)) is not None


def driver_host(spark: SparkSession) -> str:
    """The address at which executors reach this driver; loopback in local mode."""
    if is_local_mode(spark):
        return "127.0.0.1"
    return str(spark.sparkContext.getConf().get("spark.driver.host", socket.gethostname()))
