"""Files reach a stream whole and in order; progress in the input does not depend on how batches divide it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import file_source
from benchmarks.file_source import committed_entry, planned_entry, reported_entry, write_file


def plan(directory: Path, batch: int, entry: int) -> None:
    path = directory / "offsets" / str(batch)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'v1\n{{"batchWatermarkMs":0}}\n{{"logOffset":{entry}}}')


def commit(directory: Path, batch: int) -> None:
    path = directory / "commits" / str(batch)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def test_files_get_their_names_when_they_are_whole_and_times_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = pq.write_table
    seen: list[str] = []

    def half_written(rows: pa.Table, where: Path, **options: Any) -> None:
        where.touch()
        # Spark's file source ignores hidden files.
        seen.extend(path.name for path in tmp_path.iterdir() if not path.name.startswith("."))
        write(rows, where, **options)

    monkeypatch.setattr(file_source.pq, "write_table", half_written)
    rows = pa.table({"k": [1]})
    later, earlier = tmp_path / "a.parquet", tmp_path / "b.parquet"
    write_file(rows, later, 1)
    assert seen == []
    write_file(rows, earlier, 0)
    assert pq.read_table(later) == rows
    assert earlier.stat().st_mtime < later.stat().st_mtime
    assert sorted(tmp_path.iterdir()) == [later, earlier]


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
