"""Tells the protocol which executors Spark decommissions, and has their state hosts end once they are empty."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Self

from ...state.rpc.orders import StopHost
from ...storage.logs import logger
from ..execution.executor import CheckpointExecutor
from ..protocol import events
from ..spark.executors import decommissioned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logger(__name__)


class Decommissioning:
    """Has shards leave the state hosts of executors that are decommissioned, look by look.

    What has not left when an executor takes its state host along is restored from the checkpoint, as after any loss.

    Args:
        executor: the protocol.
        decommissioned: returns Spark's ids of the executors that are decommissioned just now.
    """

    def __init__(self, executor: CheckpointExecutor, decommissioned: Callable[[], frozenset[str]]) -> None:
        self._executor = executor
        self._decommissioned = decommissioned
        self._known: frozenset[str] = frozenset()
        self._told: set[str] = set()
        """Hosts that are there and were told to end."""

    @classmethod
    def of(cls, spark: SparkSession, executor: CheckpointExecutor) -> Self:
        """Look at a session's executors."""
        return cls(executor, partial(decommissioned, spark))

    def look(self) -> None:
        """Have shards leave the hosts of executors that have been decommissioned since the last look."""
        found = self._decommissioned()
        if new := found - self._known:
            self._known |= new
            self._executor.protocol.handle(events.ExecutorsLeaving(new))
            log.info("shards leave executors that are decommissioned", executors=sorted(new))
        self._end_empty(self._known - found)

    def _end_empty(self, gone: frozenset[str]) -> None:
        """Have state hosts end that have nothing any more and whose executors are gone: a pod may wait for that."""
        empty = self._executor.protocol.empty_hosts(gone)
        for host in empty:
            if host not in self._told:
                log.info("a state host ends whose executor was decommissioned", host=host)
                self._executor.hosts.send(host, StopHost())
        # One that was away and is back has not heard it.
        self._told = set(empty)
