"""What Spark's progress of a query says of Chandy's operators: the same as it says of its own, where that is known."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from ..state.rpc.metrics import BatchMetrics
from ..storage.checkpoints.manifest import StateKind
from ..storage.errors import ChandyError
from ..storage.logs import logger

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from ..storage.checkpoints.manifest import OperatorRecord

log = logger(__name__)

Batches = Mapping[int, BatchMetrics]
"""What an operator did, by batch."""
_RUN: Final = "addBatch"
"""Progress of a batch that has run says how long this took. An idle query reports the batch that will be next."""


@attrs.frozen
class StateProgress:
    """Adds a query's operators to its progress."""

    operators: tuple[OperatorRecord, ...]
    batches: Callable[[OperatorRecord], Batches] = lambda operator: {}
    """Asks the state hosts what an operator did in the latest batches."""

    def added_to(self, progress: Sequence[StreamingQueryProgress]) -> list[StreamingQueryProgress]:
        """Return progress with Chandy's operators behind Spark's own.

        An operator is left out as long as no state host can tell what it did.
        """
        if not progress or not self.operators:
            return list(progress)
        known = [(operator, self._ask(operator)) for operator in self.operators]
        return [with_operators(one, known) for one in progress]

    def _ask(self, operator: OperatorRecord) -> Batches:
        try:
            return self.batches(operator)
        except ChandyError as error:
            log.debug("no metrics of an operator", operator=operator.uid, error=str(error))
            return {}


def with_operators(
    progress: StreamingQueryProgress, operators: Sequence[tuple[OperatorRecord, Batches]]
) -> StreamingQueryProgress:
    """Return progress with operators, each with what it did in the progress's batch."""
    document = json.loads(progress.json)
    told = [
        state_operator(one, batches, document["batchId"], has_run(document)) for one, batches in operators
    ]
    document["stateOperators"] = [*document["stateOperators"], *filter(None, told)]
    return type(progress).fromJson(document)


def has_run(progress: Mapping[str, Any]) -> bool:
    """Return whether the batch of a progress, in Spark's JSON, has run."""
    return _RUN in progress.get("durationMs", {})


def newest_batch(progress: Mapping[str, Any]) -> int:
    """Return the newest batch that had run when a progress, in Spark's JSON, was made; -1 if none had."""
    batch: int = progress["batchId"]
    return batch if has_run(progress) else batch - 1


def is_behind(progress: Mapping[str, Any]) -> bool:
    """Return whether a source had more than the batch of a progress, in Spark's JSON, has taken.

    A source that does not report its latest offset is taken to have had no more, and a query that waits for data to
    have read all of it.
    """
    return has_run(progress) and any(
        source.get("latestOffset") not in (None, source["endOffset"]) for source in progress["sources"]
    )


def state_operator(
    operator: OperatorRecord, batches: Batches, batch: int, is_over: bool
) -> dict[str, Any] | None:
    """Return what an operator did in a batch, as Spark's JSON of a stateful operator.

    Args:
        batches: what it did in the latest batches.
        is_over: whether the batch had run when the progress was made. If not, the operator has updated nothing, and
            what it holds is what it held after the batch before: so does Spark for its own.

    Returns:
        The JSON as a dict; None if nothing is known. Fields that Chandy does not know are null.
    """
    latest = max((number for number in batches if number < batch + is_over), default=None)
    if latest is None:
        return None
    found, is_over = batches[latest], latest == batch
    tasks = found.tasks
    own = tasks.seconds - tasks.input_seconds - tasks.output_seconds
    return {
        "operatorName": operator.uid,
        # Counting keys would cost a lookup for each key that changes.
        "numRowsTotal": None,
        "numRowsUpdated": found.updated if is_over else 0,
        "allUpdatesTimeMs": _ms(own),
        "numRowsRemoved": found.removed if is_over else 0,
        # A processor removes state among its updates.
        "allRemovalsTimeMs": None,
        "commitTimeMs": _ms(found.commit_seconds),
        "memoryUsedBytes": found.memory,
        "numRowsDroppedByWatermark": tasks.late_rows if is_over else 0,
        "numShufflePartitions": tasks.tasks,
        "numStateStoreInstances": found.shards,
        "customMetrics": {
            "chandyInputRows": tasks.rows if is_over else 0,
            "chandyInputKeys": tasks.keys if is_over else 0,
            "chandyDeadLetters": tasks.dead_letters if is_over else 0,
            "chandyInputTimeMs": _ms(tasks.input_seconds),
            "chandyStateTimeMs": _ms(tasks.state_seconds),
            "chandyOutputTimeMs": _ms(tasks.output_seconds),
            "chandyProcessorTimeMs": _ms(tasks.own_seconds),
            **variables(operator),
        },
    }


def variables(operator: OperatorRecord) -> dict[str, int]:
    """Return how many state variables of each kind an operator has, by the names of Spark's metrics."""
    counts = {
        f"num{kind.value.capitalize()}State{ttl}Vars": 0 for ttl in ("", "WithTTL") for kind in StateKind
    }
    for state in operator.states.values():
        ttl = "" if state.ttl_ms is None else "WithTTL"
        counts[f"num{state.kind.value.capitalize()}State{ttl}Vars"] += 1
    return counts


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
