"""In local mode the only executor is here: its state host starts ahead of the tasks, and opens their shards.

Else the tasks of the first batch do that, one after the other: when Spark has planned the batch and PySpark has
started its workers. That takes seconds, in which state can be restored.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ...state.errors import HostLostError
from ...state.host.discovery import start_host
from ...state.rpc.calls import ActionClient
from ...state.rpc.messages import Endpoint, OpenShards
from ...storage.logs import logger
from ...storage.manifest import OperatorRecord
from ..spark.session import is_local_mode, is_this_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logger(__name__)


class LocalHost:
    """The state host of a session in local mode."""

    def __init__(self, endpoint: Endpoint, executor_root: str) -> None:
        """Start nothing yet.

        Args:
            endpoint: what the host is told, the same as tasks would tell it.
            executor_root: root directory of the executor's files, by which its tasks find the host.
        """
        self._endpoint = endpoint
        self._executor_root = executor_root
        self._threads: list[threading.Thread] = []

    def open(self, query_id: str, operators: Iterable[OperatorRecord], failed: Callable[[str], None]) -> None:
        """Have the shards of a query's operators opened ahead of its first batch; return at once.

        Args:
            query_id: Spark's id of the query.
            operators: the query's.
            failed: told why, if that cannot be done. Tasks will ask for the same, and tell, too.
        """
        requests = [OpenShards(query_id, one.uid, tuple(range(len(one.shards)))) for one in operators]
        if requests:
            thread = threading.Thread(
                target=self._open, args=(requests, failed), name="chandy-ahead", daemon=True
            )
            self._threads = [*(one for one in self._threads if one.is_alive()), thread]
            thread.start()

    def close(self) -> None:
        """Wait until nothing is being started any more."""
        for thread in self._threads:
            thread.join()

    def _open(self, requests: list[OpenShards], failed: Callable[[str], None]) -> None:
        try:
            address = start_host(self._endpoint, self._executor_root)
            client = ActionClient(address, self._endpoint.token, HostLostError)
            try:
                for request in requests:
                    client.tell("open", request)
            finally:
                client.close()
        except Exception as error:  # noqa: BLE001 (see ``open``)
            log.warning("shards are not opened ahead", error=str(error))
            failed(str(error))


def is_here(spark: SparkSession) -> bool:
    """Whether a session's only state host is on this machine, and may be started by its driver.

    Not so where workers run another Python than the driver: theirs is the one that a host has.
    """
    return is_local_mode(spark) and is_this_python(spark.sparkContext.pythonExec)


def local_host(spark: SparkSession, endpoint: Endpoint) -> LocalHost | None:
    """Return the state host of a session that has it here; None if tasks run anywhere else."""
    if not is_here(spark):
        return None
    from pyspark import SparkFiles

    return LocalHost(endpoint, SparkFiles.getRootDirectory())


def leave_to_tasks(query_id: str, operators: Iterable[OperatorRecord], failed: Callable[[str], None]) -> None:
    """Open nothing ahead: for sessions without a ``LocalHost``."""
