"""A run until the end: that of the queries, or that of the process, which a scheduler asks by a signal to end."""

from __future__ import annotations

import enum
import os
import signal
import threading
from typing import Final, Protocol

from ..storage.logs import logger
from ..storage.signals import EndSignal
from .durations import Duration
from .errors import ArgumentError
from .protocol.life import Life, LifePhase
from .query import CheckpointedQuery

log = logger(__name__)

_POLL_SECONDS: Final = 0.2


class Exit(enum.IntEnum):
    """How a run has ended, as the exit code of its program. Those of failures are the ones of BSD's sysexits."""

    DONE = os.EX_OK
    """All queries have ended by themselves, or a signal has stopped the pipeline."""
    FAILED = os.EX_SOFTWARE
    """The pipeline has failed for good: starting it again helps once the cause is gone."""
    FENCED = os.EX_TEMPFAIL
    """Another driver has taken the pipeline over: starting this one again would take it back."""


_EXITS: Final = {
    LifePhase.STOPPED: Exit.DONE,
    LifePhase.FAILED: Exit.FAILED,
    LifePhase.FENCED: Exit.FENCED,
}


class Pipeline(Protocol):
    """What is run: a ``CheckpointCoordinator``."""

    @property
    def life(self) -> Life:
        """Whether it runs."""
        ...

    @property
    def queries(self) -> tuple[CheckpointedQuery, ...]:
        """The queries that have been started."""
        ...

    def stop(self, *, timeout: Duration, hand_over: bool) -> object:
        """Stop them, with a last checkpoint."""
        ...


def run(coordinator: Pipeline, timeout: Duration, *, hand_over: bool) -> Exit:
    """Wait for the end of a pipeline, and stop it; arguments and errors are those of ``CheckpointCoordinator.run``."""
    if threading.current_thread() is not threading.main_thread():
        raise ArgumentError(
            "the run cannot be supervised",
            "run() in the main thread, which alone is told of signals",
            f"the thread {threading.current_thread().name!r}",
            "call it in the main thread, or wait for the queries with awaitTermination",
        )
    if not coordinator.queries:
        raise ArgumentError(
            "there is nothing to run", "queries that have been started", "none", "call start() first"
        )
    with EndSignal(signal.SIGTERM, signal.SIGINT, once=True) as asked:
        while any(query.isActive for query in coordinator.queries) and not asked.wait(_POLL_SECONDS):
            pass
        coordinator.stop(timeout=timeout, hand_over=hand_over)
        life = coordinator.life
        why = "all queries have ended" if asked.number is None else asked.number.name
    ending = _EXITS[life.phase]
    log.info("the run is over", because=life.because or why, exit_code=int(ending))
    return ending
