"""Processes of this machine: how another process knows one again, and whether it still lives."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")


def started_at(pid: int) -> int | None:
    """Return when a process of this machine began; None if it does not live.

    The number tells processes apart that have had the same id: on Linux ticks since the machine's start, see proc(5);
    0 where that is not known.
    """
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None if _PROC.joinpath("self").exists() else _answers(pid)
    # A process that has ended and that nobody has waited for stays as a zombie.
    return None if fields[0] in "ZX" else int(fields[19])


def lives(pid: int, started: int) -> bool:
    """Return whether the process of this machine with this id that began then still lives."""
    return started_at(pid) == started


def is_stopped(pid: int) -> bool:
    """Return whether a process has been stopped by a signal (SIGSTOP, Ctrl-Z), so that it does nothing."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


def _answers(pid: int) -> int | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return 0
