"""The programs in ``examples`` do what they say, also when they are run again."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ..pages import ROOT

pytestmark = pytest.mark.spark

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


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(EXPECTED)


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
