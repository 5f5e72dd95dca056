"""What the sinks of a query promise together, and which are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from chandy.coordinator.connectors.files.sink import FilesSink
from chandy.coordinator.connectors.postgres.sink import PostgresSink
from chandy.coordinator.connectors.tables.delta import DeltaSink
from chandy.coordinator.errors import ConfigError, WriterError
from chandy.coordinator.sinks.two_phase.sink_set import check_together, guarantee
from chandy.storage.errors import InvalidNameError

from .sqlite_sink import SqliteSink
from .writing_sink import WritingSink


def sqlite(publish: str = "checkpoint", uid: str = "sqlite") -> SqliteSink:
    return SqliteSink(Path("out.db"), ("k",), uid, publish)  # type: ignore[arg-type]


def test_a_sink_that_waits_for_checkpoints_is_exactly_once() -> None:
    found = guarantee([sqlite()])
    assert found.level == "exactly once"
    assert "rows become visible in SQLite with the checkpoint that has them, once" in found.because


def test_a_sink_that_publishes_batches_says_what_readers_may_see() -> None:
    found = guarantee([sqlite("batch")])
    assert found.level == "at least once"
    for said in (
        "upserted by key into SQLite before it commits",
        "before a checkpoint",
        "After going back",
        "stay",
    ):
        assert said in found.because
    assert "once;" not in found.because


@pytest.mark.parametrize("uid", ["", "../x", "a b", "a\n"])
def test_a_uid_must_be_a_name(uid: str) -> None:
    with pytest.raises(InvalidNameError, match="sink uid"):
        check_together([sqlite(uid=uid)])


def test_sinks_together_promise_what_the_weakest_does_and_each_its_own() -> None:
    found = guarantee([sqlite("batch"), FilesSink("/tmp/out")])
    assert found.level == "at least once"
    assert "into SQLite before it commits" in found.because
    assert "rows become visible in files with the checkpoint" in found.because


@pytest.mark.parametrize(
    "make",
    [
        lambda: PostgresSink(conninfo="", table="t", publish="batch"),
        lambda: DeltaSink("/tmp/table", publish="batch"),
    ],
)
def test_appending_batches_at_once_is_refused_because_they_may_run_again(make: object) -> None:
    with pytest.raises(ConfigError, match=r"may run again.*mode='append'.*leave publish"):
        make()  # type: ignore[operator]


def test_an_unknown_way_to_publish_is_refused() -> None:
    with pytest.raises(ConfigError, match="'at once'"):
        DeltaSink("/tmp/table", mode="upsert", key=["k"], publish="at once")  # type: ignore[arg-type]


def test_upserts_may_be_published_at_once() -> None:
    assert PostgresSink(conninfo="", table="t", mode="upsert", key="k", publish="batch").publish == "batch"
    assert DeltaSink("/tmp/table", mode="upsert", key=["k"], publish="batch").publish == "batch"


def test_a_sink_whose_tasks_write_for_themselves_cannot_publish_batches() -> None:
    check_together([WritingSink()])
    with pytest.raises(WriterError, match=r'WritingSink.*without publish="batch"'):
        check_together([WritingSink("batch")])
    with pytest.raises(WriterError, match="WritingSink"):
        check_together([WritingSink(), sqlite()])
