"""Looks at the executors are taken until the watch is closed, whatever becomes of one of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack

import pytest

from chandy.coordinator.hosts import executor_watch
from chandy.coordinator.hosts.executor_watch import ExecutorWatch

from ...waiting import DEADLINE, eventually

Begin = Callable[[Mapping[str, Callable[[], None]]], ExecutorWatch]


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    monkeypatch.setattr(executor_watch, "_LOOK_SECONDS", 0.01)
    with ExitStack() as made:

        def begin_watch(looks: Mapping[str, Callable[[], None]]) -> ExecutorWatch:
            watch = ExecutorWatch.begin(looks)
            made.callback(watch.close)
            return watch

        yield begin_watch


def test_a_look_that_takes_long_holds_up_no_other_and_is_not_begun_again(begin: Begin) -> None:
    go_on, hangs, looks = threading.Event(), list[None](), list[None]()

    def hang() -> None:
        hangs.append(None)
        assert go_on.wait(DEADLINE)

    watch = begin({"start hosts": hang, "empty hosts": lambda: looks.append(None)})
    eventually(lambda: len(looks) > 3)
    assert len(hangs) == 1
    assert not watch._workers["start hosts"]._waiting
    go_on.set()
    eventually(lambda: len(hangs) > 1)


def test_a_look_that_fails_is_told_of_and_taken_again(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, object]] = []
    monkeypatch.setattr(executor_watch.log, "warning", lambda event, error: said.append((event, error)))

    def fail() -> None:
        raise ConnectionError("no executor answers")

    begin({"start hosts": fail})
    eventually(lambda: len(said) > 1)
    assert said[0] == ("could not start hosts", "no executor answers")


def test_no_look_is_taken_after_the_end(begin: Begin) -> None:
    looks: list[None] = []
    watch = begin({"start hosts": lambda: looks.append(None)})
    eventually(lambda: bool(looks))
    watch.close()
    watch._thread.join(DEADLINE)
    assert not watch._thread.is_alive()
    eventually(lambda: all(workers.is_idle for workers in watch._workers.values()))
