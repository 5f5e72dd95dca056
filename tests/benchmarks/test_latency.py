from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import latency
from benchmarks.latency import OTHER, PARTS, Block, Length, block, parts, row, task_parts
from benchmarks.report import Report
from chandy.state.rpc.metrics import OperatorMetrics

LENGTH = Length(warm_up=2, batches=3)
SPARKS = [name for names in PARTS.values() for name in names]
milliseconds = st.integers(0, 10_000)
durations = st.dictionaries(st.sampled_from([*SPARKS, "getBatch"]), milliseconds).flatmap(
    lambda some: milliseconds.map(lambda more: {**some, "triggerExecution": sum(some.values()) + more})
)


def progress(batch: int, total: int, rows: int = 5) -> dict[str, Any]:
    """Spark's report of one batch."""
    return {"batchId": batch, "numInputRows": rows, "durationMs": {"triggerExecution": total}}


def of(*totals: float, metrics: OperatorMetrics | None = None) -> Block:
    """A block of batches that took so long."""
    return Block(tuple({"triggerExecution": total, "addBatch": total - 1} for total in totals), metrics)


def test_warm_up_and_batches_behind_the_end_do_not_count() -> None:
    reports = [progress(number, 100 + number) for number in range(7)]
    assert block(reports, LENGTH).totals == (102, 103, 104)


@given(durations)
def test_the_parts_of_a_batch_are_the_batch(batch: dict[str, float]) -> None:
    split = parts(batch)
    assert set(split) == {*PARTS, OTHER}
    assert sum(split.values()) == batch["triggerExecution"]
    assert split["running"] == batch.get("addBatch", 0)
    assert split["logs"] == batch.get("walCommit", 0) + batch.get("commitOffsets", 0)


def test_a_row_has_medians_of_turns_and_percentiles_of_all_batches() -> None:
    found = row(100, "it", [of(10, 20, 30), of(40, 50, 1000)])
    assert (found["p50_ms"], found["least"], found["greatest"]) == (35, 20, 50)
    assert found["shortest"] == 10
    assert 900 < found["p99_ms"] < 1000
    assert (found["running"], found[OTHER], found["task"]) == (34, 1, 0)


def test_a_task_is_the_mean_of_all_tasks() -> None:
    blocks = [
        of(10, metrics=OperatorMetrics(tasks=1, seconds=0.010, input_seconds=0.002, state_seconds=0.003)),
        of(10, metrics=OperatorMetrics(tasks=3, seconds=0.010, input_seconds=0.002, output_seconds=0.001)),
    ]
    found = task_parts(blocks)
    assert found == pytest.approx({"task": 5, "input": 1, "state": 0.75})


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_chart_is_drawn(tmp_path: Path, suffix: str) -> None:
    rows = [row(size, name, [of(3, 4)]) for size in (1, 100, 1000) for name in latency.CONTESTANTS]
    chart = tmp_path / f"latency.{suffix}"
    latency.draw(Report("latency", rows, {}), chart)
    assert chart.stat().st_size > 1000
