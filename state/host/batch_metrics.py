"""What the tasks of each operator did in the latest batches, each task with its last attempt."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from ...storage import runtime
from ..rpc.messages import BeginTask
from ..rpc.metrics import BatchMetrics

REMEMBERED: Final = 100
"""Batches of an operator that are remembered; Spark remembers the progress of as many."""


class RecentBatches:
    """The metrics of the latest batches on one host, by query and operator."""

    def __init__(self) -> None:
        self._lock = runtime.lock()
        # By the shards of a task within its batch: another attempt at the task takes the place of the one before.
        self._known: defaultdict[tuple[str, str], dict[int, dict[tuple[int, ...], BatchMetrics]]] = (
            defaultdict(dict)
        )

    def add(self, task: BeginTask, metrics: BatchMetrics) -> None:
        """Record what a task has done, in place of an earlier attempt."""
        with self._lock:
            batches = self._known[task.query_id, task.uid]
            batches.setdefault(task.batch, {})[task.shards] = metrics
            for batch in sorted(batches)[:-REMEMBERED]:
                del batches[batch]

    def of(self, query_id: str, uid: str) -> tuple[BatchMetrics, ...]:
        """Return the sums over an operator's tasks in each batch, oldest first."""
        with self._lock:
            batches = self._known.get((query_id, uid), {})
            parts = [tuple(batches[batch].values()) for batch in sorted(batches)]
        return tuple(BatchMetrics.sum(some) for some in parts)

    def forget(self, query_id: str) -> None:
        """Forget the operators of a query."""
        with self._lock:
            for known in [known for known in self._known if known[0] == query_id]:
                del self._known[known]
