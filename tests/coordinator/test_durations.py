"""Reading and writing of durations."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.coordinator.durations import LONGEST, seconds, text
from chandy.coordinator.errors import ConfigError

UNITS = {
    "week": 604_800_000_000,
    "day": 86_400_000_000,
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1000,
    "microsecond": 1,
}
"""Microseconds."""


@pytest.mark.parametrize(
    ("given_text", "length"),
    [
        ("10 s", 10),
        ("5 minutes", 300),
        ("1 hour 30 minutes", 5400),
        ("250 ms", 0.25),
        ("500 milliseconds", 0.5),
        ("2 days", 172_800),
        ("interval 2 minutes", 120),
        ("INTERVAL 1 Hour 1 SECOND", 3601),
        ("  10   seconds ", 10),
        ("10s", 10),
        ("1h30m", 5400),
        ("1.5 s", 1.5),
        ("700 ms", 0.7),
        ("1 week", 604_800),
        ("3 us", 0.000003),
        ("0 s", 0),
    ],
)
def test_a_duration_is_read_as_spark_writes_it(given_text: str, length: float) -> None:
    assert seconds(given_text) == length


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "10",
        "s",
        "-1 s",
        "1 s -1 s",
        "interval",
        "1 month",
        "1 year",
        "ten s",
        "1e3 s",
        "1,5 s",
        "1 s,",
        "٣ s",
    ],
)
def test_a_text_that_is_no_duration_is_refused_and_named(wrong: str) -> None:
    with pytest.raises(ConfigError) as caught:
        seconds(wrong)
    assert caught.value.found == repr(wrong)
    assert repr(wrong) in str(caught.value)
    assert "10 s" in str(caught.value)


def test_a_negative_timedelta_is_refused() -> None:
    with pytest.raises(ConfigError):
        seconds(timedelta(microseconds=-1))


@pytest.mark.parametrize("number", [10, 1.5, None, b"10 s"])
def test_a_number_without_a_unit_is_refused(number: object) -> None:
    with pytest.raises(ConfigError):
        seconds(number)  # type: ignore[arg-type]


def test_a_duration_that_no_timer_can_wait_for_is_refused() -> None:
    assert seconds(LONGEST) == 3_153_600_000
    for too_long in ("36501 days", "999999999999999 weeks", LONGEST + timedelta(microseconds=1)):
        with pytest.raises(ConfigError):
            seconds(too_long)


# Six times 800 weeks are 92 years, within the limit of 100.
@given(st.lists(st.tuples(st.integers(0, 800), st.sampled_from(sorted(UNITS))), min_size=1, max_size=6))
def test_parts_add_up_exactly(parts: list[tuple[int, str]]) -> None:
    written = " ".join(f"{number} {unit}s" for number, unit in parts)
    assert seconds(written) == sum(number * UNITS[unit] for number, unit in parts) / 1_000_000


@given(st.timedeltas(min_value=timedelta(0), max_value=LONGEST))
def test_a_duration_that_is_written_out_is_read_back_as_it_was(duration: timedelta) -> None:
    assert seconds(text(duration.total_seconds())) == seconds(duration) == duration.total_seconds()


def test_a_duration_is_written_with_the_units_it_needs() -> None:
    assert text(0) == "0 s"
    assert text(5400) == "1 h 30 min"
    assert text(8.2) == "8 s 200 ms"
    assert text(90_061.250003) == "1 d 1 h 1 min 1 s 250 ms 3 us"
