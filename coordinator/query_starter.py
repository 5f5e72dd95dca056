"""Makes the queries of a pipeline from what a user gives, starts them, and builds them again to rescale them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import attrs

from ..state.format.evolution import shown
from ..state.operators import shard_ranges
from ..state.operators.partitioning import default_tasks
from ..storage import runtime
from ..storage.logs import logger
from .batch_rows import BatchRows, BatchRowsWriter
from .channels.contract import Channels
from .config import CheckpointConfig
from .errors import ArgumentError, RescaledError
from .execution.locked_protocol import LockedProtocol
from .operators import Operators, name_taken
from .permit import Permit
from .protocol.events import ScheduleStarted
from .protocol.user_requests import UserRequest
from .query import CheckpointedQuery, Definition
from .recovery.supervisor import Supervisor
from .restore import restore_point
from .sinks.place import directory_path
from .sinks.recognition import sink_of
from .sinks.sink import GivenSink, Sink
from .sources.query_sources import QuerySources
from .sources.reader import SourceReader
from .spark import plan
from .spark.writer_facts import WriterFacts, check, check_duration
from .wiring.reachable_files import check_query_reach
from .wiring.taken_pipeline import TakenPipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    Writer = DataStreamWriter | BatchRowsWriter

log = logger(__name__)


@attrs.frozen(kw_only=True)
class QueryRequest:
    """What a user says of a query that is to start; see ``CheckpointCoordinator.start``."""

    name: str
    writer: Writer | None
    build: Callable[[], Writer] | None
    """Makes the operators of the query and returns its writer; None if ``writer`` is given."""
    sink: object
    """One transactional sink or several; None: the writer's own."""
    table: str | None
    reads: tuple[str, ...]
    adopt: str | None


def as_given(request: QueryRequest) -> QueryRequest:
    """Return what a user says of a query."""
    return request


@attrs.frozen
class _Plan:
    """What a query computes, and where that goes."""

    writer: DataStreamWriter
    rows: DataFrame
    """Has the schema of what is written."""
    batches: BatchRows | None
    """What computes the rows of each batch; None: the query's own plan."""

    @classmethod
    def of(cls, given: Writer, request: QueryRequest) -> _Plan:
        """Return that of a writer.

        Raises:
            ArgumentError: it is no writer.
            WriterError: it is that of aggregates of batches, and they cannot be written so.
        """
        if isinstance(given, BatchRowsWriter):
            has_sink = request.sink is not None
            writer = given.writer(has_sink=has_sink, table=request.table, adopt=request.adopt)
            return cls(writer, given.rows.sample, given.rows)
        plan.check_writer(given)
        return cls(given, given._df, None)

    def facts(self, table: str | None) -> WriterFacts:
        """Return what the query is."""
        found = plan.facts(self.writer, table=table)
        if self.batches is None:
            return found
        uid, sources = self.batches.uid, tuple(range(len(found.sources)))
        return attrs.evolve(found, operators=(*found.operators, uid), inputs={**found.inputs, uid: sources})

    def attach(self, sink: GivenSink, table: str | None) -> None:
        """Have the query call a sink with its rows."""
        sink.attach(self.writer, table, self.rows, self.batches.output if self.batches else None)


@attrs.define
class _Started:
    """A query that was started."""

    request: QueryRequest
    query: CheckpointedQuery
    plan: _Plan
    transactional: GivenSink | None


@attrs.frozen(kw_only=True)
class QueryStarter:
    """Starts the queries of a pipeline. Only one thread may use it at a time."""

    spark: SparkSession
    config: CheckpointConfig
    pipeline: TakenPipeline
    operators: Operators
    adopt: Callable[[str, str, WriterFacts, Sink], None]
    """Lets a query begin where one of plain Spark has stopped: its path, and the query's name, facts and sink."""
    sources: Callable[[WriterFacts, SourceReader], QuerySources]
    """Returns what there is to know of the sources of a query."""
    make_sink: Callable[[str, object, DataFrame], GivenSink]
    """Makes the sink of a query: its name, what it was given as its sink, and its rows."""
    channels: Channels
    protocol: LockedProtocol
    supervisor: Supervisor
    prepare: Callable[[QueryRequest], QueryRequest]
    """Returns what is started of a query. Another life of it may start what the user has said."""
    known: Mapping[str, CheckpointedQuery] = attrs.field(factory=dict)
    """What users have of queries that a life before has started, by name."""
    _started: dict[str, _Started] = attrs.field(factory=dict, init=False)
    """By name."""

    @property
    def requests(self) -> tuple[QueryRequest, ...]:
        """What a user has said of the queries that were started, in their order."""
        return tuple(one.request for one in self._started.values())

    @property
    def queries(self) -> tuple[CheckpointedQuery, ...]:
        """The queries that run, and those that are about to: nobody is to take the time between for their end."""
        started = self.supervisor.queries
        names = {query.name for query in started}
        return (*started, *(query for name, query in self.known.items() if name not in names))

    def start(self, request: QueryRequest) -> CheckpointedQuery:
        """Start a query for the first time.

        Raises:
            ChandyError: as ``CheckpointCoordinator.start``. Nothing has been started.
        """
        if request.name in self._started:
            raise name_taken("query name", request.name)
        if (request.writer is None) == (request.build is None):
            raise ArgumentError(
                f"query {request.name!r} cannot be started",
                "either a DataStreamWriter that has not been started, or build=, a function that returns one",
                "neither" if request.writer is None else "both",
            )
        self.protocol.check_reads(request.name, request.reads)
        with self.operators.undone_on_error():
            return self._start(request)

    def _start(self, given: QueryRequest) -> CheckpointedQuery:
        request = self.prepare(given)
        name, table = request.name, request.table
        before = self.operators.uids
        planned = self._planned(request)
        transactional = None
        if request.sink is not None:
            transactional = self.make_sink(name, request.sink, planned.rows)
            planned.attach(transactional, table)
        facts = planned.facts(table)
        check(facts)
        check_duration(facts, self.config.timeout_seconds)
        if request.build is not None:
            _check_made(name, facts, before)
        if transactional is not None:
            transactional.check_mode(facts.output_mode)
        sink = transactional or sink_of(planned.writer, facts)
        check_query_reach(self.spark, self.config, str(self.operators.directories.base), name, facts, sink)
        point, permits = self.pipeline.point, self.pipeline.permits
        if point and permits.given.covers(Permit(dropped_queries={name: point.manifest.id})):
            raise ArgumentError(
                f"query {name!r} cannot be started",
                "a query that the pipeline still has",
                "its name in Permit.dropped_queries",
                "take it out there, or give the query another name",
            )
        restore_point.check_query(point, name, facts.operators, permits)
        restore_point.check_outputs(point, name, sink.uids, permits)
        if request.adopt is not None:
            self.adopt(request.adopt, name, facts, sink)
        definition = Definition(
            name=name,
            writer=planned.writer,
            table=table,
            facts=facts,
            sink=sink,
            operators=self.operators.of_query(name, facts.operators),
            reads=request.reads,
            sources=self.sources(facts, self._reader(name, sink)),
            keeps_letters=self.operators.keep_letters(facts.operators),
        )
        try:
            if self.channels.add(definition) and transactional is not None:
                transactional.take_nothing_back()
            query = self.supervisor.start(definition, self.known.get(name))
        except BaseException:
            self.channels.remove(name)
            sink.close()
            definition.sources.close()
            raise
        self._started[name] = _Started(given, query, planned, transactional)
        self.operators.started(definition.operators)
        self.protocol.handle(ScheduleStarted(runtime.random()))
        log.info("query started", guarantee=str(query.guarantee))
        return query

    def rescale(self, uid: str, parallelism: int | None, timeout: float) -> Callable[[], None]:
        """Ask for another number of tasks to run an operator.

        Args:
            uid, parallelism: as for ``CheckpointCoordinator.rescale``.
            timeout: seconds to wait for the running batch.

        Returns:
            What waits until they do. It is called without a lock, and raises a ``ChandyError`` if they do not.

        Raises:
            ChandyError: as there. The query goes on as it was.
        """
        record = self.operators.record(uid)
        shards = len(record.shards)
        tasks = default_tasks(self.spark, shards) if parallelism is None else parallelism
        shard_ranges.check(shards, tasks)
        started = self._started.get(record.query)
        if started is None or not started.query.isActive:
            found = "no query with it yet" if started is None else f"query {record.query!r}, which has ended"
            raise not_rescaled(
                uid, "a query with it that runs", found, "give it parallelism= where it is made"
            )
        if tasks == self.operators.tasks(uid):
            return _nothing
        batches = started.plan.batches
        if batches is not None and batches.uid == uid:
            # Each of its batches has a plan of its own.
            batches.rescale(tasks)
            self._rescaled(uid, tasks)
            return _nothing
        wanted = RescaledError(record.query, uid, tasks)
        planned = self._built_again(started, uid, tasks)
        request = self.supervisor.replanning.go_on_with(record.query, planned.writer, wanted, timeout)
        return partial(self._await_plan, started, planned, wanted, request)

    def _await_plan(
        self, started: _Started, planned: _Plan, wanted: RescaledError, request: UserRequest
    ) -> None:
        """Wait until a query goes on with another plan.

        Raises:
            ChandyError: it does not. If it is to be started with that plan all the same, the operators have it, too.
        """
        self.supervisor.replanning.await_outcome(wanted.query, request)
        if started.query.definition.writer is planned.writer:
            started.plan = planned
            if planned.batches is not None:
                # They may have been rescaled meanwhile.
                planned.batches.rescale(self.operators.tasks(planned.batches.uid))
            self._rescaled(wanted.uid, wanted.tasks)
        request.check()

    def _rescaled(self, uid: str, tasks: int) -> None:
        self.operators.rescaled(uid, tasks)
        log.info("operator rescaled", operator=uid, tasks=tasks)

    def _built_again(self, started: _Started, uid: str, tasks: int) -> _Plan:
        """Return another plan of a query, in which an operator has a number of tasks."""
        request = self.prepare(started.request)
        if request.build is None:
            raise not_rescaled(
                uid,
                f"query {request.name!r} to be started with build=, because rescaling builds its plan again",
                "a writer, whose plan is what it is",
                "give coordinator.start a function that makes the query's operators and returns the writer; or start "
                "the program again with another parallelism",
            )
        with self.operators.made_again(uid, tasks):
            planned = self._planned(request)
        was, now = started.plan.rows.schema, planned.rows.schema
        if now != was:
            raise _another(request.name, f"columns {shown(was)}", f"columns {shown(now)}")
        if started.transactional is not None:
            planned.attach(started.transactional, request.table)
        _check_same(request.name, started.query.definition.facts, planned.facts(request.table))
        return planned

    def _planned(self, request: QueryRequest) -> _Plan:
        given = request.writer if request.build is None else request.build()
        assert given is not None, "there is a writer or a function that returns one"
        return _Plan.of(given, request)

    def _reader(self, query: str, sink: Sink) -> SourceReader:
        sinks = (sink, *(one.query.definition.sink for one in self._started.values()))
        return SourceReader(
            spark=self.spark,
            pipeline=self.pipeline.name,
            query=query,
            store=self.pipeline.catalog.store,
            proof=self.pipeline.watch.proof,
            taken_back=frozenset(
                directory_path(one.location.as_uri()) for one in sinks if one.location is not None
            ),
            begins_anew=not self.pipeline.may_resume and self.pipeline.point is None,
        )


def _nothing() -> None:
    """Wait for nothing: it is done."""


def _check_made(query: str, facts: WriterFacts, before: frozenset[str]) -> None:
    """Refuse a function that was to make a query's operators, and has used some that were there before."""
    if old := [uid for uid in facts.operators if uid in before]:
        raise ArgumentError(
            f"query {query!r} cannot be started",
            "a function build= that makes the query's operators itself, because rescaling makes them again",
            f"one that uses operators which were made before: {', '.join(map(repr, old))}",
            "call coordinator.aggregate and the like inside of the function",
        )


def _check_same(query: str, was: WriterFacts, now: WriterFacts) -> None:
    """Refuse another query than the one that was started."""
    for field in attrs.fields(WriterFacts):
        before, after = getattr(was, field.name), getattr(now, field.name)
        if before != after:
            name = field.name.replace("_", " ")
            raise _another(query, f"{name} {before}", f"{name} {after}")


def _another(query: str, expected: str, found: str) -> ArgumentError:
    return ArgumentError(
        f"query {query!r} cannot be built again",
        expected,
        found,
        "give start a function that builds the same query at each call, but for the parallelism of operators",
    )


def not_rescaled(uid: str, expected: str, found: str, advice: str) -> ArgumentError:
    """Return the refusal to give an operator another number of tasks."""
    return ArgumentError(f"operator {uid!r} cannot be rescaled while it runs", expected, found, advice)
