"""The clock by which files leave a log, which makes none leave too early although a machine's time of day is wrong."""

from __future__ import annotations

import time
from typing import Final

import attrs

STOPPED: Final = 0.1
"""For how much of the retention the time since the newest entry counts at most when a life begins: nobody can tell a
driver that did not run for so long from one whose time of day is ahead."""


@attrs.frozen
class LogClock:
    """Seconds since 1970, as one life of a writer has them. It goes on steadily, however the time of day is set."""

    _offset: float
    """To the steady clock of this process."""

    @classmethod
    def begin(cls, newest: float | None, retention: float | None, *, is_new: bool) -> LogClock:
        """Begin or go on with a life.

        Args:
            newest: when the newest entry of the log was created, by its writer's clock; None: there is none. It may lie
                in the future, and then it is not believed.
            retention: seconds for which files stay in the log at least; None: for ever.
            is_new: whether the life begins. Of one that goes on, what has passed since the entry is not known.
        """
        now = time.time()
        if newest is not None and retention is not None:
            now = min(now, newest + (STOPPED * retention if is_new else 0.0))
        return cls(now - time.monotonic())

    def __call__(self) -> float:
        """Return the time."""
        return self._offset + time.monotonic()
