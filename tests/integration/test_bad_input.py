"""Bad input gets a clear typed error at once, and nothing is lost by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from chandy import FilesSink
from chandy.coordinator import ChandyError, CheckpointConfig, CheckpointCoordinator
from chandy.coordinator.errors import (
    ArgumentError,
    ConfigError,
    CoordinatorStoppedError,
    PipelineNameError,
    ProcessorFailedError,
    QueryFailedError,
    RestoreError,
    StateSchemaError,
    WriterError,
)
from chandy.state.errors import DefinitionError
from chandy.storage import (
    DamagedError,
    InvalidNameError,
    InvalidPlaceError,
    NothingHereError,
    SchemaTooNewError,
    StoreFailedError,
)
from chandy.storage.checkpoints import layout

from ..permits import printed
from ..storage.conftest import no_s3_keys  # noqa: F401
from ..waiting import DEADLINE
from .support import EVENTS, TOTALS, Events, Make, Totals

pytestmark = pytest.mark.spark


def totals(coordinator: CheckpointCoordinator, stream: Any, **more: Any) -> DataFrame:
    arguments: dict[str, Any] = {
        "key": ["k"],
        "processor": Totals(),
        "output": TOTALS,
        "uid": "totals",
        "shards": 4,
    }
    return coordinator.transform_with_state(stream, **arguments | more)


@pytest.fixture
def checkpointed(make: Make, spark: SparkSession, events: Events, tmp_path: Path) -> Path:
    """A storage with one completed checkpoint of one query with one operator; returns its manifest's path."""
    events.add(1)
    coordinator = make()
    writer = totals(coordinator, events.stream(spark)).writeStream.format("noop")
    coordinator.start(writer, name="totals").processAllAvailable()
    coordinator.checkpoint().result(DEADLINE)
    coordinator.stop()
    return tmp_path / "store" / "p" / layout.manifest_key(1)


def test_a_writer_that_cannot_be_checkpointed_is_refused_and_the_coordinator_goes_on(
    make: Make, spark: SparkSession, events: Events
) -> None:
    coordinator = make()
    stream = events.stream(spark)
    socket = spark.readStream.format("socket").option("host", "127.0.0.1").option("port", 1).load()
    cleaning = spark.readStream.schema(EVENTS).option("cleanSource", "delete").json(str(events.folder))
    keyed = totals(coordinator, stream)
    refused = [
        (stream.writeStream.format("noop").option("checkpointLocation", "/tmp/mine"), "checkpointLocation"),
        (stream.writeStream.format("noop").trigger(continuous="1 second"), "continuous"),
        (stream.writeStream.format("noop").trigger(realTime="10 minutes"), "less than 600 s, the timeout"),
        (keyed.writeStream.format("noop").trigger(realTime="5 seconds"), "for operator 'totals'"),
        (socket.writeStream.format("noop"), "socket"),
        (cleaning.writeStream.format("noop"), "cleanSource"),
    ]
    for writer, why in refused:
        with pytest.raises(WriterError, match=why):
            coordinator.start(writer, name="q")
    rows = stream.writeStream.trigger(realTime="5 seconds")
    with pytest.raises(WriterError, match="a sink that takes rows one by one"):
        coordinator.start(rows, name="q", sink=FilesSink(str(events.folder.with_name("out"))))
    wrong: list[tuple[Any, str]] = [
        (stream, "found a DataFrame"),
        (spark.range(1).write, "found a DataFrameWriter"),
        (None, "found neither"),
    ]
    for given, says in wrong:
        with pytest.raises(ArgumentError, match=f"a DataStreamWriter .*{says}"):
            coordinator.start(given, name="q")
    assert coordinator.queries == ()
    events.add(1)
    query = coordinator.start(stream.writeStream.format("noop"), name="q")
    query.processAllAvailable()
    assert coordinator.checkpoint().result(DEADLINE).batches == {"q": 0}


def test_names_are_taken_once(make: Make, spark: SparkSession, events: Events) -> None:
    coordinator = make()
    one = totals(coordinator, events.stream(spark))
    with pytest.raises(PipelineNameError, match="operator uid 'totals' is taken"):
        totals(coordinator, events.stream(spark))
    coordinator.start(one.writeStream.format("noop"), name="q")
    with pytest.raises(PipelineNameError, match="query name 'q' is taken"):
        coordinator.start(events.stream(spark).writeStream.format("noop"), name="q")
    # The same operator in two queries would have two batches of one number.
    with pytest.raises(PipelineNameError, match="operator uid 'totals' is taken"):
        coordinator.start(one.writeStream.format("noop"), name="other")
    with pytest.raises(InvalidNameError):
        coordinator.start(events.stream(spark).writeStream.format("noop"), name="../up")
    another = make("another")
    with pytest.raises(WriterError, match="perhaps of another pipeline"):
        another.start(events.stream(spark).writeStream.format("noop"), name="q")
    with pytest.raises(PipelineNameError, match="does not know"):
        another.start(one.writeStream.format("noop"), name="other")
    another.start(events.stream(spark).writeStream.format("noop").queryName("its own"), name="q")


def test_an_operator_that_cannot_be_is_refused_before_anything_runs(
    make: Make, spark: SparkSession, events: Events
) -> None:
    class NeedsAnInterval(Totals):
        def init(self, handle: Any) -> None:
            handle.getListState("list", "v interval year")

    coordinator = make()
    stream = events.stream(spark)
    wrong: list[tuple[dict[str, Any], type[ChandyError], str]] = [
        ({"key": ["missing"]}, DefinitionError, "among the columns"),
        ({"shards": 0}, DefinitionError, "argument shards"),
        ({"shards": 4, "parallelism": 5}, DefinitionError, "argument parallelism"),
        ({"shards": 4, "parallelism": 0}, DefinitionError, "argument parallelism"),
        ({"shards": 4, "parallelism": 2.0}, DefinitionError, "argument parallelism"),
        ({"shards": "4"}, DefinitionError, "argument shards"),
        ({"processor": Totals}, DefinitionError, "the class Totals"),
        ({"processor": NeedsAnInterval()}, DefinitionError, "a type that a state cannot hold"),
        ({"output": "not a schema"}, ChandyError, "cannot read as DDL"),
        ({"uid": ""}, InvalidNameError, "operator uid"),
        (
            {"key": "k"},
            DefinitionError,
            "argument key: expected a list of at least one column name, found 'k'",
        ),
        ({"key": F.col("k")}, DefinitionError, "argument key: expected a list"),
        (
            {"key": [F.col("k")]},
            DefinitionError,
            "argument key: expected names of columns, found Column<'k'>",
        ),
        ({"time_mode": "EventTime"}, DefinitionError, r"argument time_mode: .*withWatermark"),
    ]
    for arguments, error, says in wrong:
        with pytest.raises(error, match=says):
            totals(coordinator, stream, **arguments)
    for by in ("k", ["missing"], [F.col("k")]):
        with pytest.raises(DefinitionError, match="argument by: "):
            coordinator.aggregate(stream, by=by, uid="totals", n=("*", "count"))  # type: ignore[arg-type]
    batch = spark.createDataFrame([("a", 1)], EVENTS)
    for df, says in ((batch, "found a batch DataFrame"), (stream.groupBy("k"), "found a grouped one")):
        with pytest.raises(DefinitionError, match=f"argument df: expected a streaming DataFrame, {says}"):
            totals(coordinator, df)
        with pytest.raises(DefinitionError, match=says):
            coordinator.aggregate(df, by=["k"], uid="totals", n=("*", "count"))  # type: ignore[arg-type]
    with pytest.raises(
        DefinitionError, match="argument initial_state: expected a DataFrame with the key column 'k'"
    ):
        totals(coordinator, stream, initial_state=batch.withColumnRenamed("k", "key"))
    with pytest.raises(DefinitionError, match="cannot be grouped by key column 'k'"):
        totals(coordinator, stream.selectExpr("map(k, v) as k", "v"))
    # The column with the watermark need not be there.
    timed = stream.withColumn("t", F.current_timestamp()).withWatermark("t", "1 second").drop("t")
    totals(coordinator, timed, uid="timed", time_mode="EventTime")
    with pytest.raises(DefinitionError, match=r"argument event_time_column: .* found columns k, v"):
        totals(coordinator, timed, time_mode="EventTime", event_time_column="total")
    # None of the refused has taken the uid.
    totals(coordinator, stream)


def test_an_operator_below_a_union_or_a_coalesce_is_refused_unless_shuffled(
    make: Make, spark: SparkSession, events: Events
) -> None:
    coordinator = make()
    out = totals(coordinator, events.stream(spark))
    other = totals(coordinator, events.stream(spark), uid="other")
    for merged in (out.union(other), out.where("n > 0").coalesce(1)):
        with pytest.raises(WriterError, match="union or coalesce"):
            coordinator.start(merged.writeStream.format("noop"), name="q")
    events.add(1)
    shuffled = out.repartition(2).union(other.repartition(2))
    coordinator.start(shuffled.writeStream.format("noop"), name="q").processAllAvailable()
    assert coordinator.checkpoint().result(DEADLINE).shards == 8


def test_a_checkpoint_that_does_not_fit_the_pipeline_is_refused(
    make: Make, spark: SparkSession, events: Events, checkpointed: Path
) -> None:
    class OtherSchema(Totals):
        def init(self, handle: Any) -> None:
            self.state = handle.getValueState("totals", "n string, total long")

    coordinator = make()
    stream = events.stream(spark)
    with pytest.raises(RestoreError) as caught:
        totals(coordinator, stream, shards=8)
    assert (caught.value.expected, caught.value.found) == ("4 shards", "8")
    with pytest.raises(RestoreError, match="key columns"):
        totals(coordinator, stream, key=["v"])
    with pytest.raises(StateSchemaError):
        totals(coordinator, stream, processor=OtherSchema())
    with pytest.raises(RestoreError, match="dropped_state") as refused:
        coordinator.start(stream.writeStream.format("noop"), name="totals")
    out = totals(coordinator, stream)
    with pytest.raises(RestoreError, match="part of query 'totals'"):
        coordinator.start(out.writeStream.format("noop"), name="another")
    # Its checkpoint can be restored all the same.
    events.add(1)
    coordinator.start(out.writeStream.format("noop"), name="totals").processAllAvailable()
    assert coordinator.checkpoint().result(DEADLINE).batches == {"totals": 1}
    coordinator.stop()
    # State may be left behind by those who say so; a query that is new then starts empty.
    permit = printed(refused.value)
    with pytest.raises(RestoreError, match="dropped_state") as refused:
        # It was for the checkpoint before.
        make(permit=permit).start(stream.writeStream.format("noop"), name="totals")
    permit = printed(refused.value)
    lenient = make(permit=permit)
    lenient.start(stream.writeStream.format("noop"), name="totals").processAllAvailable()


def newer(manifest: bytes) -> bytes:
    """What this version cannot read, in a schema that it does not know."""
    return manifest.replace(b'{"manifest":{', b'{"manifest":{"since":9,', 1).replace(
        b'"schema":1', b'"schema":9'
    )


def damaged(manifest: bytes) -> bytes:
    return manifest.replace(b'"totals"', b'"totale"', 1)


UNREADABLE: list[tuple[Callable[[bytes], bytes], type[ChandyError]]] = [
    (newer, SchemaTooNewError),
    (lambda manifest: manifest[: len(manifest) // 2], DamagedError),
    (lambda manifest: b"", DamagedError),
    (damaged, DamagedError),
]


def test_what_is_to_be_restored_must_be_there_and_readable_and_nothing_older_is_taken_silently(
    make: Make, checkpointed: Path, tmp_path: Path
) -> None:
    for restore in (7, "7", str(tmp_path / "nothing")):
        with pytest.raises(NothingHereError):
            make(restore=restore)
    manifest = checkpointed.read_bytes()
    for change, error in UNREADABLE:
        checkpointed.write_bytes(change(manifest))
        with pytest.raises(error, match="checkpoints/1/manifest"):
            make()
    checkpointed.write_bytes(manifest)
    assert make(restore="1").restored is not None


def test_damaged_state_is_found_and_the_query_does_not_go_on(
    make: Make, spark: SparkSession, events: Events, checkpointed: Path
) -> None:
    for pack in checkpointed.parent.glob("*.pack"):
        content = bytearray(pack.read_bytes())
        content[len(content) // 2] ^= 1
        pack.write_bytes(bytes(content))
    coordinator = make()
    out = totals(coordinator, events.stream(spark))
    with pytest.raises(DamagedError):
        coordinator.start(out.writeStream.format("noop"), name="totals")


@pytest.mark.usefixtures("no_s3_keys")
def test_storage_and_settings_that_cannot_be_used_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(StoreFailedError, match="give credentials by AWS_ACCESS_KEY_ID"):
        CheckpointCoordinator(spark, pipeline="p", storage="s3://bucket/prefix?region=nowhere")
    with pytest.raises(InvalidPlaceError, match="carrier-pigeon"):
        CheckpointCoordinator(spark, pipeline="p", storage="carrier-pigeon://loft")
    with pytest.raises(InvalidNameError):
        CheckpointCoordinator(spark, pipeline="a/b", storage=str(tmp_path))
    with pytest.raises(ConfigError, match=r"CheckpointConfig\.interval"):
        CheckpointConfig(interval="soon")


def test_a_savepoint_needs_a_place_that_is_free(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    events.add(1)
    coordinator = make()
    coordinator.start(events.stream(spark).writeStream.format("noop"), name="q").processAllAvailable()
    with pytest.raises(ArgumentError, match=r"CheckpointConfig\.savepoints"):
        coordinator.savepoint()
    with pytest.raises(InvalidPlaceError):
        coordinator.savepoint("carrier-pigeon://loft/s")
    coordinator.savepoint("one").result(DEADLINE)
    with pytest.raises(ChandyError, match="new or empty folder"):
        coordinator.savepoint("one").result(DEADLINE)
    # The one that was there is as it was.
    assert make("other", restore=str(tmp_path / "store" / "p" / "savepoints" / "one")).restored is not None


def test_an_output_with_a_log_of_other_batches_is_refused_by_a_query_that_begins_anew(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    events.add(1)
    first = make()
    writer = events.stream(spark).writeStream.format("parquet").option("path", str(tmp_path / "out"))
    first.start(writer, name="q").processAllAvailable()
    first.stop()
    with pytest.raises(RestoreError, match="that of query 'q' of pipeline 'p'"):
        make("other").start(writer, name="q")
    assert spark.read.parquet(str(tmp_path / "out")).count() == 40


class WrongType(Totals):
    """Puts a text where a number belongs."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        self.state.update(("many", 1))
        yield Row(k=key[0], n=1, total=1)


def test_a_state_value_of_the_wrong_type_names_operator_state_and_field(
    make: Make, spark: SparkSession, events: Events
) -> None:
    events.add(1)
    coordinator = make()
    out = totals(coordinator, events.stream(spark), processor=WrongType())
    query = coordinator.start(out.writeStream.format("noop"), name="q")
    with pytest.raises(ProcessorFailedError) as caught:
        query.awaitTermination(DEADLINE)
    for fact in ("StateTypeError", "totals", "'n'", "many"):
        assert fact in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "parallelism", "taken", "told"),
    [
        pytest.param(60_000, 1, 1, "stopped early", id="a task is left before its end"),
        pytest.param(
            *(1_000, 2, 1, "stopped early"),
            marks=pytest.mark.full(
                "integration/test_bad_input.py::test_a_sink_that_takes_only_some_rows_of_a_batch_fails_before_state_is_lost"
            ),
            id="a task is not begun, for the other had rows enough",
        ),
        pytest.param(1, 2, 0, r"BatchSkippedError.*batch 0.*'totals'.*raise", id="no task is begun"),
    ],
)
def test_a_sink_that_takes_only_some_rows_of_a_batch_fails_before_state_is_lost(
    make: Make, spark: SparkSession, events: Events, rows: int, parallelism: int, taken: int, told: str
) -> None:
    def peek(df: DataFrame, batch: int) -> None:
        if taken:
            df.limit(taken).collect()

    events.add(2, rows=rows)
    coordinator = make()
    rows_by_key = events.stream(spark).selectExpr("concat(k, v) as k", "v")
    out = totals(coordinator, rows_by_key, parallelism=parallelism)
    query = coordinator.start(out.writeStream.foreachBatch(peek), name="q")
    with pytest.raises(QueryFailedError, match=told):
        query.awaitTermination(DEADLINE)


def test_a_coordinator_that_has_stopped_says_so(make: Make, spark: SparkSession, events: Events) -> None:
    coordinator = make()
    coordinator.stop()
    coordinator.stop()
    for call in (
        coordinator.checkpoint,
        lambda: coordinator.savepoint("s"),
        lambda: coordinator.stop(savepoint="s"),
        lambda: totals(coordinator, events.stream(spark)),
        lambda: coordinator.start(events.stream(spark).writeStream.format("noop"), name="q"),
    ):
        with pytest.raises(CoordinatorStoppedError):
            call()
