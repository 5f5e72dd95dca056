"""The plan of the benchmark of throughput, and what its charts show."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import throughput
from benchmarks.report import Report


def test_each_peer_runs_over_some_batches_of_its_contestant() -> None:
    beside = {
        (name, peer)
        for contestants in throughput.PLAN.values()
        for name in contestants
        for peer in contestants
    }
    assert {(name, peer) for name, peers in throughput.PEERS.items() for peer in peers} <= beside


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_bars_show_the_first_part_and_lines_the_rows_of_a_key(tmp_path: Path, suffix: str) -> None:
    rows = [
        {"part": workload.name, "contestant": name, "rows_per_second": 5.0, "least": 4.0, "greatest": 6.0}
        for workload, contestants in throughput.PLAN.items()
        for name in contestants
    ]
    throughput.draw(Report("throughput", rows, {}), tmp_path / f"throughput.{suffix}")
    assert {path.name for path in tmp_path.iterdir()} == {
        f"throughput.{suffix}",
        f"throughput-repetition.{suffix}",
    }


def test_a_run_of_one_part_draws_that_part_alone(tmp_path: Path) -> None:
    rows = [
        {"part": throughput.REPEATED[1].name, "contestant": name, "rows_per_second": 5.0}
        for name in throughput.PLAN[throughput.REPEATED[1]]
    ]
    throughput.draw(Report("throughput", rows, {}), tmp_path / "throughput.svg")
    assert [path.name for path in tmp_path.iterdir()] == ["throughput-repetition.svg"]
