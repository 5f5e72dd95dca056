"""Empties the state hosts of executors that Spark decommissions, before these are gone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ...storage.logs import carried, logger
from ..execution.draining import Emptying
from ..execution.executor import CheckpointExecutor
from ..protocol import events as on
from ..spark.executors import decommissioned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logger(__name__)

_LOOK_SECONDS: Final = 1.0
"""How often Spark is asked. An executor that is decommissioned may have half a minute."""


class Decommissioning:
    """Has shards leave the state hosts of executors that are decommissioned, in the background.

    What has not left when an executor takes its state host along is restored from the checkpoint, as after any loss.

    Args:
        executor: the protocol.
        decommissioned: returns Spark's ids of the executors that are decommissioned just now.
    """

    def __init__(self, executor: CheckpointExecutor, decommissioned: Callable[[], frozenset[str]]) -> None:
        self._executor = executor
        self._decommissioned = decommissioned
        self._known: frozenset[str] = frozenset()
        self._emptying: Emptying | None = None
        """None: nothing is left to go."""
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=carried(self._watch), name="chandy-decommissioning", daemon=True
        )

    @classmethod
    def begin(cls, spark: SparkSession, executor: CheckpointExecutor) -> Decommissioning:
        """Watch over a session's executors."""
        made = cls(executor, lambda: decommissioned(spark))
        made._thread.start()
        return made

    def close(self) -> None:
        """Look no more."""
        self._closing.set()

    def look(self) -> None:
        """Have shards leave the hosts of executors that have been decommissioned, as far as they have not."""
        if found := self._decommissioned() - self._known:
            self._known |= found
            self._executor.machine.handle(on.ExecutorsLeaving(found))
            self._emptying = Emptying(self._executor, lambda protocol: protocol.shards_leaving())
            log.info("shards leave executors that are decommissioned", executors=sorted(found))
        # One that fails counts for the pipeline as any does. So none follows it; a periodic one will do as well.
        if self._emptying and not self._emptying.has_failed and not self._emptying.push():
            self._emptying = None

    def _watch(self) -> None:
        while not self._closing.wait(_LOOK_SECONDS):
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - without it they are lost and restored, as after any loss
                if not self._closing.is_set():
                    log.warning("could not see to executors that are decommissioned", error=str(error))
