"""How tests wait for what other threads and processes do: on conditions, and never for a length of time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

DEADLINE = 300.0
"""Seconds; it only ends a test that fails. Starting Spark on a busy machine may take a minute of it."""


def eventually(
    condition: Callable[[], object], what: str = "the condition", seconds: float = DEADLINE
) -> None:
    """Wait until a condition holds; the error of a test that waits in vain says for what."""
    deadline = time.monotonic() + seconds
    while True:
        looked = time.monotonic()
        if condition():
            return
        assert time.monotonic() < deadline, f"{what} did not come about in {seconds:g} s"
        pause(looked)


def pause(looked: float) -> None:
    """Sleep between two looks at something, four times as long as a look takes: it needs the processors itself.

    Args:
        looked: when the last look began, on the monotonic clock.
    """
    time.sleep(min(max(0.005, 4 * (time.monotonic() - looked)), 1.0))


def retried(step: Callable[[], T], error: type[Exception]) -> T:
    """Take a step until it does not fail with this error, and return its result.

    What a test gives little time, to see how it ends, may miss it on a busy machine before that.
    """
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            return step()
        except error:
            if time.monotonic() > deadline:
                raise


def freeze(pid: int) -> None:
    """Stop a process with SIGSTOP, and wait until none of its threads runs.

    Until one of them has taken the signal, which on a busy machine may be long, all others go on.
    """
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: _stands_still(pid), f"a process {pid} that stands still")


def freeze_group(leader: int) -> None:
    """Stop all processes of a group, as ``freeze`` does one."""
    os.killpg(leader, signal.SIGSTOP)
    members = [int(one.name) for one in Path("/proc").glob("[0-9]*") if _group(int(one.name)) == leader]
    eventually(lambda: all(map(_stands_still, members)), f"a group {leader} that stands still")


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _stands_still(pid: int) -> bool:
    try:
        # The state comes after the name, which may have spaces and parentheses.
        states = [
            (thread / "stat").read_text().rpartition(")")[2].split()[0]
            for thread in Path(f"/proc/{pid}/task").iterdir()
        ]
    except (FileNotFoundError, ProcessLookupError):
        # It, or a thread of it, is gone; or this is another system than Linux.
        return not Path(f"/proc/{pid}").exists()
    return all(state in "TtZX" for state in states)
