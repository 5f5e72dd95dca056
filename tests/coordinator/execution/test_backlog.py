"""Checkpoints keep to another interval while a query is behind its sources."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from chandy.coordinator.execution.backlog import Backlog
from chandy.coordinator.protocol.life import QueryLife
from chandy.coordinator.query import CheckpointedQuery, Definition, Supervision
from chandy.coordinator.sinks.file_sink import FileSink
from chandy.coordinator.spark.writer_facts import SinkFacts, Trigger, WriterFacts
from chandy.storage import runtime

from .one_life import OneLife


@attrs.frozen
class LateQuery:
    """What PySpark has of a query whose latest batch has left something that its source had."""

    id: str = "id"
    runId: str = "run"  # noqa: N815 (Spark's name)

    @property
    def _jsq(self) -> LateQuery:
        return self

    def lastProgress(self) -> LateQuery:  # noqa: N802
        return self

    def json(self) -> str:
        sources = [{"endOffset": {"t": {"0": 4}}, "latestOffset": {"t": {"0": 9}}}]
        return json.dumps({"durationMs": {"addBatch": 1}, "sources": sources})


@pytest.mark.parametrize("real_time_seconds", [None, 5.0])
def test_a_query_that_runs_is_behind_if_its_source_has_more_unless_it_takes_what_comes(
    tmp_path: Path, real_time_seconds: float | None
) -> None:
    facts = WriterFacts(
        SinkFacts("noop"), "append", Trigger.PROCESSING_TIME, real_time_seconds=real_time_seconds
    )
    definition = Definition("q", None, None, facts, FileSink(tmp_path, "parquet"), (), ())  # type: ignore[arg-type]
    life = [QueryLife()]
    query = CheckpointedQuery(
        Supervision(definition, lambda name: None, lambda: life[0], runtime.condition())
    )
    assert not query.is_behind(), "it has not started"
    query.runs_as(LateQuery())  # type: ignore[arg-type]
    assert query.is_behind() is (real_time_seconds is None)
    life[0] = life[0].ended(None)
    assert not query.is_behind()


@attrs.define
class BacklogQuery:
    behind: bool = False

    def is_behind(self) -> bool:
        return self.behind


def test_one_query_that_is_behind_changes_the_interval_until_all_have_caught_up(
    make: Callable[..., OneLife],
) -> None:
    machine = make(interval="10 s", interval_during_backlog="60 s").executor.protocol
    first, second = BacklogQuery(), BacklogQuery()
    backlog = Backlog(machine, lambda: [first, second])

    def interval() -> float | None:
        backlog.look()
        return machine.read(lambda state: state.admission.schedule.current)

    events = len(machine.events)
    assert interval() == 10
    assert len(machine.events) == events, "nothing has changed"
    first.behind = second.behind = True
    assert interval() == 60
    first.behind = False
    assert interval() == 60
    assert len(machine.events) == events + 1
    second.behind = False
    assert interval() == 10
