"""Queries that run no batches but those that they are given: each as a query of another pipeline has run it.

Spark runs a batch that is planned and has not committed, and with the trigger ``once`` it runs no other. So a query
takes a batch in three steps: the batch's entries come into its working directory, Spark starts it in place, and it ends
once the batch has committed. Between two batches nothing runs, and a checkpoint has the cut behind the last one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from typing_extensions import override

from ...storage.checkpoints.batch_record import BatchRecord
from ...storage.errors import ChandyError, StoreFailedError
from ...storage.logs import logger, named
from ...storage.long_waits import told_if_slow
from ..errors import GivenBatchError, GivenBatchInterruptedError, QueryFailedError
from ..protocol import decisions
from ..query import CheckpointedQuery
from ..restore.restore_point import RestorePoint
from ..spark import progress
from ..spark.batch_entries import write_entry
from .launcher import Launcher
from .metrics import RecoveryMetrics
from .pipeline_rollback import PipelineRollback
from .runs import Run
from .supervisor import Supervisor

log = logger(__name__)

_STORE_FAILED: Final = f"{StoreFailedError.__module__}.{StoreFailedError.__name__}:"
"""How the error of a task begins whose store could not carry something out."""
_CAUSE: Final = "the batches that are given begin behind another checkpoint"


class BatchLauncher(Launcher):
    """Prepares queries, and starts them for one batch at a time."""

    @override
    def _start(self, run: Run, query: CheckpointedQuery, metrics: RecoveryMetrics) -> None:
        """Start nothing: batches are to come."""
        self.metrics[run.query_id] = metrics
        self._watcher.run_begun(run)

    def start_batch(self, run: Run, query: CheckpointedQuery, record: BatchRecord) -> Run:
        """Have a query that does not run take a batch; return the run that takes it, and then ends.

        Raises:
            SourceLostError: a source no longer has what the batch has read.
            WorkingDirectoryLostError: the directory is not what it was.
            BaseException: what else Spark raises. Nothing runs.
        """
        definition = run.definition
        with named(query=definition.name), told_if_slow(log, "Spark to start a batch"):
            write_entry(run.directory, record, definition.facts.source_compact_interval)
            run = self.again(run)
            # Others run in this session, too: the pipeline itself, and other shadows of it.
            name = f"{definition.name} by given batches, {run.query_id}"
            query.runs_as(self._start_in_spark(run, query_name=name, once=True))
            return run


class BatchSupervisor(Supervisor):
    """Supervises queries that are given their batches. A batch that fails does not run again by itself."""

    _launcher: BatchLauncher

    def sinks(self, name: str) -> tuple[str, ...]:
        """Return the uids of the transactional sinks of a query."""
        return self._queries[name].definition.sink.uids

    def watermarks(self, name: str) -> int:
        """Return how often the plan of a query has a watermark."""
        return self._queries[name].definition.facts.watermarks

    def run_batch(self, name: str, record: BatchRecord, timeout: float) -> Path:
        """Have a query take a batch, wait until it has committed, and return the query's working directory.

        Args:
            name: the query.
            record: the batch, the next one of the query. One that has failed may come again.
            timeout: seconds to wait at most.

        Raises:
            GivenBatchError: the query stands elsewhere, was stopped meanwhile, or has not committed in time.
            SourceLostError: a source no longer has what the batch has read.
            GivenBatchInterruptedError: what the batch runs on has failed.
            ChandyError: the batch has failed, by a processor for instance; a subclass says how.
        """
        with self._changing:
            self._check_not_failed()
            run = self._runs.get(name)
            if run is None or self.life.is_ending or not self._queries[name].isActive:
                found = "none of this name" if run is None else "one that has ended"
                raise _not_run(name, record, "a query that has been started", found)
            committed = progress.newest_committed(run.logs())
            if record.batch != committed + 1:
                raise _not_run(name, record, f"batch {committed + 1}", f"batch {record.batch}")
            run = self._launcher.start_batch(run, self._queries[name], record)
        spark = run.spark
        assert spark is not None, "it was started"
        try:
            # Other than its annotation says, PySpark takes parts of a second.
            spark.awaitTermination(timeout)  # type: ignore[arg-type]
        except Exception as error:
            raise _error(name, record, self._diagnosis.of(run, error)) from error
        finally:
            if spark.isActive:
                spark.stop()
        if not run.is_committed(record.batch):
            self._check_not_failed()
            raise _not_run(name, record, f"its commit within {timeout:g} s", "none")
        self._decide(decisions.FirstCommit(name, run.number, record.batch))
        return run.directory

    def go_to(self, point: RestorePoint) -> None:
        """Have all queries go on behind another checkpoint. None of them runs a batch meanwhile.

        Raises:
            PipelineFailedError: the pipeline has failed for good.
            ChandyError: the checkpoint cannot be restored; a subclass says why.
        """
        with self._changing:
            self._check_not_failed()
            self._initial = point
            self._attempt(_GoingTo, _CAUSE, self._clock(), resume=False)


class _GoingTo(PipelineRollback):
    @override
    def choose_restore_point(self) -> RestorePoint | None:
        """Return the checkpoint that was named: none of this pipeline's own counts."""
        self.on_state_given_up(self.initial)
        return self.initial


def _error(name: str, record: BatchRecord, failure: decisions.Failure) -> ChandyError:
    """Return what it means that a batch has failed: for the program, unless what it runs on is the reason."""
    error = failure.error
    is_stores = isinstance(error, QueryFailedError) and error.summary.startswith(_STORE_FAILED)
    return GivenBatchInterruptedError(name, record.batch, str(error)) if failure.codes or is_stores else error


def _not_run(name: str, record: BatchRecord, expected: str, found: str) -> GivenBatchError:
    return GivenBatchError(f"query {name!r} cannot take batch {record.batch} as it is given", expected, found)
