"""Whole pipelines on real Spark: wrapped, checkpointed, stopped, restored."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.streaming import StatefulProcessor

from chandy import Page
from chandy.coordinator import (
    CheckpointCoordinator,
    CheckpointError,
    FixedDelay,
    Reason,
    Savepoints,
)
from chandy.coordinator.errors import ProcessorFailedError
from chandy.coordinator.monitor import activity
from chandy.coordinator.protocol.life import QueryPhase
from chandy.coordinator.query import CheckpointedQuery
from chandy.coordinator.spark.progress import newest_committed, newest_planned
from chandy.coordinator.spark.query_tasks import has_tasks
from chandy.storage.backends.open import open_store, pipeline_uri
from chandy.storage.checkpoints import locate
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.scheduled import scheduled

from .. import insides
from ..waiting import DEADLINE, eventually
from .support import TOTALS, Events, Make, Totals, last_totals

pytestmark = pytest.mark.spark

EAGER = {"processingTime": "0 seconds"}


def totals_query(
    coordinator: CheckpointCoordinator, spark: SparkSession, events: Events, out: Path, trigger: Any = None
) -> CheckpointedQuery:
    totals = totals_of(coordinator, events.stream(spark))
    writer = totals.writeStream.format("parquet").option("path", str(out)).trigger(**trigger or EAGER)
    return coordinator.start(writer, name="totals")


def totals_of(coordinator: CheckpointCoordinator, stream: DataFrame, uid: str = "totals") -> DataFrame:
    return coordinator.transform_with_state(
        stream, key=["k"], processor=Totals(), output=TOTALS, uid=uid, shards=4
    )


def batches(query: CheckpointedQuery) -> int:
    """Committed batches of the working directory that the query has now."""
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def parquet(spark: SparkSession, out: Path) -> DataFrame:
    return spark.read.parquet(str(out))


# --- restore ------------------------------------------------------------------------------------------------


def test_shards_are_open_before_there_is_a_batch(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    coordinator = make()
    query = totals_query(coordinator, spark, events, tmp_path / "out")
    eventually(
        lambda: bool(
            insides.protocol(coordinator)
            .read(lambda state: state.placement.locations("totals", "totals"))
            .hosts
        )
    )
    run = insides.run(coordinator, "totals")
    assert newest_planned(run.directory) == -1
    events.add()
    query.processAllAvailable()
    assert last_totals(parquet(spark, tmp_path / "out")).keys() == {f"k{number}" for number in range(7)}


@pytest.mark.compat
def test_a_stopped_pipeline_goes_on_from_its_latest_checkpoint(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    events.add(3)
    first = make(retained=2)
    assert first.restored is None
    query = totals_query(first, spark, events, tmp_path / "out")
    query.processAllAvailable()
    taken = [first.checkpoint().result(DEADLINE) for _ in range(3)]
    assert [checkpoint.id for checkpoint in taken] == [1, 2, 3]
    assert taken[-1].batches == {"totals": 2}
    assert taken[-1].shards == 4
    # These batches come after the checkpoint: their effects must go, and come again.
    events.add(2)
    query.processAllAvailable()
    first.stop(checkpoint=False)

    second = make()
    assert second.restored is not None
    assert second.restored.id == 3
    query = totals_query(second, spark, events, tmp_path / "out")
    events.add(2)
    query.processAllAvailable()
    assert batches(query) == 6
    assert last_totals(parquet(spark, tmp_path / "out")) == events.totals(spark)
    assert second.checkpoint().result(DEADLINE).id == 4
    store = open_store(pipeline_uri(str(tmp_path / "store"), "p"))
    assert Catalog(store).list_ids() == [2, 3, 4]

    # A graceful stop keeps what came after that: the next start repeats no batch.
    events.add(1)
    query.processAllAvailable()
    last = second.stop()
    assert last is not None
    assert last.batches == {"totals": batches(query)}
    third = make()
    assert third.restored == last
    query = totals_query(third, spark, events, tmp_path / "out")
    events.add(1)
    query.processAllAvailable()
    assert batches(query) == last.batches["totals"] + 1
    assert last_totals(parquet(spark, tmp_path / "out")) == events.totals(spark)


def test_several_queries_are_restored_at_one_consistent_cut(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    def start(coordinator: CheckpointCoordinator) -> tuple[CheckpointedQuery, CheckpointedQuery]:
        upstream = totals_query(coordinator, spark, events, tmp_path / "middle")
        produced = spark.readStream.schema(TOTALS).parquet(str(tmp_path / "middle"))
        counted = produced.groupBy("k").agg(F.count("*").alias("n"), F.sum("total").alias("total"))
        writer = counted.writeStream.outputMode("complete").foreachBatch(write_complete)
        return upstream, coordinator.start(writer, name="counted", reads=["totals"])

    out = str(tmp_path / "counted")

    def write_complete(df: DataFrame, batch: int) -> None:
        df.coalesce(1).write.mode("overwrite").parquet(out)

    events.add(2)
    first = make()
    upstream, downstream = start(first)
    upstream.processAllAvailable()
    events.add(3)
    checkpoint = first.checkpoint().result(DEADLINE)
    assert set(checkpoint.batches) == {"totals", "counted"}
    upstream.processAllAvailable()
    downstream.processAllAvailable()
    first.stop(checkpoint=False)

    second = make()
    upstream, downstream = start(second)
    upstream.processAllAvailable()
    events.add(1)
    upstream.processAllAvailable()
    downstream.processAllAvailable()
    # Every row that upstream has written was consumed exactly once.
    expected = parquet(spark, tmp_path / "middle").groupBy("k").agg(F.count("*"), F.sum("total")).collect()
    assert sorted(map(tuple, spark.read.parquet(out).collect())) == sorted(map(tuple, expected))
    assert last_totals(parquet(spark, tmp_path / "middle")) == events.totals(spark)


@pytest.mark.full(
    "integration/test_going_on.py::test_no_batch_runs_again_and_the_next_checkpoint_has_all_of_them"
)
def test_a_checkpoint_is_restored_by_its_id(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    events.add(2)
    first = make()
    query = totals_query(first, spark, events, tmp_path / "out")
    query.processAllAvailable()
    older = first.checkpoint().result(DEADLINE)
    events.add(2)
    query.processAllAvailable()
    assert first.checkpoint().result(DEADLINE).batches == {"totals": 3}
    first.stop()

    second = make(restore=older.id)
    query = totals_query(second, spark, events, tmp_path / "out")
    query.processAllAvailable()
    assert batches(query) == 3
    assert last_totals(parquet(spark, tmp_path / "out")) == events.totals(spark)
    # An id is never used again, though its checkpoint was not the one restored.
    assert second.checkpoint().result(DEADLINE).id == 3


def test_a_savepoint_is_self_contained_and_restores_from_where_it_was_moved_to(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    events.add(2)
    first = make()
    query = totals_query(first, spark, events, tmp_path / "out")
    query.processAllAvailable()
    first.checkpoint().result(DEADLINE)
    savepoint = first.savepoint("before-upgrade").result(DEADLINE)
    assert first.statistics().latest_completed is not None
    assert savepoint.uri == (tmp_path / "store/p/savepoints/before-upgrade").as_uri()
    first.stop()
    moved = tmp_path / "elsewhere"
    shutil.move(savepoint.uri.removeprefix("file://"), moved)
    shutil.rmtree(tmp_path / "store")

    second = make("other-name", restore=moved.as_uri())
    query = totals_query(second, spark, events, tmp_path / "out")
    # Nobody has touched a shard yet: what the savepoint holds is copied, for the checkpoint must not need it.
    untouched = second.checkpoint().result(DEADLINE)
    assert untouched.id == savepoint.id + 1
    events.add(1)
    query.processAllAvailable()
    second.checkpoint().result(DEADLINE)
    second.stop()
    shutil.rmtree(moved)

    third = make("other-name")
    query = totals_query(third, spark, events, tmp_path / "out")
    events.add(1)
    query.processAllAvailable()
    assert last_totals(parquet(spark, tmp_path / "out")) == events.totals(spark)


def test_savepoints_by_schedule_are_taken_across_restarts_and_expire(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    archive = Savepoints(str(tmp_path / "archive"), every="1 ms", keep=2)
    store = open_store(pipeline_uri(str(tmp_path / "store"), "p"))
    events.add(2)
    first = make(savepoints=archive)
    totals_query(first, spark, events, tmp_path / "out").processAllAvailable()
    named = first.savepoint("named").result(DEADLINE)
    first.checkpoint().result(DEADLINE)
    eventually(lambda: max(locate.savepoints(store)) > named.id + 3)
    first.stop()
    newest = max(locate.savepoints(store))
    second = make(savepoints=archive)
    totals_query(second, spark, events, tmp_path / "out").processAllAvailable()
    eventually(lambda: max(locate.savepoints(store)) > newest + 2)
    second.stop()
    kept = scheduled(store, open_store)
    assert 2 <= len(kept) <= 3, "the newest two, and one that was completed by the last look"
    folders = [path.parent for path in (tmp_path / "archive").rglob("manifest.json")]
    assert sorted(path.as_uri() for path in folders) == sorted([named.uri, *(one.uri for one in kept)])
    third = make(restore=kept[-1].uri)
    totals_query(third, spark, events, tmp_path / "out").processAllAvailable()
    assert third.restored is not None
    assert third.restored.id == kept[-1].id


def test_stop_with_a_savepoint_leaves_nothing_after_the_savepoint(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    events.add(12)
    first = make()
    query = totals_query(first, spark, events, tmp_path / "out")
    eventually(lambda: batches(query) >= 2, "the third batch")
    savepoint = first.stop(savepoint=str(tmp_path / "savepoint"))
    assert savepoint is not None
    assert not query.isActive
    assert query.exception() is None
    # Every batch whose output is there is in the savepoint.
    rows = parquet(spark, tmp_path / "out").count()
    assert rows == 7 * (savepoint.batches["totals"] + 1)

    second = make(restore=savepoint.uri)
    query = totals_query(second, spark, events, tmp_path / "out")
    query.processAllAvailable()
    assert parquet(spark, tmp_path / "out").count() == 7 * 12
    assert last_totals(parquet(spark, tmp_path / "out")) == events.totals(spark)


@pytest.mark.full(
    "coordinator/test_coordinator.py::test_a_query_that_waits_for_a_stop_which_fails_is_started"
)
def test_a_stop_whose_savepoint_fails_raises_and_the_queries_run_again(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    events.add(2)
    coordinator = make()
    query = totals_query(coordinator, spark, events, tmp_path / "out")
    query.processAllAvailable()
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "somebody's").write_text("file")
    with pytest.raises(CheckpointError) as caught:
        coordinator.stop(savepoint=str(taken))
    assert caught.value.reason is Reason.IO_EXCEPTION
    assert [path.name for path in taken.iterdir()] == ["somebody's"]
    assert query.isActive
    events.add(2)
    eventually(lambda: query.isActive and batches(query) >= 3, "batches after the failed stop")
    coordinator.stop()
    assert last_totals(parquet(spark, tmp_path / "out")) == events.totals(spark)


def test_a_query_that_ends_by_itself_is_checkpointed_and_goes_on_with_what_came_later(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    events.add(3)
    first = make()
    query = totals_query(first, spark, events, tmp_path / "out", trigger={"availableNow": True})
    assert query.awaitTermination(DEADLINE) is True
    assert not query.isActive
    assert first.checkpoint().result(DEADLINE).batches == {"totals": 2}
    first.stop()

    events.add(2)
    second = make()
    query = totals_query(second, spark, events, tmp_path / "out", trigger={"availableNow": True})
    query.awaitTermination(DEADLINE)
    assert last_totals(parquet(spark, tmp_path / "out")) == events.totals(spark)
    assert parquet(spark, tmp_path / "out").count() == 7 * 5


def test_periodic_checkpoints_complete_while_a_stream_is_idle(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "_QUERIES_SECONDS", 0.1)
    monkeypatch.setattr(activity, "_OPERATORS_SECONDS", 0.1)
    events.add(1)
    coordinator = make(interval="200 ms", page=Page("127.0.0.1:0", token="secret"))

    def ask(path: str, method: str = "GET") -> bytes:
        request = Request(f"{coordinator.monitor_url}{path}", method=method)
        request.add_header("Authorization", "Bearer secret")
        with urlopen(request, timeout=DEADLINE) as answer:
            found: bytes = answer.read()
            return found

    query = totals_query(coordinator, spark, events, tmp_path / "out")
    query.processAllAvailable()
    done = coordinator.statistics().counts.completed
    eventually(lambda: coordinator.statistics().counts.completed >= done + 2, "two more checkpoints")
    # A batch has committed some time before the driver looks for it.
    eventually(lambda: query.life.phase is QueryPhase.RUNNING, "that it is known to run")
    statistics = coordinator.statistics()
    assert statistics.counts.failed == 0
    assert statistics.latest_completed is not None
    assert len(statistics.latest_completed.shards) == 4
    assert statistics.duration is not None
    families = {one.name: one.samples for one in text_string_to_metric_families(ask("/metrics").decode())}
    (completed,) = families["chandy_checkpoints"]
    assert completed.labels == {"pipeline": "p", "kind": "periodic", "status": "completed", "reason": ""}
    assert statistics.counts.completed <= completed.value <= coordinator.statistics().counts.completed
    assert [one.value for one in families["chandy_query_committed_batch"]] == [0.0]
    assert [one.value for one in families["chandy_shards"]] == [4.0]
    assert [one.value for one in families["chandy_state_hosts"]] == [1.0]
    assert ask("/readyz") == b"ready\n"
    # By hand, from elsewhere.
    taken = json.loads(ask("/api/v1/checkpoints", "POST"))
    assert (taken["kind"], taken["batches"]) == ("manual", {"totals": 0})
    details = json.loads(ask(f"/api/v1/checkpoints/{taken['id']}"))
    assert details["checkpoint"]["status"] == "completed"
    assert len(details["operators"]["totals"]["shards"]) == 4
    assert [one["shard"] for one in json.loads(ask("/api/v1/assignment"))] == [0, 1, 2, 3]
    assert [one["kind"] for one in json.loads(ask("/api/v1/recoveries"))] == ["start"]
    overview = json.loads(ask("/api/v1"))
    assert overview["is_ready"]
    size = overview["operators"]["totals"]
    assert size["query"] == "totals"
    assert 0 < size["largest_shard"] <= size["bytes"] <= coordinator.statistics().latest_completed.size
    # One value for each key.
    assert size["entries"] == len(events.totals(spark))
    assert overview["queries"]["totals"]["operators"] == ["totals"]
    rows = sum(count for count, _ in events.totals(spark).values())
    eventually(
        lambda: json.loads(ask("/api/v1"))["work"].get("totals", {}).get("rows"), "a look at the operators"
    )
    overview = json.loads(ask("/api/v1"))
    assert overview["queries"]["totals"]["activity"]["rows"] == rows
    assert overview["queries"]["totals"]["activity"]["batches"] == 1
    assert overview["work"]["totals"]["rows"] == rows
    assert overview["work"]["totals"]["keys"] == len(events.totals(spark))
    value = json.loads(ask("/api/v1/state/totals?key=%22k1%22"))["value"]
    assert (value["n"], value["total"]) == events.totals(spark)["k1"]
    page = ask("/").decode()
    assert "✓ Well" in page
    assert f'<a href="/checkpoints/{taken["id"]}">' in page
    # Its last request ends the server, too.
    assert "goes on" in json.loads(ask("/api/v1/stop", "POST"))["says"]
    assert query.awaitTermination(DEADLINE)
    eventually(lambda: not is_answered(f"{coordinator.monitor_url}/healthz"), "the end of the server")
    assert coordinator.stop() is None


def is_answered(url: str) -> bool:
    try:
        urlopen(url, timeout=DEADLINE).close()
    except OSError:
        return False
    return True


# --- sinks, sources, triggers -------------------------------------------------------------------------------


@pytest.mark.compat
def test_any_sink_and_source_goes_on_where_its_checkpoint_was(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    seen: dict[int, list[tuple[int, int]]] = {1: [], 2: []}

    def start(coordinator: CheckpointCoordinator, life: int) -> list[CheckpointedQuery]:
        def remember(df: DataFrame, batch: int) -> None:
            seen[life].append((batch, df.count()))

        # Spark's own state beside ours in one query, and a query without state.
        totals = totals_of(coordinator, events.stream(spark))
        counted = totals.groupBy("k").agg(F.count("*").alias("n"))
        plain = events.stream(spark).where("v > 1")
        return [
            coordinator.start(
                counted.writeStream.outputMode("complete").foreachBatch(remember), name="mixed"
            ),
            coordinator.start(plain.writeStream.format("parquet"), name="plain", table="plain_rows"),
            coordinator.start(
                spark.readStream.format("rate-micro-batch")
                .option("rowsPerBatch", 5)
                .load()
                .writeStream.format("noop")
                .trigger(processingTime="100 milliseconds"),
                name="rate",
            ),
        ]

    events.add(2)
    first = make()
    queries = start(first, 1)
    assert [query.guarantee.level.value for query in queries] == [
        "at least once",
        "exactly once",
        "at least once",
    ]
    for query in queries[:2]:
        query.processAllAvailable()
    checkpoint = first.checkpoint().result(DEADLINE)
    first.stop()

    second = make()
    queries = start(second, 2)
    events.add(1)
    for query in queries[:2]:
        query.processAllAvailable()
    eventually(lambda: batches(queries[2]) > checkpoint.batches["rate"], "a further batch of the rate source")
    assert seen[1] == [(0, 7), (1, 7)]
    assert seen[2] == [(2, 7)]
    expected = spark.read.schema("k string, v long").json(str(events.folder)).where("v > 1").count()
    assert spark.table("plain_rows").count() == expected
    second.stop()
    spark.sql("DROP TABLE plain_rows")


@pytest.mark.compat
@pytest.mark.parametrize(
    "provider",
    [
        pytest.param(
            "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
            marks=pytest.mark.full(
                "integration/test_pipeline.py::test_a_query_with_state_of_sparks_own_goes_back_to_its_checkpoint"
            ),
        ),
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    ],
)
def test_a_query_with_state_of_sparks_own_goes_back_to_its_checkpoint(
    make: Make, spark: SparkSession, settings: dict[str, str], events: Events, tmp_path: Path, provider: str
) -> None:
    settings["spark.sql.streaming.stateStore.providerClass"] = provider
    out = str(tmp_path / "out")

    def write(df: DataFrame, batch: int) -> None:
        df.coalesce(1).write.mode("overwrite").parquet(out)

    def start(coordinator: CheckpointCoordinator) -> CheckpointedQuery:
        counted = events.stream(spark).groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("total"))
        return coordinator.start(
            counted.writeStream.outputMode("complete").foreachBatch(write), name="counts"
        )

    events.add(4)
    first = make()
    query = start(first)
    query.processAllAvailable()
    first.checkpoint().result(DEADLINE)
    events.add(2)
    query.processAllAvailable()
    first.stop(checkpoint=False)
    second = make()
    query = start(second)
    events.add(1)
    query.processAllAvailable()
    assert batches(query) == 6
    rows = {row.k: (row.n, row.total) for row in spark.read.parquet(out).collect()}
    assert rows == events.totals(spark)


# --- operators ----------------------------------------------------------------------------------------------


class Chained(StatefulProcessor):
    """Two states: how many rows, and the largest total."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")
        self.largest = handle.getValueState("largest", "total long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        (n,) = self.count.get() or (0,)
        (largest,) = self.largest.get() or (-1,)
        for row in rows:
            n, largest = n + 1, max(largest, row.total)
        self.count.update((n,))
        self.largest.update((largest,))
        yield Row(parity=key[0], n=n, largest=largest)


@pytest.mark.full(
    "integration/test_exactly_once.py::test_a_query_that_fails_while_its_hosts_live_runs_the_same_batch_again_and_no_other"
)
def test_several_operators_in_one_query_and_several_states_in_one_processor(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    def start(coordinator: CheckpointCoordinator) -> CheckpointedQuery:
        totals = totals_of(coordinator, events.stream(spark)).withColumn(
            # A key of null beside others.
            "parity",
            F.when(F.col("k") != "k0", F.substring("k", 2, 1).cast("int") % 2 == 0),
        )
        chained = coordinator.transform_with_state(
            totals,
            key=["parity"],
            processor=Chained(),
            uid="chained",
            shards=3,
            output="parity boolean, n long, largest long",
        )
        return coordinator.start(
            chained.writeStream.format("parquet").option("path", str(tmp_path / "out")), name="both"
        )

    events.add(3)
    first = make()
    query = start(first)
    query.processAllAvailable()
    assert first.checkpoint().result(DEADLINE).shards == 7
    events.add(1)
    query.processAllAvailable()
    first.stop(checkpoint=False)
    second = make()
    query = start(second)
    events.add(1)
    query.processAllAvailable()
    rows = parquet(spark, tmp_path / "out").groupBy("parity").agg(F.max("n"), F.max("largest")).collect()
    totals = events.totals(spark)
    expected = {
        parity: (5 * len(keys), max(totals[key][1] for key in keys))
        for parity, keys in {None: ["k0"], True: ["k2", "k4", "k6"], False: ["k1", "k3", "k5"]}.items()
    }
    assert {row[0]: (row[1], row[2]) for row in rows} == expected


class RaisesAtOneKey(Totals):
    """Fails at one key."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        if key == ("k3",):
            raise ZeroDivisionError("no totals for k3")
        return super().handleInputRows(key, rows, timerValues)


def test_a_processor_that_raises_is_named_with_its_key_and_batch(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    events.add(1)
    coordinator = make(restart=FixedDelay("10 ms", attempts=1))
    totals = coordinator.transform_with_state(
        events.stream(spark), key=["k"], processor=RaisesAtOneKey(), output=TOTALS, uid="raises", shards=4
    )
    query = coordinator.start(totals.writeStream.format("noop"), name="totals")
    with pytest.raises(ProcessorFailedError) as caught:
        query.awaitTermination(DEADLINE)
    error = caught.value
    assert (error.query, error.uid, error.batch) == ("totals", "raises", 0)
    assert "k3" in error.key
    first, second = str(error).splitlines()
    assert first.startswith(f"ZeroDivisionError: no totals for k3, at {__file__}:")
    assert second.startswith("key ('k3',), batch 0, operator 'raises', query 'totals'. ")
    assert error.traceback.count("Traceback") == 1
    assert query.exception() is error
    assert not query.isActive
    # One restart was allowed, and was in place.
    assert [recovery.in_place for recovery in coordinator.recoveries] == [False, True]


# --- what a barrier costs -----------------------------------------------------------------------------------

GATE = """
import time
from pathlib import Path
from chandy.storage.backends.local import LocalStore

gate = Path({gate!r})
write = LocalStore.write

def gated(self, key, data):
    while gate.exists() and key.endswith(".pack"):
        time.sleep(0.02)
    write(self, key, data)

LocalStore.write = gated
"""


@pytest.mark.parametrize(
    "where",
    [
        "in the processor",
        pytest.param(
            "in foreachBatch",
            marks=pytest.mark.full(
                "integration/test_pipeline.py::test_what_a_users_code_says_is_never_taken_for_a_failure_of_chandys_own"
            ),
        ),
    ],
)
def test_what_a_users_code_says_is_never_taken_for_a_failure_of_chandys_own(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path, where: str
) -> None:
    said = "HostLostError, StateLostError, CannotGoBackError: [chandy 0123456789abcdef HOST_LOST]"
    failing = tmp_path / "failing"
    failing.touch()
    path, in_sink = str(failing), where != "in the processor"

    class Failing(Totals):
        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
            if Path(path).exists() and not in_sink:
                Path(path).unlink()
                raise ValueError(said)
            yield from super().handleInputRows(key, rows, timerValues)

    def write(batch: DataFrame, number: int) -> None:
        if Path(path).exists() and in_sink:
            Path(path).unlink()
            raise ValueError(said)
        batch.write.mode("append").parquet(str(tmp_path / "out"))

    coordinator = make(restart=FixedDelay("0 s", attempts=1))
    totals = coordinator.transform_with_state(
        events.stream(spark), key=["k"], processor=Failing(), output=TOTALS, uid="totals", shards=4
    )
    events.add()
    query = coordinator.start(totals.writeStream.foreachBatch(write).trigger(**EAGER), name="totals")
    eventually(lambda: len(coordinator.recoveries) == 2)
    query.processAllAvailable()
    assert [recovery.in_place for recovery in coordinator.recoveries] == [False, True]
    assert last_totals(parquet(spark, tmp_path / "out")) == events.totals(spark)


@pytest.mark.compat
def test_a_stop_waits_for_the_tasks_that_it_has_cut_off(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    began = tmp_path / "began"

    def hold(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        began.touch()
        # Until Spark kills the worker, some seconds after it has stopped the query.
        while True:
            time.sleep(0.1)
        yield from rows

    events.add()
    stream = events.stream(spark)
    coordinator = make()
    query = coordinator.start(stream.mapInArrow(hold, stream.schema).writeStream.format("noop"), name="held")
    eventually(began.exists, "the task")
    run = insides.run(coordinator, query.name)
    assert run.spark is not None and has_tasks(run.spark)
    coordinator.stop(timeout="1 s", checkpoint=False)
    assert not has_tasks(run.spark)


def test_uploads_go_on_while_later_batches_run(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    # State hosts run this file when they start; without the gate's file it changes nothing.
    gate = tmp_path / "gate"
    custom = tmp_path / "custom" / "sitecustomize.py"
    custom.parent.mkdir()
    custom.write_text(GATE.format(gate=str(gate)))
    spark.sparkContext.addPyFile(str(custom))
    events.add(1)
    coordinator = make()
    query = totals_query(coordinator, spark, events, tmp_path / "out")
    query.processAllAvailable()
    gate.touch()
    checkpoint = coordinator.checkpoint()
    events.add(2)
    query.processAllAvailable()
    assert batches(query) == 2
    assert not checkpoint.done()
    gate.unlink()
    assert checkpoint.result(DEADLINE).batches == {"totals": 0}
    coordinator.stop(checkpoint=False)
    # It holds exactly its cut, though two batches had committed before it was durable.
    again = make()
    query = totals_query(again, spark, events, tmp_path / "out")
    query.processAllAvailable()
    assert last_totals(parquet(spark, tmp_path / "out")) == events.totals(spark)
    assert newest_committed(insides.runs(again)[0].directory) == 2
