"""The query object that users get: like PySpark's ``StreamingQuery``, but it survives restarts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, cast

import attrs
from pyspark.errors import PySparkException

from ..storage import runtime
from ..storage.checkpoints.manifest import OperatorRecord
from .protocol.life import QueryLife, QueryPhase
from .sinks.guarantee import Guarantee
from .sinks.sink import Sink
from .sources.query_sources import QuerySources
from .spark.query_progress import latest_progress, progress_after
from .spark.session import answer
from .spark.writer_facts import WriterFacts
from .state_progress import Batches, StateProgress, is_behind

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


_PAUSE: Final = 0.05
"""Seconds between two looks at whether a query has been started again."""


@attrs.frozen
class Definition:
    """What a query consists of; the same for all of its runs."""

    name: str
    writer: DataStreamWriter
    table: str | None
    """The table that it is started on by ``toTable``; None if it is started by ``start``."""
    facts: WriterFacts
    sink: Sink
    operators: tuple[OperatorRecord, ...]
    reads: tuple[str, ...]
    """Names of the pipeline's queries whose output it reads."""
    sources: QuerySources = attrs.field(factory=QuerySources)
    """Its sources of the kinds that Chandy knows."""
    keeps_letters: bool = False
    """Whether an operator of it keeps dead letters, which say what their batch has read."""


@attrs.frozen
class Supervision:
    """A query as those know it who run it."""

    definition: Definition
    stop: Callable[[str], None]
    """Stops a query, by its name."""
    life: Callable[[], QueryLife]
    """Returns what it does."""
    changed: runtime.Condition
    """Notified when that is another one."""


class CheckpointedQuery:
    """A query of a pipeline. It survives when Spark's query fails and starts again.

    Its methods and properties are those of ``pyspark.sql.streaming.StreamingQuery``. Those that describe Spark's
    query describe the current run.
    """

    def __init__(self, supervision: Supervision) -> None:
        """Make a query that has not run."""
        self._run: StreamingQuery | None = None
        self._ids = ("", "")
        self._take(supervision)

    def _take(self, supervision: Supervision) -> None:
        self._supervision = supervision
        self._suspended: QueryLife | None = None
        """What it does, as long as that is not for those to say who run it."""
        self.definition = supervision.definition
        self.guarantee: Guarantee = self.definition.sink.guarantee
        """Whether the sink is exactly once or at least once, and why. State is always exactly once."""
        self.is_stopped = False
        """Whether the user has stopped it. Then it does not restart with the pipeline."""
        self._state = StateProgress(self.definition.operators)

    def __repr__(self) -> str:
        status = self.life.phase.value
        return f"CheckpointedQuery(name={self.name!r}, status={status}, guarantee={self.guarantee.level})"

    # --- called by the supervisor ---------------------------------------------------------------------------

    def runs_as(self, query: StreamingQuery) -> None:
        """Record that a run has started; also of a query that had ended."""
        self._run = query
        self._ids = str(query.id), str(query.runId)

    def suspend(self) -> None:
        """Say that it restarts, whatever becomes of those who run it, until ``go_on`` or ``resume``."""
        self._suspended = QueryLife(QueryPhase.RESTARTING)

    def resume(self, error: Exception | None = None) -> None:
        """Say again what those say who run it; or that it has ended, because others cannot run it."""
        self._suspended = None if error is None else QueryLife(QueryPhase.ENDED, error=error)
        with self._supervision.changed:
            self._supervision.changed.notify_all()

    def go_on(self, supervision: Supervision) -> Self:
        """Be run by others from now on."""
        before = self._supervision.changed
        self._take(supervision)
        with before:
            before.notify_all()
        return self

    def measured_by(self, batches: Callable[[OperatorRecord], Batches]) -> None:
        """Say who knows what the query's operators did in the latest batches."""
        self._state = attrs.evolve(self._state, batches=batches)

    @property
    def life(self) -> QueryLife:
        """Whether it runs, restarts or has ended, and why."""
        return self._suspended or self._supervision.life()

    # --- StreamingQuery -------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The query's name in the pipeline."""
        return self.definition.name

    @property
    def id(self) -> str:
        """Spark's id of the query; it changes when the pipeline goes back to a checkpoint."""
        return self._ids[0]

    @property
    def runId(self) -> str:  # noqa: N802
        """Spark's id of the current run."""
        return self._ids[1]

    @property
    def isActive(self) -> bool:  # noqa: N802
        """Whether the query is running or about to restart."""
        return self.life.is_active

    @property
    def status(self) -> dict[str, Any]:
        """Status of the current run."""
        return answer(
            lambda: self._current.status,
            lambda error: {
                "message": f"the JVM does not answer: {error}",
                "isDataAvailable": False,
                "isTriggerActive": False,
            },
        )

    @property
    def recentProgress(self) -> list[Any]:  # noqa: N802
        """The latest progress updates of the current run; ``stateOperators`` has Chandy's operators, too.

        Empty if the JVM has ended.
        """
        return self._state.added_to(answer(lambda: self._current.recentProgress, lambda error: []))

    @property
    def lastProgress(self) -> Any:  # noqa: N802
        """The latest progress update of the current run, as ``recentProgress``; None if there is none."""
        last = answer(lambda: self._current.lastProgress, lambda error: None)
        return None if last is None else self.with_state_operators(last)

    def with_state_operators(self, progress: StreamingQueryProgress) -> StreamingQueryProgress:
        """Return progress of the current run, such as a listener is given, with Chandy's operators."""
        return self._state.added_to([progress])[0]

    def progress_after(self, run: str, batch: int) -> list[dict[str, Any]]:
        """Return Spark's own progress of the current run that says more than is known; see ``query_progress``."""
        if self._run is None:
            return []
        return answer(lambda: progress_after(self._current, run, batch), lambda error: [])

    def is_behind(self) -> bool:
        """Return whether a source had more than the latest batch of the current run has taken, if sources tell.

        A real-time query is not behind: it takes what comes.
        """
        if self._run is None or not self.isActive or self.definition.facts.real_time_seconds is not None:
            return False
        progress = answer(lambda: latest_progress(self._current), lambda error: None)
        return progress is not None and is_behind(progress)

    @property
    def operators(self) -> tuple[OperatorRecord, ...]:
        """The query's operators."""
        return self.definition.operators

    def exception(self) -> Exception | None:
        """Return the error that ended the query; None if it is running or was stopped."""
        return self.life.error

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802
        """Wait until the query ends; a restart is not an end.

        Args:
            timeout: seconds to wait; None: no limit.

        Returns:
            Whether it has ended, if there is a timeout; otherwise None.

        Raises:
            ChandyError: the query failed and does not restart.
        """
        until = None if timeout is None else runtime.monotonic() + timeout
        while True:
            changed = self._supervision.changed
            with changed:
                left = None if until is None else until - runtime.monotonic()
                ended = changed.wait_for(partial(self._is_over_for, changed), left)
                if self._supervision.changed is changed:
                    break
            # Others run it now.
        error = self.life.error
        if error is not None:
            raise error
        return ended if timeout is not None else None

    def _is_over_for(self, changed: runtime.Condition) -> bool:
        """Whether whoever waits for a condition waits for nothing any more."""
        return not self.isActive or self._supervision.changed is not changed

    def processAllAvailable(self) -> None:  # noqa: N802
        """Wait until all data that is available now has been processed, also if the query restarts; for tests.

        Raises:
            ChandyError: the query failed and does not restart.
        """
        while not self._has_taken_all(self._current):
            if self.awaitTermination(_PAUSE):
                return

    def _has_taken_all(self, run: StreamingQuery) -> bool:
        """Return whether a run has processed all data and goes on; not if it fails or is stopped meanwhile."""
        try:
            answer(run.processAllAvailable, lambda error: None)
            return run is self._current and answer(lambda: run.isActive, lambda error: False)
        except PySparkException:
            return False

    def explain(self, extended: bool = False) -> None:
        """Print the plan of the latest batch."""
        self._current.explain(extended)

    def stop(self) -> None:
        """Stop the query at once and for good. ``CheckpointCoordinator.stop`` lets running batches commit first."""
        self._supervision.stop(self.name)

    @property
    def _current(self) -> StreamingQuery:
        # A query that is given its batches has not run before the first one.
        return self._run or cast("StreamingQuery", _NotRun())


class _NotRun:
    """What Spark would say of a query that has not run."""

    isActive = False  # noqa: N815 (Spark's names)
    lastProgress = None  # noqa: N815
    recentProgress: Final = ()  # noqa: N815
    status: Final = {"message": "Waiting for a batch", "isDataAvailable": False, "isTriggerActive": False}

    def processAllAvailable(self) -> None:  # noqa: N802
        """Do nothing: there is no data for it."""

    def explain(self, extended: bool = False) -> None:
        """Print nothing: there is no plan."""
