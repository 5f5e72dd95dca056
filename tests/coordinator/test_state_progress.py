"""What the progress of a query says of Chandy's operators."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.streaming.listener import StreamingQueryProgress

from chandy.coordinator.errors import StateUnreachableError
from chandy.coordinator.state_progress import Batches, StateProgress, is_behind, state_operator, variables
from chandy.state.rpc.metrics import BatchMetrics, OperatorMetrics
from chandy.storage.checkpoints.manifest import OperatorRecord, StateKind, StateRecord

OPERATORS = tuple(OperatorRecord(uid, "q", "{}", {}, (None,) * 4) for uid in ("first", "second"))


def metrics(batch: int, tasks: int = 2, **more: Any) -> BatchMetrics:
    measured = OperatorMetrics(
        tasks=tasks,
        rows=10,
        keys=4,
        late_rows=1,
        seconds=3.0,
        input_seconds=1.0,
        output_seconds=0.5,
        state_seconds=0.25,
    )
    return BatchMetrics(
        batch, measured, shards=4, updated=7, removed=2, memory=1000, commit_seconds=0.125, **more
    )


def progress(batch: int, **durations: int) -> StreamingQueryProgress:
    """What Spark says of a query with a stateful operator of its own."""
    own = {
        "operatorName": "dedupe",
        "numRowsTotal": 1,
        "numRowsUpdated": 1,
        "allUpdatesTimeMs": 1,
        "numRowsRemoved": 0,
        "allRemovalsTimeMs": 0,
        "commitTimeMs": 1,
        "memoryUsedBytes": 1,
        "numRowsDroppedByWatermark": 0,
        "numShufflePartitions": 1,
        "numStateStoreInstances": 1,
    }
    document = {
        "id": "7c2a0b5e-0000-4000-8000-000000000001",
        "runId": "7c2a0b5e-0000-4000-8000-000000000002",
        "name": "q",
        "timestamp": "2026-05-04T09:30:00.000Z",
        "batchId": batch,
        "batchDuration": 10,
        "durationMs": {"triggerExecution": 10, **durations},
        "numInputRows": 10,
        "stateOperators": [own],
        "sources": [],
        "sink": {"description": "noop", "numOutputRows": -1},
    }
    return StreamingQueryProgress.fromJson(document)


def added(batch: int, known: dict[str, Batches]) -> StreamingQueryProgress:
    state = StateProgress(OPERATORS, lambda operator: known.get(operator.uid, {}))
    return state.added_to([progress(batch, addBatch=8)])[0]


def test_operators_stand_behind_sparks_own_with_its_names() -> None:
    found = added(3, {"first": {2: metrics(2), 3: metrics(3)}, "second": {3: metrics(3, tasks=1)}})
    assert [one.operatorName for one in found.stateOperators] == ["dedupe", "first", "second"]
    first = found.stateOperators[1]
    assert set(first) == set(found.stateOperators[0])
    assert (first.numRowsUpdated, first.numRowsRemoved, first.numRowsDroppedByWatermark) == (7, 2, 1)
    assert (first.allUpdatesTimeMs, first.commitTimeMs, first.memoryUsedBytes) == (1500, 125, 1000)
    assert (first.numShufflePartitions, first.numStateStoreInstances) == (2, 4)
    assert found.stateOperators[2].numShufflePartitions == 1
    assert first.customMetrics["chandyInputRows"] == 10
    assert first.customMetrics["chandyInputKeys"] == 4
    assert (first.numRowsTotal, first.allRemovalsTimeMs) == (None, None), "nobody knows these"


def test_state_variables_are_counted_by_the_names_of_sparks_metrics() -> None:
    states = {
        "a": StateRecord(("{}",)),
        "b": StateRecord(("{}",)),
        "c": StateRecord(("{}",), ttl_ms=5),
        "d": StateRecord(("{}",), StateKind.LIST),
        "e": StateRecord(("{}",), StateKind.MAP, "{}", ttl_ms=5),
    }
    assert variables(OperatorRecord("o", "q", "{}", states, ())) == {
        "numValueStateVars": 2,
        "numListStateVars": 1,
        "numMapStateVars": 0,
        "numValueStateWithTTLVars": 1,
        "numListStateWithTTLVars": 0,
        "numMapStateWithTTLVars": 1,
    }
    found = added(3, {"first": {3: metrics(3)}}).stateOperators[1]
    assert found.customMetrics["numValueStateVars"] == 0


def test_its_json_has_them_as_well() -> None:
    found = added(3, {"first": {3: metrics(3)}})
    assert [one["operatorName"] for one in json.loads(found.json)["stateOperators"]] == ["dedupe", "first"]
    assert found.prettyJson


def test_an_idle_query_has_updated_nothing() -> None:
    # Spark tells of it by the number of the batch that will be next, which has run when somebody asks later.
    for known in ({3: metrics(3)}, {3: metrics(3), 4: metrics(4)}):
        found = state_operator(OPERATORS[0], known, 4, is_over=False)
        assert found is not None
        assert (found["numRowsUpdated"], found["numRowsRemoved"], found["numRowsDroppedByWatermark"]) == (
            0,
            0,
            0,
        )
        assert found["customMetrics"]["chandyInputRows"] == 0
        assert (found["memoryUsedBytes"], found["numStateStoreInstances"]) == (1000, 4)


def test_an_operator_of_which_nothing_is_known_is_left_out() -> None:
    def unreachable(operator: OperatorRecord) -> Batches:
        raise StateUnreachableError("grpc+unix://host", "it has ended")

    assert state_operator(OPERATORS[0], {5: metrics(5)}, 4, is_over=True) is None
    assert state_operator(OPERATORS[0], {0: metrics(0)}, 0, is_over=False) is None
    assert added(4, {}).stateOperators == progress(4).stateOperators
    assert StateProgress(OPERATORS, unreachable).added_to([progress(4)]) == [progress(4)]
    assert StateProgress(()).added_to([progress(4)]) == [progress(4)]


def test_the_parts_of_several_hosts_are_one() -> None:
    both = BatchMetrics.sum([metrics(3), metrics(3)])
    assert (both.batch, both.updated, both.shards, both.tasks.rows, both.memory) == (3, 14, 8, 20, 2000)


@pytest.mark.parametrize(
    ("sources", "behind"),
    [
        ([], False),
        # A source of files reports none.
        ([{"endOffset": {"logOffset": 4}, "latestOffset": None}], False),
        ([{"endOffset": {"t": {"0": 4, "1": 7}}, "latestOffset": {"t": {"1": 7, "0": 4}}}], False),
        ([{"endOffset": {"t": {"0": 4, "1": 7}}, "latestOffset": {"t": {"0": 4, "1": 8}}}], True),
        ([{"endOffset": 4, "latestOffset": 4}, {"endOffset": 4, "latestOffset": 5}], True),
    ],
)
def test_a_query_is_behind_if_its_latest_batch_left_what_a_source_had(
    sources: list[dict[str, Any]], behind: bool
) -> None:
    assert is_behind({"durationMs": {"addBatch": 8}, "sources": sources}) is behind
    # A query that waits is not behind: with minOffsetsPerTrigger it leaves what is too little.
    assert not is_behind({"durationMs": {"latestOffset": 1}, "sources": sources})
