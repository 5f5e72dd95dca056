"""Calls of clients without timeouts: each ends in time, and no more than a fixed number of them hang."""

from __future__ import annotations

import threading
import uuid

import pytest

from chandy.coordinator.connectors.tables import call_timeouts
from chandy.coordinator.connectors.tables.call_timeouts import within
from chandy.coordinator.sinks.two_phase.errors import TargetUnavailableError

from ...waiting import eventually


@pytest.fixture
def target() -> str:
    return f"the table {uuid.uuid4().hex}"


def test_an_answer_and_an_error_are_those_of_the_call(target: str) -> None:
    assert within(60, target, lambda: 7) == 7
    # A time-out of the client's own is not that of the call.
    with pytest.raises(TimeoutError, match="own"):
        within(60, target, lambda: (_ for _ in ()).throw(TimeoutError("own")))
    assert call_timeouts._under_way[target] == 0


def test_only_so_many_calls_hang_and_once_they_end_others_go_through(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_timeouts, "MOST", 3)
    comes_back = threading.Event()
    begun: list[int] = []

    def hang() -> None:
        begun.append(1)
        comes_back.wait()

    for _ in range(3):
        with pytest.raises(TargetUnavailableError, match="no answer") as error:
            within(0.01, target, hang)
        assert error.value.is_understood
    with pytest.raises(TargetUnavailableError, match="restart the driver") as error:
        within(60, target, lambda: begun.append(2))
    assert not error.value.is_understood
    assert 2 not in begun
    # Another target has calls of its own.
    assert within(60, f"{target} 2", lambda: 7) == 7
    comes_back.set()
    eventually(lambda: call_timeouts._under_way[target] == 0)
    assert within(60, target, lambda: 7) == 7
