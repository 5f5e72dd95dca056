"""People are warned of a disk that fills up, once and in time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.coordinator.execution.disk_watch import DiskWatch, FreeSpace, seconds_until_full
from chandy.state.rpc.messages import DiskSpace, HostHello

HELLO = HostHello("host", "address", "machine", "executor", 1)
SIZE = 1_000_000


def disk(free: int) -> DiskSpace:
    return DiskSpace(free, SIZE)


@given(st.integers(1, 10_000), st.integers(1, 1_000), st.integers(11, 120))
def test_a_disk_that_fills_up_evenly_is_full_when_it_is(rate: int, left: int, minutes: int) -> None:
    readings = [FreeSpace(60.0 * at, rate * 60 * (minutes - 1 - at) + rate * left) for at in range(minutes)]
    assert seconds_until_full(readings) == pytest.approx(left, rel=0.001)


@pytest.mark.parametrize(
    "readings",
    [
        [],
        [FreeSpace(0, 500)],
        # Watched for too short a time.
        [FreeSpace(0, 500), FreeSpace(300, 400)],
        [FreeSpace(0, 500), FreeSpace(900, 500)],
        [FreeSpace(0, 400), FreeSpace(900, 500)],
    ],
)
def test_nobody_can_tell_when_a_disk_is_full_that_does_not_fill_up(readings: list[FreeSpace]) -> None:
    assert seconds_until_full(readings) is None


def test_one_that_is_full_soon_is_told_of_once_and_again_after_it_was_well() -> None:
    watch, now, told = DiskWatch(), 0.0, []

    def minutes(count: int, free: int, rate: int) -> int:
        nonlocal now
        for _ in range(count):
            now, free = now + 60, free + rate
            left = watch.heard(HELLO, disk(free), now)
            if left is not None:
                told.append(round(left / 3600))
        return free

    # Full in a hundred hours: nothing is said.
    free = minutes(120, SIZE, -100)
    assert told == []
    free = minutes(120, free, -2_500)
    assert len(told) == 1
    assert told[0] <= 6
    free = minutes(120, free, 2_000)
    assert len(told) == 1
    minutes(120, free, -2_500)
    assert len(told) == 2


def test_of_several_hosts_of_a_machine_the_fullest_disk_is_shown_until_its_host_is_gone() -> None:
    watch = DiskWatch()
    other = HostHello("other", "address", "machine", "executor", 2)
    for hello, free in ((HELLO, 10), (other, 5), (HostHello("far", "a", "far", "e", 3), 7)):
        watch.heard(hello, disk(free), 1.0)
    assert watch.by_machine() == {"machine": disk(5), "far": disk(7)}
    watch.left("other")
    watch.left("other")
    assert watch.by_machine() == {"machine": disk(10), "far": disk(7)}
