"""Writers that are refused, and why."""

from __future__ import annotations

import attrs
import pytest

from chandy.coordinator.errors import WriterError
from chandy.coordinator.spark.writer_facts import SinkFacts, SourceFacts, Trigger, WriterFacts, check

GOOD = WriterFacts(
    sink=SinkFacts("noop"),
    output_mode="append",
    trigger=Trigger.PROCESSING_TIME,
    sources=(SourceFacts("json", replayable=True),),
)


def test_a_plain_query_is_taken() -> None:
    check(GOOD)


REFUSED: list[tuple[dict[str, object], str, str]] = [
    ({"checkpoint_location": "/c"}, "checkpointLocation", "'/c'"),
    ({"trigger": Trigger.CONTINUOUS}, "micro-batches", "trigger(continuous=...)"),
    ({"trigger": Trigger.REAL_TIME}, "micro-batches", "trigger(realTime=...)"),
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
