"""When a silent state host is suspected, cleared, and taken for lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chandy.coordinator.protocol.host_watch import (
    Cleared,
    HostWatch,
    Suspected,
    TakenForLost,
    Verdict,
)


def watch(
    until: int, pulses: Callable[[int], bool] = lambda second: False, timeout: float = 30.0
) -> list[tuple[int, Verdict]]:
    """Look once a second at a host that has joined at 0; return what is found, with its time."""
    watched = HostWatch(timeout)
    watched.heard("host", 0.0)
    found: list[tuple[int, Verdict]] = []
    for second in range(until + 1):
        if pulses(second):
            watched.heard("host", second)
        found += [(second, verdict) for verdict in watched.look(second)]
    return found


def test_a_host_that_is_heard_of_is_not_suspected() -> None:
    assert watch(100, lambda second: second % 4 == 0) == []


def test_a_silent_host_is_suspected_once_and_taken_for_lost_once() -> None:
    assert watch(100) == [(5, Suspected("host", 5.0)), (30, TakenForLost("host", 30.0))]


def test_a_host_that_is_heard_of_again_is_cleared() -> None:
    found = watch(50, lambda second: second >= 20)
    assert found == [(5, Suspected("host", 5.0)), (20, Cleared("host"))]


@pytest.mark.parametrize("timeout", [1.0, 5.0])
def test_a_timeout_below_the_time_of_suspicion_holds(timeout: float) -> None:
    assert watch(100, timeout=timeout) == [(timeout, TakenForLost("host", timeout))]


def test_a_host_that_has_left_is_not_watched() -> None:
    watched = HostWatch(30.0)
    watched.heard("host", 0.0)
    watched.forget("host")
    watched.forget("host")
    assert watched.look(100.0) == ()


def test_silence_does_not_count_while_nobody_listens() -> None:
    # The driver was stopped for 100 seconds, and so was perhaps the whole machine.
    watched = HostWatch(30.0)
    watched.heard("host", 0.0)
    assert watched.look(1.0) == ()
    assert watched.look(101.0) == ()
    found = [verdict for second in range(102, 140) for verdict in watched.look(float(second))]
    assert [type(verdict) for verdict in found] == [Suspected, TakenForLost]
    assert watched.look(500.0) == ()


def test_one_host_is_judged_apart_from_another() -> None:
    watched = HostWatch(30.0)
    for second in range(40):
        watched.heard("living", second)
        if second == 0:
            watched.heard("frozen", 0.0)
        found = watched.look(second)
        assert not any(verdict.host == "living" for verdict in found)
