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
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come about in {seconds:g} s"
        time.sleep(0.005)
