"""A savepoint that was taken under one version of PySpark goes on under another, in both directions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..waiting import DEADLINE

pytestmark = [pytest.mark.spark, pytest.mark.compat]

OTHER = os.environ.get("CHANDY_OTHER_PYTHON", "")
"""A Python with another version of PySpark; ``make test-compat`` names one."""


def live(python: str, part: str, folder: Path) -> None:
    """Run a part of the pipeline's life."""
    log = folder / f"{part}.log"
    with log.open("wb") as stream:
        done = subprocess.run(
            [python, "-m", "tests.integration.versions_driver", part, str(folder)],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=stream,
            check=False,
            timeout=DEADLINE,
        )
    assert done.stdout.decode().split()[-1:] == ["done"], log.read_text()[-5000:]


@pytest.mark.skipif(not OTHER, reason="no other PySpark: make test-compat")
@pytest.mark.parametrize("upgrade", [True, False], ids=["from here", "to here"])
def test_a_savepoint_of_one_version_of_pyspark_goes_on_under_another(tmp_path: Path, upgrade: bool) -> None:
    first, second = (sys.executable, OTHER) if upgrade else (OTHER, sys.executable)
    live(first, "take", tmp_path)
    live(second, "go_on", tmp_path)
