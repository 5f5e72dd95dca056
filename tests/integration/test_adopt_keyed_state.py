"""The state of PySpark's own ``transformWithState`` goes on in Chandy's operators, key for key."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from chandy.coordinator import CheckpointCoordinator
from chandy.coordinator.adopt import adopted_store
from chandy.coordinator.errors import AdoptionError
from chandy.coordinator.spark import progress
from chandy.state import read_state

from ..effort import chance, rounds
from ..waiting import DEADLINE
from .pyspark_cases import CASES, FILES, HOUR, ROCKSDB, Case, Feed, on_pyspark
from .support import TOTALS, Events, Make, Totals, last_totals
from .untouched import check_untouched, contents

pytestmark = [pytest.mark.spark, pytest.mark.migration]

cloudpickle.register_pickle_by_value(sys.modules[__name__])

# Each kind of state, key, timer and time to live, and both styles.
NAMES = {"alarms", "windows", "maps", "everything", "lives", "composite", "frame_sessions"}
CHOSEN = chance("adopted").sample([case for case in CASES if case.name in NAMES], rounds(2, full=len(NAMES)))


@pytest.fixture(autouse=True)
def rocksdb(settings: dict[str, str]) -> None:
    """What ``transformWithState`` needs, and what makes its output the same on both engines."""
    settings["spark.sql.streaming.stateStore.providerClass"] = ROCKSDB
    settings["spark.sql.streaming.checkpointFileManagerClass"] = FILES
    settings["spark.sql.streaming.noDataMicroBatches.enabled"] = "false"
    settings["spark.sql.session.timeZone"] = "America/New_York"
    settings["spark.sql.shuffle.partitions"] = "1"


def begun(folder: Path, case: Case) -> Feed:
    """A case of which only the first batches are there."""
    feed = Feed(folder, attrs.evolve(case, batches=case.batches[: cut(case)]))
    feed.case = case
    return feed


def cut(case: Case) -> int:
    """After how many batches it is interrupted."""
    return max(1, len(case.batches) // 2)


def complete(feed: Feed) -> None:
    """Add the batches that are missing."""
    for number, batch in list(enumerate(feed.case.batches))[cut(feed.case) :]:
        path = feed.folder / f"{number:03}.json"
        path.write_text("\n".join(map(json.dumps, batch)))
        os.utime(path, (1e9 + number, 1e9 + number))


def over(coordinator: CheckpointCoordinator, spark: SparkSession, feed: Feed) -> DataFrame:
    """The operator of a case."""
    case = feed.case
    run = coordinator.transform_with_state_in_pandas if case.pandas else coordinator.transform_with_state
    return run(
        feed.stream(spark),
        key=case.key,
        processor=case.processor,
        output=case.output,
        uid=case.name,
        shards=4,
        time_mode=case.time_mode,
        output_mode="update",
        initial_state=feed.initial(spark),
    )


def test_an_adopted_processor_gives_out_what_an_uninterrupted_one_does(
    spark: SparkSession, make: Make, tmp_path: Path
) -> None:
    whole = [Feed(tmp_path / "whole" / case.name, case) for case in CHOSEN]
    feeds = [begun(tmp_path / "in" / case.name, case) for case in CHOSEN]
    jobs = [(feed, tmp_path / "whole-checkpoints" / feed.case.name) for feed in whole]
    jobs += [(feed, tmp_path / "old" / feed.case.name) for feed in feeds]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda job: on_pyspark(spark, *job), jobs))
    before = contents(tmp_path / "old")
    coordinator = make()
    queries = []
    for feed in feeds:
        complete(feed)
        output = over(coordinator, spark, feed)
        writer = output.writeStream.outputMode("update").foreachBatch(feed.take).trigger(availableNow=True)
        old = str(tmp_path / "old" / feed.case.name)
        report = coordinator.adoption(old, writer)
        assert report.is_possible, report
        queries.append(coordinator.start(writer, name=feed.case.name, adopt=old))
    for query in queries:
        query.awaitTermination(DEADLINE)
    assert {query.name: query.exception() for query in queries if query.exception()} == {}
    found = {feed.case.name: feed.outputs() for feed in feeds}
    expected = {feed.case.name: feed.outputs() for feed in whole}
    assert all(any(rows) for rows in expected.values())
    assert [name for name in found if found[name] != expected[name]] == []
    check_untouched(tmp_path / "old", before)


@pytest.mark.full(
    "integration/test_adopt_keyed_state.py::test_an_adopted_processor_gives_out_what_an_uninterrupted_one_does"
)
def test_a_log_of_offsets_by_name_goes_on_with_ticks(
    spark: SparkSession, settings: dict[str, str], make: Make, tmp_path: Path
) -> None:
    settings["spark.sql.streaming.offsetLog.formatVersion"] = "2"
    case = next(case for case in CASES if case.name == "alarms")
    whole, feed, old = Feed(tmp_path / "whole", case), begun(tmp_path / "in", case), tmp_path / "old"
    on_pyspark(spark, whole, tmp_path / "whole-checkpoint")
    on_pyspark(spark, feed, old)
    entry = (old / "offsets" / str(progress.newest_planned(old))).read_text()
    assert entry.startswith("v2\n")
    complete(feed)
    coordinator = make()
    output = over(coordinator, spark, feed)
    writer = output.writeStream.outputMode("update").foreachBatch(feed.take).trigger(availableNow=True)
    query = coordinator.start(writer, name="q", adopt=str(old))
    query.awaitTermination(DEADLINE)
    assert query.exception() is None
    assert feed.outputs() == whole.outputs()
    coordinator.stop()


def adopted(coordinator: CheckpointCoordinator, query: str) -> str:
    """Where the pipeline keeps what a query has adopted."""
    found = adopted_store.find(coordinator._taken.catalog.store.uri, query)
    assert found is not None
    return found.point.root


@pytest.mark.compat
def test_expiries_and_timers_are_those_that_spark_has_stored(
    spark: SparkSession, make: Make, tmp_path: Path
) -> None:
    case = next(case for case in CASES if case.name == "lives")
    feed = begun(tmp_path / "in", case)
    old = tmp_path / "old"
    on_pyspark(spark, feed, old)
    coordinator = make()
    writer = over(coordinator, spark, feed).writeStream.foreachBatch(feed.take)
    coordinator.start(writer, name="q", adopt=str(old)).processAllAvailable()

    def spark_has(column: str, **options: str) -> Counter[tuple[Any, ...]]:
        reader = spark.read.format("statestore").option("path", str(old))
        for name, value in options.items():
            reader = reader.option(name, value)
        return Counter(map(tuple, reader.load().selectExpr("key.k", column).collect()))

    def chandy_has(state: str, column: str) -> Counter[tuple[Any, ...]]:
        found = read_state(spark, adopted(coordinator, "q"), operator="lives", state=state)
        return Counter(map(tuple, found.select("k", F.unix_millis(column)).collect()))

    for state, column in (
        ("long_value", "value.ttlExpirationMs"),
        ("long_list", "list_element.ttlExpirationMs"),
        ("long_map", "user_map_value.ttlExpirationMs"),
    ):
        expected = spark_has(column, stateVarName=state)
        assert expected
        assert chandy_has(state, "expires_at") == expected
    timers = spark_has("expiration_timestamp_ms", readRegisteredTimers="true")
    assert timers
    assert all(time % HOUR for _, time in timers)
    assert chandy_has("$timers", "timer") == timers
    assert set(chandy_has("ever_value", "expires_at")) == {(key, None) for key, _ in timers}


class Into:
    """A plain query and an adopting one, both from events into one parquet output."""

    def __init__(self, spark: SparkSession, events: Events, folder: Path) -> None:
        self.spark, self.events, self.out, self.old = spark, events, folder / "out", folder / "old"

    def plain(self) -> None:
        grouped = self.events.stream(self.spark).groupBy("k")
        totals = grouped.transformWithState(Totals(), TOTALS, "Append", "None")
        writer = totals.writeStream.format("parquet").option("path", str(self.out))
        query = writer.option("checkpointLocation", str(self.old)).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    def adopting(self, coordinator: CheckpointCoordinator) -> Any:
        totals = coordinator.transform_with_state(
            self.events.stream(self.spark),
            key=["k"],
            processor=Totals(),
            output=TOTALS,
            uid="totals",
            shards=4,
        )
        writer = totals.writeStream.format("parquet").option("path", str(self.out))
        return coordinator.start(writer, name="q", adopt=str(self.old))

    def adopt(self, coordinator: CheckpointCoordinator) -> None:
        """Start the adopting query, and wait until it has processed all that is there."""
        self.adopting(coordinator).processAllAvailable()

    def check(self, rows_per_file: int = 7) -> None:
        """Each file's batch has one row for each key, and the last ones are the totals."""
        found = self.spark.read.parquet(str(self.out))
        assert last_totals(found) == self.events.totals(self.spark)
        assert found.count() == found.distinct().count() == rows_per_file * self.events.files


@pytest.fixture
def pair(spark: SparkSession, events: Events, tmp_path: Path) -> Into:
    """The plain query has run over three files, and has stopped."""
    events.add(3)
    pair = Into(spark, events, tmp_path)
    pair.plain()
    return pair


@pytest.mark.compat
def test_the_values_are_there_before_a_batch_and_in_every_checkpoint_after(
    pair: Into, spark: SparkSession, make: Make, events: Events, tmp_path: Path
) -> None:
    coordinator = make()
    pair.adopting(coordinator)
    for key, total in events.totals(spark).items():
        assert tuple(coordinator.get("totals", key)) == total
    # Nothing has come since: the checkpoint has what was adopted.
    taken = coordinator.checkpoint().result(DEADLINE)
    stored = read_state(spark, str(tmp_path / "store" / "p"), taken.id, operator="totals", state="totals")
    assert {row.k: (row.n, row.total) for row in stored.collect()} == events.totals(spark)
    coordinator.stop()
    events.add(2)
    again = make()
    pair.adopt(again)
    again.stop()
    pair.check()


class OtherType(Totals):
    """Declares the state with another type."""

    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("totals", "n int, total long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        yield from ()


def test_state_that_the_operator_does_not_declare_as_it_was_is_named(
    pair: Into, spark: SparkSession, make: Make, events: Events
) -> None:
    coordinator = make()
    stream = events.stream(spark)
    for uid, key, processor, why in [
        ("other", "k", OtherType(), r"State 'totals' of operator 'other' is declared as \(n int"),
        ("by-value", "v", Totals(), r"has the key \(v bigint\), and the state has \(k string\)"),
    ]:
        output = coordinator.transform_with_state(
            stream, key=[key], processor=processor, output=TOTALS, uid=uid, shards=4
        )
        writer = output.writeStream.format("parquet").option("path", str(pair.out))
        with pytest.raises(AdoptionError, match=why):
            coordinator.start(writer, name=uid, adopt=str(pair.old))
