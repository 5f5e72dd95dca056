"""What plans of users' queries are made with. It stays when a shadow becomes the leader, so that they stay valid."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs

from ...state.operators.partitioning import Partitioning, by_id
from ...state.rpc.messages import Endpoint
from ..config import tuned
from ..protocol.balance import wanted_owners
from ..recovery.supervisor import Supervisor
from ..spark import session
from ..spark.anchors import Anchors, can_place
from ..spark.ticks import Ticks
from .driver import Driver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TIMER_SECONDS: Final = 1.0
"""How long an idle query waits before it runs a batch for timers of processing time. A timer may fire this much late;
Spark plans and commits each such batch."""


class Led:
    """Who supervises the queries now, for what outlives that one."""

    supervisor: Supervisor | None = None

    def is_interrupted(self) -> bool:
        """Return whether nothing that takes long is to begin."""
        return self.supervisor is not None and self.supervisor.is_interrupted()


@attrs.frozen
class Ground:
    """What the plans of users' queries are made with: it stays when a shadow becomes the leader."""

    driver: Driver
    endpoint: Endpoint
    ticks: Ticks
    anchors: Anchors | None
    led: Led

    @classmethod
    def lay(cls, driver: Driver, closing: ExitStack) -> Ground:
        """Make it.

        Args:
            closing: ends it.
        """
        led = Led()
        anchors = _anchors(driver.spark, driver.pipeline, led.is_interrupted)
        if anchors is not None:
            closing.callback(anchors.close)
        return cls(driver, driver.endpoint(), _ticks(driver), anchors, led)

    @property
    def partitioning(self) -> Partitioning:
        """Brings rows to the partitions of operators."""
        return self.anchors.partition if self.anchors else by_id


def _anchors(spark: SparkSession, name: str, is_over: Callable[[], bool]) -> Anchors | None:
    """Make what keeps tasks where their shards are; None if there is one place only, or Spark's settings prevent it."""
    if session.is_local_mode(spark) or not can_place(spark):
        return None
    return Anchors(spark, name, partial(wanted_owners, sizes={}), is_over)


def _ticks(driver: Driver) -> Ticks:
    return Ticks(driver.directories.ticks(), max(1, round(tuned("TIMER_PERIOD", _TIMER_SECONDS) * 1000)))
