"""Machines: the processes on each, and a disk that outlives them, in a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import attrs

from .scheduler import Scheduler, SimulatedProcess

LOST: Final = 0.3
"""How many of the files of a machine that loses its power are not what they were."""


@attrs.define(eq=False)
class Machine:
    """A machine of the cluster."""

    scheduler: Scheduler = attrs.field(repr=False)
    name: str
    folder: Path
    """Its disk."""
    is_on: bool = True
    """Whether it has power. One that has none closes no connection: nobody hears of it."""
    is_full: bool = False
    """Whether nothing can be written to its disk."""
    starts: int = 1
    """How often it has had power again, which processes can tell."""
    processes: list[SimulatedProcess] = attrs.field(factory=list, repr=False)

    @property
    def boot_id(self) -> str:
        """Its name, and which of its starts this is."""
        return f"{self.name} {self.starts}"

    def start(self, name: str) -> SimulatedProcess:
        """Start a process."""
        assert self.is_on, f"{self.name} has no power"
        process = self.scheduler.process(name)
        process.machine = self
        self.processes.append(process)
        return process

    def lose_power(self) -> None:
        """End all its processes, without a word to anybody. What nobody has forced to its disk may be gone."""
        self.is_on = False
        for process in self.processes:
            self.scheduler.kill(process)
        random = self.scheduler.choices.stream("disks")
        for path in sorted(self.folder.rglob("*")):
            # Every process calls those files its own that it has written, and nothing of Chandy's is forced.
            if path.is_file() and not path.is_symlink() and random.random() < LOST:
                size = int(path.stat().st_size * random.random())
                path.unlink() if random.random() < 0.5 else os.truncate(path, size)

    def start_again(self) -> None:
        """Give it power again. Its disk has what it had."""
        if not self.is_on:
            self.is_on = True
            self.starts += 1
