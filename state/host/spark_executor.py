"""Which of Spark's executors a process belongs to. A Python worker is told only the driver's settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import attrs

_OPTION: Final = b"--executor-id"
_GENERATIONS: Final = 8
"""How many processes there are between a task and its executor's JVM, at most."""


@attrs.frozen
class ProcessFacts:
    """What is known of a process."""

    parent: int
    arguments: Sequence[bytes]


def process(pid: int) -> ProcessFacts:
    """Return what Linux knows of a process.

    Raises:
        OSError: there is none, or this is not Linux.
    """
    folder = Path(f"/proc/{pid}")
    # After the name in brackets, which may have brackets and spaces: the state, the parent.
    parent = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
    return ProcessFacts(parent, (folder / "cmdline").read_bytes().split(b"\0"))


def executor_id(look: Callable[[int], ProcessFacts] = process) -> str | None:
    """Return Spark's id of the executor that has started this process; None if it is none's, or nobody knows.

    A task's ancestors are Spark's daemon and the executor's JVM, whose command line names it: so it is in standalone
    mode, on YARN and on Kubernetes. In local mode there are no executors.
    """
    pid = os.getpid()
    for _ in range(_GENERATIONS):
        try:
            found = look(pid)
        except (OSError, ValueError, IndexError):
            return None
        given = list(found.arguments)
        if _OPTION in given[:-1]:
            return given[given.index(_OPTION) + 1].decode(errors="replace")
        if found.parent <= 1:
            return None
        pid = found.parent
    return None
