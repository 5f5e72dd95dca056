"""Threads for what can take long or never end: a store, a disk, a user's callback.

They are daemon threads, because the interpreter waits for the threads of a ``ThreadPoolExecutor`` when it ends, and a
store that does not answer would hold it up for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import attrs

from ...storage import runtime
from ...storage.logs import carried, logger
from .dispatch import JobLane

log = logger(__name__)

T = TypeVar("T")

_STAFF_SECONDS = 0.1
"""From one try to start a thread to the next, while somebody waits."""


@attrs.define(eq=False)
class Workers(Generic[T]):
    """Carries jobs out in the order in which they come, at most ``limit`` of them at a time.

    A thread is started when it is needed and ends when nothing is left to do. While the system starts no thread, jobs
    wait for the next call.
    """

    carry_out: Callable[[T], None]
    limit: int
    name: str
    """Of the threads."""
    _waiting: deque[T] = attrs.field(factory=deque, init=False)
    _running: list[T] = attrs.field(factory=list, init=False)
    _threads: int = attrs.field(default=0, init=False)
    _changed: runtime.Condition = attrs.field(factory=runtime.condition, init=False)

    def submit(self, job: T) -> None:
        """Carry a job out soon."""
        with self._changed:
            self._waiting.append(job)
        self.staff()

    def staff(self) -> None:
        """Start a thread if a job waits for one."""
        with self._changed:
            if not self._waiting or self._threads == self.limit:
                return
            self._threads += 1
        try:
            runtime.thread(target=carried(self._work), name=self.name).start()
        except RuntimeError as error:
            with self._changed:
                self._threads -= 1
                self._changed.notify_all()
            log.error("jobs wait because no thread can be started", threads=self.name, error=str(error))

    def wait(self, deadline: float) -> tuple[T, ...]:
        """Wait until nothing is left to do, or until a time on the monotonic clock; return the jobs that are left."""
        while True:
            self.staff()
            left = deadline - runtime.monotonic()
            with self._changed:
                is_done = self._changed.wait_for(lambda: self._is_done, max(0.0, min(left, _STAFF_SECONDS)))
                if is_done or left <= 0:
                    return (*self._running, *self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to do."""
        with self._changed:
            return self._is_done

    @property
    def _is_done(self) -> bool:
        return not self._threads and not self._waiting

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._threads -= 1
                    self._changed.notify_all()
                    return
                job = self._waiting.popleft()
                self._running.append(job)
            try:
                self.carry_out(job)
            except BaseException:
                # This includes an exit that a user's callback asks for, which is not to end this thread.
                log.exception("a job failed", job=type(job).__name__)
            finally:
                with self._changed:
                    # By identity: jobs may be equal.
                    self._running = [one for one in self._running if one is not job]


def lane_workers(lane: JobLane, carry_out: Callable[[Any], None]) -> Workers[Any]:
    """Return the threads of a lane."""
    return Workers(carry_out, lane.limit, f"chandy-{lane.label}")


class StoreWorkers:
    """The threads for one store. One that does not answer holds up nothing that goes to another store."""

    def __init__(self, carry_out: Callable[[Any], None]) -> None:
        self.lanes = {lane: lane_workers(lane, carry_out) for lane in JobLane if lane.is_of_store}

    def wait(self, deadline: float) -> tuple[Any, ...]:
        """Wait as ``Workers.wait``, for all of them."""
        return tuple(job for workers in self.lanes.values() for job in workers.wait(deadline))

    def staff(self) -> None:
        """Start threads that jobs wait for."""
        for workers in self.lanes.values():
            workers.staff()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to do."""
        return all(workers.is_idle for workers in self.lanes.values())
