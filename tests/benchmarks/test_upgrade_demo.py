"""The demo of an upgrade: its versions and its input are what it says, and it ends with each flight counted once."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from pyspark.sql.types import StructType

from benchmarks.flights import read_flights
from benchmarks.upgrade_demo.__main__ import main
from benchmarks.upgrade_demo.flow import VERSIONS, WRONGED, answer, parts
from chandy.testing import OperatorTester

INPUT = StructType().add("carrier", "string").add("aircraft", "string").add("dep_delay", "integer")
OUTPUT = StructType().add("carrier", "string").add("aircraft", "string")
for name in ("new", "flights", "delay"):
    OUTPUT.add(name, "long")


def rows_of(version: str, batches: list[list[tuple[str, str, int | None]]]) -> list[list[object]]:
    tester = OperatorTester.of_processor(
        VERSIONS[version](), key=["carrier", "aircraft"], input=INPUT, output=OUTPUT
    )
    return [sorted(tester.batch(rows)) for rows in batches]


def test_the_wrong_version_differs_where_the_carrier_is_late_and_the_new_one_never() -> None:
    batches = [
        [("AA", "a", 3), ("AA", "a", None), ("AA", "b", -2), (WRONGED, "c", None)],
        [("AA", "a", 1), (WRONGED, "c", 7)],
    ]
    old, wrong, new = (rows_of(version, batches) for version in ("old", "wrong", "new"))
    assert new == old
    assert wrong[0] == old[0]
    assert wrong[1] != old[1]


def test_the_mistake_would_show_before_the_shadows_begin_and_long_before_the_end_of_the_year() -> None:
    flights = read_flights()
    for days in (1, 5, 15, 30):
        course = parts(flights, days)
        assert sum(len(part.flights) for part in course) == len(flights)
        before, mistake = [number for number, part in enumerate(course) if part.shows][:2]
        assert before < mistake < len(course) * 7 // 8
    assert sum(count for count, _ in answer([flights]).values()) == len(flights)


@pytest.mark.processes
@pytest.mark.examples
def test_the_demo_finds_the_wrong_version_and_switches_to_the_right_one() -> None:
    # In half of the batches: three drivers run each of them.
    result = CliRunner().invoke(main, ["--days-per-batch=30"])
    assert result.exit_code == 0, result.output
    assert "all 336,776 flights are counted once" in result.output
