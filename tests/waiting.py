"""How tests wait for what other threads and processes do: on conditions, and never for a length of time."""

from __future__ import annotations

import time
from collections.abc import Callable

DEADLINE = 30.0
"""Seconds; it only ends a test that fails."""


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.005)
