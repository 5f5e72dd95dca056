"""Starts the state hosts of a cluster's executors, also of those that join later, before a batch needs them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from ...state.host.discovery import connect
from ...state.rpc.messages import Endpoint
from ...storage.logs import carried, logger
from ..spark.executors import executor_addresses

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logger(__name__)

_LOOK_SECONDS: Final = 5.0
"""How often it is looked whether executors have joined."""


class RemoteHosts:
    """Starts a state host beside every executor, in the background.

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
        self._closing = threading.Event()
        self._thread = threading.Thread(target=carried(self._watch), name="chandy-hosts", daemon=True)

    @classmethod
    def begin(cls, spark: SparkSession, endpoint: Endpoint) -> RemoteHosts:
        """Start the hosts of a session's executors, and go on to look for more."""
        made = cls(lambda: executor_addresses(spark), lambda: _start(spark, endpoint))
        made._thread.start()
        return made

    def close(self) -> None:
        """Look no more. A job that runs just now goes on to its end."""
        self._closing.set()

    def look(self) -> None:
        """Start the hosts of executors that have joined since the last look."""
        found = self._executors()
        if joined := found - self._known:
            self._start()
            log.info("state hosts started beside executors", executors=sorted(joined))
        self._known = found

    def _watch(self) -> None:
        while not self._closing.is_set():
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - tasks start what is missing, and report why they cannot
                if not self._closing.is_set():
                    log.warning("could not start state hosts ahead of their first batch", error=str(error))
            self._closing.wait(_LOOK_SECONDS)


def _start(spark: SparkSession, endpoint: Endpoint) -> None:
    def start(_: Iterable[int]) -> Iterable[int]:
        connect(endpoint)
        return ()

    context = spark.sparkContext
    tasks = max(1, context.defaultParallelism)
    context.parallelize(range(tasks), tasks).mapPartitions(start).count()
