"""How far a restore is, in the log."""

from __future__ import annotations

import logging

import pytest

from chandy.state.host.restoring import RestoreLog


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
