"""Keeps the queries of a pipeline running: starts them, notices their end, restarts or restores them.

One thread takes one event after the other, so that several reports of one accident lead to one recovery.
A query that fails while its state is alive starts again in place: same directory, same batch, no replay. When
state is lost the whole pipeline goes back to the checkpoint that its state grew from; where a process was killed
and the changelogs of its shards are there, it goes on from both where it stood (``standing``).
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from ...state.errors import (
    CannotGoBackError,
    ChangelogBrokenError,
    HostLostError,
    ShardBrokenError,
    ShardMissingError,
)
from ...state.rpc.messages import ShardsRestored, TaskFailure
from ...storage.errors import (
    ChandyError,
    DamagedCheckpointError,
    DamagedError,
    FencedError,
    ObjectMissingError,
    StorageError,
    StoreFailedError,
)
from ...storage.files import FileCache
from ...storage.logs import logger
from ...storage.manifest import OperatorRecord
from ..errors import (
    PipelineFailedError,
    PipelineStateLostError,
    ProcessorFailedError,
    QueryFailedError,
    RestoreError,
    StateLostError,
)
from ..execution.executor import CheckpointExecutor
from ..protocol.reasons import Reason
from ..query import CheckpointedQuery, Definition
from ..sinks import file_sink_log
from ..sinks.guarantee import guarantee
from ..spark import plan, progress
from ..spark.local_path import local_path
from ..spark.seeding import seed
from ..spark.starting import start as start_spark
from ..spark.ticks import Ticks
from .local_recovery import LocalRecovery, Stood
from .metrics import RecoveryMetrics
from .query_directories import QueryDirectories
from .restart import RestartTracker
from .restore_point import Restored, RestorePoint, base_point, restore_query
from .runs import Run, Runs

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logger(__name__)

_POLL_SECONDS = 0.02
_LONGEST_POLL_SECONDS = 0.2
_SLOWER = 1.2
"""From one look for a run's first commit to the next, from the one pause to the other."""
_REMEMBERED = 100
"""Recoveries that are remembered."""
_HOST_IS_GONE = tuple(error.__name__ for error in (StateLostError, HostLostError))
"""Errors of a task whose state host was killed; Spark hands them on as text alone."""
_STATE_IS_WRONG = tuple(
    error.__name__ for error in (CannotGoBackError, ChangelogBrokenError, ShardMissingError, ShardBrokenError)
)
"""Errors of a task whose state is not what it must be."""
_CANNOT_BE_READ = (DamagedError.__name__, ObjectMissingError.__name__)
"""Errors of a task whose state could not be restored from what is stored."""


@attrs.frozen
class _RunEnded:
    run: Run
    error: Exception | None
    noticed_at: float
    """Seconds since 1970; as in the other events."""


@attrs.frozen
class _StateLost:
    noticed_at: float


@attrs.frozen
class _NotOpened:
    query_id: str
    """Spark's, of the query whose shards these are."""
    why: str
    noticed_at: float


@attrs.frozen
class _Loss:
    """That state is lost, so that the pipeline must go back."""

    why: str
    with_host: bool
    """Whether it is lost with its host alone: what the changelogs have can be trusted."""


@attrs.frozen
class _MustFail:
    error: ChandyError
    noticed_at: float


class Supervisor:
    """The queries of one pipeline, alive."""

    def __init__(
        self,
        *,
        directories: QueryDirectories,
        runs: Runs,
        tracker: RestartTracker,
        clock: Callable[[], float],
        cache: FileCache,
        ticks: Ticks,
        restored: RestorePoint | None,
        resets_sinks: bool,
        open_ahead: Callable[[str, tuple[OperatorRecord, ...], Callable[[str], None]], None],
        local_recovery: LocalRecovery,
    ) -> None:
        """Make a supervisor without queries.

        Args:
            directories: where working directories go.
            runs: the current runs; from now on changed here alone.
            tracker: decides about restarts.
            clock: seconds since 1970, never going back.
            cache: files that this machine has already.
            ticks: told of every run before it begins.
            restored: the checkpoint to begin from; None: from the beginning.
            resets_sinks: whether a file sink that has a log already goes back to its beginning when there
                is no checkpoint: it was written by an earlier life of this pipeline.
            open_ahead: begins to open the shards of operators, given Spark's id of their query, before that runs;
                tells why if it cannot.
            standings: what queries can go on from where they stood.
        """
        self._directories = directories
        self._runs = runs
        self._tracker = tracker
        self._clock = clock
        self._cache = cache
        self._ticks = ticks
        self._initial = self._point = restored
        self._resets_sinks = resets_sinks
        self._open_ahead = open_ahead
        self._local_recovery = local_recovery
        self._queries: dict[str, CheckpointedQuery] = {}
        self._events: queue.SimpleQueue[_RunEnded | _StateLost | _NotOpened | _MustFail | None] = (
            queue.SimpleQueue()
        )
        # Held while queries are started or stopped; never while the checkpoints' lock is.
        self._changing = threading.RLock()
        self._stopping = threading.Event()
        self._loss: _Loss | None = None
        self._losing = threading.Lock()
        self._processor_failures: dict[str, TaskFailure] = {}
        self._recovering: dict[str, RecoveryMetrics] = {}
        """By Spark's id of a query the recovery that started its run."""
        self._number = 0
        self._round = 0
        """How often the pipeline has gone back."""
        self._failed: Exception | None = None
        """What the pipeline has failed of for good: nothing starts any more."""
        self._superseded: list[Run] = []
        """Runs to clean up after, once the pipeline has gone back from them: also those of attempts that failed."""
        self.recoveries: deque[RecoveryMetrics] = deque(maxlen=_REMEMBERED)
        self._thread = threading.Thread(target=self._supervise, name="chandy-supervisor", daemon=True)

    def begin(self, checkpointing: CheckpointExecutor) -> None:
        """Begin to supervise, with the checkpoints that recovery goes back to."""
        self._executor = checkpointing
        self._thread.start()

    # --- what others say ------------------------------------------------------------------------------------

    def host_lost(self, why: str) -> None:
        """A state host is gone, and state with it: the pipeline must go back."""
        self._lose(why, with_host=True)
        self._events.put(_StateLost(self._clock()))

    def _lose(self, why: str, *, with_host: bool) -> None:
        with self._losing:
            before = self._loss
            alone = with_host and (before is None or before.with_host)
            self._loss = _Loss(before.why if before else why, alone)

    def must_fail(self, error: ChandyError) -> None:
        """The pipeline must fail for a reason that lies outside of its queries."""
        self._events.put(_MustFail(error, self._clock()))

    def processor_failed(self, failure: TaskFailure) -> None:
        """A user's processor raised; the query's failure will follow."""
        self._processor_failures[failure.query_id] = failure

    def shards_restored(self, restored: ShardsRestored) -> None:
        """A host has restored shards: what that took belongs to the recovery that it was done for."""
        if restored.failure is not None:
            self._not_opened(restored.query_id, restored.failure)
        recovery = self._recovering.get(restored.query_id)
        if recovery is not None and recovery.first_batch is None:
            recovery.restored(restored)

    @property
    def queries(self) -> tuple[CheckpointedQuery, ...]:
        """All queries, in the order in which they were started."""
        return tuple(self._queries.values())

    # --- starting and stopping ------------------------------------------------------------------------------

    def start(self, definition: Definition) -> CheckpointedQuery:
        """Start a query for the first time in this coordinator's life, from the restored checkpoint if it is there.

        Raises:
            PipelineFailedError: the pipeline has failed for good before.
        """
        with self._changing:
            self._check_not_failed()
            query = CheckpointedQuery(definition, guarantee(definition.facts), self.stop_query)
            stood = self._where_left(definition)
            point = self._point
            recovery = RecoveryMetrics(
                "start", point.manifest.id if point else None, stood is not None, self._clock()
            )
            try:
                self._start(self._restore(definition, recovery, stood), query, recovery)
            except BaseException:
                self._forget(definition.name)
                raise
            self._queries[definition.name] = query
            self.recoveries.append(recovery)
            return query

    def stop_query(self, name: str) -> None:
        """Stop one query for good, at once."""
        with self._changing:
            run = self._runs.get(name)
            if run is None or run.ended:
                return
            run.ended = True
            self._queries[name].is_stopped = True
            self._stop_spark(run)
            self._queries[name].ended()
        self._tell_where_it_stands(run)

    def stop_gracefully(self, order: tuple[str, ...], timeout: float) -> list[Run]:
        """Stop all queries, each after its running batch has committed; return the runs that were stopped.

        Args:
            order: the queries, downstream first: what a query has consumed is then sure to be committed by its
                producer before that one is stopped.
            timeout: seconds to wait for all the batches together; what runs longer is stopped in its batch, which
                then counts for nothing and runs again after a restore.
        """
        self._stopping.set()
        deadline = time.monotonic() + timeout
        stopped: list[Run] = []
        with self._changing:
            for name in order:
                run = self._runs.get(name)
                if run is None or run.ended:
                    continue
                planned = progress.newest_planned(run.directory)
                while (
                    not progress.is_committed(run.directory, planned)
                    and planned >= 0
                    and run.spark is not None
                    and run.spark.isActive
                    and time.monotonic() < deadline
                ):
                    time.sleep(_POLL_SECONDS)
                run.ended = True
                self._stop_spark(run)
                self._queries[name].ended()
                self._tell_where_it_stands(run)
                stopped.append(run)
        return stopped

    def resume(self, stopped: list[Run]) -> None:
        """Start queries again that ``stop_gracefully`` has stopped, where they stood.

        Raises:
            PipelineFailedError: the pipeline has failed for good meanwhile.
        """
        with self._changing:
            self._check_not_failed()
            self._stopping.clear()
            for run in stopped:
                self._restart_in_place(run, "a stop that could not be carried through", self._clock())

    def close(self) -> None:
        """Stop what still runs, and end the thread."""
        self._stopping.set()
        with self._changing:
            for run in self._runs.all():
                if not run.ended:
                    run.ended = True
                    self._stop_spark(run)
            for query in self._queries.values():
                if query.isActive:
                    query.ended()
        self._events.put(None)
        self._thread.join()
        for run in self._runs.all():
            self._let_go(run)
            self._local_recovery.over([run.query_id])

    # --- runs -----------------------------------------------------------------------------------------------

    def _where_left(self, definition: Definition) -> Stood | None:
        """Return where a query stood when the driver of the life before was killed, if it can go on from there."""
        stood = self._local_recovery.left(definition, _output(definition), self._point)
        if stood is None and self._local_recovery.holds_back(definition.name, self._point):
            self._local_recovery.give_up()
            if any(run.stood for run in self._runs.all()):
                why = f"query {definition.name!r} cannot go on where it stood"
                try:
                    self._go_back(why, self._clock(), go_on=False)
                except Exception as error:
                    self._fail_for_good(error)
                    raise
        return stood

    def _restore(self, definition: Definition, recovery: RecoveryMetrics, stood: Stood | None) -> Run:
        """Make the working directory of a new run: from where the query stood, from the checkpoint, or empty."""
        began = time.monotonic()
        point, name = self._point, definition.name
        directory = self._directories.new_run(name)
        output = _output(definition)
        if stood is not None:
            # The sink has what it had.
            query_id, batch = seed(stood.directory, directory), stood.resume_point.batch
        else:
            query_id, batch = self._go_to(point, name, directory, output), point.batch(name) if point else -1
        self._number += 1
        run = Run(self._number, definition, directory, query_id, output, stood)
        self._runs.put(run)
        before = point.operators(name, definition.operators) if point else ()
        resume_point = stood.resume_point if stood and stood.resume_point.needs_changelogs else None
        self._executor.look(
            lambda protocol: protocol.add_query(
                name,
                query_id,
                batch=batch,
                operators=definition.operators,
                restored=definition.operators if resume_point else before,
                sources=point.sources(name) if point else {},
                reads=definition.reads,
                resume_point=resume_point,
            )
        )
        self._local_recovery.note(run, self._round, point)
        self._open_ahead(query_id, definition.operators, partial(self._not_opened, query_id))
        recovery.restoring += time.monotonic() - began
        return run

    def _go_to(self, point: RestorePoint | None, name: str, directory: Path, output: Path | None) -> str:
        """Make a working directory, and put the sink's log back, as the checkpoint has them; return Spark's new id."""
        if point is not None and point.has(name):
            restored = self._restore_query(point, name, directory)
        else:
            restored = Restored(seed(directory / "nothing", directory), {})
            if output is not None and not self._resets_sinks and file_sink_log.newest(output) >= 0:
                raise RestoreError(
                    f"query {name!r} cannot begin with its first batch",
                    f"no log of earlier batches in its output {output}, because Spark would skip as many batches",
                    f"one up to batch {file_sink_log.newest(output)}",
                    "choose another path, delete this one, or restore the checkpoint that belongs to it",
                )
        if output is not None:
            missing = file_sink_log.restore(output, restored.sink_log).missing
            if missing:
                log.warning(
                    "somebody has deleted files that the sink's log names",
                    query=name,
                    files=len(missing),
                    first=missing[0],
                )
        return restored.query_id

    def _restore_query(self, point: RestorePoint, name: str, directory: Path) -> Restored:
        try:
            return restore_query(point, name, directory, self._cache)
        except (DamagedError, ObjectMissingError) as error:
            raise self._damage() or error from None

    def _start(self, run: Run, query: CheckpointedQuery, recovery: RecoveryMetrics) -> None:
        began = time.monotonic()
        definition = run.definition
        uids = [operator.uid for operator in definition.operators]
        self._ticks.watch(uids, run.directory, no_data_batches=definition.facts.no_data_batches)
        self._recovering[run.query_id] = recovery
        # Before the run begins: its first batch may have committed when it is followed.
        first = progress.newest_committed(run.directory) + 1
        run.spark = start_spark(
            definition.writer,
            location=str(run.directory),
            table=definition.table,
            query_name=definition.facts.query_name or definition.name,
            output=None if run.output is None else str(run.output),
            stateful=bool(definition.operators),
        )
        query.runs_as(run.spark)
        recovery.starting += time.monotonic() - began
        threading.Thread(
            target=self._follow,
            args=(run, run.spark, first, recovery),
            name=f"chandy-{query.name}",
            daemon=True,
        ).start()

    def _follow(self, run: Run, spark: StreamingQuery, first: int, recovery: RecoveryMetrics) -> None:
        """Wait for a run's first commit, and for its end."""
        error: Exception | None = None
        try:
            self._await_commit(run, spark, first, recovery)
            spark.awaitTermination()
        except Exception as raised:  # noqa: BLE001 (whatever ends a query is an end to be dealt with)
            error = raised
        self._events.put(_RunEnded(run, error, self._clock()))

    def _await_commit(self, run: Run, spark: StreamingQuery, first: int, recovery: RecoveryMetrics) -> None:
        began, pause = time.monotonic(), _POLL_SECONDS
        try:
            # Rarely, the longer it takes: each question costs the driver time that the first batch is waiting for.
            # PySpark takes parts of a second, other than its annotation says.
            while not progress.is_committed(run.directory, first) and not spark.awaitTermination(pause):  # type: ignore[arg-type]
                pause = min(pause * _SLOWER, _LONGEST_POLL_SECONDS)
        finally:
            # Also of a run that has ended by now, and of one that has failed in a later batch.
            if progress.is_committed(run.directory, first):
                recovery.first_batch = time.monotonic() - began
                self._tracker.recovered(self._clock())
                self._let_go(run)

    def _not_opened(self, query_id: str, why: str) -> None:
        self._events.put(_NotOpened(query_id, why, self._clock()))

    def _is_missed(self, query_id: str) -> bool:
        """Whether it matters now that shards of a query are not open.

        State that comes from a checkpoint alone is left to the tasks: they ask for the same, and tell. But checkpoints
        wait for state that lies in changelogs, and no batch may come.
        """
        runs = [run for run in self._runs.all() if run.query_id == query_id]
        return any(run.stood.resume_point.needs_changelogs for run in runs if run.stood)

    def _let_go(self, run: Run) -> None:
        """Delete what a run has gone on from: its shards are open by now, and have taken their changelogs over."""
        if run.stood is not None:
            self._local_recovery.over([run.stood.resume_point.query_id])
            self._directories.remove(run.stood.directory)

    def _tell_where_it_stands(self, run: Run) -> None:
        """Tell those checkpoints that wait for a batch of a run which will not commit, now that it was stopped."""
        name, stands_at = run.definition.name, progress.newest_committed(run.directory)
        self._executor.event(lambda protocol, now: protocol.stands(name, stands_at, now))

    def _stop_spark(self, run: Run) -> None:
        if run.spark is not None:
            run.spark.stop()

    def _forget(self, name: str) -> None:
        run = self._runs.get(name)
        self._executor.event(lambda protocol, now: protocol.remove_query(name, now))
        self._runs.drop(name)
        if run is not None:
            self._directories.remove(run.directory)
            self._local_recovery.over([run.query_id])

    # --- supervision ----------------------------------------------------------------------------------------

    def _supervise(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                self._take(event)
            except Exception as error:
                log.exception("the pipeline cannot go on")
                self._fail_for_good(error)

    def _take(self, event: _RunEnded | _StateLost | _NotOpened | _MustFail) -> None:
        match event:
            case _RunEnded(run) if self._is_over(run):
                return
            case _RunEnded(run, None):
                # A query may end before ``start`` has noted it.
                with self._changing:
                    if not self._is_over(run):
                        run.ended = True
                        self._queries[run.definition.name].ended()
            case _RunEnded(run, error) if error is not None:
                # Once: PySpark asks the JVM for it each time.
                text = str(error)
                if any(name in text for name in _CANNOT_BE_READ) and (damage := self._damage()):
                    # No further attempt can mend that.
                    self._fail_for_good(damage)
                    return
                wrong = any(name in text for name in _STATE_IS_WRONG)
                if wrong or any(name in text for name in _HOST_IS_GONE):
                    self._lose("a task has found it so", with_host=not wrong)
                self._recover(self._explain(run, text), event.noticed_at, run)
            case _StateLost() if self._loss is not None:
                self._recover(PipelineStateLostError(self._loss.why), event.noticed_at)
            case _NotOpened(query_id, why) if self._is_missed(query_id):
                self._lose(why, with_host=False)
                self._recover(PipelineStateLostError(why), event.noticed_at)
            case _MustFail(FencedError() as error):
                self._fail_for_good(error)
            case _MustFail(error):
                self._lose(str(error), with_host=False)
                self._recover(error, event.noticed_at)

    def _damage(self) -> DamagedCheckpointError | None:
        """Find out whether what the state is restored from is damaged; None, too, if nobody can tell now."""
        try:
            return None if self._point is None else self._executor.damage(self._point)
        except StorageError as error:
            log.warning("cannot look for damage", error=str(error))
            return None

    def _is_over(self, run: Run) -> bool:
        """Whether a run was stopped, or another has taken its place."""
        return run.ended or self._runs.get(run.definition.name) is not run

    def _recover(self, cause: ChandyError, noticed_at: float, run: Run | None = None) -> None:
        """Restart after a failure, in place if it is one run's and no state is lost, or give up.

        Args:
            cause: the failure.
            noticed_at: when that was, in seconds since 1970.
            run: the run that has failed; None: the whole pipeline.
        """
        while not self._stopping.is_set():
            delay = self._tracker.failed(self._clock(), random.random)
            if delay is None:
                self._fail_for_good(cause)
                return
            log.warning("restarting", cause=str(cause).splitlines()[0], seconds=delay)
            if self._stopping.wait(delay):
                return
            try:
                with self._changing:
                    if self._stopping.is_set() or self._failed is not None:
                        return
                    if run is not None and self._is_over(run):
                        return
                    if run is None or self._loss is not None:
                        # Should this fail half-way, the next attempt goes back, too: the run is given up.
                        run = None
                        go_on = self._loss is not None and self._loss.with_host
                        self._go_back(str(cause), noticed_at, go_on=go_on)
                    else:
                        self._restart_in_place(run, str(cause), noticed_at)
                return
            except StoreFailedError as error:
                if not error.transient:
                    raise
                cause = error
            except StorageError:
                # What was stored is not as it must be: no further attempt can mend that.
                raise
            except Exception as error:  # noqa: BLE001 (Spark raises many; the strategy bounds the attempts)
                cause = PipelineFailedError(f"it could not be started again: {error}")

    def _restart_in_place(self, run: Run, cause: str, noticed_at: float) -> None:
        """Start a query again where it stood: same directory, same batch, the state is where it was."""
        recovery = RecoveryMetrics(cause, None, True, self._clock())
        recovery.waiting = recovery.begun_at - noticed_at
        self._number += 1
        again = attrs.evolve(run, number=self._number, spark=None, ended=False)
        self._runs.put(again)
        try:
            self._start(again, self._queries[run.definition.name], recovery)
        except BaseException:
            # The next attempt is one at this run.
            self._runs.put(run)
            raise
        self.recoveries.append(recovery)

    def _go_back(self, cause: str, noticed_at: float, *, go_on: bool) -> None:
        """Take the whole pipeline back to the checkpoint that its state grew from.

        Args:
            cause: why.
            noticed_at: when that was noticed, in seconds since 1970.
            go_on: whether it may go on where it stood if changelogs lead there.

        Raises:
            FencedError: another coordinator has taken the pipeline over; nothing was touched.
        """
        # The sinks, too, are a successor's by now, should there be one.
        self._executor.check_not_fenced()
        recovery = RecoveryMetrics(cause, None, False, self._clock())
        recovery.waiting = recovery.begun_at - noticed_at
        began = time.monotonic()
        earlier = self._runs.all()
        for run in earlier:
            run.ended = True
            self._stop_spark(run)
            self._recovering.pop(run.query_id, None)
        self._superseded += earlier
        self._executor.event(lambda protocol, now: protocol.suspend(cause, now))
        if not self._executor.settle():
            root = self._executor.look(lambda protocol: protocol.root)
            why = "it does not answer, so nobody knows which checkpoint is the latest"
            raise StoreFailedError(root, "the newest manifest", "finish writing", why, transient=True)
        self._point = self._executor.look(base_point) or self._initial
        self._loss = None
        self._round += 1
        # Whatever the sinks hold by now, this pipeline has written.
        self._resets_sinks = True
        stood = self._local_recovery.stood(earlier, self._point) if go_on else {}
        if not stood:
            # Queries that are still to come stood where these did.
            self._local_recovery.give_up()
            self._local_recovery.unnote(self._superseded)
        recovery.in_place = bool(stood)
        recovery.checkpoint = self._point.manifest.id if self._point else None
        recovery.stopping = time.monotonic() - began
        log.warning(
            "going back",
            checkpoint=recovery.checkpoint,
            cause=cause.splitlines()[0],
            in_place=recovery.in_place,
        )
        runs = [self._restore(run.definition, recovery, stood.get(run.definition.name)) for run in earlier]
        over = [run.query_id for run in self._superseded]
        self._executor.event(lambda protocol, _: protocol.release(over))
        self._executor.event(lambda protocol, now: protocol.resume(now))
        if self._point is not None:
            restored = self._point.manifest.id
            self._executor.look(lambda protocol: protocol.history.restored(restored))
        for run in runs:
            query = self._queries[run.definition.name]
            if query.is_stopped:
                run.ended = True
            else:
                self._start(run, query, recovery)
        for run in self._superseded:
            self._directories.remove(run.directory)
            self._let_go(run)
        if not stood:
            self._local_recovery.over(over)
        self._superseded.clear()
        self.recoveries.append(recovery)

    def _fail_for_good(self, error: Exception) -> None:
        """End every query with the error; no more checkpoints are taken."""
        # First: whoever learns that there are no checkpoints any more must not start anything again.
        self._failed = self._failed or error
        self._executor.event(lambda p, now: p.close(Reason.COORDINATOR_SUSPENDED, now))
        with self._changing:
            for run in self._runs.all():
                run.ended = True
                try:
                    self._stop_spark(run)
                except Exception as unstopped:  # noqa: BLE001 (the others are to be stopped all the same)
                    log.warning("cannot stop a query", query=run.definition.name, error=str(unstopped))
            for query in self._queries.values():
                if query.isActive:
                    query.ended(error)

    def _check_not_failed(self) -> None:
        if self._failed is not None:
            raise PipelineFailedError(f"it has failed for good: {self._failed}") from self._failed

    def _explain(self, run: Run, text: str) -> ChandyError:
        """Tell a query's failure in our words: the processor's traceback if it was that, else Spark's message."""
        name = run.definition.name
        failure = self._processor_failures.pop(run.query_id, None)
        # One of a batch that has committed is of an attempt whose retry went well: this is another failure.
        if failure is not None and failure.batch > progress.newest_committed(run.directory):
            return ProcessorFailedError(name, failure.uid, failure.batch, failure.key, failure.traceback)
        return QueryFailedError(name, text)


def _output(definition: Definition) -> Path | None:
    """Return the output directory of Spark's own file sink, None if the query has another."""
    located = plan.output_path(definition.writer, definition.facts.sink)
    return None if located is None else local_path(located, role="output of Spark's file sink")
