"""What a query promises about its output."""

from __future__ import annotations

import pytest

from chandy.coordinator.sinks.guarantee import Level, guarantee
from chandy.coordinator.spark.writer_facts import SinkFacts, Trigger, WriterFacts


def facts(sink: SinkFacts) -> WriterFacts:
    return WriterFacts(sink=sink, output_mode="append", trigger=Trigger.PROCESSING_TIME)


def test_the_file_sink_is_exactly_once_by_path_and_by_table() -> None:
    for sink in (
        SinkFacts("parquet", path="/o", file_format=True),
        SinkFacts("csv", table="t", file_format=True),
    ):
        found = guarantee(facts(sink))
        assert found.level is Level.EXACTLY_ONCE
        assert str(found).startswith("exactly once: the log of the ")


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
    found = guarantee(facts(SinkFacts(format_)))
    assert found.level is Level.AT_LEAST_ONCE
    assert reason in found.because
