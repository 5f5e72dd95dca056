"""The operators of a pipeline: adds them to DataFrames, and keeps their records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import attrs

from ..barrier.task import OperatorTask, operator_task
from ..state.errors import DefinitionError
from ..state.operators.dataframe import Combiner
from ..state.operators.partitioning import Partitioning, by_id
from ..state.operators.time_mode import TimeMode
from ..storage.checkpoints.manifest import OperatorRecord
from ..storage.keys import validate_name
from .errors import PipelineNameError, RestoreError
from .operator_arguments import KeyedStream
from .restore.restore_point import check_operator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ..state.operators.engine import OperatorSpec
    from ..state.rpc.messages import Endpoint
    from .restore.query_directories import QueryDirectories
    from .restore.restore_point import RestorePoint
    from .spark.ticks import Ticks


def as_made(record: OperatorRecord, spec: OperatorSpec) -> OperatorSpec:
    """Return an operator."""
    return spec


@attrs.frozen
class DefinedOperator:
    """An operator that was made."""

    record: OperatorRecord
    tasks: int
    """Number of tasks that run it."""
    spec: OperatorSpec
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

    def free(self, uid: str) -> str:
        """Return the uid of a new operator if it is valid and not taken."""
        validate_name("operator uid", uid)
        if self._again.get(uid, self._made.get(uid)) is not None:
            raise name_taken("operator uid", uid)
        return uid

    def before(self, uid: str) -> OperatorRecord | None:
        """Return the record of an operator in the restored checkpoint; None if there is none."""
        return self.restored.operator(uid) if self.restored else None

    def replaced(self, uid: str) -> DefinedOperator | None:
        """Return what an operator is that is made again; None if it is a new one."""
        return self._made[uid] if uid in self._again else None

    def put_in(
        self,
        stream: KeyedStream,
        spec: OperatorSpec,
        combiner: Combiner | None = None,
        time_mode: TimeMode = TimeMode.NONE,
        dropped: Sequence[str] = (),
        watermark_lag_ms: int = 0,
    ) -> DataFrame:
        """Add an operator to the pipeline, and to the plan of its input.

        Raises:
            ChandyError: it does not fit the restored checkpoint.
        """
        task, _ = self.add(stream, spec, dropped, watermark_lag_ms)
        return task.over(self.ticks.attach(stream.df, stream.uid, time_mode), combiner, self.partitioning)

    def add(
        self,
        stream: KeyedStream,
        spec: OperatorSpec,
        dropped: Sequence[str] = (),
        watermark_lag_ms: int = 0,
    ) -> tuple[OperatorTask, OperatorRecord]:
        """Add an operator to the pipeline. Its states continue those of the restored checkpoint.

        Returns:
            The operator, and its record.
        """
        uid = stream.uid
        was = self.replaced(uid)
        # Made again, it has as many as it was rescaled to, whatever the default has become.
        tasks = self._wanted.get(uid, was.tasks) if was else stream.tasks
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
        made = DefinedOperator(record, tasks, spec, keeps_letters=stream.on_error != "fail")
        (self._made if was is None else self._again)[uid] = made
        return task.with_spec(self.watched(record, spec.taking_up(record))), record

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

    def spec(self, uid: str) -> OperatorSpec:
        """Return the definition of an operator that there is."""
        return self._made[uid].spec

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
        was = self.before(uid)
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


class AddsOperators(ABC):
    """A coordinator, as the methods see it that add to its pipeline."""

    _operators: Operators

    @abstractmethod
    def _growing(self) -> AbstractContextManager[None]:
        """Let one thread at a time add something to the pipeline, while the pipeline runs."""


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
