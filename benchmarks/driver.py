"""One life of the demo's driver, in a process of its own: ``python -m benchmarks.driver``.

It tells what happens as lines of JSON on stdout; Spark's own noise goes there and to stderr.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from chandy.coordinator import (
    CheckpointConfig,
    CheckpointCoordinator,
    CheckpointedQuery,
    RecoveryMetrics,
)
from chandy.state import read_state
from chandy.storage.open import pipeline_uri

from . import flights
from .lives import say

PIPELINE, QUERY, UID = "flights", "delays", "delays"
SAVEPOINT = "three-quarters"
SHARDS = 16
_POLL_SECONDS = 0.1
_DEADLINE_SECONDS = 300.0


@attrs.frozen
class Work:
    """What is where in the demo's folder."""

    root: Path
    storage: str
    """URI where checkpoints go."""

    @property
    def days(self) -> Path:
        """The input, a file a day."""
        return self.root / "flights"

    @property
    def output(self) -> Path:
        """What the query writes."""
        return self.root / "delays"

    @property
    def spark(self) -> Path:
        """Where Spark keeps what lives as long as it does."""
        return self.root / "spark"


def session(work: Work) -> SparkSession:
    """Start Spark with two cores, all that it writes inside of the demo's folder."""
    return (
        SparkSession.builder.master("local[2]")
        .appName("Chandy demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.local.dir", str(work.spark))
        .config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={work.spark}")
        .config("spark.sql.warehouse.dir", str(work.spark / "warehouse"))
        .getOrCreate()
    )


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
@click.option("--days-per-batch", type=int, required=True)
@click.option("--batches", type=int, required=True, help="How many there are in the whole stream.")
@click.option("--storage", required=True, help="URI where checkpoints go.")
@click.option("--checkpoint-at", type=int, help="Take a checkpoint by hand after this batch.")
@click.option("--savepoint-at", type=int, help="Take a savepoint after this batch.")
def main(
    folder: Path,
    days_per_batch: int,
    batches: int,
    storage: str,
    checkpoint_at: int | None,
    savepoint_at: int | None,
) -> None:
    """Run the pipeline from its latest checkpoint to the end of the stream, then check the result."""
    say("process")
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    work = Work(folder, storage)
    spark = session(work)
    spark.sparkContext.setLogLevel("ERROR")
    say("session")
    config = CheckpointConfig(interval="3 s", initial_delay="5 s", cache_dir=str(work.root / "cache"))
    with CheckpointCoordinator(spark, pipeline=PIPELINE, storage=work.storage, config=config) as coordinator:
        restored = coordinator.restored
        say(
            "coordinator",
            restored=restored.id if restored else None,
            batch=restored.batches[QUERY] if restored else None,
        )
        totals = coordinator.transform_with_state(
            flights.stream(spark, work.days, days_per_batch),
            key=[flights.KEY],
            processor=flights.AircraftDelays(),
            output=flights.OUTPUT,
            uid=UID,
            shards=SHARDS,
        )
        writer = totals.writeStream.outputMode("append").format("parquet").option("path", str(work.output))
        query = coordinator.start(writer, name=QUERY)
        say("query", guarantee=str(query.guarantee), in_place=coordinator.recoveries[0].in_place)
        told: set[int] = set()
        for batch in _batches(query, batches):
            if batch is not None:
                say("batch", batch=batch)
            if checkpoint_at is not None and batch is not None and batch >= checkpoint_at:
                checkpoint_at = None
                coordinator.checkpoint()
            if savepoint_at is not None and batch is not None and batch >= savepoint_at:
                savepoint_at = None
                coordinator.savepoint(SAVEPOINT)
            _tell_checkpoints(coordinator, told)
        last = coordinator.checkpoint().result(timeout=60)
        _tell_checkpoints(coordinator, told)
        _tell_recovery(coordinator.recoveries[0])
    say("stopped")
    _tell_result(spark, work, last.id)
    spark.stop()


def _batches(query: CheckpointedQuery, count: int) -> Iterator[int | None]:
    """Yield each newest batch that has committed, up to the last; None when there is none newer."""
    newest, deadline = -1, time.monotonic() + _DEADLINE_SECONDS
    while newest < count - 1:
        if not query.isActive:
            raise RuntimeError(f"The query ended at batch {newest} of {count}") from query.exception()
        if time.monotonic() > deadline:
            raise TimeoutError(f"The query is at batch {newest} of {count} after {_DEADLINE_SECONDS:g} s")
        progress = query.lastProgress
        # An idle query reports, too, and with the number of the batch that will be next.
        if progress is not None and progress["numInputRows"] > 0 and progress["batchId"] > newest:
            newest = progress["batchId"]
            yield newest
        else:
            time.sleep(_POLL_SECONDS)
            yield None


def _tell_checkpoints(coordinator: CheckpointCoordinator, told: set[int]) -> None:
    for one in reversed(coordinator.statistics().checkpoints):
        if one.completed_at is not None and one.id not in told:
            told.add(one.id)
            say(
                "checkpoint",
                id=one.id,
                kind=str(one.kind),
                status=str(one.status),
                seconds=one.duration,
                size=one.size,
                new_bytes=one.new_bytes,
                shards=len(one.shards),
                reason=None if one.reason is None else str(one.reason),
            )


def _tell_recovery(recovery: RecoveryMetrics) -> None:
    say("recovery", **attrs.asdict(recovery))


# --- the check ----------------------------------------------------------------------------------------------


def _tell_result(spark: SparkSession, work: Work, checkpoint: int) -> None:
    """Compare what the pipeline wrote and what it holds with what a plain batch job says."""
    columns = ("flights", "departed", "total_delay", "worst_delay", "mean_delay")
    given = spark.read.schema(flights.INPUT).parquet(str(work.days))
    expected = _by_aircraft(flights.batch_answer(given), columns)
    written = spark.read.schema(flights.OUTPUT).parquet(str(work.output))
    rows = written.count()
    # The count of flights grows with each row of an aircraft, so no two rows may have the same one.
    repeated = rows - written.select(flights.KEY, "flights").distinct().count()
    # By name: max over structs compares their first field, flights, first.
    last = written.groupBy(flights.KEY).agg(F.max(F.struct(*columns)).alias("last"))
    final = _by_aircraft(last.select(flights.KEY, "last.*"), columns)
    held = read_state(spark, pipeline_uri(work.storage, PIPELINE), checkpoint, UID, "totals")
    state = _by_aircraft(held, columns[:-1])
    say(
        "result",
        aircraft=len(expected),
        flights=sum(values[0] for values in expected.values()),
        without_number=expected[None][0],
        cancelled=sum(values[0] - values[1] for values in expected.values()),
        rows=rows,
        repeated=repeated,
        sink_differs=_differences(expected, final),
        checkpoint=checkpoint,
        state_differs=_differences({key: values[:-1] for key, values in expected.items()}, state),
        worst=_worst(final),
    )


Values = dict[str | None, tuple[Any, ...]]


def _by_aircraft(answer: DataFrame, columns: tuple[str, ...]) -> Values:
    return {row[flights.KEY]: tuple(row[name] for name in columns) for row in answer.collect()}


def _differences(expected: Values, found: Values) -> list[tuple[str | None, Any, Any]]:
    """Return (aircraft, expected, found) wherever the two are not identical; None for one that is missing."""
    return [
        (key, expected.get(key), found.get(key))
        for key in sorted(expected.keys() | found.keys(), key=str)
        if expected.get(key) != found.get(key)
    ]


def _worst(final: Values, count: int = 5) -> list[tuple[str | None, tuple[Any, ...]]]:
    """Return the aircraft with the highest mean delay, of those with at least 100 departures."""
    known = [(key, values) for key, values in final.items() if values[1] >= 100]
    return sorted(known, key=lambda item: item[1][4], reverse=True)[:count]


if __name__ == "__main__":
    main()
