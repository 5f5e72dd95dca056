"""The steps of ``rollback.go_back``, taken with Spark, the executor and the disk: one attempt to go back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import attrs

from ...state.shards import NotResumable
from ...storage import runtime
from ...storage.errors import StoreFailedError
from ...storage.logs import logger
from ..errors import WorkingDirectoryError
from ..execution.executor import CheckpointExecutor
from ..protocol.decisions import GoingBack
from ..protocol.events import PipelineRestored, Released
from ..query import CheckpointedQuery
from ..restore.local_recovery import LocalRecovery, tell_refusal
from ..restore.restore_point import RestorePoint, base_point
from ..restore.resume import ResumableRun
from .launcher import Launcher
from .metrics import RecoveryMetrics
from .runs import Run, Runs

log = logger(__name__)


@attrs.define(kw_only=True)
class PipelineRollback:
    """One attempt to take a pipeline back. It leaves ``superseded`` to the next attempt if it fails."""

    cause: str
    refusal: NotResumable | None
    """Why no query resumes where it stood; None: that is for ``find_resumable`` to say."""
    metrics: RecoveryMetrics
    round: int
    """How often the pipeline has gone back, this time included."""
    initial: RestorePoint | None
    """The checkpoint that this life began from."""
    superseded: list[Run]
    """Runs to clean up after: also those of attempts that have failed."""
    executor: CheckpointExecutor
    runs: Runs
    wrapped: Mapping[str, CheckpointedQuery]
    launcher: Launcher
    local_recovery: LocalRecovery
    decide: Callable[[GoingBack], object]
    """Has the event decided: no checkpoint outlives that the pipeline goes back."""
    on_state_given_up: Callable[[RestorePoint | None], None]
    """Called with the checkpoint to go back to, once it is known."""
    _earlier: list[Run] = attrs.field(factory=list, init=False)
    _next: list[Run] = attrs.field(factory=list, init=False)
    _began: float = attrs.field(factory=runtime.monotonic, init=False)

    def check_not_fenced(self) -> None:
        """Raise ``FencedError`` if another coordinator has taken the pipeline over."""
        self.executor.watch.check_now()

    def stop_runs(self) -> None:
        """Stop all runs of queries."""
        self._earlier = self.runs.all()
        for run in self._earlier:
            self.launcher.stop(run)
        self.superseded += self._earlier

    def suspend_checkpoints(self) -> None:
        """Abort the checkpoints under way, and start none."""
        self.decide(GoingBack(self.cause, self.metrics.noticed_at))

    def await_manifests(self) -> None:
        """Wait until every manifest that is being written is written or has failed.

        Raises:
            StoreFailedError: the store does not answer; a later attempt may succeed.
        """
        if not self.executor.await_manifests():
            why = "it does not answer, so nobody knows which checkpoint is the latest"
            raise StoreFailedError(
                self.executor.protocol.root, "the newest manifest", "finish writing", why, transient=True
            )

    def choose_restore_point(self) -> RestorePoint | None:
        """Return the latest checkpoint of this life's state, or the one that this life began from."""
        point = self.executor.protocol.read(base_point) or self.initial
        self.on_state_given_up(point)
        self.metrics.checkpoint = point.manifest.id if point else None
        return point

    def find_resumable(self, point: RestorePoint | None) -> Mapping[str, ResumableRun]:
        """Return by query the run that it can resume, for all queries or for none."""
        return self.local_recovery.resumable(self._earlier, point)

    def forget_resumable(self) -> None:
        """See to it that no later life resumes these runs, or what an earlier life has left."""
        if self.refusal is not None:
            for run in self._earlier:
                tell_refusal(run.definition.name, self.refusal)
        # Queries that are still to come stood where these did.
        self.local_recovery.forget_leftovers()
        self.local_recovery.erase_records(self.superseded)

    def queries(self) -> Iterable[str]:
        """Return the names of the queries, in the order in which they were first started."""
        self.metrics.stopping = runtime.monotonic() - self._began
        return [run.definition.name for run in self._earlier]

    def restore(self, query: str, point: RestorePoint | None, resumed: ResumableRun | None) -> None:
        """Make a query's next run."""
        began = runtime.monotonic()
        self.metrics.in_place = resumed is not None
        definition = self.wrapped[query].definition
        replaced = {_logs_of(run) for run in self.superseded if run.definition.name == query}
        self._next.append(self.launcher.restore(definition, point, resumed, self.round, replaced))
        self.metrics.restoring += runtime.monotonic() - began

    def release_runs(self) -> None:
        """Tell the state hosts that the stopped runs are over."""
        self.executor.protocol.handle(Released(tuple(run.query_id for run in self.superseded)))

    def resume_checkpoints(self, point: RestorePoint | None) -> None:
        """Count the restore. Checkpoints are taken again once the queries have started."""
        self.executor.protocol.handle(PipelineRestored(point.manifest.id if point else None))

    def start_runs(self) -> None:
        """Start the new runs, except those of queries that their user has stopped."""
        log.warning(
            "going back",
            checkpoint=self.metrics.checkpoint,
            cause=self.cause.splitlines()[0],
            in_place=self.metrics.in_place,
        )
        for run in self._next:
            query = self.wrapped[run.definition.name]
            if query.is_stopped:
                run.ended = True
            else:
                self.launcher.start(run, query, self.metrics)

    def clean_up(self) -> None:
        """Delete what the stopped runs have left, except the changelogs that the new ones resume."""
        resumed = {run.resumed.point.query_id for run in self._next if run.resumed}
        for run in self.superseded:
            self.launcher.remove(run)
        self.local_recovery.delete_changelogs(
            [run.query_id for run in self.superseded if run.query_id not in resumed]
        )
        self.superseded.clear()


def _logs_of(run: Run) -> Path:
    try:
        return run.planned_logs()
    except (OSError, WorkingDirectoryError) as error:
        log.warning("cannot read what a query has read", query=run.definition.name, error=str(error))
        return run.directory
