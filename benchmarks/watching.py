"""Follows a driver that must get on: says when it stands still, and what went wrong when it fails."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import attrs

from .lives import Event, Life

FAILED: Final = "failed"
"""The event in which a driver says itself why it fails; its field ``why`` says it."""
_POLL_SECONDS: Final = 0.1
_JVM_SECONDS: Final = 5.0
"""How long a JVM may outlive its driver; what the driver told last has been read by then."""


class DriverFailedError(Exception):
    """A driver failed, died or stood still; the message is for whoever started the program."""


@attrs.frozen
class Patience:
    """How many seconds a driver may take for its next step."""

    notice: float = 15.0
    """Until this is said."""
    give_up: float = 180.0
    """Until the driver counts as hung: far more than a step takes on a slow machine."""


@attrs.frozen
class Watch:
    """Follows one driver."""

    name: str
    life: Life
    log: Path
    """Of the driver; each message ends with it."""
    doing: Callable[[], str]
    """Says what the driver is at: "starting Spark"."""
    note: Callable[[str], None]
    """Shows a line to the user."""
    patience: Patience = attrs.field(factory=Patience)
    clock: Callable[[], float] = time.monotonic

    def events(self) -> Iterator[Event]:
        """Yield what the driver tells, until it has ended well.

        Raises:
            DriverFailedError: it failed, died or stood still.
        """
        step_at, died_at, noticed = self.clock(), math.inf, False
        while True:
            try:
                event = self.life.next_event(_POLL_SECONDS)
            except TimeoutError:
                if not self.life.is_alive:
                    died_at = min(died_at, self.clock())
            else:
                if event is None:
                    break
                if event["event"] == FAILED:
                    raise DriverFailedError(self.failed(event["why"]))
                yield event
                # Checkpoints are no steps: they go on while the stream stands still.
                if event["event"] != "checkpoint":
                    step_at, noticed = self.clock(), False
            now = self.clock()
            if now - died_at >= _JVM_SECONDS:
                break
            if now - step_at >= self.patience.give_up:
                raise DriverFailedError(self._hung(now - step_at))
            if now - step_at >= self.patience.notice and not noticed:
                noticed = True
                self.note(self._waiting(now - step_at))
        if (code := self.life.exit_code()) != 0:
            raise DriverFailedError(self._died(code))

    def failed(self, why: str) -> str:
        """Say that the driver failed and why."""
        return f"The {self.name} failed while {self.doing()}: {why.rstrip('.')}. {self._where}"

    def _died(self, code: int) -> str:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"The {self.name} (process {self.life.pid}) {how} while {self.doing()}. {self._where}"

    def _hung(self, seconds: float) -> str:
        return f"The {self._standing(seconds)} and was stopped. {self._where}"

    def _waiting(self, seconds: float) -> str:
        give_up = f"it will be stopped after {self.patience.give_up:g} s"
        return f"  the {self._standing(seconds)}; {give_up}. {self._where}"

    def _standing(self, seconds: float) -> str:
        return (
            f"{self.name} (process {self.life.pid}) made no progress for {seconds:.0f} s while {self.doing()}"
        )

    @property
    def _where(self) -> str:
        return f"Its log: {self.log}"
