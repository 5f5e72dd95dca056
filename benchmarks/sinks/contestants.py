"""The contestants: Chandy's transactional sinks, and what Spark and Flink have for the same targets."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from chandy import (
    CheckpointConfig,
    CheckpointCoordinator,
    DeltaSink,
    FilesSink,
    IcebergSink,
    KafkaSink,
    PostgresSink,
    TwoPhaseSink,
)

from . import flink
from .figures import EACH_BATCH
from .servers import Servers
from .targets import DeltaTable, Files, IcebergTable, Table, Target, Topic

KEYS: Final = 100_000
"""Keys of the tables that are upserted: each is written again after so many rows."""
PARTITIONS: Final = 3
"""Of a topic."""
_STOP: Final = "30 s"


@attrs.frozen
class Place:
    """Where one turn of a contestant writes."""

    servers: Servers
    folder: Path
    is_counted: bool
    """Whether rows come as fast as they can: marks are then numbers of rows."""
    rows_per_second: int
    """How many rows there are otherwise, a second at a time."""
    name: str = attrs.field(factory=lambda: f"rows_{uuid.uuid4().hex[:8]}")
    """A new table or topic."""

    def table(self, keys: int | None = None, parts: int = 1) -> Table:
        """Make a table of PostgreSQL."""
        table = Table(self.servers.postgres, self.name, keys, parts)
        table.create()
        return table

    def topic(self) -> Topic:
        """Make a topic."""
        assert self.servers.kafka is not None
        topic = Topic(self.servers.kafka, self.name, PARTITIONS, self.is_counted)
        topic.create()
        return topic


@attrs.frozen
class Contestant:
    """A sink with its setting."""

    name: str
    visible: str
    """When rows become visible: with a checkpoint each so many seconds, or with each batch."""
    guarantee: str
    seconds: int
    """The interval, or 0."""
    running: Callable[[SparkSession, DataFrame, Place], contextlib.AbstractContextManager[Target]]
    """Runs a query with rows ``k``, ``mark`` and ``payload`` for the duration of a context."""


def contestants(servers: Servers, intervals: Sequence[int]) -> list[Contestant]:
    """Return the contestants that can run here, in the order of the report."""
    found = [
        _chandy(name, make, interval) for name, make in _sinks(servers).items() for interval in intervals
    ]
    found.append(_chandy("PostgresSink, upsert", _postgres_batch, None))
    least = "at least once"
    if servers.jars and servers.kafka is not None:
        found.append(Contestant("Spark's Kafka sink", EACH_BATCH, least, 0, _spark_kafka))
    if servers.kafka is not None:
        found += [_flink_kafka(interval) for interval in intervals]
    found.append(Contestant("Spark's file sink", EACH_BATCH, "exactly once", 0, _spark_files))
    if servers.jars:
        found.append(Contestant("Spark foreachBatch with JDBC", EACH_BATCH, least, 0, _spark_jdbc))
    else:
        found.append(Contestant("Spark foreachBatch with psycopg", EACH_BATCH, least, 0, _spark_psycopg))
    return found


# --- Chandy -------------------------------------------------------------------------------------------------

Made = tuple[TwoPhaseSink, DataFrame, Target]
"""A sink, the rows in its form, and where they go."""
Make = Callable[[DataFrame, Place], Made]


def _sinks(servers: Servers) -> dict[str, Make]:
    kafka: dict[str, Make] = {"KafkaSink": _kafka} if servers.kafka is not None else {}
    return kafka | {
        "PostgresSink, append": _postgres_append,
        "PostgresSink, upsert": _postgres_upsert,
        "FilesSink, Parquet": _files,
        "DeltaSink, append": _delta,
        "IcebergSink, append": _iceberg,
    }


def _chandy(name: str, make: Make, interval: int | None) -> Contestant:
    @contextlib.contextmanager
    def running(spark: SparkSession, rows: DataFrame, place: Place) -> Iterator[Target]:
        sink, frame, target = make(rows, place)
        # So that what is written and what is published keep the same pace.
        os.environ.update(CHANDY_MAX_UNPUBLISHED="2", CHANDY_INITIAL_DELAY="1")
        config = CheckpointConfig(
            interval=f"{interval or 10} s",
            cache_dir=str(place.folder / "cache"),
        )
        storage = str(place.folder / "storage")
        # A target knows its writer by the pipeline's name.
        coordinator = CheckpointCoordinator(spark, pipeline=place.name, storage=storage, config=config)
        try:
            query = coordinator.start(frame.writeStream, sink=sink, name="rows")
            yield target
            if query.exception() is not None:
                raise RuntimeError(f"the query has failed: {query.exception()}")
        finally:
            coordinator.stop(timeout=_STOP, checkpoint=False)

    visible, level = (
        ("each batch", "at least once") if interval is None else (f"{interval} s", "exactly once")
    )
    return Contestant(f"Chandy {name}", visible, level, interval or 0, running)


def _kafka(rows: DataFrame, place: Place) -> Made:
    topic = place.topic()
    sink = KafkaSink(bootstrap_servers=topic.servers, topic=topic.name)
    return sink, _messages(rows), topic


def _messages(rows: DataFrame) -> DataFrame:
    return rows.select(
        F.col("k").cast("string").alias("key"), F.concat_ws(",", "k", "mark", "payload").alias("value")
    )


def _postgres_append(rows: DataFrame, place: Place) -> Made:
    table = place.table()
    return PostgresSink(conninfo=table.conninfo, table=table.name), rows, table


def _postgres_upsert(rows: DataFrame, place: Place) -> Made:
    table = place.table(KEYS)
    sink = PostgresSink(conninfo=table.conninfo, table=table.name, mode="upsert", key="k")
    return sink, rows.withColumn("k", F.expr(f"k % {KEYS}")), table


def _postgres_batch(rows: DataFrame, place: Place) -> Made:
    sink, rows, table = _postgres_upsert(rows, place)
    assert isinstance(sink, PostgresSink)
    return attrs.evolve(sink, publish="batch"), rows, table


def _files(rows: DataFrame, place: Place) -> Made:
    path = str(place.folder / "out")
    return FilesSink(path), rows, Files(path)


def _delta(rows: DataFrame, place: Place) -> Made:
    path = str(place.folder / "out")
    return DeltaSink(path), rows, DeltaTable(path)


def _iceberg(rows: DataFrame, place: Place) -> Made:
    table = IcebergTable(str(place.folder))
    return IcebergSink(table.catalog, table.name), rows, table


# --- Spark --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _started(writer: Any, place: Place) -> Iterator[None]:
    query = writer.option("checkpointLocation", str(place.folder / "checkpoint")).start()
    try:
        yield
        if query.exception() is not None:
            raise RuntimeError(f"the query has failed: {query.exception()}")
    finally:
        query.stop()


@contextlib.contextmanager
def _spark_kafka(spark: SparkSession, rows: DataFrame, place: Place) -> Iterator[Target]:
    topic = place.topic()
    writer = _messages(rows).writeStream.format("kafka").option("kafka.bootstrap.servers", topic.servers)
    with _started(writer.option("topic", topic.name), place):
        yield topic


@contextlib.contextmanager
def _spark_files(spark: SparkSession, rows: DataFrame, place: Place) -> Iterator[Target]:
    path = str(place.folder / "out")
    with _started(rows.writeStream.format("parquet").option("path", path), place):
        yield Files(path)


@contextlib.contextmanager
def _spark_jdbc(spark: SparkSession, rows: DataFrame, place: Place) -> Iterator[Target]:
    # Each partition of a batch is a transaction of its own.
    table = place.table(parts=2)
    options = {"driver": "org.postgresql.Driver", "batchsize": "10000"}

    def write(batch: DataFrame, number: int) -> None:
        batch.write.jdbc(place.servers.jdbc, table.name, mode="append", properties=options)

    with _started(rows.writeStream.foreachBatch(write), place):
        yield table


@contextlib.contextmanager
def _spark_psycopg(spark: SparkSession, rows: DataFrame, place: Place) -> Iterator[Target]:
    table = place.table(parts=2)
    conninfo, statement = table.conninfo, f"COPY {table.name} (k, mark, payload) FROM STDIN"

    def copy(some: Iterator[Any]) -> None:
        import psycopg

        with (
            psycopg.connect(conninfo) as connection,
            connection.cursor() as cursor,
            cursor.copy(statement.encode()) as out,
        ):
            for row in some:
                out.write_row(row)

    def write(batch: DataFrame, number: int) -> None:
        batch.foreachPartition(copy)

    with _started(rows.writeStream.foreachBatch(write), place):
        yield table


# --- Flink --------------------------------------------------------------------------------------------------


def _flink_kafka(interval: int) -> Contestant:
    @contextlib.contextmanager
    def running(spark: SparkSession, rows: DataFrame, place: Place) -> Iterator[Target]:
        # It makes rows of its own, which are like those of Spark.
        topic = place.topic()
        rate = None if place.is_counted else place.rows_per_second
        with flink.running(topic, place.folder, interval, rate):
            yield topic

    return Contestant(flink.NAME, f"{interval} s", "exactly once", interval, running)
