"""What a benchmark hands over: JSON that tools may rely on, and a table that says what it was measured on."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.report import Report, paired_ratio

REPORT = Report(
    "speed",
    [
        {"contestant": "Chandy", "seconds": 0.25, "rows": 1234567},
        {"contestant": "Spark", "seconds": 1500.0, "rows": 1},
    ],
    {"Spark / Chandy": 6000.0},
    {"repetitions": 3},
)


def test_json_has_the_four_parts_and_no_other() -> None:
    document = json.loads(REPORT.as_json())
    assert list(document) == ["benchmark", "environment", "rows", "ratios"]
    assert document["benchmark"] == "speed"
    assert document["rows"] == REPORT.rows
    assert document["ratios"] == {"Spark / Chandy": 6000.0}


def test_what_was_not_measured_stays_as_it_was_and_all_else_is_replaced() -> None:
    def row(part: str, value: float, contestant: str = "Chandy") -> dict[str, object]:
        return {"part": part, "contestant": contestant, "median": value}

    earlier = Report(
        "cluster",
        [row("a", 1.0), row("b", 2.0), row("b", 9.0, "Spark")],
        {"a: x / y": 0.5, "b: x / y": 3.0},
    )
    again = Report("cluster", [row("b", 4.0), row("c", 5.0)], {"b: x / z": 6.0})
    found = again.beside(json.loads(earlier.as_json()))
    assert found.rows == [row("a", 1.0), row("b", 9.0, "Spark"), row("b", 4.0), row("c", 5.0)]
    assert found.ratios == {"a: x / y": 0.5, "b: x / z": 6.0}
    # What has no parts is replaced as a whole.
    assert REPORT.beside(json.loads(REPORT.as_json())) == REPORT


def test_json_says_machine_versions_and_sizes() -> None:
    environment = json.loads(REPORT.as_json())["environment"]
    assert environment["cores"] >= 1
    assert environment["memory_gib"] > 0
    assert environment["pyspark"].startswith("4.")
    assert environment["repetitions"] == 3
    assert {"machine", "processor", "python", "chandy", "rocksdict", "pyarrow"} <= environment.keys()


def test_a_ratio_of_turns_is_the_median_of_their_own() -> None:
    # That of the medians would be 4 / 5.
    assert paired_ratio([9, 4, 3], [10, 5, 1], float) == 0.9


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=5), st.floats(0.5, 4))
def test_a_ratio_of_turns_does_not_see_that_the_machine_slows_down(pace: list[float], times: float) -> None:
    own = [20 * slow * times for slow in pace]
    peers = [20 * slow for slow in pace]
    assert paired_ratio(own, peers, float) == pytest.approx(times)


@pytest.mark.parametrize("turns", [([1, 1], [1]), ([1], [1, 1]), ([], [])])
def test_a_ratio_needs_turns_and_as_many_of_both(turns: tuple[list[int], list[int]]) -> None:
    with pytest.raises(ValueError):
        paired_ratio(*turns, float)
