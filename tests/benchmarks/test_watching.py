"""A driver without progress is reported, and is stopped in the end. The tests have a clock of their own."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import attrs
import pytest

from benchmarks.lives import Event, Life
from benchmarks.watching import DriverFailedError, Patience, Watch

PATIENCE = Patience(notice=15, give_up=100)


@attrs.define
class TellingDriver:
    """A driver that tells an event after so many seconds each."""

    script: list[tuple[float, str]]
    """Seconds since the event before, and its name; "" for the end."""
    now: float = 1000.0
    pid: int = 7
    is_alive: bool = True
    code: int = 0
    waited: float = 0.0
    notes: list[str] = attrs.field(factory=list)

    def next_event(self, timeout: float) -> Event | None:
        after, name = self.script[0] if self.script else (float("inf"), "")
        assert self.now < 1000 + 10 * PATIENCE.give_up, "it was not given up"
        if after > self.waited + timeout:
            self.waited += timeout
            self.now += timeout
            raise TimeoutError
        self.now += after - self.waited
        self.waited = 0.0
        del self.script[0]
        return {"event": name} if name else None

    def exit_code(self) -> int:
        return self.code

    def watch(self) -> Watch:
        return Watch(
            "driver",
            cast(Life, self),
            Path("log"),
            lambda: "streaming",
            lambda line: self.notes.append(f"{self.now - 1000:.0f}: {line.split(';')[0].strip()}"),
            PATIENCE,
            lambda: self.now,
        )

    def play(self) -> list[str]:
        return [event["event"] for event in self.watch().events()]


def stalled(seconds: int) -> str:
    return f"driver (process 7) made no progress for {seconds} s while streaming"


def test_a_driver_that_makes_progress_is_not_reported() -> None:
    driver = TellingDriver([(14, "process"), (14, "session"), (14, "batch"), (1, "")])
    assert driver.play() == ["process", "session", "batch"]
    assert driver.notes == []


def test_each_stall_is_reported_once() -> None:
    driver = TellingDriver([(20, "process"), (90, "session"), (1, "batch"), (1, "")])
    assert driver.play() == ["process", "session", "batch"]
    assert driver.notes == [f"15: the {stalled(15)}", f"35: the {stalled(15)}"]


@pytest.mark.parametrize("every", [3, 0.01])
def test_a_stalled_stream_is_given_up_although_checkpoints_continue(every: float) -> None:
    driver = TellingDriver([(1, "batch"), *[(every, "checkpoint")] * 100_000])
    with pytest.raises(DriverFailedError) as caught:
        driver.play()
    assert str(caught.value) == f"The {stalled(100)} and was stopped. Its log: log"
    assert driver.notes == [f"16: the {stalled(15)}"]


def test_a_dead_driver_is_not_waited_for_as_long_as_a_living_one() -> None:
    driver = TellingDriver([], is_alive=False, code=-9)
    with pytest.raises(DriverFailedError, match="was killed by SIGKILL while streaming"):
        driver.play()
    assert driver.now < 1000 + PATIENCE.notice
