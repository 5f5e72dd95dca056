"""What the coordinator asks of a Spark session and does to it, with a stand-in for one."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from chandy.coordinator import session
from chandy.state.reader.reading import register
from chandy.state.reader.source import StateSource

from .stand_ins import Spark

DEADLINE = 30.0


def prepared(master: str) -> Any:
    spark: Any = Spark(master)
    session.prepare(spark).result(DEADLINE)
    return spark


def test_the_state_source_is_made_known_to_each_session_once() -> None:
    # Spark warns of a source that takes another's place.
    one, other = prepared("local[2]"), prepared("local[2]")
    session.prepare(one).result(DEADLINE)
    assert one.registered == other.registered == [StateSource]
    # It is run by the Python of the time at which it was registered.
    one.pythonExec = "/other/python"
    register(one)
    assert one.registered == [StateSource, StateSource]


def test_a_session_that_takes_no_state_source_has_a_coordinator_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: Spark, source: Any) -> None:
        raise RuntimeError("no Python there")

    monkeypatch.setattr(Spark, "register", refuse)
    prepared("local[2]")
    assert "no Python there" in caplog.text


def test_the_coordinator_does_not_wait_until_the_state_source_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def register_slowly(self: Spark, source: Any) -> None:
        begun.set()
        assert may_end.wait(DEADLINE)

    monkeypatch.setattr(Spark, "register", register_slowly)
    spark: Any = Spark("local[2]")
    known = session.prepare(spark)
    assert begun.wait(DEADLINE)
    assert not known.done()
    may_end.set()
    known.result(DEADLINE)


def test_local_workers_run_by_this_python_unless_another_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert prepared("local[*]").pythonExec == sys.executable
    assert prepared("spark://host:7077").pythonExec == "python3"
    monkeypatch.setenv("PYSPARK_PYTHON", "/their/python")
    assert prepared("local[*]").pythonExec == "python3"


@pytest.mark.parametrize(
    ("master", "host"),
    [
        ("local", "127.0.0.1"),
        ("local[*]", "127.0.0.1"),
        ("local[2,3]", "127.0.0.1"),
        ("local-cluster[2,1,1024]", "driver.example"),
        ("spark://local:7077", "driver.example"),
    ],
)
def test_executors_of_their_own_reach_the_driver_by_its_name(master: str, host: str) -> None:
    spark: Any = Spark(master, **{"spark.driver.host": "driver.example"})
    assert session.driver_host(spark) == host
    assert session.is_local_mode(spark) == (host == "127.0.0.1")
