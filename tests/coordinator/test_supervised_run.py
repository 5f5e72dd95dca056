"""A program that runs a pipeline until it ends, or until a signal asks it to."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from chandy.coordinator.errors import ArgumentError, SetupError
from chandy.coordinator.supervised_run import Exit
from chandy.storage.errors import FencedError

from .. import insides
from ..waiting import DEADLINE, eventually
from .stand_in_pipeline import Coordinated, OtherThread, commit, stored
from .stand_in_pipeline import pipeline as pipeline


def meanwhile(act: Callable[[], object]) -> threading.Thread:
    """Act on another thread once the run handles signals."""
    before = signal.getsignal(signal.SIGTERM)

    def wait() -> None:
        eventually(lambda: signal.getsignal(signal.SIGTERM) is not before)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def is_stopped(pipeline: Coordinated) -> bool:
    return pipeline.coordinator.life.is_over


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_pipeline_with_a_last_checkpoint(
    pipeline: Coordinated, tmp_path: Path, number: signal.Signals
) -> None:
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    pipeline.start("q")
    commit(pipeline, 0)
    thread = meanwhile(lambda: os.kill(os.getpid(), number))
    assert pipeline.coordinator.run() is Exit.DONE
    thread.join(DEADLINE)
    assert is_stopped(pipeline)
    assert stored(tmp_path) == [1]
    assert {one: signal.getsignal(one) for one in before} == before


def test_the_run_is_over_when_all_queries_have_ended(pipeline: Coordinated) -> None:
    for name in ("a", "b"):
        pipeline.start(name)
    thread = meanwhile(lambda: [run.stop() for run in pipeline.runs])
    assert pipeline.coordinator.run() is Exit.DONE
    thread.join(DEADLINE)
    assert is_stopped(pipeline)


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (SetupError("it cannot go on", "anything", "a bad end"), 70),
        (FencedError("file:///s", 1, 2, "another driver"), 75),
    ],
)
def test_the_exit_code_says_whether_to_start_again(
    pipeline: Coordinated, caplog: pytest.LogCaptureFixture, error: SetupError | FencedError, ending: int
) -> None:
    caplog.set_level("INFO", "chandy")
    query = pipeline.start("q")
    thread = meanwhile(lambda: insides.supervisor(pipeline.coordinator)._fail_for_good(error))
    assert pipeline.coordinator.run() == ending
    thread.join(DEADLINE)
    assert type(query.exception()) is type(error)
    assert is_stopped(pipeline)
    told = next(line for line in caplog.messages if "the run is over" in line)
    assert f"exit_code={ending}" in told
    assert ("a bad end" if ending == 70 else "another driver") in told


def test_a_second_signal_does_what_it_did_before(pipeline: Coordinated) -> None:
    pipeline.start("q")
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    try:
        pipeline.runs[-1].on_stop = lambda: os.kill(os.getpid(), signal.SIGTERM)
        thread = meanwhile(lambda: os.kill(os.getpid(), signal.SIGTERM))
        assert pipeline.coordinator.run() is Exit.DONE
        thread.join(DEADLINE)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert came == [signal.SIGTERM]


def test_there_must_be_something_to_run_in_the_main_thread(pipeline: Coordinated) -> None:
    with pytest.raises(ArgumentError, match="there is nothing to run"):
        pipeline.coordinator.run()
    pipeline.start("q")
    elsewhere = OtherThread(pipeline.coordinator.run).end()
    assert isinstance(elsewhere.error, ArgumentError)
    assert "main thread" in str(elsewhere.error)
