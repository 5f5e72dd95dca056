"""A JVM that answers nothing any more is ended, so that nothing waits for it without end."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.coordinator.errors import JavaEndedError
from chandy.coordinator.spark.java_watch import JavaWatch, UnansweredTime
from chandy.state.local.processes import Process

from ...waiting import DEADLINE, eventually, freeze

PAUSE = 0.01


@pytest.fixture
def java() -> Iterator[subprocess.Popen[bytes]]:
    """A process in the place of a JVM."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


class Answers:
    """Answers each question, with an error if need be, until it falls silent."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked = 0
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._error = error

    def __call__(self) -> None:
        self.asked += 1
        assert self.may_answer.wait(DEADLINE)
        if self._error is not None:
            raise self._error


def begin(java: subprocess.Popen[bytes], ask: Answers, timeout: float | None) -> JavaWatch:
    watch = JavaWatch(Process.of(java.pid), ask, timeout, pause=PAUSE)
    watch.start()
    return watch


def test_a_jvm_that_does_not_answer_is_ended_though_it_is_stopped(java: subprocess.Popen[bytes]) -> None:
    ask = Answers()
    watch = begin(java, ask, timeout=5 * PAUSE)
    freeze(java.pid)
    ask.may_answer.clear()
    assert java.wait(DEADLINE) == -signal.SIGKILL
    with pytest.raises(JavaEndedError, match="more time by java_timeout of CheckpointConfig"):
        watch.check()
    ask.may_answer.set()


@pytest.mark.parametrize("error", [None, ValueError("a wrong question")])
def test_a_jvm_that_answers_goes_on(java: subprocess.Popen[bytes], error: Exception | None) -> None:
    ask = Answers(error)
    watch = begin(java, ask, timeout=DEADLINE)
    eventually(lambda: ask.asked > 20)
    watch.check()
    assert java.poll() is None
    watch.close()


def test_without_a_time_out_a_silent_jvm_is_not_ended(java: subprocess.Popen[bytes]) -> None:
    ask = Answers()
    ask.may_answer.clear()
    watch = begin(java, ask, timeout=None)
    eventually(lambda: ask.asked == 1)
    watch.check()
    ask.may_answer.set()
    eventually(lambda: ask.asked > 1)
    assert java.poll() is None
    watch.close()


def test_of_a_jvm_that_has_ended_by_itself_nobody_says_that_it_was_silent(
    java: subprocess.Popen[bytes],
) -> None:
    watch = JavaWatch(Process.of(java.pid), Answers(), timeout=1.0)
    java.kill()
    java.wait()
    with pytest.raises(JavaEndedError, match="has ended, and all queries with it"):
        watch.check()


def test_a_jvm_that_cannot_be_seen_is_not_taken_for_dead() -> None:
    JavaWatch(Process(2**30, 0), Answers(), timeout=1.0).check()


@given(st.lists(st.tuples(st.floats(0.0, 1e6), st.booleans()), min_size=1))
def test_silence_counts_only_while_this_process_has_been_running(steps: list[tuple[float, bool]]) -> None:
    silence = UnansweredTime(longest_step=2.0)
    seconds = [silence.after(passed, answered=answered) for passed, answered in steps]
    since = len(steps)
    for number, (_, answered) in enumerate(steps):
        since = 0 if answered else since + 1 if number else 1
        assert seconds[number] <= 2.0 * since
        assert (seconds[number] == 0.0) or not answered


def test_a_machine_that_was_suspended_finds_no_silence() -> None:
    silence = UnansweredTime(longest_step=2.0)
    assert silence.after(1.0, answered=False) == 1.0
    assert silence.after(8 * 3600.0, answered=False) == 3.0
    assert silence.after(1.0, answered=True) == 0.0
