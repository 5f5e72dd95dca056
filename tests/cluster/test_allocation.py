"""Executors that leave when they idle, and come back, change nothing: their state hosts stay."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster


def test_executors_leave_when_they_idle_and_come_back_to_their_state(tmp_path: Path) -> None:
    # In a process of its own: whether executors come and go is settled when a session starts.
    command = [sys.executable, "-m", "tests.cluster.allocation_driver", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    found = json.loads(run.stdout.splitlines()[-1])
    # The driver has compared the output of each batch. No executor was left in between.
    before, after = found["executors"]
    assert before > 0 < after
    assert found["kept"], "the shards are with the state hosts that had them"
    # One is the start.
    assert found["recoveries"] == 1
    assert found["checkpoint"] == 3
