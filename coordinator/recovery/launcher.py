"""Prepares the runs of queries, with their directories and sinks, starts them under Spark, and watches them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from ...storage import runtime
from ...storage.checkpoints.files import FileCache
from ...storage.checkpoints.manifest import OperatorRecord
from ...storage.checkpoints.proof import FenceProof
from ...storage.errors import DamagedCheckpointError, DamagedError, ObjectMissingError
from ...storage.ids import NO_BATCH, BatchId
from ...storage.logs import carried, logger, named
from ...storage.long_waits import Reminder, told_if_slow
from ...storage.times import rounded
from ..execution.locked_protocol import LockedProtocol
from ..leadership.leadership import has_leader
from ..permit import Permits
from ..protocol.events import QueryAdded, QueryRemoved
from ..query import CheckpointedQuery, Definition
from ..restore.adoptions import Adoptions
from ..restore.local_recovery import LocalRecovery
from ..restore.query_directories import QueryDirectories
from ..restore.restore_point import RestoredQuery, RestorePoint, restore_query
from ..restore.resume import ResumableRun
from ..sinks.owner import SinkOwner
from ..sinks.sink import StartPoint
from ..spark import progress
from ..spark.logs.compatibility import check_sources
from ..spark.query_progress import waits_for_data
from ..spark.seeding import seed
from ..spark.starting import start as start_spark
from ..spark.ticks import Ticks
from .metrics import START, RecoveryMetrics
from .runs import Run, Runs
from .taken_batches import TakenBatches, is_followed

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logger(__name__)

_POLL_SECONDS: Final = 0.02
_LONGEST_POLL_SECONDS: Final = 0.2
_SLOWER: Final = 1.2
"""From one look for a run's first commit to the next, from the one pause to the other."""

OpenAhead = Callable[[str, tuple[OperatorRecord, ...], Callable[[str], None]], None]
"""Begins to open the shards of operators, given Spark's id of their query, before that runs; tells why if it cannot."""


FindDamage = Callable[[RestorePoint], DamagedCheckpointError | None]
"""Checks whether a checkpoint that could not be restored is damaged; None also if it cannot be read now."""


class Watcher(Protocol):
    """Is told what happens to runs. Calls come from any thread."""

    def run_made(self, run: Run) -> None:
        """A run is the current one of its query; it has not started yet."""
        ...

    def run_begun(self, run: Run) -> None:
        """A run has begun under Spark."""
        ...

    def nothing_to_do(self, run: Run) -> None:
        """A run has found no data, so it may be long before it commits a batch."""
        ...

    def run_stopped(self, run: Run) -> None:
        """A run is about to be stopped on purpose."""
        ...

    def run_ended(self, run: Run, error: Exception | None) -> None:
        """A run has ended, by itself or with an error."""
        ...

    def first_commit(self, run: Run, batch: BatchId, metrics: RecoveryMetrics) -> None:
        """A run has committed its first batch; its metrics are complete."""
        ...

    def shards_not_opened(self, query_id: str, why: str) -> None:
        """Shards of the query with this Spark id could not be opened ahead."""
        ...


class Launcher:
    """Prepares and starts runs. Only one thread may use it at a time."""

    def __init__(
        self,
        *,
        directories: QueryDirectories,
        runs: Runs,
        cache: FileCache,
        ticks: Ticks,
        local_recovery: LocalRecovery,
        open_ahead: OpenAhead,
        find_damage: FindDamage,
        ending: runtime.Flag,
        owner: SinkOwner,
        may_begin_anew: bool,
        permits: Permits,
        keep_chosen: Callable[[], None] = lambda: None,
        adoptions: Adoptions | None = None,
    ) -> None:
        """Make a launcher.

        Args:
            directories: where working directories go.
            runs: the current runs, which this changes.
            cache: files that this machine has already.
            ticks: told of every run before it begins.
            local_recovery: what can be resumed, and records of what runs.
            open_ahead: opens shards before their query runs.
            find_damage: looks at a checkpoint that could not be restored.
            ending: ends a restore once it is set.
            owner: the pipeline, as the writer of outputs.
            may_begin_anew: whether a query without a checkpoint may undo what an earlier life of it has written.
            permits: what may be given up for a start.
            keep_chosen: records which checkpoint a user has chosen, once.
            adoptions: where adopted queries begin; None if no query was adopted.
        """
        self._directories = directories
        self._runs = runs
        self._cache = cache
        self._ticks = ticks
        self._local_recovery = local_recovery
        self._open_ahead = open_ahead
        self._find_damage = find_damage
        self._ending = ending
        self._owner = owner
        self._may_begin_anew = may_begin_anew
        self._permits = permits
        self._keep_chosen = keep_chosen
        self._adoptions = adoptions or Adoptions()
        self._begun: set[str] = set()
        """Queries whose outputs this life has prepared, so that all that these hold is their own."""
        self.metrics: dict[str, RecoveryMetrics] = {}
        """By Spark's id of a query the recovery that started its run."""
        self._number = 0

    def begin(self, protocol: LockedProtocol, proof: FenceProof, watcher: Watcher) -> None:
        """Set the state machine of the checkpoints, the proof for sinks and queries, and the watcher of the runs."""
        self._protocol = protocol
        self._proof = proof
        self._watcher = watcher

    def restore(
        self,
        definition: Definition,
        point: RestorePoint | None,
        resumed: ResumableRun | None,
        round: int,
        replaced: Iterable[Path] = (),
    ) -> Run:
        """Make a query's next run: resume a run, go to the checkpoint, or begin empty.

        Args:
            definition: the query.
            point: the checkpoint that the pipeline's state grows from.
            resumed: the run to resume.
            round: how often the pipeline has gone back.
            replaced: working directories of runs that have gone on from the checkpoint, and count for nothing now.

        Raises:
            DamagedCheckpointError: a file of the checkpoint is missing or damaged.
            SourceLostError: a source no longer has what the query goes on with.
            RestoreError: the query has other sources than it had, or the sink is another query's, or none that the
                checkpoint has.
            FencedError: another coordinator has taken the pipeline over. The sink is as it was.
        """
        with named(query=definition.name), told_if_slow(log, "the query's files of the checkpoint"):
            return self._restore(definition, point, resumed, round, replaced)

    def _restore(
        self,
        definition: Definition,
        base: RestorePoint | None,
        resumed: ResumableRun | None,
        round: int,
        replaced: Iterable[Path],
    ) -> Run:
        name, operators = definition.name, definition.operators
        point = self._adoptions.base(name, base)
        directory = self._directories.new_run(name)
        # Executors reach into the working directory for Spark's own state alone.
        mirror = self._directories.mirror(directory) if definition.facts.native_state else None
        location = mirror.location if mirror else None
        if resumed is not None:
            query_id = self._seed(definition, resumed.directory, directory, location)
            batch = resumed.point.batch
            _check_sources(definition, directory, ())
            # The sink has what it had.
            beginning = self._beginning(definition, point, directory, None)
            with self._naming_damage(point):
                definition.sink.resume(name, beginning, batch)
            is_read = False
        else:
            with self._naming_damage(point):
                restored = self._go_to(point, definition, directory, location)
                # Before the sink is touched.
                _check_sources(definition, directory, replaced)
                beginning = self._beginning(definition, point, directory, restored.sink_log)
                definition.sink.begin(name, beginning)
                self._choose_once()
            self._begun.add(name)
            query_id, batch = restored.query_id, point.batch(name) if point else NO_BATCH
            is_read = restored.is_read
        if mirror is not None:
            mirror.publish()
        run = self._put(
            Run(
                self._next_number(),
                definition,
                directory,
                query_id,
                resumed,
                mirror=mirror,
                planned=batch,
                recorded=beginning.batch,
            )
        )
        resume_point = resumed.point if resumed and resumed.point.needs_changelogs else None
        at_checkpoint = point.operators(name, operators) if point else ()
        self._protocol.handle(
            QueryAdded(
                name,
                query_id,
                batch=batch,
                operators=operators,
                restored=operators if resume_point else at_checkpoint,
                sources=point.sources(name) if point else {},
                reads=definition.reads,
                resume_point=resume_point,
                progress=point.progress(name) if point and not is_read else None,
            )
        )
        self._local_recovery.record(run, round, base)
        self._open_ahead(query_id, operators, partial(self._watcher.shards_not_opened, query_id))
        return run

    def again(self, run: Run) -> Run:
        """Return a run that replaces one that has ended: same directory, same batch, same state.

        Raises:
            WorkingDirectoryLostError: the directory is not what it was.
            SourceLostError: a source no longer has what the query goes on with.
        """
        run.check_directory()
        run.definition.sources.check(run.planned_logs())
        return self._put(
            attrs.evolve(run, number=self._next_number(), spark=None, ended=False, follower=None)
        )

    def start(self, run: Run, query: CheckpointedQuery, metrics: RecoveryMetrics) -> None:
        """Start a run under Spark, and watch it.

        Args:
            run: made by ``restore`` or ``again``.
            query: the query as its user sees it.
            metrics: of the recovery that the run belongs to.

        Raises:
            FencedError: another coordinator has taken the pipeline over. Nothing was started.
        """
        with named(query=run.definition.name), told_if_slow(log, "Spark to start the query"):
            self._start(run, query, metrics)

    def _start(self, run: Run, query: CheckpointedQuery, metrics: RecoveryMetrics) -> None:
        began = runtime.monotonic()
        definition = run.definition
        self.metrics[run.query_id] = metrics
        uids = [operator.uid for operator in definition.operators]
        self._ticks.watch(uids, run.directory, definition.facts)
        # Before the run begins: its first batch may have committed when it is followed.
        first = progress.newest_committed(run.logs()) + 1
        spark = self._start_in_spark(run, query_name=definition.facts.query_name or definition.name)
        try:
            if definition.table is not None:
                # Spark has made it just now; it is long before the first batch.
                definition.sink.mark(definition.name, self._owner, self._proof)
            query.runs_as(spark)
            self._watcher.run_begun(run)
            metrics.starting += runtime.monotonic() - began
            run.follower = runtime.thread(
                target=carried(self._follow),
                args=(run, spark, first, metrics),
                name=f"chandy-{query.name}",
            )
            run.follower.start()
        except BaseException:
            # Nobody watches it, so nobody would stop it.
            self.stop_in_spark(run)
            raise

    def _start_in_spark(self, run: Run, *, query_name: str, once: bool = False) -> StreamingQuery:
        definition = run.definition
        location = definition.sink.location
        run.spark = start_spark(
            definition.writer,
            location=run.location,
            query_id=run.query_id,
            proof=self._proof,
            table=definition.table,
            query_name=query_name,
            output=None if location is None else str(location),
            stateful=bool(definition.operators),
            after_batch=TakenBatches(run, self._protocol).check if is_followed(definition) else None,
            once=once,
        )
        return run.spark

    def stop(self, run: Run) -> None:
        """Stop a run at once."""
        run.ended = True
        self._watcher.run_stopped(run)
        self.stop_in_spark(run)

    @staticmethod
    def stop_in_spark(run: Run) -> None:
        """Have Spark stop a run, whatever this life knows of it."""
        # Spark waits for a function of foreachBatch to return, and a sink may wait for its target in it.
        run.definition.sink.interrupt()
        if run.spark is not None:
            run.spark.stop()

    def stop_all(self, runs: Iterable[Run]) -> None:
        """Stop runs at once. One that cannot be stopped is logged, and the others are stopped all the same."""
        _each(runs, self.stop)

    def stop_all_in_spark(self, runs: Iterable[Run]) -> None:
        """Have Spark stop runs, as ``stop_all`` does."""
        _each(runs, self.stop_in_spark)

    def forget(self, name: str) -> None:
        """Undo ``restore`` for a query that could not be started."""
        run = self._runs.get(name)
        self._protocol.handle(QueryRemoved(name))
        self._runs.drop(name)
        if run is not None:
            self._watcher.run_stopped(run)
            self._directories.remove(run.directory)
            self._local_recovery.delete_changelogs([run.query_id])

    def remove(self, run: Run) -> None:
        """Delete the directory of a run that is over, and what it had resumed."""
        self.metrics.pop(run.query_id, None)
        self._directories.remove(run.directory)
        self.remove_resumed(run)

    def leave(self) -> None:
        """Leave the directories of the current runs to the next coordinator."""
        self._directories.leave()

    def remove_resumed(self, run: Run) -> None:
        """Delete what a run has resumed: its shards are open by now, and have taken their changelogs over."""
        if run.resumed is not None:
            self._local_recovery.delete_changelogs([run.resumed.point.query_id])
            self._directories.remove(run.resumed.directory)

    @staticmethod
    def _seed(definition: Definition, files: Path, directory: Path, location: str | None) -> str:
        interval = definition.facts.source_compact_interval
        return seed(files, directory, compact_interval=interval, location=location)

    def _go_to(
        self, point: RestorePoint | None, definition: Definition, directory: Path, location: str | None
    ) -> RestoredQuery:
        """Make a working directory as the checkpoint has it."""
        if point is None or not point.has(definition.name):
            return RestoredQuery(self._seed(definition, directory / "nothing", directory, location), None)
        return restore_query(
            point,
            definition.name,
            directory,
            self._cache,
            self._ending,
            compact_interval=definition.facts.source_compact_interval,
            location=location,
        )

    @contextmanager
    def _naming_damage(self, point: RestorePoint | None) -> Iterator[None]:
        """Name the damaged checkpoint if, inside of the ``with``, something of it cannot be read."""
        try:
            yield
        except (DamagedError, ObjectMissingError) as error:
            raise (self._find_damage(point) if point else None) or error from None

    def _beginning(
        self,
        definition: Definition,
        point: RestorePoint | None,
        directory: Path,
        files: Mapping[str, Path] | None,
    ) -> StartPoint:
        """Return what a sink begins with, now that it may: what is in it may be a successor's since the last look."""
        name = definition.name
        self._proof.check_now()
        return StartPoint(
            self._owner,
            self._proof,
            files,
            is_table=definition.table is not None,
            may_begin_anew=self._may_begin_anew or name in self._begun,
            is_written_by=has_leader,
            permits=self._permits,
            directory=directory,
            checkpoint=point.manifest.id if point and not point.is_adopted else None,
            is_adopted=point is not None and point.is_adopted,
            batch=point.batch(name) if point else NO_BATCH,
            root=point.root if point else "",
            outputs=point.outputs(name) if point else (),
            keep_chosen=self._choose_once,
        )

    def _choose_once(self) -> None:
        keep, self._keep_chosen = self._keep_chosen, lambda: None
        try:
            keep()
        except BaseException:
            self._keep_chosen = keep
            raise

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _put(self, run: Run) -> Run:
        self._runs.put(run)
        self._watcher.run_made(run)
        return run

    # --- following ------------------------------------------------------------------------------------------

    def _follow(self, run: Run, spark: StreamingQuery, first: BatchId, metrics: RecoveryMetrics) -> None:
        """Wait for a run's first commit, and for its end."""
        error: Exception | None = None
        try:
            self._await_commit(run, spark, first, metrics)
            spark.awaitTermination()
        except Exception as raised:  # noqa: BLE001 (whatever ends a query is an end to be dealt with)
            error = raised
        self._watcher.run_ended(run, error)

    def _tell_of_first_batch(self, run: Run, first: BatchId, waited: float) -> None:
        """Say what the first batch of a run waits for: its shards, or its own work."""
        name = run.definition.name
        hosts, closed = self._protocol.read(
            lambda state: (
                len(state.members.hosts),
                len(list(state.queries[name].assignment.unowned())) if name in state.queries else 0,
            )
        )
        log.info(
            f"waiting for {awaited(hosts, closed)}",
            batch=first,
            unclaimed_shards=closed,
            seconds=round(waited),
        )

    def _await_commit(
        self, run: Run, spark: StreamingQuery, first: BatchId, metrics: RecoveryMetrics
    ) -> None:
        began, pause, reminder = runtime.monotonic(), _POLL_SECONDS, Reminder()
        has_shown_it = metrics.kind == START
        try:
            # The longer it takes, the more seldom: each question costs the driver time that the first batch needs.
            # PySpark takes parts of a second, other than its annotation says.
            while not run.is_known_committed(first) and not spark.awaitTermination(pause):  # type: ignore[arg-type]
                pause = min(pause * _SLOWER, _LONGEST_POLL_SECONDS)
                waited = runtime.monotonic() - began
                # An idle query waits for data, and that is no news.
                if reminder.is_due(waited) and progress.newest_planned(run.logs_as_known()) >= first:
                    self._tell_of_first_batch(run, first, waited)
                if not has_shown_it and pause == _LONGEST_POLL_SECONDS and _is_idle(run, spark, first):
                    has_shown_it = True
                    self._watcher.nothing_to_do(run)
        finally:
            # Also of a run that has ended by now, and of one that has failed in a later batch.
            if run.is_known_committed(first):
                metrics.first_batch = runtime.monotonic() - began
                if metrics.kind != START:
                    log.info("the query runs again", batch=first, after_seconds=rounded(metrics.total or 0.0))
                self._watcher.first_commit(run, first, metrics)
                self.remove_resumed(run)


def _check_sources(definition: Definition, directory: Path, replaced: Iterable[Path]) -> None:
    """Check that a query has the sources that it had, and that these have what it goes on with."""
    check_sources(definition.name, directory, [source.name for source in definition.facts.sources])
    definition.sources.check(directory, replaced)


def _is_idle(run: Run, spark: StreamingQuery, first: BatchId) -> bool:
    """Whether a run has no batch to commit, because its sources have no data for one."""
    return progress.newest_planned(run.logs_as_known()) < first and waits_for_data(spark)


def _each(runs: Iterable[Run], stop: Callable[[Run], None]) -> None:
    for run in runs:
        try:
            stop(run)
        except Exception as error:  # noqa: BLE001 (the others are to be stopped all the same)
            log.warning("cannot stop a query", query=run.definition.name, error=str(error))


def awaited(hosts: int, unclaimed: int) -> str:
    """Return what the first batch of a run waits for.

    Args:
        hosts: how many state hosts there are.
        unclaimed: how many of the query's shards no state host has claimed.
    """
    if not unclaimed:
        return "the first batch to commit"
    return "state hosts to claim shards" if hosts else "an executor with a state host, for Spark has none"
