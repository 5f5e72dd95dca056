"""The benchmark of upgrades: what counts as a pause and as processor time, and how turns become ratios."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import upgrade
from benchmarks.processor_time import processor_seconds
from benchmarks.report import Options
from benchmarks.upgrade import PAUSE, RESTART, SWITCH, TAKE_OVER


def driver(*batches: tuple[int, float]) -> Any:
    events = [{"batch": batch, "ended": ended} for batch, ended in batches]
    return SimpleNamespace(batches=events, failure="", life=SimpleNamespace(is_alive=False))


def test_a_pause_begins_with_the_last_batch_that_the_new_driver_does_not_run_again() -> None:
    old, new = driver((1, 10.0), (2, 11.0), (3, 12.0)), driver((3, 14.5), (4, 15.0))
    assert upgrade._pause(old, new) == 3.5


def test_turns_are_compared_in_pairs_and_only_the_parts_that_were_asked_for_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = {SWITCH: [2.0, 9.0, 4.0], RESTART: [20.0, 30.0, 40.0], TAKE_OVER: [1.0, 3.0, 4.0]}
    monkeypatch.setattr(upgrade, "_pauses", lambda size, repetitions: {PAUSE: pauses})
    report = upgrade.run(Options(only="Pause"))
    assert [(row["part"], row["contestant"], row["median"]) for row in report.rows] == [
        ("pause", SWITCH, 4.0),
        ("pause", RESTART, 30.0),
        ("pause", TAKE_OVER, 3.0),
    ]
    assert report.ratios == {
        f"pause: {PAUSE}, {SWITCH} / {TAKE_OVER}": 2.0,
        f"pause: {PAUSE}, {RESTART} / {TAKE_OVER}": 10.0,
    }
    upgrade.draw(report, tmp_path / "upgrade.svg")
    assert RESTART in (tmp_path / "upgrade.svg").read_text()


def test_the_processor_time_of_a_run_has_that_of_children_also_when_they_have_ended() -> None:
    before = processor_seconds()
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert processor_seconds() - before >= 0.25, "it is counted in hundredths"
