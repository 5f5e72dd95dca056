"""Processes of this machine: how another process knows one again, and whether it still lives."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Final

import attrs

_PROC: Final = Path("/proc")
_KILL_SECONDS: Final = 10.0
"""How long a process that was killed may take to end."""
_POLL_SECONDS: Final = 0.02


@attrs.frozen
class Process:
    """A process of this machine, known by its id and by when it began: another one may get the id later."""

    pid: int
    started: int
    """As ``started_at``; 0 also if the process was not to be seen."""

    @classmethod
    def of(cls, pid: int) -> Process:
        """Return the process that has an id now."""
        return cls(pid, started_at(pid) or 0)

    @property
    def lives(self) -> bool:
        """Whether it still lives."""
        return started_at(self.pid) == self.started

    def kill(self) -> bool:
        """End it by SIGKILL, which a stopped process obeys, too; return whether it has ended within a few seconds."""
        deadline = time.monotonic() + _KILL_SECONDS
        while self.lives:
            if time.monotonic() > deadline:
                return False
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                return True
            except PermissionError:
                return False
            time.sleep(_POLL_SECONDS)
        return True


def started_at(pid: int) -> int | None:
    """Return when a process of this machine began; None if it does not live.

    The number tells processes apart that have had the same id: on Linux ticks since the machine's start, see proc(5);
    0 where that is not known.
    """
    try:
        fields = _fields(pid)
    except OSError:
        return None if _PROC.joinpath("self").exists() else _answers(pid)
    # A process that has ended and that nobody has waited for stays as a zombie.
    return None if fields[0] in "ZX" else int(fields[19])


def is_stopped(pid: int) -> bool:
    """Return whether a process has been stopped by a signal (SIGSTOP, Ctrl-Z), so that it does nothing."""
    try:
        return _fields(pid)[0] in "Tt"
    except OSError:
        return False


def _fields(pid: int) -> list[str]:
    """Return what Linux says of a process, from its state on, see proc(5)."""
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def _answers(pid: int) -> int | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return 0
