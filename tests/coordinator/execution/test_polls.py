"""Polls are taken until they are closed, whatever becomes of one of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack

import pytest

from chandy.coordinator.execution import polls as module
from chandy.coordinator.execution.polls import Poll, Polls

from ...waiting import DEADLINE, eventually

Begin = Callable[[Mapping[str, Callable[[], None]]], Polls]


@pytest.fixture
def begin() -> Iterator[Begin]:
    with ExitStack() as closing:

        def begin_watch(looks: Mapping[str, Callable[[], None]]) -> Polls:
            watch = Polls.begin({aim: Poll(take, 0.01) for aim, take in looks.items()})
            closing.callback(watch.close)
            return watch

        yield begin_watch


def test_a_look_that_takes_long_holds_up_no_other_and_is_not_begun_again(begin: Begin) -> None:
    go_on, hangs, looks = threading.Event(), list[None](), list[None]()

    def hang() -> None:
        hangs.append(None)
        assert go_on.wait(DEADLINE)

    begin({"start hosts": hang, "empty hosts": lambda: looks.append(None)})
    eventually(lambda: len(looks) > 3)
    assert len(hangs) == 1
    go_on.set()
    eventually(lambda: len(hangs) > 1)


def test_a_look_that_fails_is_taken_again_and_told_of_once_until_one_succeeds(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, object]] = []
    monkeypatch.setattr(module.log, "warning", lambda event, error: said.append((event, error)))
    outcomes = iter([*["fails"] * 3, "succeeds", *["fails"] * 3])
    ended = threading.Event()

    def look() -> None:
        outcome = next(outcomes, None)
        if outcome is None:
            ended.set()
        if outcome == "fails":
            raise ConnectionError("no executor answers")

    watch = begin({"start hosts": look})
    assert ended.wait(DEADLINE)
    watch.close()
    assert said == [("could not start hosts", "no executor answers")] * 2


def test_each_look_has_a_time_of_its_own() -> None:
    often, seldom = list[None](), list[None]()
    watch = Polls.begin(
        {
            "look often": Poll(lambda: often.append(None), 0.01),
            "look seldom": Poll(lambda: seldom.append(None), 2 * DEADLINE),
        }
    )
    eventually(lambda: len(often) > 5)
    watch.close()
    assert len(seldom) == 1


def test_no_look_is_taken_after_the_end(begin: Begin) -> None:
    looks: list[None] = []
    watch = begin({"start hosts": lambda: looks.append(None)})
    eventually(lambda: bool(looks))
    watch.close()
    (thread,) = watch._threads
    thread.join(DEADLINE)
    assert not thread.is_alive()
