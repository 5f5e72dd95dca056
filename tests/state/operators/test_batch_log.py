"""The times of batches are read from the logs in a working directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from chandy.state.errors import UnreadableFileError
from chandy.state.operators.batch_log import batch_times, newest_committed, watermark_after
from chandy.state.rpc.messages import BatchTimes

from ..batch_logs import commit, plan, write


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_batch_has_its_own_watermark_and_rows_are_late_by_that_of_the_batch_before(
    tmp_path: Path, version: str
) -> None:
    plan(tmp_path, 6, watermark=1000, timestamp=50, version=version)
    plan(tmp_path, 7, watermark=2000, timestamp=60, version=version)
    assert batch_times(tmp_path, 7) == BatchTimes(timestamp_ms=60, watermark_ms=2000, late_ms=1000)


def test_for_the_first_batch_nothing_is_late(tmp_path: Path) -> None:
    plan(tmp_path, 0, watermark=0, timestamp=50)
    assert batch_times(tmp_path, 0) == BatchTimes(timestamp_ms=50, watermark_ms=0, late_ms=0)


def test_with_one_watermark_for_all_a_batch_has_late_rows_by_its_own(tmp_path: Path) -> None:
    plan(tmp_path, 6, watermark=1000, timestamp=50)
    plan(tmp_path, 7, watermark=2000, timestamp=60)
    assert batch_times(tmp_path, 7, single_watermark=True).late_ms == 2000


def test_the_times_of_a_batch_stay_when_it_has_committed_and_others_follow(tmp_path: Path) -> None:
    plan(tmp_path, 6, watermark=1000, timestamp=50)
    plan(tmp_path, 7, watermark=2000, timestamp=60)
    before = batch_times(tmp_path, 7)
    commit(tmp_path, 7, watermark=9000)
    plan(tmp_path, 8, watermark=9000, timestamp=70)
    assert batch_times(tmp_path, 7) == before


def test_the_commit_log_tells_the_newest_batch_and_the_next_watermark(tmp_path: Path) -> None:
    assert newest_committed(tmp_path) == -1
    for batch in (9, 10):
        commit(tmp_path, batch, watermark=batch * 100, version="v2")
    write(tmp_path / "commits" / ".10.crc", "x")
    assert newest_committed(tmp_path) == 10
    assert watermark_after(tmp_path, 10) == 1000


@pytest.mark.parametrize("text", ["", "v1", "v1\nno JSON", "v1\n[1]", 'v1\n{"batchTimestampMs":1}'])
def test_a_log_that_is_not_sparks_is_named(tmp_path: Path, text: str) -> None:
    write(tmp_path / "offsets" / "3", text)
    with pytest.raises(UnreadableFileError) as caught:
        batch_times(tmp_path, 3)
    assert caught.value.what.endswith("offsets/3")


def test_a_batch_that_is_in_no_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError, match="offsets/3: expected a planned batch"):
        batch_times(tmp_path, 3)
    with pytest.raises(UnreadableFileError, match="commits/3: expected a committed batch"):
        watermark_after(tmp_path, 3)
