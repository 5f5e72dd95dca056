"""Writers that are refused, and why."""

from __future__ import annotations

import attrs
import pytest

from chandy.coordinator.errors import WriterError
from chandy.coordinator.spark.writer_facts import (
    SinkFacts,
    SourceFacts,
    Trigger,
    WriterFacts,
    check,
    check_duration,
)

GOOD = WriterFacts(
    sink=SinkFacts("noop"),
    output_mode="append",
    trigger=Trigger.PROCESSING_TIME,
    sources=(SourceFacts("json", replayable=True),),
)


def test_a_plain_query_is_taken_in_batches_of_either_kind() -> None:
    check(GOOD)
    check(attrs.evolve(GOOD, trigger=Trigger.REAL_TIME))


def test_real_time_batches_may_not_outlast_a_checkpoint() -> None:
    check_duration(attrs.evolve(GOOD, real_time_seconds=None), 1.0)
    check_duration(attrs.evolve(GOOD, real_time_seconds=5.0), 6.0)
    with pytest.raises(WriterError, match=r"less than 300 s, .*found batches of 300 s"):
        check_duration(attrs.evolve(GOOD, real_time_seconds=300.0), 300.0)


REFUSED: list[tuple[dict[str, object], str, str]] = [
    ({"checkpoint_location": "/c"}, "checkpointLocation", "'/c'"),
    ({"trigger": Trigger.CONTINUOUS}, "runs batches", "trigger(continuous=...)"),
    ({"trigger": Trigger.REAL_TIME, "operators": ("o",)}, "for operator 'o'", "trigger(realTime=...)"),
    (
        {"trigger": Trigger.REAL_TIME, "sink": SinkFacts("foreachBatch")},
        "one by one",
        "trigger(realTime=...) and a sink that takes whole batches",
    ),
    ({"async_progress": True}, "log entry", "the option asyncProgressTrackingEnabled"),
    (
        {"sources": (*GOOD.sources, SourceFacts("csv", True, clean_source="archive"))},
        "cleanSource to be off for csv",
        "'archive'",
    ),
    ({"sources": (*GOOD.sources, SourceFacts("socket", replayable=False))}, "read again", "'socket'"),
    ({"merged_operators": ("totals", "others")}, "operator 'totals'", "none"),
]


@pytest.mark.parametrize(("change", "expected", "found"), REFUSED)
def test_what_cannot_be_restored_is_refused_with_what_to_do(
    change: dict[str, object], expected: str, found: str
) -> None:
    with pytest.raises(WriterError) as caught:
        check(attrs.evolve(GOOD, **change))
    assert expected in caught.value.expected
    assert caught.value.found == found
    assert caught.value.advice
