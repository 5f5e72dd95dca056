"""Tasks of Spark as Chandy's operators run them: they begin a batch, read values, and have changes staged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import attrs
import numpy as np
import pyarrow as pa
from pyarrow import flight

from chandy.state.errors import HostLostError
from chandy.state.format.arrow import BYTES, from_numpy
from chandy.state.host.cache import Value
from chandy.state.host.serving import actions_of
from chandy.state.host.state_host import StateHost
from chandy.state.host.task_access import TaskAccess
from chandy.state.rpc.access import Entries, ShardColumn
from chandy.state.rpc.calls import Call
from chandy.state.rpc.client import TaskClient
from chandy.state.rpc.liveness import Liveness
from chandy.state.rpc.messages import BeginTask
from chandy.state.rpc.metrics import OperatorMetrics
from chandy.state.rpc.wire import REQUEST, ScanPage
from chandy.storage import runtime

from .state_hosts import WorldHost, WorldHosts

T = TypeVar("T")

Update = Callable[[int, bytes, Value], Value]
"""The new value of a key in a shard, of its value after the batch before."""


def task_client(host: WorldHost, *, looks: bool = True) -> TaskClient:
    """Return a client for the tasks of a host's executor."""
    return TaskClient(host.hello.address, lambda to: _WorldLink(host.hosts, to), looks=looks)


def run_task(
    client: TaskClient,
    task: BeginTask,
    keys: Mapping[int, Sequence[bytes]],
    update: Update,
    longest: float = 0.0,
) -> dict[tuple[int, bytes], Value]:
    """Run a whole task: it reads the values of keys by shard, and has what becomes of them staged.

    Before it reads, and before it has anything staged, it takes ``longest`` seconds at most.

    Returns:
        What it has read, by shard and key.

    Raises:
        ChandyError: the task fails. Spark runs it again, or the query ends.
    """
    with client.begin(task) as access:
        _take_time(longest)
        rows = [(shard, key) for shard in sorted(keys) for key in keys[shard]]
        shards = np.asarray([shard for shard, _ in rows], np.int32)
        column = pa.array([key for _, key in rows], BYTES)
        values = access.fetch(shards, column).to_pylist()
        new = [update(shard, key, value) for (shard, key), value in zip(rows, values, strict=True)]
        _take_time(longest)
        access.apply([Entries(shards, column, pa.array(new, BYTES))])
        return dict(zip(rows, values, strict=True))


def _take_time(longest: float) -> None:
    if longest:
        runtime.sleep(longest * runtime.random() ** 2)


@attrs.frozen
class _WorldLink:
    """``HostLink`` over the network."""

    hosts: WorldHosts
    address: str

    def call(self, action: str, request: object, answer: type[T], timeout: float | None = None) -> T:
        def serve(host: StateHost) -> T:
            handled = actions_of(host)[action]
            assert isinstance(handled, Call)
            return handled.handle(request)  # type: ignore[no-any-return]

        begun = self.hosts.scheduler.now
        seconds = float("inf") if timeout is None else timeout
        try:
            return self.hosts.call(self.address, serve, action, seconds)
        except HostLostError as error:
            if self.hosts.scheduler.now - begun >= seconds:
                raise error from flight.FlightTimedOutError("deadline exceeded")
            raise

    def tell(self, action: str, request: object) -> None:
        self.call(action, request, object)

    def exchange(self, task: BeginTask, liveness: Liveness | None) -> _WorldExchange:
        return _WorldExchange(self.hosts, self.address, task)

    def close(self) -> None:
        pass


class _WorldExchange:
    """``Exchange`` over the network. The host has what was sent to it until the exchange ends."""

    def __init__(self, hosts: WorldHosts, address: str, task: BeginTask) -> None:
        self._hosts = hosts
        self._address = address
        self._task = task
        self._at = hosts.at.get(address)
        """A host that comes to the address later knows nothing of it."""
        self._access: TaskAccess | None = None

    def fetch(self, shards: ShardColumn, keys: pa.Array) -> list[pa.Array]:
        request = pa.record_batch([from_numpy(shards), keys, pa.nulls(len(keys), BYTES)], schema=REQUEST)
        return self._call(lambda access: [batch.column(0) for batch in access.fetch(request)], "fetch")

    def scan(self, shards: ShardColumn, first: bytes, start: bytes, stop: bytes) -> ScanPage:
        starts = [first, *[start] * (len(shards) - 1)]
        request = [pa.array(shards), pa.array(starts, BYTES), pa.array([stop] * len(shards), BYTES)]
        return self._call(lambda access: access.scan(pa.record_batch(request, schema=REQUEST)), "scan")

    def send(self, entries: Entries) -> None:
        columns = [from_numpy(entries.shards), entries.keys, entries.values]
        request = pa.record_batch(columns, schema=REQUEST)
        self._call(lambda access: access.collect(request), "collect")

    def commit(self, metrics: OperatorMetrics) -> None:
        self._call(lambda access: access.commit(metrics), "commit")

    def close(self) -> None:
        self._access = None

    def _call(self, function: Callable[[TaskAccess], T], what: str) -> T:
        def serve(host: StateHost) -> T:
            if self._access is None:
                self._access = TaskAccess(self._task, host)
            return function(self._access)

        if self._hosts.at.get(self._address) is not self._at:
            raise HostLostError(self._address, "the connection broke")
        return self._hosts.call(self._address, serve, what)
