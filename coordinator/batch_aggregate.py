"""Running aggregates that are computed within each micro-batch of a query, which Spark's SQL has combined before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Self

import attrs
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter
from typing_extensions import override

from ..barrier.task import OperatorTask
from ..state.aggregation.batch_aggregation import BatchAggregation
from ..state.aggregation.combining import Combined, Combining, PreAggregation, next_pre_aggregation
from ..state.errors import invalid_argument
from ..state.format.values import describe
from ..state.operators.dataframe import KeyedFunction
from ..state.operators.partitioning import Partitioning
from ..storage.logs import logger
from .batch_rows import BatchRows, BatchRowsWriter
from .errors import WriterError
from .spark import plan
from .spark.partial_results import PartialResults

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = logger(__name__)

Transformation = Callable[[DataFrame], DataFrame]
BatchFunction = Callable[[DataFrame, int], None]

_INSTEAD = (
    "give foreachBatch a function, or coordinator.start a sink; for anything else use coordinator.aggregate"
)


@attrs.define(eq=False)
class BatchOperator:
    """The operator of a ``BatchAggregate``. Only the thread that runs its query's batches uses it."""

    uid: str
    made: BatchAggregation
    tasks: Mapping[PreAggregation, OperatorTask]
    """The operator for each place where rows can be combined."""
    combine: Combining
    partitioning: Partitioning
    """Brings rows to the operator's partitions."""
    parallelism: int
    """Number of tasks that run the operator from the next batch on; any thread may change it."""
    place: PreAggregation | None = attrs.field(default=None, init=False)
    """Where the rows of the newest batch were combined; None if there was none."""
    _before: Combined = attrs.field(default=Combined(0, 0), init=False)
    # What is made once spares each batch more than a hundred calls to the JVM.
    _prepared: dict[tuple[PreAggregation, int], KeyedFunction] = attrs.field(factory=dict, init=False)
    _partials: PartialResults | None = attrs.field(default=None, init=False)
    _sql: bool = attrs.field(init=False)
    """Whether SQL can combine rows."""

    def __attrs_post_init__(self) -> None:
        self._sql = self.made.partials is not None

    def output(self, rows: DataFrame) -> DataFrame:
        """Return the operator's output over the next batch.

        Args:
            rows: the batch: the key columns and the inputs of the aggregates.
        """
        self.place, given = self._next_place(), rows
        if self.place is PreAggregation.SQL:
            partial = self._partial_results(rows)
            if partial is None:
                log.warning(
                    "SQL does not combine rows, because Spark plans it in another way", operator=self.uid
                )
                self._sql, self.place = False, PreAggregation.PYTHON
            else:
                given = partial
        return self.over(given, self.place)

    def over(self, given: DataFrame, place: PreAggregation) -> DataFrame:
        """Return the operator's output over a batch.

        Args:
            given: the rows, as for ``output``; for ``PreAggregation.SQL`` their partial results.
            place: where the rows are combined.
        """
        parallelism = self.parallelism
        ready = self._prepared.get((place, parallelism))
        if ready is None:
            combiner = self.made.combiner if place is PreAggregation.PYTHON else None
            task = attrs.evolve(self.tasks[place], parallelism=parallelism)
            ready = task.prepared(given, combiner, self.partitioning)
            self._prepared[place, parallelism] = ready
        return ready.over(given)

    def _partial_results(self, rows: DataFrame) -> DataFrame | None:
        """Return the partial results of a batch by SQL; None if Spark has none of this form."""
        if self._partials is None:
            assert self.made.partials is not None, "SQL is among the places"
            self._partials = PartialResults(rows, self.made.partials)
        return self._partials.of(rows)

    def _next_place(self) -> PreAggregation:
        if self.combine != "auto":
            place = PreAggregation(self.combine)
            return place if place is not PreAggregation.SQL or self._sql else PreAggregation.PYTHON
        total, before = self.made.tally.total(), self._before
        self._before = total
        seen = Combined(total.rows - before.rows, total.sent - before.sent)
        return next_pre_aggregation(self.place, seen, sql=self._sql)


class BatchAggregate(BatchRows):
    """Running aggregates by key, as ``coordinator.aggregate_batches`` returns them.

    It is no DataFrame, because it is not part of the stream: each micro-batch is aggregated as a batch, within the
    query. ``writeStream`` leads to where its rows go, and ``transform`` changes them before.
    """

    def __init__(
        self, rows: DataFrame, operator: BatchOperator, functions: tuple[Transformation, ...] = ()
    ) -> None:
        """Make it; users call ``coordinator.aggregate_batches``.

        Args:
            rows: the streaming DataFrame with the key columns and the inputs of the aggregates.
            functions: what is done with its output.
        """
        self._rows = rows
        self._operator = operator
        self._functions = functions
        empty = rows.sparkSession.createDataFrame([], rows.schema)
        self._sample = self._transformed(operator.over(empty, PreAggregation.NOWHERE))
        if functions:
            self._check(self._sample)

    @property
    def schema(self) -> StructType:
        """The schema of the rows that are written."""
        return self._sample.schema

    def transform(self, function: Transformation) -> BatchAggregate:
        """Return the aggregates with a function applied to their rows, batch by batch.

        Args:
            function: takes the rows of one batch, a batch DataFrame, and returns another one that is made of them:
                ``lambda rows: rows.where("total > 10")``. It may do whatever a batch query may. It is called now, and
                again for each batch.

        Raises:
            DefinitionError: the function returns something else, or rows by which not every task runs to its end.
        """
        if not callable(function):
            raise invalid_argument("function", "a function of a DataFrame", describe(function))
        return BatchAggregate(self._rows, self._operator, (*self._functions, function))

    @property
    def writeStream(self) -> BatchWriter:  # noqa: N802 (PySpark's name)
        """A new writer for ``coordinator.start``."""
        return BatchWriter(self)

    @property
    @override
    def uid(self) -> str:
        return self._operator.uid

    # --- called by the coordinator --------------------------------------------------------------------------

    @override
    def rescale(self, parallelism: int) -> None:
        self._operator.parallelism = parallelism

    @property
    @override
    def sample(self) -> DataFrame:
        return self._sample

    @property
    def stream(self) -> DataFrame:
        """The streaming DataFrame of whose batches ``output`` is made."""
        return self._rows

    @override
    def output(self, rows: DataFrame) -> DataFrame:
        return self._transformed(self._operator.output(rows))

    def _transformed(self, rows: DataFrame) -> DataFrame:
        for function in self._functions:
            rows = function(rows)
        return rows

    def _check(self, rows: object) -> None:
        """Refuse what a function has returned if not every task of the operator would run, and run to its end."""
        if not isinstance(rows, DataFrame):
            expected = "one that returns a DataFrame"
            raise invalid_argument("function", expected, f"one that returns {describe(rows)}")
        operators, merged = plan.operators_of(rows)
        if rows.isStreaming or self.uid not in operators:
            found = "a streaming DataFrame" if rows.isStreaming else "a DataFrame without them"
            raise invalid_argument("function", "one that returns what is made of the rows it is given", found)
        if merged:
            advice = "call .repartition(n) on the rows first"
            expected = "a shuffle between the rows and a union or coalesce"
            raise invalid_argument("function", expected, "none", advice)
        if plan.has_limit(rows):
            expected = "one that reads all rows, because the state depends on it"
            raise invalid_argument("function", expected, "a limit", "limit the rows in what you write")


class BatchWriter(BatchRowsWriter):
    """Says where the rows of a ``BatchAggregate`` go, and when batches run; ``coordinator.start`` takes it."""

    def __init__(self, aggregate: BatchAggregate) -> None:
        """Make it; users take ``BatchAggregate.writeStream``."""
        self._aggregate = aggregate
        self._writer = aggregate.stream.writeStream
        self._function: BatchFunction | None = None

    def foreachBatch(self, func: BatchFunction) -> Self:  # noqa: N802 (PySpark's name)
        """Call a function with the aggregates of each batch, as ``DataStreamWriter.foreachBatch``.

        Args:
            func: takes a batch DataFrame and the number of the batch. It must take all rows.
        """
        if not callable(func):
            raise invalid_argument("func", "a function of a DataFrame and a batch's number", describe(func))
        self._function = func
        return self

    def trigger(self, **when: Any) -> Self:
        """Say when batches run, as ``DataStreamWriter.trigger``."""
        self._writer.trigger(**when)
        return self

    def queryName(self, queryName: str) -> Self:  # noqa: N802, N803 (PySpark's names)
        """Name Spark's query, as ``DataStreamWriter.queryName``."""
        self._writer.queryName(queryName)
        return self

    def outputMode(self, outputMode: str) -> Self:  # noqa: N802, N803 (PySpark's names)
        """Set the output mode, "append" or "update": for Spark's own operators in the input, and for the sink.

        Raises:
            WriterError: it is another one.
        """
        if outputMode not in ("append", "update"):
            raise _refused(
                "output mode append or update", repr(outputMode), "each batch gives out what it changes"
            )
        self._writer.outputMode(outputMode)
        return self

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse what else a ``DataStreamWriter`` has."""
        if not name.startswith("_") and hasattr(DataStreamWriter, name):
            raise _refused("foreachBatch or a sink", name, _INSTEAD)
        raise AttributeError(name)

    # --- called by the coordinator --------------------------------------------------------------------------

    @property
    @override
    def rows(self) -> BatchAggregate:
        return self._aggregate

    @override
    def writer(self, *, has_sink: bool, table: str | None, adopt: str | None) -> DataStreamWriter:
        if table is not None:
            raise _refused("foreachBatch or a sink", f"table={table!r}", _INSTEAD)
        if adopt is not None:
            raise _refused(
                "a query that begins with its own state",
                f"adopt={adopt!r}",
                "start it once with coordinator.aggregate, and after its first checkpoint with this one",
            )
        function = self._function
        if (function is None) != has_sink:
            found = "both" if has_sink else "neither"
            raise _refused("either a function for foreachBatch or a sink", found, _INSTEAD)
        if function is not None:
            output = self._aggregate.output
            self._writer.foreachBatch(lambda rows, batch: function(output(rows), batch))
        return self._writer


def _refused(expected: str, found: str, advice: str) -> WriterError:
    return WriterError("aggregates of batches cannot be written so", expected, found, advice)
