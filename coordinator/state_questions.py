"""The methods of a coordinator that answer questions about the state of a running pipeline."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from ..state.rpc.metrics import OperatorMetrics
from .assigned_shard import Assignment, assigned_shards
from .execution.executor import CheckpointExecutor
from .lookup import Lookup
from .operators import Operators
from .query import CheckpointedQuery
from .wiring.taken_pipeline import TakenPipeline

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from ..state.reader.largest import KeySize


class StateQuestions(ABC):
    """What a coordinator answers about state."""

    _executor: CheckpointExecutor
    _lookup: Lookup
    _operators: Operators
    _taken: TakenPipeline

    @property
    @abstractmethod
    def queries(self) -> tuple[CheckpointedQuery, ...]:
        """The pipeline's queries, in the order in which they were started."""

    @abstractmethod
    def _check_running(self) -> None:
        """Raise a ``CoordinatorStoppedError`` if the pipeline has been stopped."""

    def get(self, operator: str, key: Any, state: str | None = None) -> Any:
        """Return the current value of a state variable for a key: after the newest committed batch of its query.

        After a restore and before the first batch, it is the value in the checkpoint.

        Args:
            operator: uid of an operator whose query is running.
            key: the values of the key columns as a tuple or as a dict by column, or the value itself if there is one
                key column.
            state: name of the state variable; None: the only one.

        Returns:
            For value state a ``Row``; for list state a list of ``Row``; for map state a dict of ``Row`` by the map's
            keys, which are tuples. None if the key has no value or the value has expired.

        Raises:
            PipelineNameError: there is no such operator or state.
            ArgumentError: the key has other columns than the operator.
            QueryNotRunningError: the operator's query has not been started, or has ended.
            StateLostError, StateUnreachableError: its state host has ended; the pipeline is about to restart.
        """
        self._check_running()
        return self._lookup.get(self._operators.record(operator), key, state)

    def metrics(self, operator: str) -> OperatorMetrics:
        """Return the metrics of an operator: what its tasks spent time on, summed since its shards were opened.

        Raises:
            PipelineNameError: there is no such operator.
            QueryNotRunningError: the operator's query has not been started.
            StateLostError, StateUnreachableError: a state host has ended.
        """
        self._check_running()
        return self._lookup.metrics(self._operators.record(operator))

    def largest(self, operator: str, limit: int = 20) -> list[KeySize]:
        """Return the keys of an operator that have the most state in the latest checkpoint, the largest first.

        All shards of the operator are downloaded, one at a time, and read in this process. That disturbs no task, and
        takes its time if the state is large. There are no keys before the first checkpoint.

        Raises:
            PipelineNameError: there is no such operator.
            ObjectMissingError: retention has dropped the checkpoint meanwhile.
        """
        self._check_running()
        return self._lookup.largest(self._operators.record(operator), self._taken.catalog.store, limit)

    def assignment(self) -> Assignment:
        """Return which machine has which shard of the running queries, sorted by query, operator and shard."""
        return self._executor.protocol.read(assigned_shards)

    def with_state_operators(self, progress: StreamingQueryProgress) -> StreamingQueryProgress:
        """Return the progress that a ``StreamingQueryListener`` was given, with Chandy's operators.

        Spark makes the progress and does not know them. ``lastProgress`` and ``recentProgress`` of the coordinator's
        queries have them already. Progress of other queries is returned as it is.
        """
        own = [query for query in self.queries if query.id == str(progress.id)]
        return own[0].with_state_operators(progress) if own else progress
