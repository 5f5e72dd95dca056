"""How tests wait for what other threads and processes do: on conditions, and never for a length of time."""

from __future__ import annotations

import time
from collections.abc import Callable

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
