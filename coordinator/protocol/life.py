"""Whether a pipeline runs, and whether one of its queries does: two values, each with a table of what may follow what.

A value does not change: each step returns the next one. Only the state machine of recovery takes steps, and all others
ask.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final, Self

import attrs

from ...storage.errors import ChandyError, FencedError
from .errors import PhaseError
from .reasons import Reason


class LifePhase(enum.StrEnum):
    """What a pipeline does. ``NEXT`` says which phases may follow each."""

    STARTING = "starts"
    """This driver leads it, and no query has been started yet."""
    RUNNING = "runs"
    """Its queries run. A query that fails while its state is there restarts on its own."""
    RECOVERING = "recovers"
    """State is lost or wrong, so all queries go back to a checkpoint. Until they have, no checkpoint is taken, and no
    shard moves."""
    STOPPING = "stops"
    """It is about to end, for its user or by a failure. Nothing is restarted any more."""
    STOPPED = "stopped"
    """Its user has stopped it."""
    FAILED = "failed"
    """It has failed for good."""
    FENCED = "fenced"
    """Another driver has taken it over."""


NEXT: Final[Mapping[LifePhase, frozenset[LifePhase]]] = {
    LifePhase.STARTING: frozenset(
        {LifePhase.RUNNING, LifePhase.RECOVERING, LifePhase.STOPPING, LifePhase.FENCED}
    ),
    LifePhase.RUNNING: frozenset({LifePhase.RECOVERING, LifePhase.STOPPING, LifePhase.FENCED}),
    LifePhase.RECOVERING: frozenset({LifePhase.RUNNING, LifePhase.STOPPING, LifePhase.FENCED}),
    # A stop that cannot be carried through is withdrawn.
    LifePhase.STOPPING: frozenset(set(LifePhase) - {LifePhase.STARTING, LifePhase.STOPPING}),
    LifePhase.STOPPED: frozenset(),
    LifePhase.FAILED: frozenset(),
    LifePhase.FENCED: frozenset(),
}

_WHY_OVER: Final = {
    LifePhase.STOPPED: Reason.COORDINATOR_SHUTDOWN,
    LifePhase.FAILED: Reason.COORDINATOR_SUSPENDED,
    LifePhase.FENCED: Reason.FENCED,
}


@attrs.frozen
class Setback:
    """A failure from which a pipeline or a query has not recovered yet."""

    cause: ChandyError = attrs.field(eq=str)
    noticed_at: float
    """In seconds since 1970."""


def _first_line(error: Exception | None) -> str:
    return "" if error is None else str(error).partition("\n")[0]


@attrs.frozen
class Life:
    """The life of a pipeline under one driver."""

    phase: LifePhase = LifePhase.STARTING
    setback: Setback | None = None
    """Why it must go back to a checkpoint; None: it need not. A pipeline that stops does not, unless the stop is
    withdrawn."""
    error: Exception | None = attrs.field(default=None, eq=str)
    """What it ends by, or has ended by; None: it goes on, or its user stops it."""
    leaves_runs: bool = False
    """Whether its stop leaves what the machine has of it to the next driver, as a kill does: no checkpoint has it."""

    # --- questions ------------------------------------------------------------------------------------------

    @property
    def is_ending(self) -> bool:
        """Whether it stops or is over: nothing is restarted, and nothing that takes long is to begin."""
        return self.phase is LifePhase.STOPPING or self.is_over

    @property
    def is_over(self) -> bool:
        """Whether it has ended. It stays as it is."""
        return not NEXT[self.phase]

    @property
    def because(self) -> str:
        """Why it goes back, ends or has ended, in one line; empty if no error is the reason."""
        return _first_line(self.error or (self.setback.cause if self.setback else None))

    @property
    def takes_checkpoints(self) -> bool:
        """Whether a checkpoint may be taken, and a shard may move."""
        return self.setback is None and not self.is_over

    @property
    def why_over(self) -> Reason | None:
        """Why no request for a checkpoint is accepted any more; None: requests are accepted."""
        return _WHY_OVER.get(self.phase)

    # --- steps ----------------------------------------------------------------------------------------------

    def enter(self, phase: LifePhase, **changes: Any) -> Self:
        """Return the life in another phase.

        Args:
            changes: other attributes, by name.

        Raises:
            PhaseError: the phase cannot follow.
        """
        if phase not in NEXT[self.phase]:
            raise PhaseError("the pipeline", self.phase, phase)
        return attrs.evolve(self, phase=phase, **changes)

    def started(self) -> Self:
        """Return the life once a query has been started."""
        return self.enter(LifePhase.RUNNING) if self.phase is LifePhase.STARTING else self

    def set_back(self, setback: Setback) -> Self:
        """Return the life of a pipeline that must go back. The first cause stays until it has."""
        if self.is_over or self.error is not None or self.setback is not None:
            return self
        if self.is_ending:
            return attrs.evolve(self, setback=setback)
        return self.enter(LifePhase.RECOVERING, setback=setback)

    def went_back(self) -> Self:
        """Return the life of a pipeline that has gone back."""
        if self.phase is LifePhase.RECOVERING:
            return self.enter(LifePhase.RUNNING, setback=None)
        return attrs.evolve(self, setback=None)

    def stopping(self) -> Self:
        """Return the life of a pipeline that is about to be stopped."""
        return self if self.is_ending else self.enter(LifePhase.STOPPING)

    def withdrawn(self) -> Self:
        """Return the life after a stop that was not carried through: it goes on, unless it has failed meanwhile."""
        if self.phase is not LifePhase.STOPPING or self.error is not None:
            return self
        phase = LifePhase.RUNNING if self.setback is None else LifePhase.RECOVERING
        return self.enter(phase, leaves_runs=False)

    def failing(self, error: Exception) -> Self:
        """Return the life of a pipeline that has failed for good, though it may not be known yet why."""
        if self.is_over or self.error is not None:
            return self
        if isinstance(error, FencedError):
            return self.failed(error)
        return attrs.evolve(self.stopping(), error=error, setback=None)

    def failed(self, error: Exception) -> Self:
        """Return the life of a pipeline that has failed for good, by an error that says why."""
        if self.is_over:
            return self
        if isinstance(error, FencedError):
            return self.enter(LifePhase.FENCED, error=error, setback=None)
        return self.stopping().enter(LifePhase.FAILED, error=error, setback=None)

    def stopped(self) -> Self:
        """Return the life once everything has been stopped."""
        if self.is_over:
            return self
        if self.error is not None:
            return self.failed(self.error)
        return self.stopping().enter(LifePhase.STOPPED, setback=None)


# --- a query ------------------------------------------------------------------------------------------------


class QueryPhase(enum.StrEnum):
    """What a query of a pipeline does. ``QUERY_NEXT`` says which phases may follow each."""

    STARTING = "starts"
    """This driver has started it, and no batch of it has committed yet."""
    RUNNING = "runs"
    """It runs, and has committed a batch since it was started or last failed, or has found that there is no data."""
    WAITING = "waits to restart"
    """It has failed, and the delay of the restart strategy is not over."""
    RESTARTING = "restarts"
    """It is started again, or has been; no batch has committed since."""
    ENDED = "has ended"
    """Its work is done, its user or the pipeline has stopped it, or it has failed for good. It runs again if the
    pipeline goes back to a checkpoint before its end."""


QUERY_NEXT: Final[Mapping[QueryPhase, frozenset[QueryPhase]]] = {
    QueryPhase.STARTING: frozenset(
        {QueryPhase.RUNNING, QueryPhase.WAITING, QueryPhase.RESTARTING, QueryPhase.ENDED}
    ),
    QueryPhase.RUNNING: frozenset({QueryPhase.WAITING, QueryPhase.RESTARTING, QueryPhase.ENDED}),
    # With another plan it runs again at once: it has not failed.
    QueryPhase.WAITING: frozenset({QueryPhase.RUNNING, QueryPhase.RESTARTING, QueryPhase.ENDED}),
    QueryPhase.RESTARTING: frozenset({QueryPhase.RUNNING, QueryPhase.WAITING, QueryPhase.ENDED}),
    QueryPhase.ENDED: frozenset({QueryPhase.RUNNING, QueryPhase.RESTARTING}),
}


@attrs.frozen
class QueryLife:
    """The life of a query under one driver."""

    phase: QueryPhase = QueryPhase.STARTING
    setback: Setback | None = None
    """Why it restarts; None in all other phases."""
    error: Exception | None = attrs.field(default=None, eq=str)
    """What has ended it; None: nothing has, its work is done, or it was stopped."""
    attempts: int = 0
    """How often it has been started again since it last committed, the next attempt included."""
    next_attempt_at: float | None = None
    """When it is started again, in seconds since 1970; None in all other phases than ``WAITING``, and while the
    pipeline stops."""

    @property
    def is_active(self) -> bool:
        """Whether it runs or is to run again."""
        return self.phase is not QueryPhase.ENDED

    @property
    def restarts(self) -> bool:
        """Whether it has failed, and has committed nothing since."""
        return self.phase in (QueryPhase.WAITING, QueryPhase.RESTARTING)

    @property
    def because(self) -> str:
        """Why it restarts or has ended, in one line; empty if no error is the reason."""
        return _first_line(self.error or (self.setback.cause if self.setback else None))

    def enter(self, phase: QueryPhase, **changes: Any) -> Self:
        """Return the life in another phase; arguments and errors are as for ``Life.enter``."""
        if phase not in QUERY_NEXT[self.phase]:
            raise PhaseError("a query", self.phase, phase)
        return attrs.evolve(self, phase=phase, **changes)

    def failed(self, setback: Setback) -> Self:
        """Return the life of a query that has failed, and whose restart is not decided yet."""
        if self.phase is QueryPhase.WAITING:
            return self
        return self.enter(
            QueryPhase.WAITING, setback=setback, attempts=self.attempts + 1, next_attempt_at=None, error=None
        )

    def due(self, at: float) -> Self:
        """Return the life of a query that waits, once it is known when it is started again."""
        return attrs.evolve(self, next_attempt_at=at)

    def again(self) -> Self:
        """Return the life of a query that waits, once the attempt to start it again has failed."""
        return attrs.evolve(self, attempts=self.attempts + 1, next_attempt_at=None)

    def restarting(self, setback: Setback | None) -> Self:
        """Return the life of a query that an attempt starts again."""
        if self.phase is QueryPhase.RESTARTING:
            return attrs.evolve(self, attempts=self.attempts + 1)
        counted = self.attempts + (self.phase is not QueryPhase.WAITING)
        why = self.setback or setback
        return self.enter(
            QueryPhase.RESTARTING, setback=why, attempts=counted, next_attempt_at=None, error=None
        )

    def running(self) -> Self:
        """Return the life of a query that runs, and has shown that it can."""
        if self.phase is QueryPhase.RUNNING:
            return self
        return self.enter(QueryPhase.RUNNING, setback=None, attempts=0, next_attempt_at=None, error=None)

    def ended(self, error: Exception | None) -> Self:
        """Return the life of a query that is over, by an error or without one. The first end counts."""
        if self.phase is QueryPhase.ENDED:
            return self
        return self.enter(QueryPhase.ENDED, setback=None, error=error, next_attempt_at=None)
