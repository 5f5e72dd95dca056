"""What queries and operators do, read every few seconds in the background: a scrape asks no JVM and no host.

A query is known by its progress (``StreamingQuery.recentProgress``), an operator by the metrics of its state hosts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Protocol, TypeVar

import attrs

from ...state.rpc.metrics import OperatorMetrics
from ...storage.checkpoints.manifest import OperatorRecord
from ...storage.errors import ChandyError
from ...storage.logs import logger
from ..error_texts import without_secrets
from ..execution.polls import Poll
from ..state_progress import has_run, newest_batch
from .trends import Measured

log = logger(__name__)

_QUERIES_SECONDS: Final = 2.0
"""How often queries are looked at. Spark keeps 100 batches of each."""
_OPERATORS_SECONDS: Final = 10.0
"""How often operators are looked at, which asks every state host."""
_MAX_BEHIND: Final = "maxOffsetsBehindLatest"
"""What Spark's Kafka source reports of the partition that is furthest behind."""
_OBJECT: Final = re.compile(r"(?:\w+\.)+(\w+)\$?(?:@[0-9a-f]+)?")
_LONGEST_NAME: Final = 120
"""Characters of the name of a source or a sink that are kept."""

T = TypeVar("T")
Place = tuple[str, str]
"""Where an operator is measured: Spark's id of its query, and the state host. In each place it counts from zero."""


@attrs.frozen
class SourceActivity:
    """What a source of a query has given to its latest batch."""

    name: str
    """What Spark calls it."""
    rows_per_second: float | None = None
    behind: float | None = None
    """By how many offsets its furthest partition was behind; None if it does not say."""


@attrs.frozen
class QueryActivity:
    """What a query has done since this driver leads. Rows of a batch that runs again count again."""

    batches: int = 0
    rows: int = 0
    """Rows that came from its sources."""
    seconds: float = 0.0
    """What its batches took, from the question for new data to the commit."""
    rows_per_second: float | None = None
    """Of the latest batch; None if no batch has run."""
    behind: float | None = None
    """By how many offsets the furthest partition of a source was behind at the latest batch; None if no source says."""
    watermark: float | None = None
    """In seconds since 1970; None if there is none yet."""
    sources: tuple[SourceActivity, ...] = ()
    """Its sources at the latest batch, in Spark's order."""
    sink: str = ""
    """What Spark calls its sink; empty if no batch has run."""
    last_seconds: float | None = None
    """What the latest batch took; None if none has run."""


class Watched(Protocol):
    """A ``CheckpointedQuery``."""

    @property
    def name(self) -> str:
        """Its name in the pipeline."""
        ...

    @property
    def operators(self) -> Sequence[OperatorRecord]:
        """Its operators."""
        ...

    def progress_after(self, run: str, batch: int) -> list[dict[str, Any]]:
        """Return the progress of the current run, as Spark's JSON has it, oldest first.

        Args:
            run: Spark's id of a run.
            batch: the newest batch of that run whose progress is known.
        """
        ...


def counted(before: QueryActivity, progress: Mapping[str, Any]) -> QueryActivity:
    """Return a query's activity after further progress, which is as Spark's JSON has it."""
    if not has_run(progress):
        return before
    watermark = progress.get("eventTime", {}).get("watermark")
    took = progress["durationMs"].get("triggerExecution", 0) / 1000
    sources = tuple(map(_source, progress["sources"]))
    return QueryActivity(
        batches=before.batches + 1,
        rows=before.rows + progress["numInputRows"],
        seconds=before.seconds + took,
        rows_per_second=progress.get("processedRowsPerSecond"),
        behind=max((one.behind for one in sources if one.behind is not None), default=None),
        watermark=_seconds(watermark) if watermark else before.watermark,
        sources=sources,
        sink=_brief(progress.get("sink", {}).get("description")),
        last_seconds=took,
    )


def _source(told: Mapping[str, Any]) -> SourceActivity:
    behind = (told.get("metrics") or {}).get(_MAX_BEHIND)
    return SourceActivity(
        _brief(told.get("description")),
        told.get("processedRowsPerSecond"),
        None if behind is None else float(behind),
    )


def _brief(description: object) -> str:
    """Return what Spark calls a source or a sink, without the secrets that an address may have.

    Of an object of Scala that has no name of its own it is that of its class.
    """
    found = without_secrets(str(description or ""), {})
    name = _OBJECT.fullmatch(found)
    return (name[1] if name else found)[:_LONGEST_NAME]


def _seconds(watermark: str) -> float | None:
    """Return a watermark in seconds since 1970; None if it is Spark's first one, of 1970."""
    return datetime.fromisoformat(watermark).timestamp() or None


def advance(total: OperatorMetrics, before: OperatorMetrics, now: OperatorMetrics) -> None:
    """Add to a total by how much a reading is above the one before.

    A reading that falls, because shards have left its host, adds nothing.
    """
    total.add(OperatorMetrics(*(max(0, risen) for risen in attrs.astuple(now.minus(before)))))


class Activity:
    """Counts what the queries of a pipeline and their operators do.

    Args:
        queries: returns the queries.
        read: returns the metrics of an operator by place.
        ran: is told the measures of each batch, once.
    """

    def __init__(
        self,
        queries: Callable[[], Iterable[Watched]],
        read: Callable[[OperatorRecord], Mapping[Place, OperatorMetrics]],
        ran: Callable[[Measured], None],
    ) -> None:
        self._queries = queries
        self._read = read
        self._ran = ran
        self._seen: dict[str, tuple[str, int]] = {}
        """The run of each query, and its newest batch that was counted."""
        self._readings: dict[str, Mapping[Place, OperatorMetrics]] = {}
        self.of_queries: Mapping[str, QueryActivity] = {}
        """By name; replaced by each look, and never changed."""
        self.of_operators: Mapping[str, OperatorMetrics] = {}
        """By uid; likewise."""

    def looks(self) -> dict[str, Poll]:
        """Return what is to be done again and again."""
        return {
            "tell what queries do": Poll(self.look_at_queries, _QUERIES_SECONDS),
            "tell what operators do": Poll(self.look_at_operators, _OPERATORS_SECONDS),
        }

    def look_at_queries(self) -> None:
        """Count the batches that have run since the look before."""
        _each(self._queries(), self._look_at_query)

    def look_at_operators(self) -> None:
        """Count what operators have done since the look before."""
        _each([one for query in self._queries() for one in query.operators], self._look_at_operator)

    def _look_at_query(self, query: Watched) -> None:
        activity = self.of_queries.get(query.name, QueryActivity())
        seen, ran = self._seen.get(query.name, ("", -1)), list[Measured]()
        for progress in query.progress_after(*seen):
            before, activity = activity, counted(activity, progress)
            seen = progress["runId"], newest_batch(progress)
            if activity.batches > before.batches:
                ran.append(Measured.batch(progress, activity.behind))
        # All of it, or none if it has raised.
        self._seen[query.name] = seen
        self.of_queries = {**self.of_queries, query.name: activity}
        for measured in ran:
            self._ran(measured)

    def _look_at_operator(self, operator: OperatorRecord) -> None:
        try:
            now = self._read(operator)
        except ChandyError as error:
            # It starts, or one of its hosts has ended: the next look counts what this one does not.
            log.debug("an operator's activity is not known", operator=operator.uid, error=str(error))
            return
        total = attrs.evolve(self.of_operators.get(operator.uid, OperatorMetrics()))
        before = self._readings.get(operator.uid, {})
        for place, reading in now.items():
            advance(total, before.get(place, OperatorMetrics()), reading)
        self._readings[operator.uid] = {**before, **now}
        self.of_operators = {**self.of_operators, operator.uid: total}


def _each(some: Iterable[T], look: Callable[[T], None]) -> None:
    """Look at each; raise what the last one that failed has raised, once all have been looked at."""
    failed: Exception | None = None
    for one in some:
        try:
            look(one)
        except Exception as error:  # noqa: BLE001 - it is raised below
            failed = error
    if failed is not None:
        raise failed
