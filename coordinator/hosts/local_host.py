"""Starts the state host of local mode before any task does, and has it restore the shards meanwhile.

In local mode the only executor is the driver itself. Elsewhere the tasks of the first batch start their state hosts,
once Spark has planned the batch and PySpark has started its workers. That takes seconds, in which state can already
be restored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ...state.errors import HostLostError
from ...state.host.discovery import start_host
from ...state.rpc.calls import ActionClient
from ...state.rpc.messages import Endpoint, OpenShards
from ...storage import runtime
from ...storage.checkpoints.manifest import OperatorRecord
from ...storage.logs import carried, logger
from ..protocol.errors import StaleQueryError
from ..spark.session import is_local_mode, is_this_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logger(__name__)


class LocalHost:
    """The state host of a session in local mode."""

    def __init__(self, endpoint: Endpoint, executor_root: str) -> None:
        """Create the handle of a host; ``open`` starts the host.

        Args:
            endpoint: where the host finds the coordinator; the same that tasks pass to it.
            executor_root: root directory of the executor's files, by which its tasks find the host.
        """
        self._endpoint = endpoint
        self._executor_root = executor_root
        self._threads: list[runtime.Thread] = []

    def open(self, query_id: str, operators: Iterable[OperatorRecord], failed: Callable[[str], None]) -> None:
        """Open the shards of a query's operators in the background, before its first batch.

        Args:
            query_id: Spark's id of the query.
            operators: the query's operators.
            failed: called with the reason if this fails. Tasks open the same shards later, and report it as well.
        """
        requests = [OpenShards(query_id, one.uid, tuple(range(len(one.shards)))) for one in operators]
        if requests:
            thread = runtime.thread(target=carried(self._open), args=(requests, failed), name="chandy-ahead")
            self._threads = [*(one for one in self._threads if one.is_alive()), thread]
            thread.start()

    def close(self) -> None:
        """Wait for the starts that are in progress."""
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
        except StaleQueryError:
            log.info("the shards are not needed any more: the query has gone elsewhere")
        except Exception as error:  # noqa: BLE001 (see ``open``)
            log.warning("could not open shards ahead of the first batch", error=str(error))
            failed(str(error))


def is_here(spark: SparkSession) -> bool:
    """Return whether a session has its only state host on this machine, and the driver may start it.

    It may not if workers run another Python than the driver: a state host must run theirs.
    """
    return is_local_mode(spark) and is_this_python(spark.sparkContext.pythonExec)


def local_host(spark: SparkSession, endpoint: Endpoint) -> LocalHost | None:
    """Return the state host of a session in local mode; None for any other session."""
    return LocalHost(endpoint, executor_root()) if is_here(spark) else None


def executor_root() -> str:
    """Return the root directory of the files of the executor in this process, by which its state host is found."""
    from pyspark import SparkFiles

    return SparkFiles.getRootDirectory()


def leave_to_tasks(query_id: str, operators: Iterable[OperatorRecord], failed: Callable[[str], None]) -> None:
    """Do nothing: stands for ``LocalHost.open`` in a session that has no ``LocalHost``."""
