"""A driver of the demo of Kafka, in a process of its own: ``python -m benchmarks.kafka_demo.driver``.

It prints events as lines of JSON on stdout. The output of Spark goes to stdout and stderr as well.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
from pyspark.sql import SparkSession

from chandy import CheckpointConfig, CheckpointCoordinator, KafkaSink, PostgresSink
from chandy.coordinator import CheckpointedQuery
from chandy.storage import codec

from ..lives import say
from ..watching import FAILED
from .flow import COPY, OUTPUT, PIPELINE, QUERY, TOTALS, Count, Places, stream

_POLL_SECONDS: Final = 0.1
_STOP: Final = "3 min"
"""How long the last checkpoint may take."""


class QueryEndedError(Exception):
    """The query ended before the end of its input."""


@click.command()
@click.argument("places", type=click.Path(path_type=Path, exists=True))
def main(places: Path) -> None:
    """Run the pipeline to the end of the stream that a file describes."""
    say("process")
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    try:
        _run(codec.from_json(Places, places.read_bytes()))
    except Exception as error:
        say(FAILED, why=f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")
        raise


def session(places: Places) -> SparkSession:
    """Start Spark with two cores. It writes only into the demo's folder."""
    scratch = places.folder / "spark"
    return (
        SparkSession.builder.master("local[2]")
        .appName("Chandy demo with Kafka")
        .config("spark.jars", ",".join(places.jars))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.noDataProgressEventInterval", "1s")
        .config("spark.local.dir", str(scratch))
        .config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={scratch}")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .getOrCreate()
    )


def _run(places: Places) -> None:
    (places.folder / "spark").mkdir(exist_ok=True)
    spark = session(places)
    spark.sparkContext.setLogLevel("ERROR")
    say("session")
    config = CheckpointConfig(interval="3 s", cache_dir=str(places.folder / "cache"))
    coordinator = CheckpointCoordinator(spark, pipeline=PIPELINE, storage=places.storage, config=config)
    restored = coordinator.restored
    say("coordinator", restored=restored.id if restored else None)
    totals = coordinator.transform_with_state(
        stream(spark, places), key=["aircraft"], processor=Count(), output=OUTPUT, uid=QUERY
    )
    rows = totals.selectExpr("aircraft AS key", "to_json(struct(*)) AS value")
    sinks = (
        KafkaSink(bootstrap_servers=places.kafka, topic=TOTALS, uid="kafka"),
        PostgresSink(conninfo=places.postgres, table=TOTALS, uid="postgres"),
    )
    query = coordinator.start(rows.writeStream, sink=sinks, name=QUERY)
    say("query", guarantee=str(query.guarantee), in_place=coordinator.recoveries[0].in_place)
    _replicate(coordinator, places)
    told: set[int] = set()
    for done in _positions(query, places.flights):
        if done is not None:
            say("batch", flights=done)
        _tell_checkpoints(coordinator, told)
    coordinator.checkpoint().result()
    say("copies")
    for replica in coordinator.replicas:
        replica.catch_up(_STOP)
    last = coordinator.stop(timeout=_STOP)
    _tell_checkpoints(coordinator, told)
    say("stopped", checkpoint=last.id if last else None)
    spark.stop()


def _replicate(coordinator: CheckpointCoordinator, places: Places) -> None:
    """Keep copies of the state in a compacted topic and in a table."""
    topic = KafkaSink(bootstrap_servers=places.kafka, topic=COPY, uid="kafka-copy")
    coordinator.replicate(QUERY, to=topic, name="topic")
    table = PostgresSink(
        conninfo=places.postgres,
        table=COPY,
        mode="upsert",
        key=("aircraft",),
        deleted="_deleted",
        uid="postgres-copy",
    )
    coordinator.replicate(QUERY, to=table, name="table")


def _positions(query: CheckpointedQuery, flights: int) -> Iterator[int | None]:
    """Yield how many flights have been read until all are, and None while there is no progress.

    Raises:
        QueryEndedError: the query ended before that.
    """
    done = 0
    while done < flights:
        if not query.isActive:
            raise QueryEndedError(f"after {done:,} flights: {query.exception()}")
        read = flights_read(query.lastProgress)
        if read > done:
            done = read
            yield done
        else:
            time.sleep(_POLL_SECONDS)
            yield None


def flights_read(report: Any) -> int:
    """Return how many records of its topic a query's progress has read. Each takes one offset, from 0 on."""
    if report is None:
        return 0
    offsets = report["sources"][0]["endOffset"]
    if not offsets:
        return 0
    topics = json.loads(offsets) if isinstance(offsets, str) else offsets
    return sum(offset for partitions in topics.values() for offset in partitions.values())


def _tell_checkpoints(coordinator: CheckpointCoordinator, told: set[int]) -> None:
    for one in reversed(coordinator.statistics().checkpoints):
        if one.completed_at is not None and one.id not in told:
            told.add(one.id)
            say("checkpoint", id=one.id, status=str(one.status), seconds=one.duration)


if __name__ == "__main__":
    main()
