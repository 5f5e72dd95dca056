"""What a state host does from its start to its end in any process: it follows orders and says that it lives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from ...storage import runtime
from ...storage.logs import logger
from ..rpc.messages import HostHello
from .coordinator_client import CoordinatorLink, Lease, OrderStream, Pulse
from .state_host import StateHost

_LOOK_SECONDS: Final = 0.1
_log = logger(__name__)


def live(
    hello: HostHello,
    coordinator: CoordinatorLink,
    state_host: StateHost,
    *,
    directory: Path,
    lease_seconds: float,
    announce: Callable[[], object],
    must_end: Callable[[], bool],
) -> int:
    """Register a host with its coordinator, and go on until an order, its process or a lost lease ends it.

    Args:
        hello: what the coordinator is told.
        coordinator: the connection to it.
        state_host: is served to tasks meanwhile.
        directory: of the host's files.
        lease_seconds: how long it goes on without a message from the coordinator.
        announce: lets tasks find it, once the coordinator knows it.
        must_end: whether its process is to end.

    Returns:
        The exit code.
    """
    with Pulse(coordinator, hello.host, directory).beating():
        code = _serve(hello, coordinator, state_host, lease_seconds, announce, must_end)
    # A signal may have been meant for the executor: another host of the machine may take the shards.
    if not must_end():
        state_host.leave()
    return code


def _serve(
    hello: HostHello,
    coordinator: CoordinatorLink,
    state_host: StateHost,
    lease_seconds: float,
    announce: Callable[[], object],
    must_end: Callable[[], bool],
) -> int:
    lease = Lease(lease_seconds)
    orders = OrderStream(coordinator, hello, state_host.obey, lease)
    runtime.thread(target=orders.follow, name="orders").start()
    while not orders.welcomed.wait(_LOOK_SECONDS):
        if must_end():
            return 0
        if lease.expired:
            _log.error("the coordinator did not answer", address=coordinator.address)
            return 1
    announce()
    _log.info("serving", host=hello.host, pid=hello.pid, address=hello.address, network=hello.network)
    while not state_host.stopped.wait(_LOOK_SECONDS) and not must_end():
        if lease.expired:
            _log.error("lease lost", seconds=lease_seconds)
            return 1
    return 0
