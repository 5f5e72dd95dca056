"""Machines: the processes on each, and a disk that outlives them, in a folder."""

from __future__ import annotations

from pathlib import Path

import attrs

from .scheduler import Scheduler, SimulatedProcess


@attrs.define(eq=False)
class Machine:
    """A machine of the cluster."""

    scheduler: Scheduler = attrs.field(repr=False)
    name: str
    folder: Path
    """Its disk."""
    is_on: bool = True
    """Whether it has power. One that has none closes no connection: nobody hears of it."""
    starts: int = 1
    """How often it has had power again, which processes can tell."""
    processes: list[SimulatedProcess] = attrs.field(factory=list, repr=False)

    def start(self, name: str) -> SimulatedProcess:
        """Start a process."""
        assert self.is_on, f"{self.name} has no power"
        process = self.scheduler.process(name)
        process.machine = self
        self.processes.append(process)
        return process

    def lose_power(self) -> None:
        """End all its processes, without a word to anybody."""
        self.is_on = False
        for process in self.processes:
            self.scheduler.kill(process)

    def start_again(self) -> None:
        """Give it power again. Its disk has what it had."""
        self.is_on = True
        self.starts += 1
