"""What the supervisor does about a failure: a state machine with events in and one decision out.

No I/O, no thread, no clock. The rules:

* A query that fails while its state is there restarts in place.
* When state is lost or not what it must be, the whole pipeline goes back to the checkpoint that its state grew from.
  It may resume where it stood only if all that was lost was lost with state hosts: then the changelogs can be trusted.
* The restart strategy bounds the attempts and sets the delay. Failures that come during a delay belong to the one that
  it is for: a lost host fails several queries, and that is one failure of the pipeline.
* A damaged checkpoint, a successor on the pipeline and an exhausted restart strategy are final.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import attrs

from ...storage.errors import ChandyError, DamagedCheckpointError, FailureCode
from ..errors import PipelineStateLostError
from .restart import RestartTracker

LOG_SIZE: Final = 1000
"""Events that are remembered, each with the decision about it."""


# --- events -------------------------------------------------------------------------------------------------


@attrs.frozen
class Failure:
    """Why a run has ended."""

    error: ChandyError
    codes: frozenset[FailureCode] = frozenset()
    """What tasks of the run have said that it means for the pipeline."""
    damage: DamagedCheckpointError | None = None
    """What is damaged of the checkpoint that its state was restored from; None: nothing that is known."""


@attrs.frozen
class RunStarted:
    """A run of a query has begun; it takes the place of the query's earlier one."""

    query: str
    run: int
    query_id: str = ""
    """Spark's id of the query."""
    needs_changelogs: bool = False
    """Whether the state that it resumes from lies in changelogs, behind the checkpoint."""


@attrs.frozen
class RunStopped:
    """A run was stopped on purpose: its end means nothing."""

    query: str
    run: int


@attrs.frozen
class RunEnded:
    """A run has come to its end."""

    query: str
    run: int
    failure: Failure | None
    """None: it has done its work."""
    noticed_at: float
    """Seconds since 1970; as in the other events."""


@attrs.frozen
class HostLost:
    """A state host is gone, and state with it."""

    why: str
    noticed_at: float


@attrs.frozen
class ShardsNotOpened:
    """Shards of a query could not be opened, or are damaged, although no task has needed them yet."""

    query_id: str
    why: str
    noticed_at: float
    damage: DamagedCheckpointError | None = None
    """What is damaged of the checkpoint that they are restored from; None: nothing that is known."""


@attrs.frozen
class CheckpointsFailed:
    """More checkpoints in a row have failed than are tolerable."""

    error: ChandyError
    noticed_at: float


@attrs.frozen
class FatalError:
    """Something has happened that no restart can mend, such as a successor on the pipeline."""

    error: Exception


@attrs.frozen
class DelayOver:
    """The time to restart has come."""


@attrs.frozen
class StateGivenUp:
    """The pipeline is going back: what was lost until now is behind it."""


@attrs.frozen
class RestartedInPlace:
    """A query has started again where it stood."""

    query: str


@attrs.frozen
class WentBack:
    """The whole pipeline has gone back, and its queries have started."""


@attrs.frozen
class RestartFailed:
    """What was decided could not be carried out."""

    error: Exception
    final: bool
    """Whether no further attempt can mend that."""


@attrs.frozen
class FirstCommit:
    """A run has committed its first batch: the pipeline is back."""

    query: str
    run: int


@attrs.frozen
class StopRequested:
    """The pipeline is about to stop: nothing restarts any more."""


@attrs.frozen
class StopWithdrawn:
    """The pipeline goes on after all."""


Event = (
    RunStarted
    | RunStopped
    | RunEnded
    | HostLost
    | ShardsNotOpened
    | CheckpointsFailed
    | FatalError
    | DelayOver
    | StateGivenUp
    | RestartedInPlace
    | WentBack
    | RestartFailed
    | FirstCommit
    | StopRequested
    | StopWithdrawn
)


# --- decisions ----------------------------------------------------------------------------------------------


@attrs.frozen
class DoNothing:
    """Nothing is to be done."""


@attrs.frozen
class EndQuery:
    """A run of a query has done its work: tell the user, unless another run has taken its place meanwhile."""

    query: str
    run: int


@attrs.frozen
class WaitToRestart:
    """Say ``DelayOver`` at a time, unless a later decision names another."""

    until: float
    cause: ChandyError


@attrs.frozen
class RestartInPlace:
    """Start queries again where they stood."""

    queries: tuple[str, ...]
    cause: ChandyError
    noticed_at: float


@attrs.frozen
class GoBack:
    """Take the whole pipeline back to the checkpoint that its state grew from."""

    cause: ChandyError
    noticed_at: float
    resume: bool
    """Whether it may resume where it stood if the changelogs of all shards lead there."""


@attrs.frozen
class SuspendCheckpoints:
    """End the checkpoints under way: the pipeline must go back, and a stop keeps it from that."""

    cause: ChandyError


@attrs.frozen
class FailForGood:
    """End every query with the error, and take no more checkpoints."""

    error: Exception


Decision = DoNothing | EndQuery | WaitToRestart | RestartInPlace | GoBack | SuspendCheckpoints | FailForGood


# --- the machine --------------------------------------------------------------------------------------------


@attrs.frozen
class Loss:
    """State is lost, so that the pipeline must go back."""

    why: str
    with_host: bool
    """Whether all of it was lost with state hosts: then what the changelogs have can be trusted."""


@attrs.frozen
class Outage:
    """A failure that the pipeline has not come back from yet."""

    cause: ChandyError
    noticed_at: float
    queries: tuple[str, ...] = ()
    """Queries that have failed on their own."""
    is_whole: bool = False
    """Whether the whole pipeline has begun to go back: then so does every further attempt."""


@attrs.define
class RecoveryStateMachine:
    """Decides about one pipeline's failures, and remembers why."""

    tracker: RestartTracker
    random: Callable[[], float]
    """Gives numbers from 0 to below 1, for the restart strategy's jitter."""
    loss: Loss | None = attrs.field(default=None, init=False)
    outage: Outage | None = attrs.field(default=None, init=False)
    failed: Exception | None = attrs.field(default=None, init=False)
    """What the pipeline has failed of for good."""
    is_stopping: bool = attrs.field(default=False, init=False)
    log: deque[tuple[float, Event, Decision]] = attrs.field(
        factory=lambda: deque(maxlen=LOG_SIZE), init=False, repr=False
    )
    """The newest events, with their times and the decisions about them: what happened, for those who debug."""
    _runs: dict[str, RunStarted] = attrs.field(factory=dict, init=False)
    _given_up_at: float = attrs.field(default=0.0, init=False)
    """When the pipeline last went back: losses that were noticed before are behind it."""

    def handle(self, event: Event, now: float) -> Decision:
        """Let something happen.

        Args:
            event: what happened.
            now: seconds since 1970, never going back.
        """
        decision = self._decide(event, now)
        self.log.append((now, event, decision))
        return decision

    def _decide(self, event: Event, now: float) -> Decision:
        match event:
            case RunStarted(query):
                self._runs[query] = event
            case RunStopped(query, run):
                if self._is_current(query, run):
                    del self._runs[query]
            case FirstCommit(query, run) if self._is_current(query, run) and not self._is_waiting(now):
                self.tracker.recovered(now)
            case StopRequested():
                self.is_stopping = True
                return self._hold()
            case StopWithdrawn():
                return self._stop_withdrawn(now)
            case StateGivenUp():
                self.loss, self._given_up_at = None, now
            case RestartedInPlace(query):
                self._restarted(query)
            case WentBack():
                self.outage = None
            case _ if self.failed is not None:
                pass
            case FatalError(error):
                return self._fail(error)
            case RunEnded():
                return self._run_ended(event, now)
            case HostLost(why, noticed_at) if noticed_at > self._given_up_at:
                self._lose(why, with_host=True)
                return self._wait(PipelineStateLostError(why), noticed_at, now)
            case ShardsNotOpened(damage=DamagedCheckpointError() as damage) if self._runs_as(event.query_id):
                return self._fail(damage)
            case ShardsNotOpened(query_id, why, noticed_at) if self._needs_changelogs(query_id):
                # State that comes from the checkpoint alone is left to the tasks: they ask for the same, and say so.
                # But checkpoints wait for state that lies in changelogs, and no batch may come.
                self._lose(why, with_host=False)
                return self._wait(PipelineStateLostError(why), noticed_at, now)
            case CheckpointsFailed(error, noticed_at) if noticed_at > self._given_up_at:
                self._lose(str(error), with_host=False)
                return self._wait(error, noticed_at, now)
            case DelayOver():
                return self._restart()
            case RestartFailed(error, final):
                return self._restart_failed(error, final, now)
        return DoNothing()

    def _run_ended(self, event: RunEnded, now: float) -> Decision:
        if not self._is_current(event.query, event.run):
            # It was stopped, or another has taken its place.
            return DoNothing()
        if event.failure is None:
            del self._runs[event.query]
            return EndQuery(event.query, event.run)
        if event.failure.damage is not None:
            return self._fail(event.failure.damage)
        if event.failure.codes & {FailureCode.HOST_LOST, FailureCode.STATE_UNUSABLE}:
            unusable = FailureCode.STATE_UNUSABLE in event.failure.codes
            self._lose(str(event.failure.error), with_host=not unusable)
        return self._wait(event.failure.error, event.noticed_at, now, event.query)

    def _is_current(self, query: str, run: int) -> bool:
        current = self._runs.get(query)
        return current is not None and current.run == run

    def _is_waiting(self, now: float) -> bool:
        restart_at = self.tracker.restart_at
        return self.outage is not None and restart_at is not None and now < restart_at

    def _runs_as(self, query_id: str) -> bool:
        return any(run.query_id == query_id for run in self._runs.values())

    def _needs_changelogs(self, query_id: str) -> bool:
        return any(run.query_id == query_id and run.needs_changelogs for run in self._runs.values())

    def _lose(self, why: str, *, with_host: bool) -> None:
        before = self.loss or Loss(why, with_host)
        self.loss = Loss(before.why, before.with_host and with_host)

    def _wait(self, cause: ChandyError, noticed_at: float, now: float, query: str | None = None) -> Decision:
        """Wait for the next attempt, as the restart strategy says, or give up."""
        outage = self.outage or Outage(cause, noticed_at)
        if query is not None and query not in outage.queries:
            outage = attrs.evolve(outage, queries=(*outage.queries, query))
        self.outage = outage
        if self.is_stopping:
            return self._hold()
        delay = self.tracker.failed(now, self.random)
        if delay is None:
            return self._fail(cause)
        return WaitToRestart(now + delay, outage.cause)

    @property
    def must_go_back(self) -> bool:
        """Whether the next attempt takes the whole pipeline back."""
        return self.loss is not None or (self.outage is not None and self.outage.is_whole)

    def _hold(self) -> Decision:
        """Restart nothing while the pipeline stops, but end its savepoint if the state for that is lost."""
        if self.outage is not None and self.must_go_back:
            return SuspendCheckpoints(self.outage.cause)
        return DoNothing()

    def _stop_withdrawn(self, now: float) -> Decision:
        self.is_stopping = False
        outage, restart_at = self.outage, self.tracker.restart_at
        if outage is None:
            return DoNothing()
        if restart_at is None:
            return self._wait(outage.cause, outage.noticed_at, now)
        # The restart strategy has allowed this attempt already; the stop came before it.
        return WaitToRestart(max(now, restart_at), outage.cause)

    def _restart(self) -> Decision:
        outage = self.outage
        if outage is None or self.is_stopping:
            return DoNothing()
        if self.must_go_back or not outage.queries:
            resume = self.loss is not None and self.loss.with_host
            self.outage = attrs.evolve(outage, is_whole=True)
            return GoBack(outage.cause, outage.noticed_at, resume)
        failed = tuple(query for query in outage.queries if query in self._runs)
        if not failed:
            # All of them were stopped meanwhile.
            self.outage = None
            return DoNothing()
        return RestartInPlace(failed, outage.cause, outage.noticed_at)

    def _restarted(self, query: str) -> None:
        outage = self.outage
        if outage is None or query not in outage.queries:
            return
        others = tuple(one for one in outage.queries if one != query)
        is_over = not others and not outage.is_whole and self.loss is None
        self.outage = None if is_over else attrs.evolve(outage, queries=others)

    def _restart_failed(self, error: Exception, final: bool, now: float) -> Decision:
        if final or self.outage is None:
            return self._fail(error)
        cause = error if isinstance(error, ChandyError) else self.outage.cause
        return self._wait(cause, self.outage.noticed_at, now)

    def _fail(self, error: Exception) -> Decision:
        self.failed, self.outage = error, None
        return FailForGood(error)
