"""How far a query is in its input does not depend on how the input was cut into batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.file_source import committed_entry, planned_entry, reported_entry


def plan(directory: Path, batch: int, entry: int) -> None:
    path = directory / "offsets" / str(batch)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'v1\n{{"batchWatermarkMs":0}}\n{{"logOffset":{entry}}}')


def commit(directory: Path, batch: int) -> None:
    path = directory / "commits" / str(batch)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


@pytest.mark.parametrize(("offset", "entry"), [('{"logOffset": 51}', 51), ("null", -1)])
def test_a_report_tells_the_newest_entry(offset: str, entry: int) -> None:
    report: dict[str, Any] = {"batchId": 7, "sources": [{"endOffset": offset}]}
    assert reported_entry(report) == entry


def test_the_newest_entry_is_that_of_the_newest_batch_that_has_committed(tmp_path: Path) -> None:
    assert committed_entry(tmp_path) == -1
    # Two entries in batch 9: its query was killed before it was planned.
    for batch, entry in [(8, 8), (9, 10), (10, 11)]:
        plan(tmp_path, batch, entry)
    assert planned_entry(tmp_path, 10) == 11
    assert committed_entry(tmp_path) == -1
    commit(tmp_path, 8)
    assert committed_entry(tmp_path) == 8
    commit(tmp_path, 9)
    assert committed_entry(tmp_path) == 10


def test_a_record_that_was_purged_tells_nothing(tmp_path: Path) -> None:
    commit(tmp_path, 3)
    assert committed_entry(tmp_path) == -1
