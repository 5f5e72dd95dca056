"""Takes a cluster's executors in, also those that join later: starts their state hosts, and gives them tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from ...state.host.discovery import connect
from ...state.rpc.messages import Endpoint
from ...storage.logs import logger
from ..spark.executors import executor_addresses

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logger(__name__)

_TRIES: Final = 10
"""How often tasks are spread after executors have joined. Where one has no room for long, that would never end, and
each time tasks leave their shards."""


class RemoteHosts:
    """Starts a state host beside every executor and then gives it its part of the tasks, look by look.

    Without this the first batch starts the hosts. Its tasks would take so long that Spark runs some of them elsewhere
    than where they belong, and with them their shards.

    Args:
        are_needed: returns whether the pipeline has operators, whose shards state hosts keep.
        executors: returns an address of each executor that is there.
        start: starts their state hosts.
        spread: spreads the tasks over all executors; returns whether they are.
    """

    def __init__(
        self,
        are_needed: Callable[[], bool],
        executors: Callable[[], frozenset[str]],
        start: Callable[[], None],
        spread: Callable[[], bool],
    ) -> None:
        self._are_needed = are_needed
        self._executors = executors
        self._start = start
        self._spread = spread
        self._tries = 0
        self._known: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        spark: SparkSession,
        endpoint: Endpoint,
        are_needed: Callable[[], bool],
        spread: Callable[[], bool],
    ) -> Self:
        """Start the hosts of a session's executors."""
        return cls(are_needed, partial(executor_addresses, spark), partial(_start, spark, endpoint), spread)

    def look(self) -> None:
        """Start the hosts of executors that have joined since the last look, and let these have tasks."""
        if not self._are_needed():
            return
        found = self._executors()
        if joined := found - self._known:
            self._start()
            log.info("state hosts started beside executors", executors=sorted(joined))
            self._tries = _TRIES
        self._known = found
        # A batch may have come between: then the next look tries again.
        if self._tries:
            self._tries -= 1
            if self._spread():
                self._tries = 0


def _start(spark: SparkSession, endpoint: Endpoint) -> None:
    def start(_: Iterable[int]) -> Iterable[int]:
        connect(endpoint)
        return ()

    context = spark.sparkContext
    tasks = max(1, context.defaultParallelism)
    context.parallelize(range(tasks), tasks).mapPartitions(start).count()
