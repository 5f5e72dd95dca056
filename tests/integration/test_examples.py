"""The programs in ``examples`` do what they say, also when they are run again."""

from __future__ import annotations

import json
import logging
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ..pages import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.examples]

EXAMPLES = ROOT / "examples"
EXPECTED = {
    "totals": [
        [
            told,
            *(f"shop {at}: {times * 200} sales, {times * sum(range(at, 1000, 5))} cents" for at in range(5)),
        ]
        for times, told in ((1, "begins"), (2, "goes on from a checkpoint"))
    ],
    "sessions": [
        ["ann: 1 pages from 12:00:00"],
        ["ann: 1 pages from 12:00:00", "ann: 1 pages from 12:01:00"],
    ],
    "two_queries": [
        [
            *(
                f"customer {at}: {times * sum(n for n in range(at, 100, 4) if n % 10)} cents"
                for at in range(4)
            ),
            "a savepoint of clean and sums",
        ]
        for times in (1, 2)
    ],
    "bad_records": [
        [
            "attic: unknown",
            "cellar: 12.5",
            "given up: attic, ValueError: could not convert string to float: '31.0 °C'",
            "attic: 31.0",
            "cellar: 12.5",
        ],
    ],
}
"""What each run prints."""


ELSEWHERE = {"kafka_totals"}
"""It needs a broker: tests/integration/kafka_targets.py."""


def test_every_example_is_run_and_listed() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*EXPECTED, *ELSEWHERE}
    listed = set(re.findall(r"\]\(([^)]+)\)", (EXAMPLES / "README.md").read_text()))
    programs = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    # The connector is a distribution, with tests of its own.
    assert listed == {*programs, "connector/chandy_sqlite.py"}


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_prints_what_it_should(
    name: str,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [name, str(tmp_path)])
    for expected in EXPECTED[name]:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        assert capsys.readouterr().out.splitlines() == expected


def test_the_notebook_runs_from_its_first_cell_to_its_last(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = json.loads((EXAMPLES / "walk.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert code[-1] == "coordinator.stop()\nspark.stop()"
    # The session is that of other tests, too.
    code[-1] = "coordinator.stop()"
    names: dict[str, Any] = {"__name__": "__main__"}
    level = logging.getLogger("chandy").level
    try:
        for cell in code:
            exec(compile(cell, "walk.ipynb", "exec"), names)
    finally:
        logging.getLogger("chandy").setLevel(level)
        spark.sparkContext.setLogLevel("WARN")
        names["coordinator"].stop()
    assert capsys.readouterr().out.count("and the sum is exact") == 2
