"""The facts of a DataStreamWriter, read from real ones."""

from __future__ import annotations

import getpass
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from chandy.barrier.operator_name import function_name
from chandy.coordinator.errors import WriterError
from chandy.coordinator.sinks.at_least_once import AtLeastOnceSink
from chandy.coordinator.sinks.file_sink import FileSink
from chandy.coordinator.sinks.recognition import sink_of
from chandy.coordinator.spark.plan import facts, output_path
from chandy.coordinator.spark.writer_facts import SourceFacts, Trigger, check

pytestmark = [pytest.mark.spark, pytest.mark.compat]


@pytest.fixture
def numbers(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load()


def operator(uid: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    run.__name__ = function_name(uid)
    return run


def test_a_writer_tells_its_sink_mode_and_trigger(numbers: DataFrame, tmp_path: Path) -> None:
    writer = numbers.writeStream.format("json").option("PATH", str(tmp_path)).queryName("n")
    found = facts(writer.trigger(availableNow=True))
    assert found.sink.format == "json"
    assert found.sink.path == str(tmp_path)
    assert found.sink.file_format
    assert found.output_mode == "append"
    assert found.trigger is Trigger.AVAILABLE_NOW
    assert found.query_name == "n"
    assert found.checkpoint_location is None
    assert found.sources == (SourceFacts("rate", replayable=True),)
    check(found)


def test_a_writer_that_sets_nothing_has_sparks_defaults(numbers: DataFrame) -> None:
    found = facts(numbers.writeStream)
    assert (found.sink.format, found.sink.path, found.trigger) == ("parquet", None, Trigger.PROCESSING_TIME)
    assert not found.native_state
    assert found.operators == ()


@pytest.mark.parametrize(
    ("name", "is_file"),
    [("parquet", True), ("csv", True), ("orc", True), ("text", True), ("console", False), ("noop", False)],
)
def test_the_file_sink_is_told_from_others(numbers: DataFrame, name: str, is_file: bool) -> None:
    assert facts(numbers.writeStream.format(name)).sink.file_format is is_file


def test_functions_as_sinks_are_seen(numbers: DataFrame) -> None:
    found = facts(numbers.writeStream.foreachBatch(lambda frame, batch: None))
    assert found.sink.format == "foreachBatch"
    assert not found.sink.file_format
    assert facts(numbers.writeStream.foreach(print)).sink.format == "foreach"


def test_operators_are_found_anywhere_in_the_plan_each_once(numbers: DataFrame) -> None:
    first = numbers.mapInArrow(operator("Zähler/1"), numbers.schema).filter("value > 1")
    second = numbers.mapInArrow(operator("b"), numbers.schema)
    plain = numbers.mapInArrow(lambda batches: batches, numbers.schema)
    found = facts(first.union(second).union(first).union(plain).writeStream)
    assert found.operators == ("Zähler/1", "b")
    assert not found.native_state


NATIVE: dict[str, Callable[[DataFrame], DataFrame]] = {
    "aggregate": lambda frame: frame.groupBy("value").count(),
    "dropDuplicates": lambda frame: frame.dropDuplicates(["value"]),
    "dropDuplicatesWithinWatermark": lambda frame: frame.withWatermark(
        "timestamp", "1 minute"
    ).dropDuplicatesWithinWatermark(["value"]),
    "distinct": lambda frame: frame.distinct(),
    "limit": lambda frame: frame.limit(3),
    "join of streams": lambda frame: frame.join(frame.select(f.col("value").alias("v")), f.expr("value = v")),
    "session window": lambda frame: (
        frame.withWatermark("timestamp", "1 minute")
        .groupBy(f.session_window("timestamp", "1 minute"))
        .count()
    ),
    "applyInPandasWithState": lambda frame: frame.groupBy("value").applyInPandasWithState(
        lambda key, frames, state: frames, frame.schema, "n long", "append", "NoTimeout"
    ),
}


@pytest.mark.parametrize("name", list(NATIVE))
def test_state_that_spark_keeps_is_seen(numbers: DataFrame, name: str) -> None:
    assert facts(NATIVE[name](numbers).writeStream).native_state


def test_what_spark_does_to_tables_beside_the_stream_is_no_state(
    spark: SparkSession, numbers: DataFrame
) -> None:
    table = spark.range(10).groupBy((f.col("id") % 3).alias("v")).count().distinct().limit(2)
    joined = numbers.join(table, f.expr("value = v")).withWatermark("timestamp", "1 minute")
    assert not facts(joined.writeStream).native_state


def test_a_view_and_a_common_table_expression_hide_nothing(spark: SparkSession, numbers: DataFrame) -> None:
    numbers.createOrReplaceTempView("numbers_of_a_view")
    frame = spark.sql(
        "WITH c AS (SELECT value FROM numbers_of_a_view) SELECT value, count(*) FROM c GROUP BY value"
    )
    found = facts(frame.writeStream.outputMode("update"))
    assert found.native_state
    assert found.output_mode == "update"
    assert [source.name for source in found.sources] == ["rate"]


def test_its_own_checkpoint_location_is_refused(numbers: DataFrame, tmp_path: Path) -> None:
    with pytest.raises(WriterError, match="checkpointLocation") as caught:
        check(facts(numbers.writeStream.option("CheckpointLocation", str(tmp_path))))
    assert caught.value.found == repr(str(tmp_path))
    assert "remove the option" in str(caught.value)


def test_a_default_location_of_the_session_is_no_option_of_the_writer(
    numbers: DataFrame, settings: dict[str, str], tmp_path: Path
) -> None:
    settings["spark.sql.streaming.checkpointLocation"] = str(tmp_path / "default")
    check(facts(numbers.writeStream))


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("once", True),
        ("processingTime", "1 second"),
        pytest.param(
            "realTime",
            "5 seconds",
            marks=pytest.mark.skipif(pyspark.__version__ < "4.2", reason="PySpark 4.1 has no such trigger"),
        ),
    ],
)
def test_triggers_with_batches_are_taken(numbers: DataFrame, argument: str, value: object) -> None:
    found = facts(numbers.writeStream.trigger(**{argument: value}))
    check(found)
    assert found.real_time_seconds == (5.0 if argument == "realTime" else None)


def test_a_trigger_without_batches_is_refused(numbers: DataFrame) -> None:
    with pytest.raises(WriterError, match="continuous"):
        check(facts(numbers.writeStream.trigger(continuous="1 second")))


def test_a_file_source_that_cleans_up_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    reader = spark.readStream.schema("id long")
    check(facts(reader.option("cleansource", "OFF").json(str(tmp_path)).writeStream))
    with pytest.raises(WriterError, match="cleanSource to be off for json") as caught:
        check(facts(reader.option("cleansource", "Delete").json(str(tmp_path)).writeStream))
    assert caught.value.found == "'delete'"


def test_a_socket_is_refused_behind_other_sources_too(spark: SparkSession, numbers: DataFrame) -> None:
    socket = spark.readStream.format("socket").option("host", "127.0.0.1").option("port", 1).load()
    frame = numbers.selectExpr("cast(value as string) value").union(socket)
    with pytest.raises(WriterError, match=r"read again.*socket"):
        check(facts(frame.writeStream))


def test_logs_behind_the_batches_are_refused(numbers: DataFrame) -> None:
    writer = numbers.writeStream.format("noop").option("asyncprogresstrackingenabled", "FALSE")
    check(facts(writer))
    with pytest.raises(WriterError, match="asyncProgressTrackingEnabled"):
        check(facts(writer.option("asyncProgressTrackingEnabled", True)))


def test_a_memory_sink_is_taken_only_where_spark_can_restart_it(numbers: DataFrame) -> None:
    rows = numbers.writeStream.format("memory").queryName("m")
    with pytest.raises(WriterError, match="foreachBatch"):
        sink_of(rows, facts(rows))
    counts = (
        numbers.groupBy("value").count().writeStream.format("memory").queryName("m").outputMode("complete")
    )
    assert sink_of(counts, facts(counts)) == AtLeastOnceSink("memory")


def test_the_output_directory_of_a_table_is_known_before_and_after_it_exists(
    spark: SparkSession, numbers: DataFrame
) -> None:
    writer = numbers.writeStream.format("parquet")
    sink = facts(writer, table="later").sink
    before = output_path(writer, sink)
    assert before is not None
    assert before.endswith("/later")
    assert sink.file_format
    spark.range(1).write.saveAsTable("later")
    try:
        assert output_path(writer, sink) == before
        for name in ("spark_catalog.default.later", "default.later", "`later`"):
            named = facts(writer, table=name).sink
            assert named.file_format
            assert output_path(writer, named) == before
    finally:
        spark.sql("DROP TABLE later")
    assert output_path(writer, facts(writer).sink) is None
    assert output_path(writer.option("path", "/o"), facts(writer).sink) == "/o"


def test_a_managed_table_whose_catalog_ended_with_its_driver_says_what_to_do(
    spark: SparkSession, numbers: DataFrame
) -> None:
    writer = numbers.writeStream.format("parquet")
    place = output_path(writer, facts(writer, table="forgotten").sink)
    assert place is not None
    directory = Path(place.removeprefix("file:"))
    (directory / "_spark_metadata").mkdir(parents=True)
    try:
        with pytest.raises(WriterError, match="set the writer's option path") as caught:
            sink_of(writer, facts(writer, table="forgotten"))
        assert str(directory) in caught.value.found
        told = numbers.writeStream.format("parquet").option("path", str(directory))
        sink = sink_of(told, facts(told, table="forgotten"))
        assert isinstance(sink, FileSink)
        assert sink.location == directory
    finally:
        shutil.rmtree(directory)


def test_a_table_of_another_catalog_is_no_file_sink(numbers: DataFrame) -> None:
    sink = facts(numbers.writeStream, table="iceberg.db.t").sink
    assert not sink.file_format
    assert output_path(numbers.writeStream, sink) is None


def test_a_table_elsewhere_and_a_path_on_another_default_file_system_are_told(
    spark: SparkSession, numbers: DataFrame, tmp_path: Path
) -> None:
    spark.sql(f"CREATE TABLE placed (value long) USING parquet LOCATION '{tmp_path}/a b'")
    try:
        found = output_path(numbers.writeStream, facts(numbers.writeStream, table="placed").sink)
    finally:
        spark.sql("DROP TABLE placed")
    assert found == f"file:{tmp_path}/a b"
    hadoop = spark._jsparkSession.sparkContext().hadoopConfiguration()
    before = hadoop.get("fs.defaultFS")
    hadoop.set("fs.defaultFS", "hdfs://name:8020")
    try:
        for path, expected in (
            ("/o", "hdfs://name:8020/o"),
            ("o", f"hdfs://name:8020/user/{getpass.getuser()}/o"),
            ("file:/o", "file:/o"),
            ("s3a://b/o", "s3a://b/o"),
        ):
            writer = numbers.writeStream.option("path", path)
            assert output_path(writer, facts(writer).sink) == expected
        bare = numbers.writeStream.format("json").option("path", "/o")
        with pytest.raises(WriterError) as refused:
            sink_of(bare, facts(bare))
    finally:
        hadoop.set("fs.defaultFS", before)
    assert str(refused.value) == (
        "the output of Spark's file sink cannot go back to a checkpoint: expected a directory on a local or mounted "
        "file system, found '/o', which is hdfs://name:8020/o for Spark by fs.defaultFS; write exactly once to "
        "hdfs://name:8020/o by Chandy's own sink: coordinator.start(df.writeStream, name=..., "
        "sink=FilesSink('hdfs://name:8020/o', uid=...)); or write file:///o if that is meant"
    )


def test_relative_paths_lead_to_where_spark_writes_and_reads(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JVM stays in the directory in which it was started, whatever Python does."""
    (tmp_path / "in").mkdir()
    relative = os.path.relpath(tmp_path, str(spark._jvm.java.lang.System.getProperty("user.dir")))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    rows = spark.readStream.schema("id long").json(f"{relative}/in")
    writer = rows.writeStream.format("parquet").option("path", f"{relative}/elsewhere/../out")
    sink = sink_of(writer, facts(writer))
    assert isinstance(sink, FileSink)
    assert sink.location == tmp_path / "out"
    (source,) = facts(writer).sources
    assert os.path.normpath(source.options["path"]) == str(tmp_path / "in")
