"""A driver of the demo, in a process of its own: ``python -m benchmarks.driver``.

It prints events as lines of JSON on stdout. The output of Spark goes to stdout and stderr as well.
"""

from __future__ import annotations

import concurrent.futures
import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from chandy.coordinator import (
    CheckpointConfig,
    CheckpointCoordinator,
    CheckpointedQuery,
    RecoveryMetrics,
)
from chandy.state import read_state
from chandy.storage.backends.open import pipeline_uri

from . import flights
from .file_source import reported_entry
from .lives import say
from .watching import FAILED

PIPELINE, QUERY, UID = "flights", "delays", "delays"
SAVEPOINT = "three-quarters"
SHARDS = 16
_POLL_SECONDS = 0.1
CHECKPOINT_SECONDS = 60.0


@attrs.frozen
class Work:
    """The paths in the demo's folder."""

    root: Path
    storage: str
    """URI where checkpoints go."""

    @property
    def days(self) -> Path:
        """The input, one file for each day."""
        return self.root / "flights"

    @property
    def output(self) -> Path:
        """The output of the query."""
        return self.root / "delays"

    @property
    def spark(self) -> Path:
        """Spark's temporary files."""
        return self.root / "spark"


def session(work: Work) -> SparkSession:
    """Start Spark with two cores. It writes only into the demo's folder."""
    return (
        SparkSession.builder.master("local[2]")
        .appName("Chandy demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        # A query without further input must report its progress soon.
        .config("spark.sql.streaming.noDataProgressEventInterval", "1s")
        .config("spark.local.dir", str(work.spark))
        .config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={work.spark}")
        .config("spark.sql.warehouse.dir", str(work.spark / "warehouse"))
        .getOrCreate()
    )


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
@click.option("--days", type=int, required=True, help="Number of files in the whole stream.")
@click.option("--days-per-batch", type=int, required=True)
@click.option("--storage", required=True, help="URI where checkpoints go.")
@click.option("--checkpoint-after", type=int, help="Take a manual checkpoint after so many days.")
@click.option("--savepoint-after", type=int, help="Take a savepoint after so many days.")
def main(
    folder: Path,
    days: int,
    days_per_batch: int,
    storage: str,
    checkpoint_after: int | None,
    savepoint_after: int | None,
) -> None:
    """Run the pipeline to the end of the stream, then check the result."""
    say("process")
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    try:
        _run(Work(folder, storage), days, days_per_batch, checkpoint_after, savepoint_after)
    except Exception as error:
        say(FAILED, why=first_line(error))
        raise


def _run(
    work: Work, days: int, days_per_batch: int, checkpoint_after: int | None, savepoint_after: int | None
) -> None:
    spark = session(work)
    spark.sparkContext.setLogLevel("ERROR")
    say("session")
    config = CheckpointConfig(interval="3 s", cache_dir=str(work.root / "cache"))
    with CheckpointCoordinator(spark, pipeline=PIPELINE, storage=work.storage, config=config) as coordinator:
        restored = coordinator.restored
        say(
            "coordinator",
            restored=restored.id if restored else None,
            batch=restored.batches[QUERY] if restored else None,
        )
        query = start(coordinator, spark, work, days_per_batch)
        say("query", guarantee=str(query.guarantee), in_place=coordinator.recoveries[0].in_place)
        told: set[int] = set()
        asked = []
        for position in positions(query, days, days_per_batch):
            if position is not None:
                say("batch", batch=position.batch, days=position.days)
            if checkpoint_after is not None and position is not None and position.days >= checkpoint_after:
                checkpoint_after = None
                asked.append(coordinator.checkpoint())
            if savepoint_after is not None and position is not None and position.days >= savepoint_after:
                savepoint_after = None
                asked.append(coordinator.savepoint(SAVEPOINT))
            tell_checkpoints(coordinator, told)
        concurrent.futures.wait(asked, timeout=CHECKPOINT_SECONDS)
        last = coordinator.checkpoint().result(timeout=CHECKPOINT_SECONDS)
        tell_checkpoints(coordinator, told)
        tell_recovery(coordinator.recoveries[0])
    say("stopped")
    tell_result(spark, work, last.id)
    spark.stop()


def start(
    coordinator: CheckpointCoordinator, spark: SparkSession, work: Work, days_per_batch: int
) -> CheckpointedQuery:
    """Start the demo's query."""
    totals = coordinator.transform_with_state(
        flights.stream(spark, work.days, days_per_batch),
        key=[flights.KEY],
        processor=flights.AircraftDelays(),
        output=flights.OUTPUT,
        uid=UID,
        shards=SHARDS,
    )
    writer = totals.writeStream.outputMode("append").format("parquet").option("path", str(work.output))
    return coordinator.start(writer, name=QUERY)


def first_line(error: BaseException) -> str:
    """Return an error as one line: its class and the first line of its message."""
    lines = str(error).strip().splitlines()
    return ": ".join([type(error).__name__, *lines[:1]])


@attrs.frozen
class Position:
    """The progress of the stream."""

    days: int
    """The number of processed days."""
    batch: int
    """The newest batch. Its number does not tell the number of days, see ``file_source``."""


def positions(query: CheckpointedQuery, days: int, days_per_batch: int) -> Iterator[Position | None]:
    """Yield the progress of a stream until all days are processed, and None while there is no progress.

    Raises:
        QueryEndedError: the query ended before that.
    """
    done = 0
    while done < days:
        if not query.isActive:
            cause = query.exception()
            raise QueryEndedError(done, days, cause) from cause
        report = query.lastProgress
        taken = 0 if report is None else min(days, (reported_entry(report) + 1) * days_per_batch)
        if report is not None and taken > done:
            done = taken
            # An idle query reports the number of its next batch.
            yield Position(done, report["batchId"] - (report["numInputRows"] == 0))
        else:
            time.sleep(_POLL_SECONDS)
            yield None


class QueryEndedError(Exception):
    """The query ended before the end of its input."""

    def __init__(self, done: int, days: int, cause: BaseException | None) -> None:
        why = "it was stopped" if cause is None else first_line(cause)
        super().__init__(f"the query ended after {done} of {days} days: {why}")


def tell_checkpoints(coordinator: CheckpointCoordinator, told: set[int]) -> None:
    """Report the checkpoints that have ended and whose ids are not in ``told``, where they are added."""
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


def tell_recovery(recovery: RecoveryMetrics) -> None:
    """Report a recovery."""
    say("recovery", **attrs.asdict(recovery))


# --- the check ----------------------------------------------------------------------------------------------


def tell_result(spark: SparkSession, work: Work, checkpoint: int) -> None:
    """Compare the output and the state of the pipeline with the result of a plain batch job."""
    columns = ("flights", "departed", "total_delay", "worst_delay", "mean_delay")
    given = spark.read.schema(flights.INPUT).parquet(str(work.days))
    expected = _by_aircraft(flights.batch_answer(given), columns)
    written = spark.read.schema(flights.OUTPUT).parquet(str(work.output))
    rows = written.count()
    # The count of flights grows with each row of an aircraft, so equal counts mean a repeated row.
    repeated = rows - written.select(flights.KEY, "flights").distinct().count()
    # max over structs compares their first field first, which is flights.
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
    """Return (aircraft, expected, found) for each difference. None stands for a missing value."""
    return [
        (key, expected.get(key), found.get(key))
        for key in sorted(expected.keys() | found.keys(), key=str)
        if expected.get(key) != found.get(key)
    ]


def _worst(final: Values, count: int = 5) -> list[tuple[str | None, tuple[Any, ...]]]:
    """Return the aircraft with the highest mean delays among those with at least 100 departures."""
    known = [(key, values) for key, values in final.items() if values[1] >= 100]
    return sorted(known, key=lambda item: item[1][4], reverse=True)[:count]


if __name__ == "__main__":
    main()
