"""Watches a driver: says when it makes no progress, and why it failed."""

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
"""The event by which a driver reports its own failure. The field ``why`` has the reason."""
_POLL_SECONDS: Final = 0.1
_JVM_SECONDS: Final = 5.0
"""How long a JVM may outlive its driver. The last events of the driver have been read by then."""


class DriverFailedError(Exception):
    """A driver failed, died or made no progress. The message is for the user of the program."""


@attrs.frozen
class Patience:
    """The seconds that a driver may take for its next step."""

    notice: float = 15.0
    """After so many seconds the user is told."""
    give_up: float = 180.0
    """After so many seconds the driver counts as hung. A step takes far less even on a slow machine."""


@attrs.frozen
class Watch:
    """Watches one driver."""

    name: str
    life: Life
    log: Path
    """The log of the driver. Each message names it."""
    doing: Callable[[], str]
    """Returns what the driver is doing, such as "starting Spark"."""
    note: Callable[[str], None]
    """Shows a line to the user."""
    patience: Patience = attrs.field(factory=Patience)
    clock: Callable[[], float] = time.monotonic

    def events(self) -> Iterator[Event]:
        """Yield the events of the driver until it has ended successfully.

        Raises:
            DriverFailedError: the driver failed, died or made no progress.
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
                # Checkpoints are not steps: they continue when the stream is stuck.
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
        """Return the message for a driver that failed, with the reason."""
        return f"The {self.name} failed while {self.doing()}: {why.rstrip('.')}. {self._where}"

    def _died(self, code: int) -> str:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"The {self.name} (process {self.life.pid}) {how} while {self.doing()}. {self._where}"

    def _hung(self, seconds: float) -> str:
        return f"The {self._stalled(seconds)} and was stopped. {self._where}"

    def _waiting(self, seconds: float) -> str:
        give_up = f"it will be stopped after {self.patience.give_up:g} s"
        return f"  the {self._stalled(seconds)}; {give_up}. {self._where}"

    def _stalled(self, seconds: float) -> str:
        return (
            f"{self.name} (process {self.life.pid}) made no progress for {seconds:.0f} s while {self.doing()}"
        )

    @property
    def _where(self) -> str:
        return f"Its log: {self.log}"
