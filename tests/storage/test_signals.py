"""A signal asks for the end whatever the thread is at that it interrupts."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from chandy.storage.signals import EndSignal


@pytest.fixture
def before() -> Iterator[list[int]]:
    """The signals that a handler from before has got."""
    came: list[int] = []
    earlier = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    yield came
    signal.signal(signal.SIGTERM, earlier)


def lines_of_waiting(asked: EndSignal, seconds: float | None, interrupted: int | None) -> int:
    """Wait, and be interrupted by a signal in one line of Python; return how many lines there are."""
    lines = itertools.count()

    def trace(frame: FrameType, event: str, given: Any) -> Any:
        if event == "line" and next(lines) == interrupted:
            os.kill(os.getpid(), signal.SIGTERM)
        return trace

    sys.settrace(trace)
    try:
        asked.wait(seconds)
    finally:
        sys.settrace(None)
    return next(lines)


def test_a_signal_in_any_line_of_waiting_ends_it(before: list[int]) -> None:
    with EndSignal(signal.SIGTERM) as asked:
        lines = lines_of_waiting(asked, 0.0, None)
        assert not asked.has_come
    # The last three come once the time is up.
    for line in range(lines - 3):
        with EndSignal(signal.SIGTERM) as asked:
            # Nothing but the signal would end it.
            lines_of_waiting(asked, None, line)
            assert (asked.number, asked.has_come) == (signal.SIGTERM, True)
            assert asked.wait(), "it has come, and is waited for again"
    assert before == []


def test_the_second_signal_does_what_it_did_before_if_the_first_is_enough(before: list[int]) -> None:
    with EndSignal(signal.SIGTERM, once=True):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
    assert before == [signal.SIGTERM]
    with EndSignal(signal.SIGTERM) as asked:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        assert asked.wait()
    assert before == [signal.SIGTERM], "a process that is ending is not ended by impatience"


def test_another_signal_ends_no_waiting(before: list[int]) -> None:
    with EndSignal(signal.SIGINT) as asked:
        os.kill(os.getpid(), signal.SIGTERM)
        assert not asked.wait(0.0)
    assert before == [signal.SIGTERM]
