"""What a host remembers of the latest batches."""

from __future__ import annotations

from chandy.state.host.batch_metrics import REMEMBERED, RecentBatches
from chandy.state.rpc.messages import BeginTask
from chandy.state.rpc.metrics import BatchMetrics, OperatorMetrics


def task(batch: int, *shards: int, query: str = "q") -> BeginTask:
    return BeginTask(query, batch, "op", shards)


def did(batch: int, rows: int) -> BatchMetrics:
    return BatchMetrics(batch, OperatorMetrics(tasks=1, rows=rows), shards=2, updated=rows)


def test_the_tasks_of_a_batch_add_up_and_another_attempt_takes_the_place_of_the_first() -> None:
    recent = RecentBatches()
    recent.add(task(0, 0, 1), did(0, 5))
    recent.add(task(0, 2, 3), did(0, 3))
    recent.add(task(0, 0, 1), did(0, 6))
    recent.add(task(1, 0, 1), did(1, 1))
    found = recent.of("q", "op")
    assert [(one.batch, one.tasks.tasks, one.tasks.rows, one.updated, one.shards) for one in found] == [
        (0, 2, 9, 9, 4),
        (1, 1, 1, 1, 2),
    ]


def test_old_batches_and_queries_that_have_ended_are_forgotten() -> None:
    recent = RecentBatches()
    for batch in range(REMEMBERED + 5):
        recent.add(task(batch, 0), did(batch, 1))
    assert [one.batch for one in recent.of("q", "op")] == list(range(5, REMEMBERED + 5))
    recent.add(task(0, 0, query="other"), did(0, 1))
    recent.forget("q")
    assert recent.of("q", "op") == ()
    assert len(recent.of("other", "op")) == 1
