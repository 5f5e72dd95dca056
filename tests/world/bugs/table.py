"""Puts each bug in, in a process of its own, and says what has found it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import pytest

from ..scheduler import Scheduler
from . import AREAS, Bug

STEPS: Final = 600_000
"""In which a bug is found."""
HEAD: Final = "| area | bug | found by | runs | steps |\n|---|---|---|---|---|"


def found(bug: Bug) -> str | None:
    """Put a bug in, and search for it; return what found it, in how many runs and steps, or None."""
    steps: list[int] = []
    end = Scheduler.end

    def count(scheduler: Scheduler) -> None:
        steps.append(scheduler.steps)
        end(scheduler)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "end", count)
        bug.put_in(patch)
        for number, seed in enumerate(dict.fromkeys((bug.seed, *range(bug.by.tries))), 1):
            if sum(steps) > STEPS:
                break
            try:
                bug.by.look(seed)
            except Exception as error:  # noqa: BLE001 (whatever it is, it is found)
                what = f"{type(error).__name__}: {error}".split("\n")[0]
                return f"{bug.by.name}, seed {seed}: {what:.90} | {number} | {sum(steps):,}".replace(
                    "| ", "| "
                )
    return None


def named(name: str) -> Bug:
    """Return the bug of a name."""
    [bug] = (bug for bugs in AREAS.values() for bug in bugs if bug.name == name)
    return bug


def rows(areas: list[str]) -> Iterator[tuple[str, bool]]:
    """Yield a row for each bug of some areas, and whether it is found."""
    for area in areas:
        for bug in AREAS[area]:
            done = subprocess.run(
                [sys.executable, "-m", "tests.world", "--bug", bug.name],
                env=os.environ | {"PYTHONHASHSEED": "0"},
                capture_output=True,
                text=True,
                check=False,
            )
            how = done.stdout.strip().splitlines()[-1] if done.returncode == 0 else "nothing | |"
            yield f"| {area} | {bug.name} | {how} |", done.returncode == 0
