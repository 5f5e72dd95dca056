"""Starts the state hosts of a cluster's executors, also of those that join later, before a batch needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Self

from ...state.host.discovery import connect
from ...state.rpc.messages import Endpoint
from ...storage.logs import logger
from ..spark.executors import executor_addresses

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logger(__name__)


class RemoteHosts:
    """Starts a state host beside every executor, look by look.

    Without this the first batch starts them. Its tasks would take so long that Spark runs some of them elsewhere than
    where they belong, and with them their shards.

    Args:
        executors: returns an address of each executor that is there.
        start: starts their state hosts.
    """

    def __init__(
        self,
        executors: Callable[[], frozenset[str]],
        start: Callable[[], None],
    ) -> None:
        self._executors = executors
        self._start = start
        self._known: frozenset[str] = frozenset()

    @classmethod
    def of(cls, spark: SparkSession, endpoint: Endpoint) -> Self:
        """Start the hosts of a session's executors."""
        return cls(partial(executor_addresses, spark), partial(_start, spark, endpoint))

    def look(self) -> None:
        """Start the hosts of executors that have joined since the last look."""
        found = self._executors()
        if joined := found - self._known:
            self._start()
            log.info("state hosts started beside executors", executors=sorted(joined))
        self._known = found


def _start(spark: SparkSession, endpoint: Endpoint) -> None:
    def start(_: Iterable[int]) -> Iterable[int]:
        connect(endpoint)
        return ()

    context = spark.sparkContext
    tasks = max(1, context.defaultParallelism)
    context.parallelize(range(tasks), tasks).mapPartitions(start).count()
