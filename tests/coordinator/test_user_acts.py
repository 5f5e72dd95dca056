"""Whoever asks waits for the outcome alone, whatever carries it out is still at."""

from __future__ import annotations

import threading

import pytest

from chandy.coordinator.errors import PipelineFailedError
from chandy.coordinator.execution.locked_protocol import LockedProtocol
from chandy.coordinator.protocol.acts import ActKind
from chandy.coordinator.protocol.decisions import FatalError
from chandy.coordinator.protocol.errors import NotCarriedOutError
from chandy.coordinator.user_acts import UserActs, Wanted
from chandy.storage.errors import FencedError

from ..waiting import DEADLINE
from .protocol.bench import Bench


@pytest.fixture
def acts() -> UserActs:
    return UserActs(LockedProtocol(Bench().machine, lambda: 0.0))


class Slow:
    """Something that takes as long as it is let."""

    def __init__(self) -> None:
        self.begun, self.over, self.interrupted = threading.Event(), threading.Event(), threading.Event()

    def __call__(self, act: Wanted) -> None:
        act.interrupt = self.interrupted.set
        self.begun.set()
        assert self.over.wait(DEADLINE)


def asked(acts: UserActs, kind: ActKind, body: Slow) -> tuple[threading.Thread, list[Exception]]:
    """Have a user ask for something that begins; return what ends with the answer, and its error."""
    found: list[Exception] = []

    def ask() -> None:
        try:
            acts.do(kind, "r", body)
        except Exception as error:  # noqa: BLE001 (the test looks at it)
            found.append(error)

    user = threading.Thread(target=ask)
    user.start()
    assert body.begun.wait(DEADLINE)
    return user, found


def test_what_is_carried_out_is_answered_with_what_it_returns_or_raises(acts: UserActs) -> None:
    assert acts.do(ActKind.REPLICATE, "r", lambda _: 1) == 1

    def fail(act: Wanted) -> None:
        raise PipelineFailedError("so")

    with pytest.raises(PipelineFailedError, match="so"):
        acts.do(ActKind.REPLICATE, "r", fail)


def test_a_stop_answers_whoever_waits_and_begins_once_nothing_is_carried_out(acts: UserActs) -> None:
    slow = Slow()
    user, found = asked(acts, ActKind.REPLICATE, slow)
    still_at_it: list[bool] = []

    def interrupted() -> None:
        assert slow.interrupted.wait(DEADLINE)
        user.join(DEADLINE)
        still_at_it.append(not user.is_alive())
        slow.over.set()

    threading.Thread(target=interrupted).start()
    acts.do(ActKind.STOP, "p", lambda _: still_at_it.append(slow.over.is_set()))
    assert still_at_it == [True, True]
    assert isinstance(found[0], NotCarriedOutError)


def test_a_fence_answers_whoever_waits(acts: UserActs) -> None:
    slow = Slow()
    user, found = asked(acts, ActKind.DROP, slow)
    acts.protocol.handle(FatalError(FencedError("s", 1, 2, "another")))
    user.join(DEADLINE)
    slow.over.set()
    assert isinstance(found[0], FencedError)


def test_without_a_thread_the_caller_carries_it_out(acts: UserActs, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert acts.do(ActKind.STOP, "p", lambda _: threading.current_thread()) is threading.current_thread()


def test_who_adds_to_the_pipeline_may_stop_it_meanwhile(acts: UserActs) -> None:
    """As in the function that builds a query: a stop on another thread would wait for the lock of this one."""
    changing = threading.RLock()

    def stop(act: Wanted) -> bool:
        return changing.acquire(timeout=0)

    with acts.between_stops(changing):
        assert acts.do(ActKind.STOP, "p", stop), "it holds the lock"
    changing.release()
