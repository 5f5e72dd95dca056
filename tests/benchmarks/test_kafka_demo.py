"""The demo of Kafka counts what it says that it counts; here without servers and without Spark."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from benchmarks.kafka_demo.__main__ import Kill, Outcome
from benchmarks.kafka_demo.check import check, check_copy
from benchmarks.kafka_demo.flow import answer, newest_values, records
from benchmarks.servers.kafka import Record

EXPECTED = {"a": (3, 30), "b": (1, -5)}


def row(aircraft: str, new: int, flights: int, delay: int) -> str:
    return json.dumps({"aircraft": aircraft, "new": new, "flights": flights, "delay": delay})


RIGHT = [row("a", 2, 2, 10), row("b", 1, 1, -5), row("a", 1, 3, 30)]


def test_rows_that_add_up_to_what_is_right_are_right_in_any_order() -> None:
    found = check("t", RIGHT[::-1], EXPECTED)
    assert found.is_right
    assert (found.rows, found.twice, found.flights) == (3, 0, 4)


@pytest.mark.parametrize(
    ("rows", "differing"),
    [
        (RIGHT[1:], ("a",)),
        (RIGHT[:2], ("a",)),
        ([RIGHT[0], RIGHT[2]], ("b",)),
        ([*RIGHT, RIGHT[0]], ("a",)),
        ([*RIGHT, row("c", 1, 1, 0)], ("c",)),
        ([RIGHT[0], RIGHT[1], row("a", 1, 3, 31)], ("a",)),
        ([], ("a", "b")),
        # A flight that was counted twice.
        ([*RIGHT, row("a", 1, 4, 30)], ("a",)),
    ],
)
def test_a_row_that_is_missing_wrong_or_one_too_many_is_found(
    rows: list[str], differing: tuple[str, ...]
) -> None:
    found = check("t", rows, EXPECTED)
    assert not found.is_right
    assert found.differing == differing
    assert found.twice == len(rows) - len(set(rows))


def test_the_newest_value_of_each_key_makes_the_copy() -> None:
    def change(aircraft: str, value: tuple[int, int] | None) -> Record:
        fields = None if value is None else json.dumps(dict(zip(("flights", "delay"), value, strict=True)))
        key = json.dumps({"aircraft": aircraft}).encode()
        return Record("t", 0, 0, key, None if fields is None else fields.encode(), None)

    changes = [change("a", (1, 5)), change("b", (1, 1)), change("a", (2, 7)), change("b", None)]
    assert newest_values(changes) == {"a": (2, 7)}


def test_what_is_right_is_computed_from_the_records_that_are_sent() -> None:
    flights = pa.table({"tailnum": ["x", None, "x"], "dep_delay": [5, 7, None]})
    assert answer(flights) == {"x": (2, 5), "unknown": (1, 7)}
    sent = [json.loads(value) for _, value, _ in records(flights)]
    assert sent == [
        {"aircraft": "x", "delay": 5},
        {"aircraft": "unknown", "delay": 7},
        {"aircraft": "x", "delay": None},
    ]


def test_a_kill_is_followed_by_what_comes_after_it_alone() -> None:
    kill = Kill("driver", 10, None)
    kill.take({"event": "batch", "at": 99.0})
    kill.at = 100.0
    for event, at in (("batch", 99.5), ("query", 103.0), ("batch", 104.0), ("batch", 105.0)):
        kill.take({"event": event, "at": at})
    kill.take({"event": "checkpoint", "at": 106.0, "status": "failed"})
    kill.take({"event": "checkpoint", "at": 107.0, "status": "completed"})
    assert (kill.up, kill.batch, kill.checkpoint) == (3.0, 4.0, 7.0)


def test_all_must_be_killed_and_every_flight_counted_once() -> None:
    right, wrong = check("t", RIGHT, EXPECTED), check("t", RIGHT[1:], EXPECTED)
    copy = check_copy("c", EXPECTED, EXPECTED)
    other = check_copy("c", {"a": (3, 30), "c": (1, 1)}, EXPECTED)
    assert other.differing == ("b", "c")
    assert Outcome((right, right), (copy,), differing=0, lag=0, spared=()).is_right
    assert not Outcome((right, right), (copy, other), differing=0, lag=0, spared=()).is_right
    assert not Outcome((right, wrong), (copy,), differing=0, lag=0, spared=()).is_right
    assert not Outcome((right, right), (copy,), differing=1, lag=0, spared=()).is_right
    assert not Outcome((right, right), (copy,), differing=0, lag=3, spared=()).is_right
    assert not Outcome((right, right), (copy,), differing=0, lag=0, spared=("Kafka",)).is_right
