"""Starts the state hosts of a cluster's executors before the first batch needs them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...state.host.discovery import connect
from ...state.rpc.messages import Endpoint
from ...storage.logs import carried, logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logger(__name__)


def start_remote_hosts(spark: SparkSession, endpoint: Endpoint) -> None:
    """Start a state host beside every executor that is there now, in the background.

    Without this the first batch starts them. Its tasks would take so long that Spark runs some of them elsewhere than
    where they belong, and with them their shards.
    """
    thread = threading.Thread(
        target=carried(_start), args=(spark, endpoint), name="chandy-hosts", daemon=True
    )
    thread.start()


def _start(spark: SparkSession, endpoint: Endpoint) -> None:
    def start(_: Iterable[int]) -> Iterable[int]:
        connect(endpoint)
        return ()

    try:
        context = spark.sparkContext
        tasks = max(1, context.defaultParallelism)
        context.parallelize(range(tasks), tasks).mapPartitions(start).count()
    except Exception as error:  # noqa: BLE001 - tasks start what is missing, and report why they cannot
        log.warning("could not start state hosts ahead of the first batch", error=str(error))
