"""Worlds from fixed seeds find nothing, and what they find is said so that it can be repeated."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from ..effort import rounds
from .events import EVERYTHING, WorldEvent, events_of, pairs_of
from .runs import PUBLISHING, PUBLISHING_EVERY, TOGETHER, chosen_pairs, smaller

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


def test_seeds_that_follow_each_other_have_each_pair_of_kinds_come_together() -> None:
    pairs = {*pairs_of(EVERYTHING)}
    seeds = range(7300, 7300 + 2 * len(pairs) // TOGETHER)
    chosen = {
        pair for seed in seeds for pair in chosen_pairs(seed, publishes=seed % PUBLISHING_EVERY == PUBLISHING)
    }
    assert chosen == pairs
