"""Takes a cluster's executors in, also those that join later: starts their state hosts, and gives them tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from ...state.errors import HostStartError
from ...state.host.discovery import connect
from ...state.rpc.messages import Endpoint
from ...storage.logs import logger
from ..execution.locked_protocol import LockedProtocol
from ..spark.executors import executor_addresses, executor_hosts
from ..spark.own_jobs import OwnJobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logger(__name__)

_TRIES: Final = 10
"""How often hosts are started and tasks are spread, look by look, once executors have joined. Where one has no room for
long, spreading would never end, and each time tasks leave their shards."""
_SELDOM: Final = 20
"""Every how many looks hosts are started after that, as long as an executor has none."""


class RemoteHosts:
    """Starts a state host beside every executor and then gives it its part of the tasks, look by look.

    Without this the first batch starts the hosts. Its tasks would take so long that Spark runs some of them elsewhere
    than where they belong, and with them their shards.

    Args:
        are_needed: returns whether the pipeline has operators, whose shards state hosts keep.
        are_awaited: returns whether shards of a lost host wait for another one on its machine.
        executors: returns an address of each executor that is there.
        without: returns Spark's ids of the executors that take tasks and have no state host.
        start: starts state hosts, by tasks that Spark may run on some executors alone.
        end: ends the tasks that start state hosts.
        spread: spreads the tasks over all executors; returns whether they are.
    """

    def __init__(
        self,
        are_needed: Callable[[], bool],
        are_awaited: Callable[[], bool],
        executors: Callable[[], frozenset[str]],
        without: Callable[[], frozenset[str]],
        start: Callable[[], None],
        end: Callable[[], None],
        spread: Callable[[], bool],
    ) -> None:
        self._are_needed = are_needed
        self._are_awaited = are_awaited
        self._executors = executors
        self._without = without
        self._start = start
        self._end = end
        self._spread = spread
        self._known: frozenset[str] = frozenset()
        self._looks = 0
        """How many looks there have been since an executor has joined."""
        self._spreads = 0
        """How often tasks are still to be spread, unless they are before."""

    @classmethod
    def of(
        cls,
        spark: SparkSession,
        endpoint: Endpoint,
        protocol: LockedProtocol,
        are_needed: Callable[[], bool],
        spread: Callable[[], bool],
        is_over: Callable[[], bool],
    ) -> Self:
        """Start the hosts of a session's executors, until it is over."""
        jobs = OwnJobs(spark, endpoint.pipeline, "hosts", is_over)
        return cls(
            lambda: are_needed() and not is_over(),
            protocol.shards_wait_for_a_host,
            partial(executor_addresses, spark),
            partial(_without, spark, protocol),
            partial(_start, jobs, endpoint),
            jobs.end,
            spread,
        )

    def close(self) -> None:
        """Have no executor wait for a state host whose coordinator is about to be gone. Look no more before this."""
        self._end()

    def look(self) -> None:
        """Start the hosts of executors that have none, and let executors that have joined have tasks."""
        if not self._are_needed():
            return
        found = self._executors()
        if found - self._known:
            self._looks, self._spreads = 0, _TRIES
        self._known = found
        self._looks += 1
        # The shards of a lost host wait for the next one, also if no task does.
        is_due = self._looks <= _TRIES or self._looks % _SELDOM == 0 or self._are_awaited()
        if is_due and (without := self._without()):
            self._start()
            log.info("state hosts started beside executors", executors=sorted(without))
            if self._without() < without:
                # One that has waited long for its host gets tasks, too.
                self._spreads = _TRIES
        # A batch may have come between: then the next look tries again.
        if self._spreads:
            self._spreads = 0 if self._spread() else self._spreads - 1


def _without(spark: SparkSession, protocol: LockedProtocol) -> frozenset[str]:
    having = {hello.spark_executor for hello in protocol.hosts()}
    # Where a host cannot tell whose it is, each start counts for all executors.
    return frozenset() if None in having else frozenset(executor_hosts(spark)) - having


def _start(jobs: OwnJobs, endpoint: Endpoint) -> None:
    def start(_: Iterable[int]) -> Iterator[str]:
        try:
            connect(endpoint)
        except Exception as error:  # noqa: BLE001 - Spark would try it three times more at once; the next look does
            yield str(error)

    if failed := jobs.on_executors(start):
        raise HostStartError(
            "state hosts cannot be started beside all executors",
            "one beside each",
            f"{len(failed)} tasks that could not start theirs; the first said: {failed[0]}",
            "look at these executors if it goes on; it is tried again, and a batch that needs a host starts one",
        )
