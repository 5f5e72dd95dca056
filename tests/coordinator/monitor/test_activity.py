"""What queries and operators have done, from what their JVM and their state hosts say one look after the other."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.coordinator.errors import StateUnreachableError
from chandy.coordinator.monitor.activity import Activity, Place, QueryActivity, advance, counted
from chandy.coordinator.monitor.trends import Measured
from chandy.coordinator.state_progress import newest_batch
from chandy.state.rpc.metrics import OperatorMetrics
from chandy.storage.checkpoints.manifest import OperatorRecord

TOTALS = OperatorRecord("totals", "q", "", {}, ())
SIZES = OperatorRecord("sizes", "q", "", {}, ())


def progress(run: str, batch: int, rows: int = 10, *, is_idle: bool = False, **more: Any) -> dict[str, Any]:
    durations = {"latestOffset": 1} if is_idle else {"addBatch": 200, "triggerExecution": 250}
    return {
        "runId": run,
        "batchId": batch,
        "numInputRows": 0 if is_idle else rows,
        "processedRowsPerSecond": 40.0,
        "durationMs": durations,
        "eventTime": {},
        "sources": [],
        **more,
    }


@attrs.define
class Query:
    """A query whose JVM has the progress that a test says."""

    kept: list[dict[str, Any]] = attrs.field(factory=list)
    operators: tuple[OperatorRecord, ...] = ()
    name: str = "q"

    def progress_after(self, run: str, batch: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for one in reversed(self.kept):
            if one["runId"] == run and newest_batch(one) <= batch:
                break
            found.append(one)
        return found[::-1]


def ignore(measured: Measured) -> None:
    """Of what is measured these tests look at the sums alone."""


def watch(query: Query, *readings: dict[Place, OperatorMetrics]) -> Activity:
    left = list(readings)
    return Activity(lambda: [query], lambda operator: left.pop(0), ignore)


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        ("org.apache.spark.sql.execution.streaming.ConsoleTable$@19da5495", "ConsoleTable"),
        ("KafkaV2[Subscribe[orders]]", "KafkaV2[Subscribe[orders]]"),
        ("FileStreamSource[https://me:secret@store/a]", "FileStreamSource[https://...@store/a]"),
        (None, ""),
    ],
)
def test_sources_and_sinks_have_short_names_without_secrets(description: str | None, expected: str) -> None:
    found = counted(
        QueryActivity(),
        progress("r", 0, sources=[{"description": description}], sink={"description": description}),
    )
    assert (found.sink, [one.name for one in found.sources]) == (expected, [expected])


@given(st.lists(st.tuples(st.sampled_from(["restart", "idle", "batch", "look"]), st.integers(0, 100))))
def test_every_batch_of_every_run_counts_once(steps: list[tuple[str, int]]) -> None:
    query, run, batch = Query(), 0, 0
    measured: list[Measured] = []
    activity, expected = Activity(lambda: [query], lambda operator: {}, measured.append), QueryActivity()
    for step, rows in steps:
        if step == "restart":
            # Spark knows nothing of a run that has ended: it is looked at before, as a batch takes longer than a look.
            activity.look_at_queries()
            run, batch, query.kept = run + 1, max(0, batch - rows % 3), []
        elif step == "look":
            activity.look_at_queries()
        else:
            query.kept.append(progress(str(run), batch, rows, is_idle=step == "idle"))
            expected = counted(expected, query.kept[-1])
            batch += step == "batch"
    activity.look_at_queries()
    assert activity.of_queries == {"q": expected}
    assert expected.rows == sum(rows for step, rows in steps if step == "batch")
    assert (sum(one.batches for one in measured), sum(one.rows_in for one in measured)) == (
        expected.batches,
        expected.rows,
    )


def test_a_query_whose_progress_cannot_be_read_hides_no_other_and_is_counted_later() -> None:
    class Broken(Query):
        is_broken = True

        def progress_after(self, run: str, batch: int) -> list[dict[str, Any]]:
            if self.is_broken:
                raise KeyError("runId")
            return super().progress_after(run, batch)

    broken, sound = Broken([progress("r", 0)], name="broken"), Query([progress("r", 0)])
    activity = Activity(lambda: [broken, sound], lambda operator: {}, ignore)
    with pytest.raises(KeyError):
        activity.look_at_queries()
    assert {name: one.batches for name, one in activity.of_queries.items()} == {"q": 1}
    broken.is_broken = False
    activity.look_at_queries()
    assert {name: one.batches for name, one in activity.of_queries.items()} == {"q": 1, "broken": 1}


def test_a_batch_says_how_far_behind_the_sources_it_was() -> None:
    behind = [{"metrics": {"maxOffsetsBehindLatest": "7"}}, {"metrics": None}, {"metrics": {}}, {}]
    event_time = {"watermark": "2026-01-01T00:00:00.500Z"}
    found = counted(QueryActivity(), progress("r", 0, sources=behind, eventTime=event_time))
    assert (found.behind, found.watermark) == (7.0, 1767225600.5)
    assert (found.batches, found.rows, found.seconds, found.rows_per_second) == (1, 10, 0.25, 40.0)
    # A batch without data reports no watermark; the query still has it.
    later = counted(found, progress("r", 1))
    assert (later.behind, later.watermark) == (None, 1767225600.5)
    first = counted(QueryActivity(), progress("r", 0, eventTime={"watermark": "1970-01-01T00:00:00.000Z"}))
    assert first.watermark is None


def test_what_an_operator_did_is_added_up_over_hosts_and_runs() -> None:
    query = Query(operators=(TOTALS,))
    here, there, anew = ("1", "a"), ("1", "b"), ("2", "a")
    activity = watch(
        query,
        {here: OperatorMetrics(rows=5), there: OperatorMetrics(rows=2, written_keys=9)},
        {here: OperatorMetrics(rows=8)},
        # Shards have left the host, and with them what they had written.
        {here: OperatorMetrics(rows=8), there: OperatorMetrics(rows=4, written_keys=1)},
        {anew: OperatorMetrics(rows=1)},
    )
    found = []
    for _ in range(4):
        activity.look_at_operators()
        found.append(activity.of_operators["totals"])
    assert [(one.rows, one.written_keys) for one in found] == [(7, 9), (10, 9), (12, 9), (13, 9)]


def test_an_operator_that_cannot_be_read_hides_no_other_and_is_counted_later() -> None:
    query = Query(operators=(TOTALS, SIZES))
    broken = {"totals"}

    def read(operator: OperatorRecord) -> dict[Place, OperatorMetrics]:
        if operator.uid in broken:
            raise StateUnreachableError("a host", "it has ended")
        return {("1", "a"): OperatorMetrics(rows=3)}

    activity = Activity(lambda: [query], read, ignore)
    activity.look_at_operators()
    assert activity.of_operators == {"sizes": OperatorMetrics(rows=3)}
    broken.clear()
    activity.look_at_operators()
    assert {uid: one.rows for uid, one in activity.of_operators.items()} == {"sizes": 3, "totals": 3}


@given(st.lists(st.integers(0, 5), min_size=1), st.lists(st.integers(0, 5)))
def test_a_total_never_falls(first: list[int], second: list[int]) -> None:
    total, before = OperatorMetrics(), OperatorMetrics()
    for rows in [*first, *second]:
        earlier, now = total.rows, OperatorMetrics(rows=rows)
        advance(total, before, now)
        assert total.rows == earlier + max(0, rows - before.rows)
        before = now
