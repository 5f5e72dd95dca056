"""Worlds from fixed seeds find nothing, and what they find is said so that it can be repeated."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from ..effort import rounds
from .events import WorldEvent, events_of
from .runs import smaller

STEPS = 15_000
"""Of the ordinary run: some seconds."""


@pytest.mark.parametrize("seed", [7300])
def test_nothing_is_found(seed: int) -> None:
    steps = STEPS * rounds(1, 40)
    done = subprocess.run(
        [sys.executable, "-m", "tests.world", "--seed", str(seed), "--steps", str(steps)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_the_events_of_a_failure_are_made_fewer() -> None:
    events = events_of(0, 40, 0.4)
    needed = {events[3], events[17], events[18]}

    def fails(some: Sequence[WorldEvent]) -> bool:
        return needed <= set(some)

    assert smaller(events, fails) == [event for event in events if event in needed]
