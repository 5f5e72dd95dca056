"""Savepoints by schedule: when one is taken, and that each request comes to its end."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.coordinator.execution import savepoint_schedule as module
from chandy.coordinator.execution.savepoint_schedule import SavepointSchedule, next_savepoint
from chandy.storage.checkpoints.proof import Unshared
from chandy.storage.checkpoints.scheduled import ScheduledSavepoint
from chandy.storage.ids import CheckpointId

from ...builders import MemoryStore

DAY = 86400.0


@attrs.define
class Days:
    """A schedule whose savepoints and time the test makes."""

    monkeypatch: pytest.MonkeyPatch
    now: float = 1000 * DAY
    is_ready: bool = True
    there: list[ScheduledSavepoint] = attrs.field(factory=list)
    taken: list[Future[Any]] = attrs.field(factory=list)
    dropped: list[int] = attrs.field(factory=list)
    schedule: SavepointSchedule = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.monkeypatch.setattr(module, "scheduled", lambda *_: tuple(self.there))
        self.monkeypatch.setattr(module, "drop", self.drop)
        self.schedule = SavepointSchedule(
            every=DAY,
            keep=2,
            store=MemoryStore(),
            open_store=lambda _: MemoryStore(),
            is_ready=lambda: self.is_ready,
            take=self.take,
            clock=lambda: self.now,
            proof=Unshared(),
            in_use=(),
        )

    def take(self) -> Future[Any]:
        self.taken.append(Future())
        return self.taken[-1]

    def drop(self, store: object, open_store: object, these: dict[CheckpointId, str], proof: object) -> None:
        self.dropped += these
        self.there = [one for one in self.there if one.id not in these]

    def completed(self, at: float) -> None:
        id = CheckpointId(len(self.taken) + 100)
        self.there.append(ScheduledSavepoint(id, f"s/{id}", at))

    def look_after(self, seconds: float) -> int:
        self.now += seconds
        self.schedule.look()
        return len(self.taken)


@pytest.fixture
def days(monkeypatch: pytest.MonkeyPatch) -> Days:
    return Days(monkeypatch)


def test_one_is_taken_each_day_and_the_oldest_expire(days: Days) -> None:
    for day in range(1, 5):
        assert days.look_after(0.0) == day
        assert days.look_after(2 * DAY) == day, "one is under way"
        days.completed(days.now)
        days.taken[-1].set_result(None)
        assert days.look_after(0.0) == day
        assert days.look_after(DAY - 1.0) == day
        days.now += 1.0
    assert days.dropped == [101, 102]


def test_the_next_driver_goes_on_with_the_schedule(days: Days) -> None:
    days.completed(days.now - DAY / 2)
    assert days.look_after(0.0) == 0
    assert days.look_after(DAY / 2) == 1


def test_none_is_taken_before_the_queries_have_been_started(days: Days) -> None:
    days.is_ready = False
    assert days.look_after(2 * DAY) == 0
    days.is_ready = True
    assert days.look_after(0.0) == 1


def test_one_that_fails_is_tried_again_soon(days: Days, caplog: pytest.LogCaptureFixture) -> None:
    assert days.look_after(0.0) == 1
    days.taken[0].set_exception(OSError("the disk is full"))
    assert days.look_after(0.0) == 1
    assert "the disk is full" in caplog.text
    assert days.look_after(59.0) == 1
    assert days.look_after(1.0) == 2


@given(completed_at=st.floats(0, 1e10), now=st.floats(0, 1e10), every=st.floats(1, 1e7))
def test_no_clock_of_an_earlier_driver_holds_a_savepoint_up_for_ever(
    completed_at: float, now: float, every: float
) -> None:
    assert next_savepoint(completed_at, now, every) <= now + every
