from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from chandy.coordinator.cli import main
from chandy.coordinator.cli.demo_driver import NUMBERS, totals_of


@pytest.mark.parametrize("batches", [0, 1, 7])
def test_the_expected_totals_are_those_of_the_numbers(batches: int) -> None:
    numbers = range(batches * NUMBERS)
    counts, sums = Counter(one % 10 for one in numbers), Counter[int]()
    for one in numbers:
        sums[one % 10] += one
    assert totals_of(batches) == {digit: (counts[digit], sums[digit]) for digit in range(10)}


@pytest.mark.parametrize("command", [["demo"], ["class-archive", "x.jsa"]])
def test_without_java_it_says_what_to_install(tmp_path: Path, command: list[str]) -> None:
    result = CliRunner().invoke(main, command, env={"PATH": str(tmp_path), "JAVA_HOME": None})
    assert result.exit_code == 1
    assert "Spark needs Java 17 or newer, and there is none" in result.output


def test_an_archive_goes_into_a_directory_that_is_there(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["class-archive", str(tmp_path / "none" / "x.jsa")])
    assert result.exit_code == 2
    assert "expected a file in a directory that can be written to" in result.output
