from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import repetition
from benchmarks.report import Report


def test_every_contestant_is_compared_with_contestants() -> None:
    assert {*repetition.PEERS} <= {*repetition.CONTESTANTS}
    assert {peer for peers in repetition.PEERS.values() for peer in peers} <= {*repetition.CONTESTANTS}


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_chart_is_drawn(tmp_path: Path, suffix: str) -> None:
    rows = [
        {"rows_a_key": each, "contestant": name, "rows_per_second": 1000.0 * each}
        for each in repetition.REPETITIONS
        for name in repetition.CONTESTANTS
    ]
    chart = tmp_path / f"repetition.{suffix}"
    repetition.draw(Report("repetition", rows, {}), chart)
    assert chart.stat().st_size > 1000
