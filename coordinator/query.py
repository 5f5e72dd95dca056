"""A wrapped query as its user sees it: used like PySpark's ``StreamingQuery``, and alive across restarts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

from ..storage.manifest import OperatorRecord
from .sinks.guarantee import Guarantee
from .sinks.sink import Sink
from .spark.writer_facts import WriterFacts

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@attrs.frozen
class Definition:
    """What a query is, whichever run of it."""

    name: str
    writer: DataStreamWriter
    table: str | None
    facts: WriterFacts
    sink: Sink
    operators: tuple[OperatorRecord, ...]
    reads: tuple[str, ...]


class CheckpointedQuery:
    """A query of a pipeline. Under it Spark's query may fail and start again; this one goes on.

    The methods and properties are those of ``pyspark.sql.streaming.StreamingQuery`` and mean the same; what
    they tell of the engine they tell of the current run.
    """

    def __init__(self, definition: Definition, stop: Callable[[str], None]) -> None:
        self.definition = definition
        self.guarantee: Guarantee = definition.sink.guarantee
        """Exactly-once or at-least-once for the sink, and because of what. State is always exactly-once."""
        self.is_stopped = False
        """Whether its user has stopped it, so that it does not start again with the pipeline."""
        self._stop = stop
        self._run: StreamingQuery | None = None
        self._done = threading.Event()
        self._error: Exception | None = None

    # --- what the supervisor says ---------------------------------------------------------------------------

    def runs_as(self, query: StreamingQuery) -> None:
        """A run has started; a query that had ended lives again."""
        self._run, self._error = query, None
        self._done.clear()

    def ended(self, error: Exception | None = None) -> None:
        """There will be no further run."""
        self._error = error
        self._done.set()

    # --- StreamingQuery -------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The query's name in the pipeline."""
        return self.definition.name

    @property
    def id(self) -> str:
        """Spark's id of the query; a new one after the pipeline went back to a checkpoint."""
        return str(self._current.id)

    @property
    def runId(self) -> str:  # noqa: N802
        """Spark's id of the current run."""
        return str(self._current.runId)

    @property
    def isActive(self) -> bool:  # noqa: N802
        """Whether the query runs, or is about to run again."""
        return not self._done.is_set()

    @property
    def status(self) -> dict[str, Any]:
        """The current run's status."""
        return self._current.status

    @property
    def recentProgress(self) -> list[Any]:  # noqa: N802
        """The current run's last progress updates."""
        return list(self._current.recentProgress)

    @property
    def lastProgress(self) -> Any:  # noqa: N802
        """The current run's last progress update; None if it has made none."""
        return self._current.lastProgress

    def exception(self) -> Exception | None:
        """Why the query has ended, None if it runs or has ended well."""
        return self._error

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802
        """Wait for the end of the query, restarts included.

        Args:
            timeout: seconds to wait; None: for ever.

        Returns:
            Whether it has ended, if a timeout was given; else None.

        Raises:
            ChandyError: the query has failed for good.
        """
        ended = self._done.wait(timeout)
        if self._error is not None:
            raise self._error
        return ended if timeout is not None else None

    def processAllAvailable(self) -> None:  # noqa: N802
        """Wait until the current run has processed all that was there when this was called; for tests."""
        self._current.processAllAvailable()

    def explain(self, extended: bool = False) -> None:
        """Print the plan of the last batch."""
        self._current.explain(extended)

    def stop(self) -> None:
        """Stop the query for good, at once. ``CheckpointCoordinator.stop`` lets the running batch commit first."""
        self._stop(self.name)

    @property
    def _current(self) -> StreamingQuery:
        assert self._run is not None, "a query is handed out after its first run has started"
        return self._run
