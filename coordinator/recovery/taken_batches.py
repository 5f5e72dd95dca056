"""Whether a ``foreachBatch`` function has taken a batch, when it has returned and Spark is about to commit.

An operator's state changes while its rows are taken. Nothing of a batch that nobody takes would be in the state, and it
would never come again. The batch that deletes a state of an earlier version is taken as a whole, whatever the function
has left of it: the next version may declare the state again, and would find old values in the shards that were left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ...storage.ids import BatchId
from ..errors import BatchSkippedError
from ..execution.locked_protocol import LockedProtocol
from ..query import Definition
from ..spark.batch_function import take_all
from ..spark.logs.offset_log import moved
from ..spark.writer_facts import WriterFacts
from .runs import Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def needed_operators(facts: WriterFacts, moved: frozenset[str]) -> tuple[str, ...]:
    """Return the operators that a batch must run: those that read a source of which it has data.

    Args:
        facts: of the query.
        moved: the sources with data, as Spark's offset log calls them. A batch without any is one that Spark plans for
            its own state or time, and may run no operator.
    """
    has_data = {
        number
        for number, source in enumerate(facts.sources)
        if not moved.isdisjoint((str(number), source.label))
    }
    return tuple(uid for uid, sources in facts.inputs.items() if not has_data.isdisjoint(sources))


@attrs.frozen
class TakenBatches:
    """Fails the batches of a run that its function has not taken, and takes those that delete a state."""

    run: Run
    protocol: LockedProtocol

    def check(self, rows: DataFrame, batch: BatchId) -> None:
        """Check a batch whose function has returned.

        Args:
            rows: what the function was given.
            batch: their batch.

        Raises:
            BatchSkippedError: it has data, and no shard of the query has begun it.
        """
        query = self.protocol.read(lambda state: state.queries.running(self.run.query_id))
        if query is None:
            # Spark is stopping a run that is over.
            return
        if any(batch in operator.deleting.values() for operator in query.operators):
            take_all(rows)
        if self.protocol.read(lambda _: query.has_begun(batch)):
            return
        definition = self.run.definition
        if operators := needed_operators(definition.facts, moved(self.run.log_of(batch), batch)):
            raise BatchSkippedError(definition.name, batch, operators)


def is_followed(definition: Definition) -> bool:
    """Return whether the batches of a query are to be checked: a function of the user's takes the operators' rows.

    A transactional sink takes each batch once, and knows which ones it has.
    """
    is_function = definition.facts.sink.format.lower() == "foreachbatch"
    return is_function and bool(definition.operators) and not definition.sink.uids
