"""What to do about a failure: a state machine that takes events and returns one decision for each.

No I/O, no thread, no clock. The rules:

* A query that fails while its state is there restarts in place.
* When state is lost or wrong, the whole pipeline goes back to the checkpoint that its state grew from. It may resume
  from its changelogs only if nothing was lost except with state hosts: otherwise the changelogs may be wrong, too.
* A query that fails the same way again does not go on like that. Unless it was the user's code that raised, the
  pipeline goes back after the second failure: something on the disk may not be as it must be. The third is final.
* The restart strategy bounds the attempts and sets the delay. Failures during a delay count as
  one with the failure that caused it: a lost host fails several queries, and that is one failure of the pipeline.
* A query that goes on with another plan (``rescaling``) is told to stop once its batch has ended, and starts at once,
  whatever another query waits for, unless the pipeline must go back.
* A damaged checkpoint, a successor on the pipeline and an exhausted restart strategy are final.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import attrs

from ...state.shards import NotResumable
from ...storage.errors import ChandyError, DamagedCheckpointError, FailureCode
from ...storage.ids import NO_BATCH, BatchId
from ..errors import PipelineStateLostError
from ..protocol.user_requests import RequestPhase
from .repetition import SAME, FailurePoint, Repetition
from .rescaling import BatchOver, NotStopped, RescaleRequested, Rescaling, Rescalings
from .restart import RestartTracker
from .state_loss import StateLoss, why_not_resumable

_STOPPING: Final = "a pipeline that is being stopped"
LOG_SIZE: Final = 1000
"""Events that are remembered, each with the decision about it."""


# --- events -------------------------------------------------------------------------------------------------


@attrs.frozen
class Failure:
    """Why a run has ended."""

    error: ChandyError
    codes: frozenset[FailureCode] = frozenset()
    """What it means for the pipeline, as reported by the tasks of the run."""
    damage: DamagedCheckpointError | None = None
    """Damage of the checkpoint that its state was restored from; None if none is known."""
    point: FailurePoint | None = None
    """Where and how; None: it may pass by itself, so that it is not compared with others."""
    output_is_shared: bool = False
    """Whether another program has written the same batch into the output. In place, Spark would take that for done."""

    @property
    def is_nothing_but_an_end(self) -> bool:
        """Whether a run that was told to stop may have failed for that alone. If not, its batch meets it again."""
        return self.damage is None and not self.output_is_shared and not self.codes


@attrs.frozen
class RunStarted:
    """A run of a query has begun, and replaces the query's earlier one."""

    query: str
    run: int
    query_id: str = ""
    """Spark's id of the query."""
    needs_changelogs: bool = False
    """Whether it resumes from changelogs, with state that is newer than the checkpoint."""


@attrs.frozen
class RunStopped:
    """A run was stopped on purpose, so its end is no failure."""

    query: str
    run: int


@attrs.frozen
class RunEnded:
    """A run has ended by itself."""

    query: str
    run: int
    failure: Failure | None
    """None: its work is done."""
    noticed_at: float
    """Seconds since 1970; as in the other events."""


@attrs.frozen
class QueryOver:
    """A user has stopped a query for good."""

    query: str


@attrs.frozen
class StopAnnounced:
    """A user is about to stop the pipeline, and waits for whoever changes it."""


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
    """Damage of the checkpoint that they are restored from; None if none is known."""


@attrs.frozen
class CheckpointsFailed:
    """More checkpoints in a row have failed than are tolerable."""

    error: ChandyError
    noticed_at: float


@attrs.frozen
class FatalError:
    """Something happened that no restart can mend: for example, another coordinator has taken the pipeline over."""

    error: Exception


@attrs.frozen
class EndExplained:
    """It is known why the pipeline has ended, which what was noticed first does not always say."""

    error: Exception


@attrs.frozen
class DelayOver:
    """The time to restart has come."""


@attrs.frozen
class StateGivenUp:
    """The pipeline is going back, so losses that were noticed before do not count any more."""


@attrs.frozen
class RestartedInPlace:
    """A query has restarted in place."""

    query: str


@attrs.frozen
class WentBack:
    """The whole pipeline has gone back, and its queries have started."""


@attrs.frozen
class RestartFailed:
    """A restart, in place or from a checkpoint, has failed."""

    error: Exception
    final: bool
    """Whether further attempts would fail, too."""
    directory_is_lost: bool = False
    """Whether a query has lost its working directory. In place, Spark would begin from the start in what is left."""


@attrs.frozen
class FirstCommit:
    """A run has committed its first batch, so its query has recovered."""

    query: str
    run: int
    batch: BatchId = NO_BATCH


@attrs.frozen
class StopRequested:
    """The pipeline is about to stop, so nothing restarts any more."""


@attrs.frozen
class StopWithdrawn:
    """The stop failed, and the pipeline goes on."""


Event = (
    RunStarted
    | RunStopped
    | RunEnded
    | RescaleRequested
    | BatchOver
    | NotStopped
    | QueryOver
    | StopAnnounced
    | HostLost
    | ShardsNotOpened
    | CheckpointsFailed
    | FatalError
    | EndExplained
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
    """End a query whose run is done, unless another run has replaced it meanwhile."""

    query: str
    run: int


@attrs.frozen
class WaitToRestart:
    """Report ``DelayOver`` at a time, unless a later decision names another time."""

    until: float
    cause: ChandyError


@attrs.frozen
class StopForPlan:
    """Have Spark end a run, whose query goes on with another plan; its end is reported as that of any run."""

    query: str
    run: int


@attrs.frozen
class RestartInPlace:
    """Restart queries with the state that they have."""

    queries: tuple[str, ...]
    cause: ChandyError
    noticed_at: float


@attrs.frozen
class RollBack:
    """Take the whole pipeline back to the checkpoint that its state grew from."""

    cause: ChandyError
    noticed_at: float
    refusal: NotResumable | None
    """Why it may not resume at its newest committed batches; None: it may, as far as all changelogs reach them."""

    @property
    def resume(self) -> bool:
        """Whether it may resume."""
        return self.refusal is None


@attrs.frozen
class SuspendCheckpoints:
    """End the checkpoints under way: the pipeline must go back, and a stop keeps it from that."""

    cause: ChandyError


@attrs.frozen
class FailForGood:
    """End every query with the error, and take no more checkpoints."""

    error: Exception
    because: str = ""
    """Why no restart is tried, if the error does not say it."""


Decision = (
    DoNothing
    | EndQuery
    | WaitToRestart
    | StopForPlan
    | RestartInPlace
    | RollBack
    | SuspendCheckpoints
    | FailForGood
)


# --- the machine --------------------------------------------------------------------------------------------


@attrs.frozen
class Outage:
    """A failure from which the pipeline has not recovered yet."""

    cause: ChandyError
    noticed_at: float
    queries: tuple[str, ...] = ()
    """Queries that have failed on their own."""
    is_whole: bool = False
    """Whether the whole pipeline has begun or must begin to go back: then so does every further attempt."""


@attrs.define
class RecoveryStateMachine:
    """Decides about one pipeline's failures, and keeps a log of the reasons."""

    tracker: RestartTracker
    random: Callable[[], float]
    """Returns a number of at least 0 and below 1, for the restart strategy's jitter."""
    loss: StateLoss | None = attrs.field(default=None, init=False)
    outage: Outage | None = attrs.field(default=None, init=False)
    failed: Exception | None = attrs.field(default=None, init=False)
    """The error that ended the pipeline."""
    is_stopping: bool = attrs.field(default=False, init=False)
    log: deque[tuple[float, Event, Decision]] = attrs.field(
        factory=lambda: deque(maxlen=LOG_SIZE), init=False, repr=False
    )
    """The newest events, each with its time and the decision about it, for debugging."""
    rescalings: Rescalings = attrs.field(factory=Rescalings, init=False)
    """What users wait for."""
    _runs: dict[str, RunStarted] = attrs.field(factory=dict, init=False)
    _repetitions: dict[str, Repetition] = attrs.field(factory=dict, init=False)
    """By query how often it has failed the same way, without a commit of that batch in between."""
    _given_up_at: float = attrs.field(default=0.0, init=False)
    """When the pipeline last went back. Losses that were noticed before do not count any more."""
    _is_half_way: bool = attrs.field(default=False, init=False)
    """Whether the pipeline has begun to go back and is not there yet. Its queries stand at different cuts, so that none
    may resume, whatever is lost meanwhile."""

    def handle(self, event: Event, now: float) -> Decision:
        """Record an event, and decide what to do.

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
                    self._settled(query)
            case FirstCommit(query, run) if self._is_current(query, run):
                self._committed(event, now)
            case StopAnnounced():
                self.rescalings.cancel(_STOPPING)
            case StopRequested():
                self.is_stopping = True
                self.rescalings.cancel(_STOPPING)
                return self._hold()
            case StopWithdrawn():
                return self._stop_withdrawn(now)
            case StateGivenUp():
                self.loss, self._given_up_at = None, now
                self._is_half_way = True
            case RestartedInPlace(query):
                self._settled(query)
                self.rescalings.started((query,))
            case NotStopped(query, run):
                if (asked := self.rescalings.stopped(query, run)) is not None:
                    asked.stopped = None
            case QueryOver(query):
                self.rescalings.forget(query)
            case RescaleRequested():
                return self._rescale_requested(event, now)
            case WentBack():
                self.rescalings.started(None)
                self.outage = None
                self._is_half_way = False
            case EndExplained(error):
                self.failed = error
            case _ if self.failed is not None:
                pass
            case FatalError(error):
                return self._fail(error)
            case RunEnded():
                return self._run_ended(event, now)
            case BatchOver(query):
                return self._batch_over(query, now)
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
            case RestartFailed():
                return self._restart_failed(event, now)
        return DoNothing()

    def _run_ended(self, event: RunEnded, now: float) -> Decision:
        if not self._is_current(event.query, event.run):
            # It was stopped, or another has taken its place.
            return DoNothing()
        stopped = self.rescalings.stopped(event.query, event.run)
        if stopped is not None and (event.failure is None or event.failure.is_nothing_but_an_end):
            return self._stopped_for_plan(stopped, event)
        if event.failure is None:
            self.rescalings.forget(event.query)
            del self._runs[event.query]
            self._settled(event.query)
            return EndQuery(event.query, event.run)
        if event.failure.damage is not None:
            return self._fail(event.failure.damage)
        times = self._times(event.query, event.failure.point)
        if times >= SAME and not self.is_stopping:
            return self._fail(event.failure.error, f"it has failed {times} times in a row in the same way")
        if event.failure.codes & {FailureCode.HOST_LOST, FailureCode.STATE_UNUSABLE}:
            unusable = FailureCode.STATE_UNUSABLE in event.failure.codes
            self._lose(str(event.failure.error), with_host=not unusable)
        if event.failure.output_is_shared:
            self._lose(str(event.failure.error), with_host=False)
        decision = self._wait(event.failure.error, event.noticed_at, now, event.query)
        if times > 1 and event.failure.point is not None and not event.failure.point.in_user_code:
            # In place it would go the same way again.
            self._must_go_back()
        return decision

    def _rescale_requested(self, event: RescaleRequested, now: float) -> Decision:
        refused = ""
        if self.failed is not None:
            refused = f"a pipeline that has failed for good: {self.failed}"
        elif self.is_stopping:
            refused = _STOPPING
        elif event.query not in self._runs and not (self._is_half_way or self.must_go_back):
            refused = "a query that has ended"
        self.rescalings.add(event.query, event.cause, event.request, now, refused)
        return DoNothing()

    def _batch_over(self, query: str, now: float) -> Decision:
        asked, run = self.rescalings.waiting(query), self._runs.get(query)
        if asked is None:
            return DoNothing()
        restarts = self.outage is not None and query in self.outage.queries
        if run is None or restarts or self.must_go_back:
            # The attempt that is due starts it with the other plan.
            if now >= asked.request.deadline:
                asked.end(RequestPhase.FAILED, "a query that waits to be restarted after a failure")
                self.rescalings.drop(query)
            return DoNothing()
        asked.request.enter(RequestPhase.UNDER_WAY)
        asked.stopped = run.run
        return StopForPlan(query, run.run)

    def _stopped_for_plan(self, asked: Rescaling, event: RunEnded) -> Decision:
        """Start a query at once that was told to stop, whatever others wait for."""
        self.outage = _joined(self.outage or Outage(asked.cause, asked.noticed_at), asked.query)
        if self.is_stopping:
            return self._hold()
        if self.must_go_back:
            # The attempt that is due starts it, too.
            return DoNothing()
        self.rescalings.starting((asked.query,))
        return RestartInPlace((asked.query,), asked.cause, asked.noticed_at)

    def _times(self, query: str, point: FailurePoint | None) -> int:
        """Return how often in a row a query has failed like this."""
        if point is None:
            return 1
        before = self._repetitions.get(query)
        self._repetitions[query] = now = before.then(point) if before else Repetition(point)
        return now.times

    def _must_go_back(self) -> None:
        if self.outage is not None:
            self.outage = attrs.evolve(self.outage, is_whole=True)

    def _committed(self, event: FirstCommit, now: float) -> None:
        repetition = self._repetitions.get(event.query)
        if repetition is not None and event.batch >= repetition.point.batch:
            del self._repetitions[event.query]
        if not self._is_waiting(now):
            self.tracker.recovered(now)

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
        before = self.loss or StateLoss(why, None)
        self.loss = before.and_then(why, with_host=with_host)

    def _wait(self, cause: ChandyError, noticed_at: float, now: float, query: str | None = None) -> Decision:
        """Wait for the next attempt, as the restart strategy says, or give up."""
        outage = self.outage or Outage(cause, noticed_at)
        self.outage = outage = _joined(outage, query) if query is not None else outage
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
            refusal = why_not_resumable(self.loss, is_half_way=self._is_half_way)
            self.outage = attrs.evolve(outage, is_whole=True)
            self.rescalings.starting(None)
            return RollBack(outage.cause, outage.noticed_at, refusal)
        self.rescalings.starting(outage.queries)
        return RestartInPlace(outage.queries, outage.cause, outage.noticed_at)

    def _settled(self, query: str) -> None:
        """Expect no restart of a query any more: it runs again, or is over. The last one ends the outage."""
        outage = self.outage
        if outage is None or query not in outage.queries:
            return
        others = tuple(one for one in outage.queries if one != query)
        is_over = not others and not outage.is_whole and self.loss is None
        self.outage = None if is_over else attrs.evolve(outage, queries=others)

    def _restart_failed(self, event: RestartFailed, now: float) -> Decision:
        error, outage = event.error, self.outage
        self.rescalings.not_started(error)
        if event.final or outage is None:
            return self._fail(error)
        if event.directory_is_lost:
            self._lose(str(error), with_host=False)
        cause = error if isinstance(error, ChandyError) else outage.cause
        return self._wait(cause, outage.noticed_at, now)

    def _fail(self, error: Exception, because: str = "") -> Decision:
        self.failed, self.outage = error, None
        self.rescalings.fail(error)
        return FailForGood(error, because)


def _joined(outage: Outage, query: str) -> Outage:
    """Return an outage of one more query."""
    return outage if query in outage.queries else attrs.evolve(outage, queries=(*outage.queries, query))
