"""Which writers are refused."""

from __future__ import annotations

import attrs
import pytest

from chandy.coordinator.errors import (
    AsyncProgressError,
    CheckpointLocationError,
    CleanSourceError,
    UnreplayableSourceError,
    UnsupportedTriggerError,
    WriterError,
)
from chandy.coordinator.spark.writer_facts import (
    SinkFacts,
    SourceFacts,
    Trigger,
    WriterFacts,
    check,
)

GOOD = WriterFacts(
    sink=SinkFacts("noop"),
    output_mode="append",
    trigger=Trigger.PROCESSING_TIME,
    sources=(SourceFacts("json", replayable=True),),
)


def test_a_plain_query_is_taken() -> None:
    check(GOOD)


REFUSED: list[tuple[dict[str, object], type[WriterError]]] = [
    ({"checkpoint_location": "/c"}, CheckpointLocationError),
    ({"trigger": Trigger.CONTINUOUS}, UnsupportedTriggerError),
    ({"trigger": Trigger.REAL_TIME}, UnsupportedTriggerError),
    ({"async_progress": True}, AsyncProgressError),
    ({"sources": (*GOOD.sources, SourceFacts("csv", True, clean_source="archive"))}, CleanSourceError),
    ({"sources": (*GOOD.sources, SourceFacts("socket", replayable=False))}, UnreplayableSourceError),
]


@pytest.mark.parametrize(("change", "error"), REFUSED)
def test_what_cannot_be_restored_is_refused_with_what_to_do(
    change: dict[str, object], error: type[WriterError]
) -> None:
    with pytest.raises(error) as caught:
        check(attrs.evolve(GOOD, **change))
    assert str(caught.value).startswith("expected ")
    assert "found " in str(caught.value)
