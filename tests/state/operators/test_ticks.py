"""When a batch without data is due. That Spark then runs one is tested in ``tests/integration/test_time.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from chandy.state import pyspark_versions
from chandy.state.operators.ticks import TickReader, TickSource, TickTarget, is_due

from ..batch_logs import commit, plan

BEFORE = {"batch": -1}
LONG_AGO = 1_000


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A query whose last batch, 4, has committed without a move of the watermark."""
    work = tmp_path / "work"
    for batch in (3, 4):
        plan(work, batch, watermark=2000, timestamp=LONG_AGO + batch)
        commit(work, batch, watermark=2000)
    return work


@pytest.fixture
def reader(tmp_path: Path) -> TickReader:
    return TickReader(tmp_path / "target.json")


def latest(reader: TickReader, start: dict[str, int] = BEFORE) -> dict[str, int]:
    return reader.latestOffset(start, None)


def watch(target: TickTarget, reader: TickReader) -> None:
    target.write(reader._target)


def test_a_batch_is_due_in_event_time_once_the_watermark_has_moved(work: Path, reader: TickReader) -> None:
    watch(TickTarget(str(work), event_time=True), reader)
    assert latest(reader) == BEFORE
    commit(work, 4, watermark=3000)
    assert latest(reader) == {"batch": 5}
    plan(work, 5, watermark=3000, timestamp=LONG_AGO)
    commit(work, 5, watermark=3000)
    assert latest(reader, {"batch": 5}) == {"batch": 5}


def test_asking_twice_gives_one_answer(work: Path, reader: TickReader) -> None:
    commit(work, 4, watermark=3000)
    watch(TickTarget(str(work), event_time=True), reader)
    assert latest(reader) == latest(reader) == {"batch": 5}


def test_the_watermark_does_not_matter_to_a_query_without_timers_of_event_time(
    work: Path, reader: TickReader
) -> None:
    commit(work, 4, watermark=3000)
    watch(TickTarget(str(work)), reader)
    assert latest(reader) == BEFORE


def test_a_batch_is_due_in_processing_time_after_a_period_without_one(work: Path, reader: TickReader) -> None:
    watch(TickTarget(str(work), period_ms=500), reader)
    now = [0.0]
    reader._clock = lambda: now[0]
    for now[0], due in ((10.0, False), (10.4, False), (10.5, True)):
        assert latest(reader) == ({"batch": 5} if due else BEFORE)
    # The next batch took longer than a period; yet it is not followed by another one at once.
    plan(work, 5, watermark=2000, timestamp=LONG_AGO)
    commit(work, 5, watermark=2000)
    for now[0], due in ((12.0, False), (12.5, True)):
        assert latest(reader, {"batch": 5}) == ({"batch": 6} if due else {"batch": 5})


def test_without_timers_of_processing_time_no_batch_is_due_however_long_it_takes(work: Path) -> None:
    assert is_due(TickTarget(str(work), period_ms=500), 4, 500)
    assert not is_due(TickTarget(str(work)), 4, 1e9)


def test_before_the_first_batch_and_before_a_query_is_watched_nothing_is_due(
    tmp_path: Path, reader: TickReader
) -> None:
    assert latest(reader) == BEFORE
    watch(TickTarget(str(tmp_path / "fresh"), event_time=True, period_ms=1), reader)
    assert latest(reader) == BEFORE


def test_a_query_that_is_to_end_looks_once_for_timers_of_processing_time(
    work: Path, reader: TickReader
) -> None:
    now = [0.0]
    reader._clock = lambda: now[0]
    watch(TickTarget(str(work), period_ms=60_000), reader)
    assert latest(reader) == BEFORE
    watch(TickTarget(str(work), period_ms=60_000, available_now=True), reader)
    assert latest(reader) == {"batch": 5}
    plan(work, 5, watermark=2000, timestamp=LONG_AGO)
    commit(work, 5, watermark=2000)
    now[0] = 1e6
    assert latest(reader, {"batch": 5}) == {"batch": 5}


def test_a_query_that_is_to_end_does_follow_the_watermark(work: Path, reader: TickReader) -> None:
    watch(TickTarget(str(work), event_time=True, period_ms=60_000, available_now=True), reader)
    latest(reader)
    commit(work, 4, watermark=3000)
    assert latest(reader) == {"batch": 5}


def test_a_source_that_is_aimed_anew_watches_the_new_run(
    work: Path, tmp_path: Path, reader: TickReader
) -> None:
    commit(work, 4, watermark=3000)
    watch(TickTarget(str(tmp_path / "other"), event_time=True), reader)
    assert latest(reader) == BEFORE
    watch(TickTarget(str(work), event_time=True), reader)
    assert latest(reader) == {"batch": 5}


def test_for_pyspark_4_1_the_source_knows_by_itself_where_the_last_batch_has_ended(
    work: Path, reader: TickReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspark_versions, "_IS_4_1", True)
    watch(TickTarget(str(work), event_time=True), reader)
    first: Any = pyspark_versions.stream_reader(reader)
    assert (first.initialOffset(), first.latestOffset()) == (BEFORE, BEFORE)
    commit(work, 4, watermark=3000)
    assert first.latestOffset() == first.latestOffset() == {"batch": 5}
    plan(work, 5, watermark=3000, timestamp=LONG_AGO)
    commit(work, 5, watermark=3000)
    assert first.latestOffset() == {"batch": 5}
    # A query that goes on shows its source the end of its last batch, as an empty range.
    second: Any = pyspark_versions.stream_reader(TickReader(reader._target))
    assert second.partitions({"batch": 5}, {"batch": 5}) == []
    assert second.latestOffset() == {"batch": 5}


def test_no_task_ever_runs_to_read_nothing(tmp_path: Path) -> None:
    reader = TickSource({"target": str(tmp_path / "t.json")}).streamReader(StructType())
    assert reader.initialOffset() == BEFORE
    assert list(reader.partitions(BEFORE, {"batch": 5})) == []
