"""The operators of a pipeline: adds them to DataFrames, and keeps their records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

from ..barrier.task import OperatorTask, operator_task
from ..state.aggregation.aggregate_operator import STATE as AGGREGATES
from ..state.aggregation.aggregate_operator import Combine
from ..state.aggregation.aggregates import Aggregates
from ..state.aggregation.batch_aggregation import Tally, batch_aggregation
from ..state.aggregation.combining import Combining, PreAggregation
from ..state.aggregation.windowing import Scope
from ..state.errors import DefinitionError
from ..state.format.evolution import BOOKKEEPING
from ..state.format.schema import from_json
from ..state.operators import shard_ranges
from ..state.operators.arrow_processor import ArrowProcessor, arrow_spec
from ..state.operators.dataframe import Combiner, check_input, check_streaming
from ..state.operators.partitioning import Partitioning, by_id
from ..state.operators.time_mode import TimeMode, check_output_mode
from ..state.processors.initial_state import initial_rows, write_initial_state
from ..state.processors.processor import ProcessorSpec, processor_spec, taking_up
from ..state.processors.style import PandasSettings
from ..storage.checkpoints.manifest import OperatorRecord
from ..storage.keys import validate_name
from ..storage.logs import logger
from .aggregating import Aggregating, aggregating
from .batch_aggregate import BatchAggregate, BatchOperator
from .errors import PipelineNameError, RestoreError, SetupError
from .operator_arguments import KeyedStream, Lifetime, Processing, Windows, check_no_column, event_time_lag
from .restore.restore_point import check_operator
from .spark.reachable_places import has_other_machines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, GroupedData
    from pyspark.sql.types import StructType

    from ..state.operators.engine import OperatorSpec
    from ..state.processors.initial_state import InitialState
    from ..state.rpc.messages import Endpoint
    from .restore.query_directories import QueryDirectories
    from .restore.restore_point import RestorePoint
    from .spark.ticks import Ticks

log = logger(__name__)


def as_made(record: OperatorRecord, spec: OperatorSpec) -> OperatorSpec:
    """Return an operator."""
    return spec


@attrs.frozen
class DefinedOperator:
    """An operator that was made."""

    record: OperatorRecord
    tasks: int
    """Number of tasks that run it."""
    aggregates: Aggregates | None = None
    """What the state ``AGGREGATES`` has the accumulators of; None if it has no such state."""
    initial: InitialState | None = None
    """With what its state begins; None: with nothing, or it is restored."""
    keeps_letters: bool = False
    """Whether it keeps dead letters of what its code has failed on."""


@attrs.define
class Operators:
    """The operators of one pipeline. An operator belongs to a query once that query has started."""

    endpoint: Endpoint
    """Where tasks and state hosts reach the coordinator."""
    restored: RestorePoint | None
    """The checkpoint that states are restored from; None: all states begin empty."""
    directories: QueryDirectories
    """Where initial states are stored."""
    ticks: Ticks
    shared: bool = False
    """Whether local paths are on a file system that all machines have mounted."""
    partitioning: Partitioning = by_id
    """Brings rows to the partitions of operators."""
    watched: Callable[[OperatorRecord, OperatorSpec], OperatorSpec] = as_made
    """Returns what the tasks of an operator run."""
    _made: dict[str, DefinedOperator] = attrs.field(factory=dict, init=False)
    """By uid."""
    _again: dict[str, DefinedOperator | None] = attrs.field(factory=dict, init=False)
    """While a query is built again, its operators by uid: what they are now; None: not made again yet."""
    _wanted: dict[str, int] = attrs.field(factory=dict, init=False)
    """While a query is built again, by uid how many tasks are to run an operator that is rescaled."""

    # --- building -------------------------------------------------------------------------------------------

    def with_processor(self, stream: KeyedStream, given: Processing) -> DataFrame:
        """Return the output of a ``StatefulProcessor`` over a stream.

        Raises:
            ChandyError: one of its subclasses, as for ``CheckpointCoordinator.transform_with_state``.
        """
        df, uid = stream.df, self._free(stream.uid)
        mode = TimeMode.read(given.time_mode)
        check_output_mode(given.output_mode)
        check_streaming(df)
        check_input(df, stream.key)
        lag = event_time_lag(df, "time_mode" if mode is TimeMode.EVENT else None)
        shard_ranges.check(stream.shards, parallelism=1)
        spec = processor_spec(
            df.schema,
            uid=uid,
            key=stream.key,
            processor=given.processor,
            output=given.output,
            style=given.style,
            mode=mode,
            event_time_column=given.event_time_column,
            settings=PandasSettings.read(df.sparkSession.conf),
        )
        if given.initial_state is not None:
            spec = self._with_initial_state(stream, spec, given.initial_state)
        return self._put_in(stream, spec, time_mode=mode, dropped=spec.dropped, watermark_lag_ms=lag)

    def with_arrow_processor(
        self, stream: KeyedStream, processor: ArrowProcessor, output: str | StructType
    ) -> DataFrame:
        """Return the output of an ``ArrowProcessor`` over a stream.

        Args:
            stream: the stream.
            processor, output: as for ``CheckpointCoordinator.transform_with_arrow``.

        Raises:
            ChandyError: one of its subclasses, as there.
        """
        uid = self._free(stream.uid)
        check_streaming(stream.df)
        check_input(stream.df, stream.key)
        spec = arrow_spec(stream.df.schema, uid=uid, processor=processor, output=output)
        return self._put_in(stream, spec, watermark_lag_ms=event_time_lag(stream.df))

    def with_aggregates(
        self,
        stream: KeyedStream,
        *,
        columns: Mapping[str, tuple[str, str]],
        combine: Combine,
        lifetime: Lifetime,
        windows: Windows,
    ) -> DataFrame:
        """Return running aggregates of a stream.

        Args:
            stream: the stream.
            columns, combine: as for ``CheckpointCoordinator.aggregate``.
            lifetime: how long a key lives.
            windows: the windows of event time; a key is one of them with the key columns of the stream.

        Raises:
            ChandyError: one of its subclasses, as there.
        """
        given = self._aggregating(stream, columns, combine, lifetime, windows)
        made = given.define(combine=combine)
        needed = attrs.evolve(given.keyed, df=made.rows(given.keyed.df))
        return self._put_in(
            needed,
            made.spec,
            made.combiner,
            time_mode=given.mode,
            watermark_lag_ms=given.lag_ms,
            aggregates=made.aggregates,
        )

    def with_batch_aggregates(
        self,
        stream: KeyedStream,
        *,
        columns: Mapping[str, tuple[str, str]],
        combine: Combining,
        lifetime: Lifetime,
        windows: Windows,
    ) -> BatchAggregate:
        """Return running aggregates of a stream that are computed within each of its batches.

        Args:
            stream: the stream.
            columns, combine: as for ``CheckpointCoordinator.aggregate_batches``.
            lifetime, windows: as for ``with_aggregates``.

        Raises:
            ChandyError: one of its subclasses, as there.
        """
        given = self._aggregating(stream, columns, combine, lifetime, windows)
        ticking = self.ticks.attach(given.keyed.df, stream.uid, given.mode)
        tally = Tally.begin(ticking.sparkSession.sparkContext)
        made = batch_aggregation(ticking, given.define, combine=combine, tally=tally)
        task, record = self._add(
            attrs.evolve(given.keyed, df=made.rows),
            made.specs[PreAggregation.NOWHERE],
            watermark_lag_ms=given.lag_ms,
            aggregates=made.aggregates,
        )
        tasks = {place: task.with_spec(taking_up(spec, record)) for place, spec in made.specs.items()}
        return BatchAggregate(
            made.rows, BatchOperator(stream.uid, made, tasks, combine, self.partitioning, task.parallelism)
        )

    def _aggregating(
        self,
        stream: KeyedStream,
        columns: Mapping[str, tuple[str, str]],
        combine: object,
        lifetime: Lifetime,
        windows: Windows,
    ) -> Aggregating:
        check_no_column(stream, combine, lifetime, windows)
        self._free(stream.uid)
        found = aggregating(stream, columns, lifetime, windows)
        was = self._before(stream.uid)
        if was is not None and not found.scope.takes_up(stored := Scope.stored(was)):
            raise RestoreError(
                f"operator {stream.uid!r} does not fit the checkpoint",
                f"aggregates of {stored}, as they were",
                f"aggregates of {found.scope}",
                "give the operator another uid, or its window= as it was",
            )
        return found

    def _tell_of_new_aggregates(self, now: OperatorRecord) -> None:
        """Say of which aggregates the restored keys have nothing: their output looks like that of all rows."""
        was = self._before(now.uid)
        if was is None or AGGREGATES not in was.states:
            return
        known = {name for version in was.states[AGGREGATES].versions for name in from_json(version).names}
        names = from_json(now.states[AGGREGATES].versions[-1]).names
        if new := [name for name in names if name not in known | BOOKKEEPING]:
            log.warning(
                "aggregates are new to restored state: of a key that it has, they cover the rows from now on alone",
                operator=now.uid,
                aggregates=new,
            )

    def _free(self, uid: str) -> str:
        """Return the uid of a new operator if it is valid and not taken."""
        validate_name("operator uid", uid)
        if self._again.get(uid, self._made.get(uid)) is not None:
            raise name_taken("operator uid", uid)
        return uid

    def _before(self, uid: str) -> OperatorRecord | None:
        """Return the record of an operator in the restored checkpoint; None if there is none."""
        return self.restored.operator(uid) if self.restored else None

    def _with_initial_state(
        self, stream: KeyedStream, spec: ProcessorSpec, initial_state: DataFrame | GroupedData
    ) -> ProcessorSpec:
        """Store the rows of an initial state, unless the operator's state is restored."""
        rows = initial_rows(initial_state, stream.key, stream.df)
        if self._before(stream.uid) is not None:
            return spec
        master = str(stream.df.sparkSession.sparkContext.master)
        if has_other_machines(master) and not self.shared:
            raise SetupError(
                f"the initial state of operator {stream.uid!r} cannot be given to tasks",
                f"a directory that the driver and all machines of {master} reach, for its rows",
                f"a directory of the driver's machine ({self.directories.base})",
                "set CheckpointConfig(work_dir=..., shared=True) with a directory that is mounted on all machines; or "
                "write the state into a savepoint by a SavepointWriter",
            )
        if stream.uid in self._again:
            return attrs.evolve(spec, initial=self._made[stream.uid].initial)
        folder = self.directories.initial_state(stream.uid)
        initial = write_initial_state(rows, stream.key, stream.shards, stream.default_tasks, folder)
        return attrs.evolve(spec, initial=initial)

    def _put_in(
        self,
        stream: KeyedStream,
        spec: OperatorSpec,
        combiner: Combiner | None = None,
        time_mode: TimeMode = TimeMode.NONE,
        dropped: Sequence[str] = (),
        watermark_lag_ms: int = 0,
        aggregates: Aggregates | None = None,
    ) -> DataFrame:
        """Add an operator to the pipeline, and to the plan of its input."""
        task, _ = self._add(stream, spec, dropped, watermark_lag_ms, aggregates)
        return task.over(self.ticks.attach(stream.df, stream.uid, time_mode), combiner, self.partitioning)

    def _add(
        self,
        stream: KeyedStream,
        spec: OperatorSpec,
        dropped: Sequence[str] = (),
        watermark_lag_ms: int = 0,
        aggregates: Aggregates | None = None,
    ) -> tuple[OperatorTask, OperatorRecord]:
        """Add an operator to the pipeline. Its states continue those of the restored checkpoint.

        Returns:
            The operator, and its record.
        """
        uid = stream.uid
        was, is_again = self._made.get(uid), uid in self._again
        # Made again, it has as many as it was rescaled to, whatever the default has become.
        tasks = self._wanted.get(uid, was.tasks) if was and is_again else stream.tasks
        task = operator_task(
            stream.df,
            uid=uid,
            key=stream.key,
            spec=spec,
            shards=stream.shards,
            parallelism=tasks,
            endpoint=self.endpoint,
            on_error=stream.on_error,
            watermark_lag_ms=watermark_lag_ms,
        )
        declared = OperatorRecord(
            uid=uid, query="", key_schema=task.key, states=dict(spec.states), shards=(None,) * stream.shards
        )
        record = check_operator(self.restored, declared, dropped)
        initial = spec.initial if isinstance(spec, ProcessorSpec) else None
        # Sessions are kept in another form.
        accumulated = aggregates if AGGREGATES in spec.states else None
        made = DefinedOperator(record, tasks, accumulated, initial, keeps_letters=stream.on_error != "fail")
        if is_again:
            self._again[uid] = made
        else:
            self._made[uid] = made
            if accumulated is not None:
                self._tell_of_new_aggregates(record)
        return task.with_spec(self.watched(record, taking_up(spec, record))), record

    # --- making them again ----------------------------------------------------------------------------------

    @property
    def uids(self) -> frozenset[str]:
        """The uids that are taken."""
        return frozenset(self._made)

    def tasks(self, uid: str) -> int:
        """Return the number of tasks that run an operator."""
        return self._made[uid].tasks

    def rescaled(self, uid: str, tasks: int) -> None:
        """Note that another number of tasks runs an operator from now on."""
        self._made[uid] = attrs.evolve(self._made[uid], tasks=tasks)

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Forget what was made inside of the ``with`` if it fails."""
        before = self.uids
        try:
            yield
        except BaseException:
            self._forget_all_but(before)
            raise

    def _forget_all_but(self, uids: frozenset[str]) -> None:
        for uid in self.uids - uids:
            del self._made[uid]

    @contextmanager
    def made_again(self, uid: str, tasks: int) -> Iterator[None]:
        """Have all operators of a query made again inside of the ``with``, one of them for another number of tasks.

        Nothing has changed afterwards: ``rescaled`` says that they are what runs.

        Raises:
            DefinitionError: one was not made again, or is another one now.
        """
        query, before = self._made[uid].record.query, self.uids
        own = [made.record for made in self._made.values() if made.record.query == query]
        self._again, self._wanted = dict.fromkeys(record.uid for record in own), {uid: tasks}
        try:
            yield
            for record in own:
                _check_same(record, self._again[record.uid])
        finally:
            self._again, self._wanted = {}, {}
            self._forget_all_but(before)

    def taken_over(self, restored: RestorePoint | None, built: Collection[str]) -> Operators:
        """Return the operators of the same plans, for a coordinator that restores another checkpoint.

        Args:
            restored: the checkpoint.
            built: names of the queries that make their operators again.
        """
        others = attrs.evolve(self, restored=restored)
        others._made = {
            uid: attrs.evolve(made, record=attrs.evolve(made.record, query=""))
            for uid, made in self._made.items()
            if made.record.query not in built
        }
        return others

    # --- records --------------------------------------------------------------------------------------------

    def record(self, uid: str) -> OperatorRecord:
        """Return the record of an operator.

        Raises:
            PipelineNameError: there is no operator with this uid.
        """
        found = self._made.get(uid)
        if found is None:
            raise PipelineNameError(
                f"there is no operator {uid!r}",
                f"the uid of an operator of this pipeline ({', '.join(sorted(self._made)) or 'it has none yet'})",
                repr(uid),
            )
        return found.record

    @property
    def need_hosts(self) -> bool:
        """Whether the pipeline has operators, or the restored checkpoint has: state hosts keep their shards."""
        return bool(self._made or (self.restored and self.restored.manifest.operators))

    def aggregates(self, uid: str) -> Aggregates | None:
        """Return what an operator computes; None if it computes no aggregates."""
        found = self._made.get(uid)
        return found.aggregates if found else None

    def of_query(self, query: str, uids: Iterable[str]) -> tuple[OperatorRecord, ...]:
        """Return the records of the operators of a query that is about to start, with the query's name.

        Raises:
            PipelineNameError: one was not created by this coordinator, or is part of another query.
            RestoreError: one was part of another query in the restored checkpoint.
        """
        return tuple(self._of_query(query, uid) for uid in uids)

    def keep_letters(self, uids: Iterable[str]) -> bool:
        """Return whether one of some operators keeps dead letters."""
        return any(self._made[uid].keeps_letters for uid in uids)

    def _of_query(self, query: str, uid: str) -> OperatorRecord:
        record = self._made[uid].record if uid in self._made else None
        if record is None:
            raise PipelineNameError(
                f"query {query!r} has an operator that this coordinator does not know",
                "operators that were created by this coordinator's methods",
                repr(uid),
                "create the DataFrame again with this coordinator",
            )
        if record.query:
            raise name_taken("operator uid", uid)
        was = self._before(uid)
        if was is not None and was.query != query:
            raise RestoreError(
                f"operator {uid!r} does not fit the checkpoint",
                f"it to be part of query {was.query!r}, whose batches its state belongs to",
                f"it in query {query!r}",
                "keep the query's name, or give the operator another uid to begin with empty state",
            )
        return attrs.evolve(record, query=query)

    def started(self, records: Iterable[OperatorRecord]) -> None:
        """Record that the query of these operators, as returned by ``of_query``, has started."""
        for record in records:
            self._made[record.uid] = attrs.evolve(self._made[record.uid], record=record)


def _check_same(was: OperatorRecord, made: DefinedOperator | None) -> None:
    """Check that an operator that was made again is the same one.

    Raises:
        DefinitionError: it is not.
    """
    now = None if made is None else attrs.evolve(made.record, query=was.query)
    if now == was:
        return
    if now is None:
        found = "no such operator"
    elif now.key_schema != was.key_schema:
        found = "another key"
    elif len(now.shards) != len(was.shards):
        found = f"{len(now.shards)} shards instead of {len(was.shards)}"
    else:
        found = "other states"
    raise DefinitionError(
        f"query {was.query!r} cannot be built again",
        f"operator {was.uid!r} as it was, but for its parallelism",
        found,
        "give start a function that makes all operators of its query, the same ones at each call",
    )


def name_taken(what: str, name: str) -> PipelineNameError:
    """Return the error for a name that something else of the pipeline has already."""
    return PipelineNameError(
        f"{what} {name!r} is taken",
        f"each {what} once in a pipeline, because state and progress are restored by it",
        f"{name!r} a second time",
        "choose another name",
    )
