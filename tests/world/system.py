"""Processes as the operating system of their machine knows them: by a number, from the same machine alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final

import pytest

from chandy.coordinator.leadership import leadership
from chandy.state.local import processes

from .machines import Machine
from .scheduler import Scheduler, SimulatedProcess

_FIRST: Final = 1000


class SimulatedSystem:
    """What ``os`` and ``/proc`` say.

    Args:
        scheduler: of the threads.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def pid(self, process: SimulatedProcess) -> int:
        """Return the number of a process."""
        return _FIRST + self._scheduler.processes.index(process)

    def getpid(self) -> int:
        """See ``os.getpid``."""
        return self.pid(self._scheduler.here)

    def started_at(self, pid: int) -> int | None:
        """See ``processes.started_at``."""
        found = self._found(pid)
        return 1 if found is not None and found.is_alive else None

    def is_stopped(self, pid: int) -> bool:
        """See ``processes.is_stopped``."""
        found = self._found(pid)
        return found is not None and found.is_alive and found.is_frozen

    def kill(self, pid: int, signal: int) -> None:
        """See ``os.kill``."""
        if (found := self._found(pid)) is None or not found.is_alive:
            raise ProcessLookupError
        self._scheduler.kill(found)

    def machine_id(self) -> str:
        """See ``machine.machine_id``."""
        return self._machine.name

    @property
    def _machine(self) -> Machine:
        machine = self._scheduler.here.machine
        assert isinstance(machine, Machine), f"{self._scheduler.here.name} is on no machine"
        return machine

    def _found(self, pid: int) -> SimulatedProcess | None:
        """Return a process of the machine of who asks."""
        number = pid - _FIRST
        known = self._scheduler.processes
        found = known[number] if 0 <= number < len(known) else None
        return found if found is not None and found.machine is self._machine else None


@contextmanager
def asked(system: SimulatedSystem) -> Iterator[None]:
    """Have the product ask a simulated system inside of the ``with``."""
    own: Any = SimpleNamespace(getpid=system.getpid, kill=system.kill)
    with pytest.MonkeyPatch.context() as patch:
        for module in (leadership, processes):
            patch.setattr(module, "os", own)
        patch.setattr(processes, "started_at", system.started_at)
        patch.setattr(leadership, "is_stopped", system.is_stopped)
        patch.setattr(leadership, "machine_id", system.machine_id)
        yield
