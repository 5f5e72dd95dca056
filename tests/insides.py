"""How tests reach into a coordinator: no other module of theirs knows its private parts."""

from __future__ import annotations

import atexit

from chandy.coordinator import CheckpointCoordinator
from chandy.coordinator.execution.executor import CheckpointExecutor
from chandy.coordinator.execution.locked_protocol import LockedProtocol
from chandy.coordinator.leadership.leadership import LocalLeaders
from chandy.coordinator.protocol.decisions import HostLost, StopRequested
from chandy.coordinator.recovery.runs import Run
from chandy.coordinator.recovery.supervisor import Supervisor
from chandy.coordinator.wiring.driver import Driver
from chandy.storage import runtime
from chandy.storage.disk.locks import FileLock


def executor(coordinator: CheckpointCoordinator) -> CheckpointExecutor:
    """Return what carries out the instructions of the protocol."""
    return coordinator._executor


def driver(coordinator: CheckpointCoordinator) -> Driver:
    """Return the means of this driver, such as its directories."""
    return coordinator._parts.ground.driver


def protocol(coordinator: CheckpointCoordinator) -> LockedProtocol:
    """Return the protocol, with what has happened so far."""
    return executor(coordinator).protocol


def supervisor(coordinator: CheckpointCoordinator) -> Supervisor:
    """Return what starts queries, and restarts them."""
    return coordinator._supervisor


def runs(coordinator: CheckpointCoordinator) -> list[Run]:
    """Return the newest run of each query."""
    return list(supervisor(coordinator)._runs.all())


def run(coordinator: CheckpointCoordinator, query: str) -> Run:
    """Return the newest run of a query, which has been started."""
    found = supervisor(coordinator)._runs.get(query)
    assert found is not None
    return found


def lose_state(coordinator: CheckpointCoordinator) -> None:
    """Have the pipeline go back, as for a host that is gone."""
    supervisor(coordinator).decided(protocol(coordinator).handle(HostLost("made to")))


def crash(coordinator: CheckpointCoordinator) -> None:
    """Leave what a driver leaves that is killed; its state host lives on for its lease."""
    supervisor(coordinator)._decide(StopRequested())
    for run in runs(coordinator):
        run.ended = True
        assert run.spark is not None
        run.spark.stop()
    abandon = coordinator._parts.abandon
    atexit.unregister(abandon)
    abandon()
    supervisor(coordinator)._events.put(None)
    executor(coordinator).close()
    # Of a process that is gone, others find that out; this one lives on.
    runtime.own(LocalLeaders).remove(coordinator._taken.leadership)
    for lock in (supervisor(coordinator)._launcher._directories._workspace._alive, *_held(coordinator)):
        lock.release()
    # A process that is gone cleans nothing up, so a later stop must not either.
    coordinator._closing.pop_all()


def _held(coordinator: CheckpointCoordinator) -> list[FileLock]:
    """What it holds of the life before."""
    return [lock for _, lock in supervisor(coordinator)._local_recovery._leftovers.places]
