"""Keeps the queries of a pipeline running: receives reports of failures, and carries out the decisions about them.

One thread takes one event after the other. The protocol decides what to do, ``rollback.go_back``
knows how to go back; here are the thread, the locks and what users and hosts call.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

import attrs

from ...state.rpc.messages import ShardsRestored, TaskFailure
from ...state.shards import NotResumable
from ...storage import runtime
from ...storage.checkpoints.manifest import Manifest
from ...storage.errors import (
    ChandyError,
    DamagedCheckpointError,
    FailureCode,
    FencedError,
    OperationInterruptedError,
)
from ...storage.ids import BatchId
from ...storage.logs import carried, logger
from ...storage.long_waits import told_if_slow
from ..errors import PipelineFailedError, SessionEndedError
from ..execution.executor import CheckpointExecutor
from ..execution.locked_protocol import LockedProtocol
from ..protocol import decisions, events
from ..protocol.life import Life
from ..query import CheckpointedQuery, Definition, Supervision
from ..restore.local_recovery import LocalRecovery
from ..restore.restore_point import RestorePoint, suspect
from ..restore.resume import ResumableRun
from ..spark import progress
from .announcements import Announcements, Tell, tell_nobody
from .diagnosis import Diagnosis, cause_of_end, restart_failed
from .failure_report import FailureReport
from .last_commit import committed_like_sink
from .launcher import FindDamage, Launcher
from .metrics import START, RecoveryMetrics
from .noticed import RunEnd
from .pipeline_rollback import PipelineRollback
from .replanning import Replanning
from .rollback import go_back
from .runs import Run, Runs

log = logger(__name__)

_JOIN_SECONDS: Final = 60.0
"""How long closing waits for the thread, which may be starting a query."""
_TASKS_SECONDS: Final = 10.0
"""How long closing waits for the tasks of queries that were stopped in a batch."""
_REMEMBERED: Final = 100
"""How many recoveries are remembered."""


_Report = decisions.RecoveryEvent | decisions.Decision | RunEnd


class Supervisor:
    """Starts, stops and restarts the queries of one pipeline. It is what ``Reports`` go to."""

    def __init__(
        self,
        *,
        protocol: LockedProtocol,
        launcher: Launcher,
        runs: Runs,
        local_recovery: LocalRecovery,
        find_damage: FindDamage,
        ending: runtime.Flag,
        clock: Callable[[], float],
        restored: RestorePoint | None,
        token: str,
        check_session: Callable[[], None] = lambda: None,
        on_failed: Callable[[], object] = lambda: None,
        tell: Tell = tell_nobody,
    ) -> None:
        """Make a supervisor without queries.

        Args:
            protocol: decides about failures.
            launcher: makes and starts runs; from now on used here alone.
            runs: the current runs; from now on changed here alone.
            local_recovery: what queries can resume.
            find_damage: looks at a checkpoint that could not be restored.
            ending: set while the pipeline ends, for what reads long from a store; from now on set here alone.
            clock: seconds since 1970, never going back.
            restored: the checkpoint to begin from; None: from the beginning.
            token: the secret that the pipeline's processes share.
            check_session: raises a ``SessionEndedError`` if nothing can be started any more.
            on_failed: called when the pipeline has failed for good, and all runs have been stopped.
            tell: is told of what users may want to know.
        """
        self._protocol = protocol
        self._launcher = launcher
        self._runs = runs
        self._local_recovery = local_recovery
        self._find_damage = find_damage
        self._ending = ending
        self._clock = clock
        self._initial = self._point = restored
        self._check_session = check_session
        self._on_failed = on_failed
        self.news = Announcements(tell, clock)
        """Tells users of what happens."""
        self._queries: dict[str, CheckpointedQuery] = {}
        # A decision among the events was made on another thread, for this one to carry out.
        self._events: runtime.Queue[_Report | None] = runtime.simple_queue()
        # Held while queries are started or stopped; never while the checkpoints' lock is.
        self._changing = runtime.rlock()
        self.replanning = Replanning(runs, clock, self._report, launcher.stop_in_spark, protocol.changed)
        """Has queries go on with other plans."""
        self._restart_at: float | None = None
        self._failures = FailureReport()
        self._diagnosis = Diagnosis(token, self._damage)
        self._round = 0
        """How often the pipeline has gone back."""
        self._superseded: list[Run] = []
        """Runs to clean up after once the pipeline has gone back, including those of failed attempts."""
        self.recoveries: deque[RecoveryMetrics] = deque(maxlen=_REMEMBERED)
        self.recovered: Counter[str] = Counter()
        """How many recoveries there have been, by their kind."""
        self._thread = runtime.thread(target=carried(self._supervise), name="chandy-supervisor")

    def begin(self, executor: CheckpointExecutor) -> None:
        """Begin to supervise, with the checkpoints that recovery goes back to."""
        self._executor = executor
        self._launcher.begin(self._protocol, executor.watch.proof, self)
        self._thread.start()

    # --- what others report ---------------------------------------------------------------------------------

    def decided(self, decision: decisions.Decision) -> None:
        """Have a decision carried out, which was made on another thread."""
        if decision != decisions.DoNothing():
            self._events.put(decision)

    def output_failed(self, error: ChandyError) -> None:
        """Report that a transactional sink cannot publish, and that going back would not help."""
        self._events.put(decisions.FatalError(error))

    def fenced(self, error: FencedError) -> None:
        """Report that there is a successor, which waits for nothing that this driver is in the middle of."""
        self._events.put(self._decide(decisions.FatalError(error)))
        # On a thread of its own: Spark waits for a batch, which may be what has reported it.
        stopping = runtime.thread(target=carried(self._stop_at_once), name="chandy-fenced")
        try:
            stopping.start()
        except RuntimeError as error:
            log.error("the queries end a little later, because no thread can be started", error=str(error))

    def is_interrupted(self) -> bool:
        """Return whether nothing that takes long is to begin: the pipeline is to be stopped, or has failed."""
        return self.life.is_ending

    def interrupt(self) -> None:
        """End what reads long from a store, because the pipeline is to be stopped; starts and restores fail then."""
        self._decide(decisions.StopRequested())

    def _stop_at_once(self) -> None:
        """Have Spark end all queries, though somebody starts or restores others now; their end is reported later."""
        self._launcher.stop_all_in_spark(self._runs.all())

    def processor_failed(self, failure: TaskFailure) -> None:
        """Report that a user's processor raised; the query's failure will follow."""
        self._diagnosis.processor_failed(failure)

    def shards_restored(self, restored: ShardsRestored) -> None:
        """Report that a host has restored shards. The time that it took is counted for the recovery of their query."""
        metrics = self._launcher.metrics.get(restored.query_id)
        if metrics is not None and metrics.first_batch is None:
            metrics.restored(restored)

    def run_made(self, run: Run) -> None:
        """Note that a run is the current one of its query."""
        needs_changelogs = run.resumed is not None and run.resumed.point.needs_changelogs
        self._decide(decisions.RunStarted(run.definition.name, run.number, run.query_id, needs_changelogs))

    def run_begun(self, run: Run) -> None:
        """Note that a run has begun under Spark."""
        self._decide(decisions.RunBegun(run.definition.name, run.number))

    def nothing_to_do(self, run: Run) -> None:
        """Note that a run has found no data."""
        self._decide(decisions.NothingToDo(run.definition.name, run.number))

    def run_stopped(self, run: Run) -> None:
        """Note that a run is stopped on purpose."""
        self._decide(decisions.RunStopped(run.definition.name, run.number))

    def run_ended(self, run: Run, error: Exception | None) -> None:
        """Report the end of a run."""
        self._events.put(RunEnd(run, error, self._clock()))

    def first_commit(self, run: Run, batch: BatchId, metrics: RecoveryMetrics) -> None:
        """Note that a run has committed its first batch."""
        name = run.definition.name
        self._decide(decisions.FirstCommit(name, run.number, batch))
        self.news.recovered(name, metrics)

    def shards_not_opened(self, query_id: str, why: str, code: FailureCode | None = None) -> None:
        """Report that shards could not be opened; see ``Reports``."""
        self._events.put(decisions.ShardsNotOpened(query_id, why, self._clock(), code=code))

    def checkpoint_completed(self, manifest: Manifest, root: str) -> None:
        """Tell the sources of queries how far a completed checkpoint has come."""
        self.news.completed(manifest, root)
        self._runs.completed(manifest)

    # --- starting and stopping ------------------------------------------------------------------------------

    @property
    def life(self) -> Life:
        """Whether the pipeline runs."""
        return self._protocol.life()

    @property
    def queries(self) -> tuple[CheckpointedQuery, ...]:
        """All queries, in the order in which they were started."""
        return tuple(self._queries.values())

    def start(self, definition: Definition, known: CheckpointedQuery | None = None) -> CheckpointedQuery:
        """Start a query for the first time in this coordinator's life, from the restored checkpoint if it is there.

        Args:
            definition: the query.
            known: what its user has of it; None: nothing yet.

        Raises:
            PipelineFailedError: the pipeline has failed for good before.
        """
        with self._changing:
            self._check_not_failed()
            life = partial(self._protocol.life_of, definition.name)
            supervision = Supervision(definition, self.stop_query, life, self._protocol.changed)
            query = CheckpointedQuery(supervision) if known is None else known.go_on(supervision)
            resumed = self._leftover(definition)
            point = self._point
            metrics = RecoveryMetrics(
                START, point.manifest.id if point else None, resumed is not None, self._clock()
            )
            try:
                began = runtime.monotonic()
                replaced = self._local_recovery.left(definition.name)
                run = self._launcher.restore(definition, point, resumed, self._round, replaced)
                metrics.restoring = runtime.monotonic() - began
                self._launcher.start(run, query, metrics)
            except BaseException:
                self._launcher.forget(definition.name)
                raise
            self._queries[definition.name] = query
            self._recovered(metrics)
            return query

    def stop_query(self, name: str) -> None:
        """Stop one query for good, at once."""
        with self._changing:
            run, query = self._runs.get(name), self._queries[name]
            # A run may have ended although its query is about to restart.
            if run is None or not query.isActive:
                return
            query.is_stopped = True
            try:
                with self._stopping(run):
                    self._launcher.stop(run)
                    run = committed_like_sink(run, query, self._launcher, self._protocol, self._clock)
            finally:
                self._decide(decisions.QueryOver(name))
        self._report_stop(run)

    @contextmanager
    def _stopping(self, run: Run) -> Iterator[None]:
        """Take a query that is stopped inside of the ``with`` for one that may still commit what it has begun."""
        run.is_stopping = True
        try:
            yield
        finally:
            # It may be another run by now.
            (self._runs.get(run.definition.name) or run).is_stopping = False

    def stop_gracefully(self, order: tuple[str, ...], timeout: float, *, for_good: bool = True) -> list[Run]:
        """Stop all queries, each after its running batch has committed; return the runs that were stopped.

        Args:
            order: the queries, downstream first: what a query has consumed is then sure to be committed by its
                producer before that one is stopped.
            timeout: seconds to wait for all the batches together; what runs longer is stopped in its batch, which
                then counts for nothing and runs again after a restore.
            for_good: whether the queries have ended then; otherwise they are about to be started again.
        """
        self._decide(decisions.StopRequested())
        deadline = runtime.monotonic() + timeout
        stopped: list[Run] = []
        with self._hold_changes():
            for name in order:
                run = self._runs.get(name)
                if run is None or run.ended:
                    continue
                try:
                    run.await_running_batch(deadline)
                    self._launcher.stop(run)
                    if for_good:
                        self._decide(decisions.QueryOver(name))
                except Exception as error:  # noqa: BLE001 (whatever a query raises, a stop comes to its end)
                    self._fail_for_good(PipelineFailedError(f"query {name!r} cannot be stopped: {error}"))
                    break
                self._report_stop(run)
                stopped.append(run)
        return stopped

    def current_batches(self) -> dict[str, BatchId]:
        """Return the newest committed batch of each query; -1 if it has none."""
        return {
            run.definition.name: progress.newest_committed(run.logs_as_known()) for run in self._runs.all()
        }

    def resume(self, stopped: list[Run]) -> None:
        """Restart in place the queries that ``stop_gracefully`` has stopped, unless the pipeline must go back.

        Raises:
            PipelineFailedError: the pipeline has failed for good meanwhile, or a query cannot be started.
        """
        with self._changing:
            self._check_not_failed()
            withdrawn = self._decide(decisions.StopWithdrawn())
            try:
                for run in stopped if not self._protocol.must_go_back() else ():
                    self._restart_in_place(run, "a stop that was not carried through", self._clock())
            except Exception as error:
                failed = PipelineFailedError(f"it could not be started again: {error}")
                self._fail_for_good(failed)
                raise failed from error
            # Failures from before or during the stop have not been handled yet.
            self._events.put(withdrawn)

    def leave_runs(self) -> None:
        """Have ``close`` leave the runs to the next coordinator as a killed driver does, which may resume them."""
        self._decide(decisions.RunsLeft())

    def close(self) -> None:
        """Stop what still runs, and end the thread."""
        self._decide(decisions.StopRequested())
        with self._hold_changes():
            self._end(None)
        self._events.put(None)
        with told_if_slow(log, "what watches the queries to end"):
            self._thread.join(_JOIN_SECONDS)
        if self._thread.is_alive():
            log.error(
                "closed although what watches the queries hangs; it is left behind", seconds=_JOIN_SECONDS
            )
        # They would miss their state hosts, and tell of that.
        if not self._runs.await_tasks(_TASKS_SECONDS):
            log.warning("closed although tasks of stopped queries still run", seconds=_TASKS_SECONDS)
        for query in self._queries.values():
            query.definition.sink.close()
            query.definition.sources.close()
        for run in self._runs.all():
            self._launcher.remove_resumed(run)
            if not self.life.leaves_runs:
                self._local_recovery.delete_changelogs([run.query_id])
        if self.life.leaves_runs and self._local_recovery.enabled:
            self._launcher.leave()
        self._decide(decisions.Stopped())

    @contextmanager
    def _hold_changes(self) -> Iterator[None]:
        """Hold ``_changing``, and say so if another thread is long in starting or restoring queries."""
        with ExitStack() as held:
            with told_if_slow(log, "queries that are being started or restored"):
                held.enter_context(self._changing)
            yield

    def _report_stop(self, run: Run) -> None:
        """End the checkpoints that wait for a batch of a run which will not commit, now that it was stopped."""
        name, current_batch = run.definition.name, progress.newest_committed(run.logs_as_known())
        self._protocol.handle(events.QueryStopped(name, current_batch))

    def _check_not_failed(self) -> None:
        if (failed := self.life.error) is not None:
            raise PipelineFailedError(f"it has failed for good: {failed}") from failed

    def _leftover(self, definition: Definition) -> ResumableRun | None:
        """Return the run of a killed driver that a query resumes.

        If it cannot resume and stood at one cut with others, those go back to the checkpoint, too.
        """
        found = self._local_recovery.leftover(definition, self._point)
        if found is None and self._local_recovery.blocks_others(definition.name, self._point):
            self._local_recovery.forget_leftovers()
            if any(run.resumed for run in self._runs.all()):
                why = f"query {definition.name!r} cannot resume where it stood"
                try:
                    self._go_back(why, self._clock(), NotResumable("stood at one cut with another query"))
                except Exception as error:  # noqa: BLE001 (whatever it is, it ends the pipeline)
                    raise self._fail_for_good(error) from None
        return found

    # --- supervision ----------------------------------------------------------------------------------------

    def _decide(self, event: decisions.RecoveryEvent) -> decisions.Decision:
        return self._protocol.handle(event, before=self._note_end)

    def _note_end(self, _: decisions.Decision) -> None:
        if self.life.is_ending:
            self._ending.set()
        else:
            self._ending.clear()

    def _report(self, event: decisions.RecoveryEvent) -> None:
        """Have an event decided, and leave to the thread what is to be done."""
        self.decided(self._decide(event))

    def _supervise(self) -> None:
        while (event := self._next_event()) is not None:
            try:
                self._take(event)
            except Exception as error:
                log.exception("the pipeline cannot go on")
                self._fail_for_good(error)

    def _take(self, event: _Report) -> None:
        if isinstance(event, decisions.Decision):
            # Whatever else has happened since: the machine does not decide it again.
            with self._changing:
                self._carry_out(event)
            return
        try:
            self._check_session()
        except SessionEndedError as error:
            event = decisions.FatalError(error)
        # Without the lock: this may read a whole checkpoint.
        if isinstance(event, RunEnd):
            run = event.run
            if run.ended:
                # It was stopped.
                return
            failure = None if event.error is None else self._diagnosis.of(run, event.error)
            event = decisions.RunEnded(run.definition.name, run.number, failure, event.noticed_at)
        elif isinstance(event, decisions.ShardsNotOpened) and event.code is FailureCode.UNREADABLE:
            event = attrs.evolve(event, damage=self._damage(event.why))
        # If another thread is starting the run that failed, the decision waits until that thread is done.
        with self._changing:
            self._carry_out(self._decide(event))

    def _next_event(self) -> _Report | None:
        """Wait for the next event; None if there are no more."""
        until = self._restart_at
        try:
            return self._events.get(timeout=None if until is None else max(0.0, until - self._clock()))
        except runtime.Empty:
            self._restart_at = None
            return decisions.DelayOver()

    def _damage(self, met: str) -> DamagedCheckpointError | None:
        """Return the damage of the checkpoint whose state could not be read; None if none can be found now."""
        restored = self._point
        if restored is None or self.life.error is not None:
            return None
        point = self._protocol.read(lambda state: suspect(state, restored))
        log.error("looking for damage in the restored checkpoint", checkpoint=point.manifest.id, met=met)
        return self._find_damage(point)

    def _carry_out(self, decision: decisions.Decision) -> None:
        match decision:
            case decisions.EndQuery(name, number):
                run = self._runs.get(name)
                if run is not None and run.number == number and not run.ended:
                    run.ended = True
                    self._decide(decisions.QueryOver(name))
            case decisions.StopForPlan(name, number):
                self.replanning.stop(name, number)
            case decisions.RestartInPlace() | decisions.RollBack():
                self._carry_out(self._try(decision))
            case decisions.WaitToRestart() if runtime.current_thread() is not self._thread:
                # Only that one waits.
                self._events.put(decision)
            case decisions.WaitToRestart(until, cause):
                self._restart_at = until
                self._failures.tell(log.warning, cause, restarting_in=round(until - self._clock(), 3))
            case decisions.FailForGood(error, because):
                self._fail_for_good(error, because)

    def _try(self, decision: decisions.RestartInPlace | decisions.RollBack) -> decisions.Decision:
        """Attempt a restart; return what is to be done if it fails."""
        self.news.recovering(decision)
        self.replanning.take(self._queries)
        try:
            match decision:
                case decisions.RestartInPlace(queries, cause, noticed_at):
                    for name in queries:
                        run = self._runs.get(name)
                        assert run is not None, "a query that has failed has had a run"
                        self._restart_in_place(run, cause, noticed_at)
                case decisions.RollBack(cause, noticed_at, refusal):
                    self._go_back(str(cause), noticed_at, refusal)
        except Exception as error:  # noqa: BLE001 (Spark raises many; the strategy bounds the attempts)
            if not isinstance(error, OperationInterruptedError):
                log.warning("the pipeline could not be restarted", error=str(error))
            return self._decide(restart_failed(error))
        return decisions.DoNothing()

    def _restart_in_place(self, run: Run, cause: str | ChandyError, noticed_at: float) -> None:
        """Restart a query in place: same directory, same batch, same state."""
        name = run.definition.name
        metrics = RecoveryMetrics.begun(cause, noticed_at, self._clock(), in_place=True)
        self._launcher.start(self._launcher.again(run), self._queries[name], metrics)
        self._decide(decisions.RestartedInPlace(name))
        self._recovered(metrics)

    def _go_back(self, cause: str, noticed_at: float, refusal: NotResumable | None) -> None:
        """Take the whole pipeline back to the checkpoint that its state grew from, or resume behind it if it may."""
        self._attempt(PipelineRollback, cause, noticed_at, refusal, resume=refusal is None)

    def _attempt(
        self,
        kind: type[PipelineRollback],
        cause: str,
        noticed_at: float,
        refusal: NotResumable | None = None,
        *,
        resume: bool,
    ) -> None:
        attempt = kind(
            cause=cause,
            refusal=refusal,
            metrics=RecoveryMetrics.begun(cause, noticed_at, self._clock(), in_place=False),
            round=self._round + 1,
            initial=self._initial,
            superseded=self._superseded,
            executor=self._executor,
            runs=self._runs,
            wrapped=self._queries,
            launcher=self._launcher,
            local_recovery=self._local_recovery,
            decide=self._decide,
            on_state_given_up=self._state_given_up,
        )
        go_back(attempt, resume=resume)
        self._decide(decisions.WentBack())
        self._recovered(attempt.metrics)

    def _state_given_up(self, point: RestorePoint | None) -> None:
        self._point = point
        self._round += 1
        self._decide(decisions.StateGivenUp())

    def _recovered(self, metrics: RecoveryMetrics) -> None:
        self.recoveries.append(metrics)
        self.recovered[metrics.kind] += 1

    def _fail_for_good(self, noticed: Exception, because: str = "") -> Exception:
        """End every query with the cause of what was noticed, and return it; no more checkpoints are taken."""
        # First: a thread that learns that there are no more checkpoints must not start anything again.
        self._decide(decisions.FatalError(noticed))
        error = cause_of_end(noticed, self._executor.watch.proof)
        self._decide(decisions.EndExplained(error))
        facts = {"because": because} if because else {}
        write, outcome = log.error, "the pipeline has failed for good"
        if isinstance(error, FencedError):
            # Nothing has failed, and who holds the news back has handed the pipeline over.
            write = log.info if self.news.is_held_back else log.warning
            outcome = "another driver leads the pipeline"
        self._failures.tell(write, error, outcome=outcome, **facts)
        with self._changing:
            self._end(error)
        self._on_failed()
        return error

    def _end(self, error: Exception | None) -> None:
        """End all queries, with the error if there is one."""
        self._launcher.stop_all([run for run in self._runs.all() if error is not None or not run.ended])
        for query in self._queries.values():
            if query.isActive:
                self._decide(decisions.QueryOver(query.name, error))
        self.news.ended(error or self.life.error)
