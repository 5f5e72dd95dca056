"""Jobs as steps: each call to something outside (a store, a query's files, the protocol) is one step of an iterator.

Threads take the steps of a job one right after the other. Tests take them one at a time, with anything else in between:
what a job does is written down once, and a fault that needs a certain moment is found without threads.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from ...storage import runtime


@attrs.frozen
class Pause:
    """A step that waits before the job goes on, and no longer than until nobody waits for any job."""

    seconds: float


JobSteps = Iterator[Pause | None]
"""What is left of a job. Anything may happen where it yields, and the job may end there."""


def take_all(steps: JobSteps, closed: runtime.Flag) -> None:
    """Take the steps of a job, one right after the other.

    Args:
        steps: the job.
        closed: ends pauses.
    """
    for pause in steps:
        if pause is not None:
            closed.wait(pause.seconds)
