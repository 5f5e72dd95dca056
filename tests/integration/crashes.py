"""A query that goes on after a crash."""

from __future__ import annotations

import atexit

from chandy.coordinator import CheckpointCoordinator
from chandy.coordinator.leadership import leadership
from chandy.coordinator.recovery.decisions import StopRequested
from chandy.storage.disk.locks import FileLock


def crash(coordinator: CheckpointCoordinator) -> None:
    """Leave what a driver leaves that is killed; its state host lives on for its lease."""
    coordinator._stopped = True
    coordinator._supervisor._decide(StopRequested())
    for run in coordinator._supervisor._runs.all():
        run.ended = True
        assert run.spark is not None
        run.spark.stop()
    atexit.unregister(coordinator._abandon)
    coordinator._abandon()
    coordinator._supervisor._events.put(None)
    coordinator._executor.close()
    # Of a process that is gone, others find that out; this one lives on.
    leadership._here.pop(coordinator._taken.leadership.driver.nonce)
    for lock in (coordinator._supervisor._launcher._directories._workspace._alive, *_held(coordinator)):
        lock.release()


def _held(coordinator: CheckpointCoordinator) -> list[FileLock]:
    """What it holds of the life before."""
    return [lock for _, lock in coordinator._supervisor._local_recovery._leftovers.places]


def in_place(coordinator: CheckpointCoordinator) -> list[bool]:
    return [recovery.in_place for recovery in coordinator.recoveries]
