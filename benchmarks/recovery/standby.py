"""Chandy with a warm standby as a contestant: a second driver that waits while the first one runs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from typing_extensions import override

from ..lives import Life
from ..stores import StoreAt
from .chandy import Chandy, split
from .scenario import Course, Failure, Recovered

KILLED: Final = (Failure.DRIVER,)
"""What a standby is for. In other failures it does nothing."""


class WarmStandby(Chandy):
    """Two drivers of one pipeline. When the first is killed, the second takes over, and nothing is started."""

    name = "Chandy, warm standby"

    def __init__(self, course: Course, folder: Path, store: StoreAt) -> None:
        """See ``Chandy``."""
        super().__init__(course, folder, store)
        self.failures = KILLED
        self._spare: Life | None = None

    def fail(self, failure: Failure) -> Recovered:
        """Kill the leader. The time is until the first batch of the standby has committed."""
        assert self._life is not None
        assert self._spare is not None
        self._checkpoint(self._life)
        self._feed.replayed(self._life)
        failed_at = self._kill_all(self._life)
        life = self._life = self._spare
        self._spare = None
        newest = self._feed.next()
        back_at = self._feed.await_commit(newest, life)
        # The session was there before the kill.
        marks = {"session": failed_at, "coordinator": life.await_event("coordinator")["at"]}
        return Recovered(
            failure, back_at - failed_at, split(failed_at, back_at, marks, life.await_event("recovery"))
        )

    def rest(self) -> None:
        """See ``Contestant``."""
        if self._spare is not None:
            self._spare.__exit__()
            self._spare = None
        super().rest()

    def wake(self) -> None:
        """Start the leader, then the standby, and wait until that is warm."""
        super().wake()
        self._spare = self._start()
        self._spare.await_event("warm")

    def close(self) -> None:
        """See ``Contestant``."""
        if self._spare is not None:
            self._spare.__exit__()
        super().close()

    @override
    def _arguments(self) -> list[str]:
        return [*super()._arguments(), "--standby"]
