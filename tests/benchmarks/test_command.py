"""``python -m benchmarks``: every benchmark that it names is there, and writes the files that it is asked for."""

from __future__ import annotations

import importlib
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import throughput
from benchmarks.__main__ import BENCHMARKS, main, measure_all
from benchmarks.report import Options, Report


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_can_be_run_and_drawn(name: str) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    assert callable(module.run)
    assert callable(module.draw)
    assert module.__doc__


def test_one_benchmark_writes_its_figures_and_its_chart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"part": "small", "contestant": "Chandy", "rows_per_second": 2.0, "least": 1.0, "greatest": 3.0}
    monkeypatch.setattr(
        throughput, "run", lambda options: Report("throughput", [row], {"Chandy / Spark": 2.0})
    )
    figures, chart = tmp_path / "figures" / "one.json", tmp_path / "charts" / "one.svg"
    arguments = ["throughput", "--quick", "--json", str(figures), "--chart", str(chart)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    document = json.loads(figures.read_text())
    assert document["benchmark"] == "throughput"
    assert document["rows"] == [row]
    assert "<svg" in chart.read_text()
    assert "Chandy / Spark: 2" in result.output


def test_an_unknown_benchmark_is_refused_with_the_names_of_all() -> None:
    result = CliRunner().invoke(main, ["speed"])
    assert result.exit_code == 2
    for name in BENCHMARKS:
        assert name in result.output


def test_all_hands_its_options_on() -> None:
    assert Options(quick=True, repetitions=2).arguments == ["--quick", "--repetitions=2"]
    assert Options().arguments == []


def test_all_asks_for_figures_and_both_charts_of_each_and_names_who_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def run(command: Sequence[str], check: bool) -> subprocess.CompletedProcess[bytes]:
        asked.append([word.replace(f"{tmp_path}/", "") for word in command[2:]])
        return subprocess.CompletedProcess(command, int("scale" in command))

    monkeypatch.setattr(subprocess, "run", run)
    assert measure_all(Options(quick=True), tmp_path) == ["scale"]
    assert [words[1] for words in asked] == list(BENCHMARKS)
    assert asked[0] == [
        *("benchmarks", "recovery", "--quick", "--json", "recovery.json"),
        *("--chart=recovery.png", "--chart=recovery.svg"),
    ]


def test_contestants_can_be_chosen_only_where_a_benchmark_takes_notice() -> None:
    result = CliRunner().invoke(main, ["scale", "--only", "Kafka"])
    assert result.exit_code == 2
    assert "--only is for cluster, recovery, sinks, throughput, upgrade" in result.output


def test_contestants_are_chosen_by_a_part_of_their_names_in_any_case() -> None:
    assert Options(only="kafka").takes("Chandy KafkaSink")
    assert not Options(only="kafka").takes("Chandy DeltaSink, append")
    assert Options().takes("Chandy DeltaSink, append")
