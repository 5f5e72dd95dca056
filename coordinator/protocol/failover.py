"""What to do about a failure: the part of the protocol that takes events and returns one decision for each.

The rules:

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

from collections.abc import Callable
from typing import Final

import attrs

from ...storage.errors import ChandyError, DamagedCheckpointError, FailureCode
from . import decisions
from .errors import PipelineStateLostError
from .life import Life, Setback
from .query_lives import QueryLives
from .repetition import SAME, FailurePoint, Repetition
from .rescaling import Rescaling, Rescalings
from .restart_tracker import RestartTracker
from .state_loss import StateLoss, why_not_resumable
from .user_requests import RequestPhase, UserRequest

_STOPPING: Final = "a pipeline that is being stopped"


@attrs.define
class Failover:
    """Decides about one pipeline's failures. It has the pipeline's life, which all other parts ask for."""

    tracker: RestartTracker
    random: Callable[[], float] = attrs.field(eq=False)
    """Returns a number of at least 0 and below 1, for the restart strategy's jitter."""
    loss: StateLoss | None = attrs.field(default=None, init=False)
    life: Life = attrs.field(factory=Life, init=False)
    queries: QueryLives = attrs.field(factory=QueryLives, init=False)
    noticed: list[decisions.HostLost | decisions.CheckpointsFailed] = attrs.field(factory=list, init=False)
    """What other parts have noticed while they handled an event. It is decided before the next event."""
    rescalings: Rescalings = attrs.field(factory=Rescalings, init=False)
    """What users wait for."""
    _runs: dict[str, decisions.RunStarted] = attrs.field(factory=dict, init=False)
    _failed_runs: dict[str, int] = attrs.field(factory=dict, init=False)
    """By query the latest of its runs that has failed: what that has committed was before."""
    _repetitions: dict[str, Repetition] = attrs.field(factory=dict, init=False)
    """By query how often it has failed the same way, without a commit of that batch in between."""
    _is_half_way: bool = attrs.field(default=False, init=False)
    """Whether the pipeline has begun to go back and is not there yet. Its queries stand at different cuts, so that none
    may resume, whatever is lost meanwhile."""

    def decide(self, event: decisions.RecoveryEvent, now: float) -> decisions.Decision:
        """Decide what to do about an event.

        Args:
            event: what happened.
            now: seconds since 1970, never going back.
        """
        match event:
            case decisions.RunStarted(query):
                self._runs[query] = event
                self.life = self.life.started()
            case decisions.RunBegun(query, run) if self._is_current(query, run):
                self.queries.begun(query, self.life.setback)
            case decisions.RunStopped(query, run):
                if self._is_current(query, run):
                    del self._runs[query]
                    self._expect_no_restart(query)
            case decisions.FirstCommit(query, run) if self._is_current(query, run):
                self._committed(event, now)
            case decisions.NothingToDo(query, run) if self._is_current(query, run):
                self.queries.runs(query)
            case decisions.StopRequested():
                self.life = self.life.stopping()
                self.rescalings.cancel(_STOPPING)
            case decisions.StopWithdrawn():
                return self._stop_withdrawn(now)
            case decisions.RunsLeft():
                self.life = attrs.evolve(self.life, leaves_runs=True)
            case decisions.Stopped():
                self.life = self.life.stopped()
            case decisions.GoingBack(cause, noticed_at):
                self._must_go_back(PipelineStateLostError(cause), noticed_at)
            case decisions.StateGivenUp():
                self.loss = None
                self._is_half_way = True
            case decisions.RestartedInPlace(query):
                self._expect_no_restart(query)
                self.rescalings.started((query,))
            case decisions.NotStopped(query, run):
                if (asked := self.rescalings.stopped(query, run)) is not None:
                    asked.stopped = None
            case decisions.QueryOver(query, error):
                self.rescalings.forget(query)
                self.queries.ended(query, error)
            case decisions.RescaleRequested():
                return self._rescale_requested(event, now)
            case decisions.WentBack():
                self.rescalings.started(None)
                if self.loss is None:
                    self.life = self.life.went_back()
                self._is_half_way = False
            case decisions.EndExplained(error):
                self.life = self.life.failed(error)
            case _ if self.life.error is not None:
                pass
            case decisions.FatalError(error):
                return self._fail(error)
            case decisions.RunEnded():
                return self._run_ended(event, now)
            case decisions.BatchOver(query, request):
                return self._batch_over(query, request, now)
            case decisions.HostLost(why):
                self._lose(why, with_host=True)
                return self._wait(PipelineStateLostError(why), now, now)
            case decisions.ShardsNotOpened(damage=DamagedCheckpointError() as damage) if self._runs_as(
                event.query_id
            ):
                return self._fail(damage)
            case decisions.ShardsNotOpened(query_id, why, noticed_at) if self._needs_changelogs(query_id):
                # State that comes from the checkpoint alone is left to the tasks: they ask for the same, and say so.
                # But checkpoints wait for state that lies in changelogs, and no batch may come.
                self._lose(why, with_host=False)
                return self._wait(PipelineStateLostError(why), noticed_at, now)
            case decisions.CheckpointsFailed(error):
                self._lose(str(error), with_host=False)
                return self._wait(error, now, now)
            case decisions.DelayOver():
                return self._restart()
            case decisions.RestartFailed():
                return self._restart_failed(event, now)
        return decisions.DoNothing()

    def _run_ended(self, event: decisions.RunEnded, now: float) -> decisions.Decision:
        if not self._is_current(event.query, event.run):
            # It was stopped, or another has taken its place.
            return decisions.DoNothing()
        stopped = self.rescalings.stopped(event.query, event.run)
        if stopped is not None and (event.failure is None or event.failure.is_nothing_but_an_end):
            return self._stopped_for_plan(stopped, event)
        if event.failure is None:
            self.rescalings.forget(event.query)
            del self._runs[event.query]
            self._expect_no_restart(event.query)
            return decisions.EndQuery(event.query, event.run)
        self._failed_runs[event.query] = event.run
        if event.failure.damage is not None:
            return self._fail(event.failure.damage)
        times = self._times(event.query, event.failure.point)
        if times >= SAME and not self.life.is_ending:
            return self._fail(event.failure.error, f"it has failed {times} times in a row in the same way")
        if event.failure.codes & {FailureCode.HOST_LOST, FailureCode.STATE_UNUSABLE}:
            unusable = FailureCode.STATE_UNUSABLE in event.failure.codes
            self._lose(str(event.failure.error), with_host=not unusable)
        if event.failure.output_is_shared:
            self._lose(str(event.failure.error), with_host=False)
        decision = self._wait(event.failure.error, event.noticed_at, now, event.query)
        if times > 1 and event.failure.point is not None and not event.failure.point.in_user_code:
            # In place it would go the same way again.
            self._must_go_back(event.failure.error, event.noticed_at)
        return decision

    def _rescale_requested(self, event: decisions.RescaleRequested, now: float) -> decisions.Decision:
        refused = ""
        if self.life.error is not None:
            refused = f"a pipeline that has failed for good: {self.life.error}"
        elif self.life.is_ending:
            refused = _STOPPING
        elif event.query not in self._runs and not (self._is_half_way or self.must_go_back):
            refused = "a query that has ended"
        self.rescalings.add(event.query, event.cause, event.request, now, refused)
        return decisions.DoNothing()

    def _batch_over(self, query: str, request: UserRequest, now: float) -> decisions.Decision:
        asked, run = self.rescalings.waiting(query, request), self._runs.get(query)
        if asked is None:
            return decisions.DoNothing()
        if run is None or query in self.queries.waiting or self.must_go_back:
            # The attempt that is due starts it with the other plan.
            if now >= asked.request.deadline:
                asked.end(RequestPhase.FAILED, "a query that waits to be restarted after a failure")
                self.rescalings.drop(query)
            return decisions.DoNothing()
        asked.request.enter(RequestPhase.UNDER_WAY)
        asked.stopped = run.run
        return decisions.StopForPlan(query, run.run)

    def _stopped_for_plan(self, asked: Rescaling, event: decisions.RunEnded) -> decisions.Decision:
        """Start a query at once that was told to stop, whatever others wait for."""
        self.queries.failed(asked.query, Setback(asked.cause, asked.noticed_at))
        if self.life.is_ending or self.must_go_back:
            # The attempt that is due starts it, too.
            return decisions.DoNothing()
        self.rescalings.starting((asked.query,))
        return decisions.RestartInPlace((asked.query,), asked.cause, asked.noticed_at)

    def _times(self, query: str, point: FailurePoint | None) -> int:
        """Return how often in a row a query has failed like this."""
        if point is None:
            return 1
        before = self._repetitions.get(query)
        self._repetitions[query] = now = before.then(point) if before else Repetition(point)
        return now.times

    def _must_go_back(self, cause: ChandyError, noticed_at: float) -> None:
        self.life = self.life.set_back(self._setback(cause, noticed_at))

    def _setback(self, cause: ChandyError, noticed_at: float) -> Setback:
        """Return the failure that counts: the first one from which the pipeline has not recovered, or a new one."""
        return self._first or Setback(cause, noticed_at)

    @property
    def _first(self) -> Setback | None:
        """The failure that the next attempt is to mend; None if no attempt is to come."""
        return None if self.life.error is not None else self.life.setback or self.queries.setback

    def _committed(self, event: decisions.FirstCommit, now: float) -> None:
        repetition = self._repetitions.get(event.query)
        if repetition is not None and event.batch >= repetition.point.batch:
            del self._repetitions[event.query]
        if self._failed_runs.get(event.query) != event.run:
            # Also if the run commits before it is told that it has been started.
            self.queries.runs(event.query)
        if not self._is_waiting(now):
            self.tracker.recovered(now)

    def _is_current(self, query: str, run: int) -> bool:
        current = self._runs.get(query)
        return current is not None and current.run == run

    def _is_waiting(self, now: float) -> bool:
        restart_at = self.tracker.restart_at
        return self._first is not None and restart_at is not None and now < restart_at

    def _runs_as(self, query_id: str) -> bool:
        return any(run.query_id == query_id for run in self._runs.values())

    def _needs_changelogs(self, query_id: str) -> bool:
        return any(run.query_id == query_id and run.needs_changelogs for run in self._runs.values())

    def _lose(self, why: str, *, with_host: bool) -> None:
        before = self.loss or StateLoss(why, None)
        self.loss = before.and_then(why, with_host=with_host)

    def _wait(
        self, cause: ChandyError, noticed_at: float, now: float, query: str | None = None
    ) -> decisions.Decision:
        """Wait for the next attempt, as the restart strategy says, or give up."""
        first = self._setback(cause, noticed_at)
        if self.loss is not None:
            self.life = self.life.set_back(first)
        if query is not None:
            self.queries.failed(query, Setback(cause, noticed_at))
        if self.life.is_ending:
            return decisions.DoNothing()
        delay = self.tracker.failed(now, self.random)
        if delay is None:
            return self._fail(cause)
        self.queries.due(now + delay)
        return decisions.WaitToRestart(now + delay, first.cause)

    @property
    def must_go_back(self) -> bool:
        """Whether the next attempt takes the whole pipeline back."""
        return self.life.setback is not None

    def _stop_withdrawn(self, now: float) -> decisions.Decision:
        self.life = self.life.withdrawn()
        first, restart_at = self._first, self.tracker.restart_at
        if first is None:
            return decisions.DoNothing()
        if restart_at is None:
            return self._wait(first.cause, first.noticed_at, now)
        # The restart strategy has allowed this attempt already; the stop came before it.
        self.queries.due(max(now, restart_at))
        return decisions.WaitToRestart(max(now, restart_at), first.cause)

    def _restart(self) -> decisions.Decision:
        waiting, first = self.queries.waiting, self.queries.setback
        if self.life.is_ending:
            return decisions.DoNothing()
        if (setback := self.life.setback) is not None:
            self.queries.all_restarting(setback)
            self.rescalings.starting(None)
            refusal = why_not_resumable(self.loss, is_half_way=self._is_half_way)
            return decisions.RollBack(setback.cause, setback.noticed_at, refusal)
        if first is None:
            return decisions.DoNothing()
        self.rescalings.starting(waiting)
        return decisions.RestartInPlace(waiting, first.cause, first.noticed_at)

    def _expect_no_restart(self, query: str) -> None:
        """Expect no restart of a query any more: it has been started again, or is about to end."""
        if query in self.queries.waiting:
            self.queries.started(query)

    def _restart_failed(self, event: decisions.RestartFailed, now: float) -> decisions.Decision:
        error, first = event.error, self._first
        self.rescalings.not_started(error)
        if event.final or first is None:
            return self._fail(error)
        if event.directory_is_lost:
            self._lose(str(error), with_host=False)
        self.queries.attempt_failed(self.life.setback)
        cause = error if isinstance(error, ChandyError) else first.cause
        return self._wait(cause, first.noticed_at, now)

    def _fail(self, error: Exception, because: str = "") -> decisions.Decision:
        self.life = self.life.failing(error)
        self.rescalings.fail(error)
        return decisions.FailForGood(error, because)
