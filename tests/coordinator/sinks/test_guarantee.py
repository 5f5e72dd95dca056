"""What a query promises about its output."""

from __future__ import annotations

from pathlib import Path

import pytest

from chandy.coordinator.sinks.at_least_once import AtLeastOnceSink
from chandy.coordinator.sinks.file_sink import FileSink
from chandy.coordinator.sinks.guarantee import Level


def test_the_file_sink_is_exactly_once_and_says_why() -> None:
    found = FileSink(Path("/o"), "parquet").guarantee
    assert found.level is Level.EXACTLY_ONCE
    assert str(found).startswith("exactly once: the log of the parquet sink ")


@pytest.mark.parametrize(
    ("format_", "reason"),
    [
        ("foreachBatch", "idempotent"),
        ("foreach", "foreach writer"),
        ("console", "prints"),
        ("kafka", "transactions"),
        ("memory", "this process"),
        ("noop", "nothing is written"),
        ("com.example.Sink", "com.example.Sink"),
    ],
)
def test_other_sinks_are_at_least_once_and_say_why(format_: str, reason: str) -> None:
    found = AtLeastOnceSink(format_).guarantee
    assert found.level is Level.AT_LEAST_ONCE
    assert reason in found.because
