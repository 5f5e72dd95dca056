"""What is put into the product is found, by worlds or by tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..effort import IS_FULL, some
from .bugs import AREAS, Bug

BUGS = [bug for bugs in AREAS.values() for bug in bugs]
SAMPLE = BUGS if IS_FULL else some([bugs[0] for bugs in AREAS.values()], 4, "bugs")
"""The first bug of each area is found soon. ``python -m tests.world --bugs`` tries all, and prints a table."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_it_can_be_put_in(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.put_in(monkeypatch)
    assert not bug.by.name.startswith("tests/") or Path(bug.by.name).is_file()


@pytest.mark.parametrize("bug", SAMPLE, ids=lambda bug: bug.name)
def test_it_is_found(bug: Bug) -> None:
    # In a process of its own, in which the order of sets is that of the command line, too.
    done = subprocess.run(
        [sys.executable, "-m", "tests.world", "--bug", bug.name],
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
