"""A user's function is told of everything in order, and nothing waits for it."""

from __future__ import annotations

import logging
import threading

import pytest

from chandy.coordinator.config import CheckpointConfig
from chandy.coordinator.errors import ConfigError
from chandy.coordinator.monitor import announcer
from chandy.coordinator.monitor.announcer import Announcer
from chandy.coordinator.recovery.pipeline_events import PipelineEnded, PipelineEvent

from ...waiting import DEADLINE, eventually


def event(number: int) -> PipelineEvent:
    return PipelineEnded(at=float(number), error=None)


def test_it_is_told_of_all_in_order_before_the_end_whatever_it_raises(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[float] = []

    def listen(given: PipelineEvent) -> None:
        told.append(given.at)
        if given.at == 3:
            raise ValueError("no such channel")

    made = Announcer(listen)
    for number in range(10):
        made.tell(event(number))
    made.close()
    assert told == list(range(10))
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "no such channel" in caplog.text


def test_nothing_waits_for_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(announcer, "_WAITING", 5)
    monkeypatch.setattr(announcer, "_END_SECONDS", 0.01)
    begun, released, told = threading.Event(), threading.Event(), list[float]()

    def hang(given: PipelineEvent) -> None:
        begun.set()
        assert released.wait(DEADLINE)
        told.append(given.at)

    made = Announcer(hang)
    made.tell(event(0))
    assert begun.wait(DEADLINE)
    for number in range(1, 20):
        made.tell(event(number))
    made.close()
    assert "events are taken more slowly than they come" in caplog.text
    assert "a listener hangs" in caplog.text
    assert "dropped=14" in caplog.text
    # What waits for it is told if it goes on after all, and then the thread ends.
    released.set()
    eventually(lambda: not made._thread.is_alive())
    assert told == [0, 1, 2, 3, 4, 5]


def test_it_may_stop_the_pipeline(caplog: pytest.LogCaptureFixture) -> None:
    done = threading.Event()

    def stop(given: PipelineEvent) -> None:
        made.close()
        done.set()

    made = Announcer(stop)
    made.tell(event(0))
    assert done.wait(DEADLINE)
    eventually(lambda: not made._thread.is_alive())
    assert caplog.text == ""


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(ConfigError, match="on_event: expected a function"):
        CheckpointConfig(on_event="page me")  # type: ignore[arg-type]
