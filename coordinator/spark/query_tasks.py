"""Knows whether tasks of a query are left that has ended: Spark ends them a little later than the query."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from . import session

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_GROUP: Final = "spark.jobGroup.id"
"""The property of a task that is the id of its query's run."""


def has_tasks(query: StreamingQuery) -> bool:
    """Return whether Spark's scheduler waits for the end of tasks of a run; False if the JVM does not tell.

    A set of tasks leaves the scheduler's pool when the last of them has ended, and after Spark has logged how.
    """
    return session.answer(lambda: _has_tasks(query._jsq), lambda error: False)


def _has_tasks(query: Any) -> bool:
    context = query.sparkSession().sparkContext()
    if context.isStopped():
        return False
    run, pool = query.runId().toString(), context.taskScheduler().rootPool()
    return any(one.taskSet().properties().getProperty(_GROUP) == run for one in _task_sets(pool))


def _task_sets(pool: Any) -> Iterator[Any]:
    for one in pool.schedulableQueue().toArray():
        # A fair scheduler's pool has pools. A set of tasks has no queue.
        if one.schedulableQueue() is None:
            yield one
        else:
            yield from _task_sets(one)
