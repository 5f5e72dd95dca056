"""How far a restore is, in the log, and what it took."""

from __future__ import annotations

import logging

import pytest

from chandy.state.host.restoring import RestoreLog, RestoreTally
from chandy.storage.checkpoints.restore import RestoreReport


def test_a_restore_that_takes_long_is_told_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now = [100.0]
    told = RestoreLog("op/3", 1000, lambda: now[0])
    for _ in range(25):
        now[0] += 1.0
        told(40)
    assert [record.message for record in caplog.records] == [
        "event=restoring shard=op/3 bytes=400 of=1000 percent=40",
        "event=restoring shard=op/3 bytes=800 of=1000 percent=80",
    ]


def test_the_shards_of_a_claim_share_out_the_time_until_the_last_is_open() -> None:
    now = [100.0]
    tally = RestoreTally(lambda: now[0])
    tally.granted(2)
    tally.wanted()
    # Side by side: six seconds of work in four.
    for shard in range(2):
        tally.files(shard, 2.0, RestoreReport(files=3, bytes=50, cached_bytes=40, downloaded_bytes=10))
        tally.opened(1.0)
    assert tally.end("host", "q", "op") is None
    now[0] += 4.0
    told = tally.end("host", "q", "op")
    assert told is not None
    assert (told.files, told.opening) == (pytest.approx(4 * 4 / 6), pytest.approx(4 * 2 / 6))
    assert (told.found_bytes, told.downloaded_bytes) == (80, 20)


@pytest.mark.parametrize(
    ("wanted", "ahead", "waited"), [([3.0], 3.0, 1.0), ([1.0, 3.0], 1.0, 3.0), ([], 4.0, 0.0)]
)
def test_only_what_a_task_waits_for_counts_as_waiting(
    wanted: list[float], ahead: float, waited: float
) -> None:
    now = [100.0]
    tally = RestoreTally(lambda: now[0])
    tally.granted(1)
    for seconds in wanted:
        now[0] = 100.0 + seconds
        tally.wanted()
    tally.files(0, 3.0, RestoreReport(files=1, bytes=50, cached_bytes=50, downloaded_bytes=0))
    tally.opened(1.0)
    now[0] = 104.0
    told = tally.end("host", "q", "op")
    assert told is not None
    assert told.ahead == pytest.approx(ahead)
    assert (told.files, told.opening) == (pytest.approx(waited * 3 / 4), pytest.approx(waited / 4))


def test_shards_that_begin_empty_have_nothing_to_restore() -> None:
    tally = RestoreTally()
    tally.granted(1)
    tally.wanted()
    told = tally.end("host", "q", "op")
    assert told is not None
    assert (told.ahead, told.files, told.opening, told.downloaded_bytes) == (0.0, 0.0, 0.0, 0)
