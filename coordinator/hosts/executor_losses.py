"""Tells the protocol which executors are gone: what was lost with them is not opened again beside them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Self

from ..execution.locked_protocol import LockedProtocol
from ..protocol import events
from ..spark.executors import executor_ids

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ExecutorLosses:
    """Notices executors that are gone, look by look. Spark gives no other one the id of an executor.

    Args:
        executors: returns Spark's ids of the executors that are there.
    """

    def __init__(self, protocol: LockedProtocol, executors: Callable[[], frozenset[str]]) -> None:
        self._protocol = protocol
        self._executors = executors
        self._known: frozenset[str] = frozenset()

    @classmethod
    def of(cls, spark: SparkSession, protocol: LockedProtocol) -> Self:
        """Look at a session's executors."""
        return cls(protocol, partial(executor_ids, spark))

    def look(self) -> None:
        """Report the executors that have been there at the last look and are not any more."""
        found = self._executors()
        if gone := self._known - found:
            self._protocol.handle(events.ExecutorsGone(gone))
        self._known = found
