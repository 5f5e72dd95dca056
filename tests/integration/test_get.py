"""The current value of a key while its query runs, and right after a restore."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.streaming import StatefulProcessor, StreamingQueryListener
from pyspark.sql.streaming.listener import StreamingQueryProgress

from chandy.coordinator import CheckpointCoordinator
from chandy.coordinator.errors import (
    ArgumentError,
    PipelineNameError,
    QueryNotRunningError,
)
from chandy.coordinator.query import CheckpointedQuery

from ..waiting import DEADLINE, eventually
from .support import Events, Make

pytestmark = pytest.mark.spark
# Workers do not have the tests' modules: what the tests define travels by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

OUTPUT = "k string, n long"
LARGE = 3000


class TotalsAndLatest(StatefulProcessor):
    """Keeps of every key a total, its latest values, and how often each came; of one key a large list and map."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "n long, v long")
        self.values = handle.getListState("values", "v long")
        self.counts = handle.getMapState("counts", "v long", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        values = [row.v for row in rows]
        n, v = self.total.get() or (0, 0)
        self.total.update((n + len(values), v + sum(values)))
        if key[0] == "k1":
            values = list(range(LARGE))
        self.values.put([(value,) for value in values])
        for value in values:
            (count,) = self.counts.getValue((value,)) or (0,)
            self.counts.updateValue((value,), (count + 1,))
        yield Row(k=key[0], n=n)


def everything(
    coordinator: CheckpointCoordinator, stream: DataFrame, key: list[str] | None = None
) -> DataFrame:
    return coordinator.transform_with_state(
        stream, key=key or ["k"], processor=TotalsAndLatest(), output=OUTPUT, uid="all", shards=4
    )


def start(coordinator: CheckpointCoordinator, result: DataFrame) -> CheckpointedQuery:
    return coordinator.start(result.writeStream.format("noop"), name="all")


def values_of(spark: SparkSession, events: Events, key: str) -> list[int]:
    rows = spark.read.schema("k string, v long").json(str(events.folder)).where(F.col("k") == key).collect()
    return [row.v for row in rows]


def test_the_value_of_a_key_is_that_after_the_newest_committed_batch(
    make: Make, spark: SparkSession, events: Events
) -> None:
    coordinator = make()
    query = start(coordinator, everything(coordinator, events.stream(spark)))
    for _ in range(2):
        events.add()
        query.processAllAvailable()
        values = values_of(spark, events, "k3")
        expected = Row(n=len(values), v=sum(values))
        assert coordinator.get("all", "k3", "total") == expected
    assert coordinator.get("all", ("k3",), state="total").v == sum(values)
    assert coordinator.get("all", {"k": "k3"}, "total") == expected
    assert coordinator.get("all", "k3", "counts")[(values[0],)].n >= 1
    assert all(row.v in values for row in coordinator.get("all", "k3", "values"))
    assert coordinator.get("all", "k1", "values") == [Row(v=v) for v in range(LARGE)]
    assert coordinator.get("all", "k1", "counts") == {(v,): Row(n=2) for v in range(LARGE)}
    for state in ("total", "values", "counts"):
        assert coordinator.get("all", "nobody", state) is None


def test_after_a_restore_the_values_are_those_of_the_checkpoint_before_any_batch_has_run(
    make: Make, spark: SparkSession, events: Events
) -> None:
    key, one = ["k", "odd"], {"k": "k2", "odd": True}
    stream = events.stream(spark).withColumn("odd", F.col("v") % 2 == 1)
    first = make()
    query = start(first, everything(first, stream, key))
    events.add(2)
    query.processAllAvailable()
    before = {state: first.get("all", one, state) for state in ("total", "values", "counts")}
    assert before["total"].n > 0
    first.checkpoint().result(DEADLINE)
    first.stop()

    second = make()
    query = start(second, everything(second, stream, key))
    assert query.lastProgress is None or query.lastProgress["numInputRows"] == 0
    assert {state: second.get("all", one, state) for state in before} == before
    assert second.get("all", ("nobody", True), "total") is None
    events.add()
    query.processAllAvailable()
    assert second.get("all", one, "total").n > before["total"].n


def test_what_cannot_be_answered_is_said(make: Make, spark: SparkSession, events: Events) -> None:
    coordinator = make()
    with pytest.raises(PipelineNameError, match="no operator 'all'"):
        coordinator.get("all", "k3")
    result = everything(coordinator, events.stream(spark))
    with pytest.raises(QueryNotRunningError, match="has not been started"):
        coordinator.get("all", "k3", "total")
    with pytest.raises(QueryNotRunningError, match="has not been started"):
        coordinator.metrics("all")
    query = start(coordinator, result)
    with pytest.raises(PipelineNameError, match="counts, total, values"):
        coordinator.get("all", "k3")
    with pytest.raises(ArgumentError, match="key columns k"):
        coordinator.get("all", ("k3", 1), "total")
    # No batch has run yet, and nothing was restored.
    assert coordinator.get("all", "k3", "total") is None
    query.stop()
    with pytest.raises(QueryNotRunningError, match="stopped"):
        coordinator.get("all", "k3", "total")


def test_the_progress_of_a_query_tells_of_its_operators_as_spark_does_of_its_own(
    make: Make, spark: SparkSession, events: Events
) -> None:
    told: list[StreamingQueryProgress] = []

    def ran(progress: list[StreamingQueryProgress]) -> list[StreamingQueryProgress]:
        """Without that of an idle query."""
        return [one for one in progress if "addBatch" in one.durationMs]

    class Watch(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            told.append(coordinator.with_state_operators(event.progress))

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            pass

    coordinator, watch = make(), Watch()
    spark.streams.addListener(watch)
    try:
        deduplicated = events.stream(spark).dropDuplicates(["k", "v"])
        query = start(coordinator, everything(coordinator, deduplicated))
        events.add(1)
        query.processAllAvailable()
        events.add(1)
        query.processAllAvailable()
        eventually(lambda: len(ran(told)) >= 2, "the progress of two batches")
    finally:
        spark.streams.removeListener(watch)
    for progress in (query.recentProgress, told):
        for batch, one in enumerate(ran(progress)[:2]):
            assert one.batchId == batch
            own, found = one.stateOperators
            assert (own.operatorName, found.operatorName) == ("dedupe", "all")
            assert set(found) == set(own)
            assert found.numRowsUpdated >= found.customMetrics["chandyInputKeys"] > 0
            assert found.numStateStoreInstances == 4
            assert found.commitTimeMs >= 0
            assert found.allUpdatesTimeMs > 0
    assert query.lastProgress.stateOperators[-1].memoryUsedBytes > 0
    coordinator.stop(checkpoint=False)
    # The state hosts may still answer while they end.
    eventually(
        lambda: [one.operatorName for one in query.lastProgress.stateOperators] == ["dedupe"],
        "progress without operators that no state host knows",
    )
