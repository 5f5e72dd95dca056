"""What time does to whole pipelines: watermarks, late rows, timers, and batches that run although no data comes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from chandy.state.operators.ticks import TICKS

from ..effort import sampled
from ..waiting import DEADLINE, eventually
from .seconds import AVAILABLE_NOW, OUTPUT, START, Alarm, NumbersRows, RowsByBatch, Seconds, Timed, timed
from .seconds import seconds as seconds
from .support import Make

pytestmark = pytest.mark.spark
# Workers do not have the tests' modules: what the tests define travels by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.mark.parametrize("many_watermarks", sampled(["true", "false"], 1))
def test_event_time_is_as_in_spark_to_the_last_timer(
    make: Make,
    spark: SparkSession,
    settings: dict[str, str],
    seconds: Seconds,
    tmp_path: Path,
    many_watermarks: str,
) -> None:
    settings["spark.sql.streaming.stateStore.providerClass"] = (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
    settings["spark.sql.streaming.statefulOperator.allowMultiple"] = many_watermarks
    seconds.add(("a", 0), ("b", 3))
    seconds.add(("b", 100), ("late by its own watermark only", 40))
    seconds.add(("c", 50), ("a", 130))
    seconds.add(("late", 60), ("d", 200))
    native, own = RowsByBatch(), RowsByBatch()
    grouped = seconds.stream(spark).groupBy("k")
    expected = grouped.transformWithState(Timed(), OUTPUT, "Append", "EventTime")
    writer = expected.writeStream.foreachBatch(native).option("checkpointLocation", str(tmp_path / "native"))
    writer.trigger(**AVAILABLE_NOW).start().awaitTermination()

    coordinator = make("own")
    result = timed(coordinator, seconds.stream(spark), "EventTime")
    query = coordinator.start(result.writeStream.foreachBatch(own).trigger(**AVAILABLE_NOW), name="timed")
    query.awaitTermination()

    assert own.rows == native.rows
    assert any("timer" in what for _, _, what, _ in own.rows)
    # Spark runs a batch more than there are files, for the timers that the last of them makes due.
    assert own.rows[-1][0] == 4


@pytest.mark.compat
def test_timers_of_event_time_fire_on_an_idle_stream_and_the_watermark_survives_a_restore(
    make: Make, spark: SparkSession, seconds: Seconds
) -> None:
    out = RowsByBatch()
    first = make()
    writer = timed(first, seconds.stream(spark), "EventTime").writeStream.foreachBatch(out)
    query = first.start(writer, name="timed")
    seconds.add(("a", 0))
    seconds.add(("b", 100))
    query.processAllAvailable()
    assert [row[1:] for row in out.rows if "timer" in row[2]] == [
        ("a", "timer 5 after 1 rows", (START + 90) * 1000)
    ]
    first.checkpoint().result(DEADLINE)
    first.stop(checkpoint=False)

    out.rows.clear()
    second = make()
    writer = timed(second, seconds.stream(spark), "EventTime").writeStream.foreachBatch(out)
    query = second.start(writer, name="timed")
    # The first is late by the watermark of the batch before the checkpoint, and nothing moves it.
    seconds.add(("a", 80), ("b", 99))
    query.processAllAvailable()
    assert [row[1:] for row in out.rows] == [("b", "1 rows", (START + 90) * 1000)]
    seconds.add(("c", 200))
    query.processAllAvailable()
    assert [row[1:] for row in out.rows if "timer" in row[2]] == [
        ("b", "timer 104 after 2 rows", (START + 190) * 1000),
        ("b", "timer 105 after 2 rows", (START + 190) * 1000),
    ]


@pytest.mark.compat
def test_timers_of_processing_time_fire_on_an_idle_stream(
    make: Make, spark: SparkSession, seconds: Seconds, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = RowsByBatch()
    monkeypatch.setenv("CHANDY_TIMER_PERIOD", "0.001")
    coordinator = make()
    writer = timed(coordinator, seconds.stream(spark), "ProcessingTime").writeStream.foreachBatch(out)
    query = coordinator.start(writer, name="timed")
    seconds.add(("a", 0), ("b", 0))
    query.processAllAvailable()
    eventually(lambda: len(out.rows) == 4, "two timers")
    assert [row[1:3] for row in out.rows] == [
        ("a", "1 rows"),
        ("b", "1 rows"),
        ("a", "timer"),
        ("b", "timer"),
    ]


@pytest.mark.compat
def test_a_query_that_is_to_end_fires_the_timers_of_processing_time_that_are_due_and_ends(
    make: Make, spark: SparkSession, seconds: Seconds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHANDY_TIMER_PERIOD", "3600")
    for expected in (["1 rows"], ["timer"], []):
        out = RowsByBatch()
        with make() as coordinator:
            writer = timed(coordinator, seconds.stream(spark), "ProcessingTime").writeStream.foreachBatch(out)
            if expected == ["1 rows"]:
                seconds.add(("a", 0))
            query = coordinator.start(writer.trigger(**AVAILABLE_NOW), name="timed")
            query.awaitTermination()
            assert [row[2] for row in out.rows] == expected
            coordinator.checkpoint().result(DEADLINE)


@pytest.mark.compat
@pytest.mark.full(
    "integration/test_time.py::test_timers_of_event_time_fire_on_an_idle_stream_and_the_watermark_survives_a_restore"
)
def test_a_timer_of_event_time_fires_at_the_latest_when_a_query_that_was_to_end_runs_again(
    make: Make, spark: SparkSession, seconds: Seconds
) -> None:
    # With PySpark 4.1, Spark has decided what the last batch is before its watermark is known.
    out = RowsByBatch()
    seconds.add(("a", 0))
    seconds.add(("b", 100))
    for _ in range(2):
        with make() as coordinator:
            writer = timed(coordinator, seconds.stream(spark), "EventTime").writeStream.foreachBatch(out)
            query = coordinator.start(writer.trigger(**AVAILABLE_NOW), name="timed")
            query.awaitTermination()
            coordinator.checkpoint().result(DEADLINE)
    assert [row[1:3] for row in out.rows] == [
        ("a", "1 rows"),
        ("b", "1 rows"),
        ("a", "timer 5 after 1 rows"),
    ]


def test_without_batches_for_no_data_a_timer_waits_for_data(
    make: Make, spark: SparkSession, settings: dict[str, str], seconds: Seconds
) -> None:
    settings["spark.sql.streaming.noDataMicroBatches.enabled"] = "false"
    out = RowsByBatch()
    coordinator = make()
    writer = timed(coordinator, seconds.stream(spark), "EventTime").writeStream.foreachBatch(out)
    query = coordinator.start(writer, name="timed")
    seconds.add(("a", 0))
    seconds.add(("b", 100))
    query.processAllAvailable()
    assert [row[2] for row in out.rows] == ["1 rows", "1 rows"]
    seconds.add(("b", 100))
    query.processAllAvailable()
    assert [row[2] for row in out.rows][2:] == ["timer 5 after 1 rows", "1 rows"]


def test_only_what_waits_for_time_is_given_ticks_and_only_once_in_a_query(
    make: Make, spark: SparkSession, seconds: Seconds
) -> None:
    coordinator = make()

    def sources(df: DataFrame) -> int:
        return df._jdf.queryExecution().analyzed().toString().count(TICKS)

    stream = seconds.stream(spark)
    assert sources(timed(coordinator, stream, "None")) == 0
    one = coordinator.transform_with_state(
        stream, key=["k"], processor=Timed(), output=OUTPUT, uid="one", shards=4, time_mode="EventTime"
    )
    again = coordinator.transform_with_state(
        one, key=["k"], processor=Alarm(), output=OUTPUT, uid="two", shards=4, time_mode="ProcessingTime"
    )
    assert (sources(one), sources(again)) == (1, 1)


@pytest.mark.compat
def test_ticks_between_two_operators_leave_the_shards_of_the_first_in_their_places(
    make: Make, spark: SparkSession, seconds: Seconds
) -> None:
    out = RowsByBatch()
    coordinator = make()
    files = (
        spark.readStream.schema("k string, t long").option("maxFilesPerTrigger", 1).json(str(seconds.folder))
    )
    first = coordinator.transform_with_state(
        files, key=["k"], processor=NumbersRows(), output="k string, n long, t long", uid="numbered", shards=4
    )
    numbered = first.selectExpr("k || n as k", "timestamp_seconds(t) as t").withWatermark("t", "10 seconds")
    writer = timed(coordinator, numbered, "EventTime").writeStream.foreachBatch(out)
    query = coordinator.start(writer, name="chain")
    for second in (0, 50, 100):
        seconds.add(*((f"k{key}", second) for key in range(8)))
    query.processAllAvailable()
    assert sorted(row[1] for row in out.rows if row[2] == "1 rows") == sorted(
        f"k{key}{n}" for key in range(8) for n in (1, 2, 3)
    )
    assert sorted(row[1] for row in out.rows if "timer" in row[2]) == sorted(
        f"k{key}{n}" for key in range(8) for n in (1, 2)
    )
    assert coordinator.checkpoint().result(DEADLINE).shards == 8
