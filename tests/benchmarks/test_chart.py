"""Charts are files of the format that their name says, and have every label."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.chart import bars, lines, stacked

DRAW: dict[str, Callable[[Path], None]] = {
    "bars": lambda path: bars(
        path, title="Title", axis="rows a second", rounds={"Chandy": [2.0, 3.0], "Spark": [1.0]}
    ),
    "lines": lambda path: lines(
        path, title="Title", x="keys", y="seconds", series={"Chandy": [(1, 2), (10, 3)], "Spark": [(1, 4)]}
    ),
    "stacked": lambda path: stacked(
        path,
        title="Title",
        axis="seconds",
        parts={"Chandy": {"detect": 1.0}, "Spark": {"detect": 1.0, "open": 2.0}},
    ),
}


def labels(path: Path) -> list[str]:
    """What is written on a chart: letters are drawn, and each text stands beside its drawing as a comment."""
    return [text.strip() for text in re.findall(r"<!--(.*?)-->", path.read_text())]


@pytest.mark.parametrize("kind", DRAW)
def test_a_chart_names_its_contestants(kind: str, tmp_path: Path) -> None:
    DRAW[kind](tmp_path / "chart.svg")
    assert {"Title", "Chandy", "Spark"} <= set(labels(tmp_path / "chart.svg"))


def test_a_bar_says_the_median_of_its_rounds(tmp_path: Path) -> None:
    bars(tmp_path / "chart.svg", title="", axis="", rounds={"Chandy": [100.0, 777.0, 800.0]})
    assert "777" in labels(tmp_path / "chart.svg")


def test_parts_are_named_and_end_in_their_sum(tmp_path: Path) -> None:
    parts = {"Chandy": {"detect": 1.0, "open": 76.0}, "Spark": {"detect": 1.0}}
    stacked(tmp_path / "chart.svg", title="", axis="", parts=parts)
    assert {"detect", "open", "77", "1"} <= set(labels(tmp_path / "chart.svg"))
