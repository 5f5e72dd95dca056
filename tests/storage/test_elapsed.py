"""The clock of leases goes on whatever happens to the clocks of the machine."""

from __future__ import annotations

import attrs
from hypothesis import given
from hypothesis import strategies as st

from chandy.coordinator.execution.successor_watch import SuccessorWatch
from chandy.coordinator.leadership.lease import HeldLease
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.elapsed import ElapsedClock, elapsed

from ..builders import MemoryStore


@attrs.define
class SuspendedMachine:
    """A machine that can be suspended, and whose time of day can be set."""

    steady: float = 50.0
    wall: float = 1e9

    def clock(self) -> ElapsedClock:
        return ElapsedClock(lambda: self.steady, lambda: self.wall)


SECONDS = st.floats(0, 1e6)


@given(st.lists(st.tuples(SECONDS, st.floats(-1e6, 1e6)), max_size=20))
def test_it_never_goes_back_and_never_falls_behind_either_clock(steps: list[tuple[float, float]]) -> None:
    machine = SuspendedMachine()
    clock = machine.clock()
    began = last = clock()
    for run, leap in steps:
        machine.steady += run
        machine.wall += run + leap
        now = clock()
        assert now >= last
        last = now
    tolerance = 1e-3
    assert last - began >= machine.steady - 50.0 - tolerance
    assert last - began >= machine.wall - 1e9 - tolerance


def test_a_time_of_day_that_is_set_back_holds_it_up_for_no_moment() -> None:
    machine = SuspendedMachine()
    clock = machine.clock()
    began = clock()
    machine.steady += 1
    machine.wall -= 3600
    assert clock() - began == 1
    machine.steady += 1
    machine.wall += 1
    assert clock() - began == 2


def test_leases_and_looks_are_measured_by_it() -> None:
    catalog = Catalog(MemoryStore())
    lease = HeldLease(catalog, 1, 1.0)
    watch = SuccessorWatch(catalog, 1, trusts_look=1.0, hold_lease=lease.hold, within=None)
    assert lease._clock is elapsed
    assert watch._clock is elapsed
