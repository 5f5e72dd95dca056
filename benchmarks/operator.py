"""Rows a second of the demo's operator, beside PySpark's own ``transformWithState``: ``python -m benchmarks.operator``.

Three contestants run the very same processor class over the same stream, on two cores in one Spark session:

* Chandy with a checkpoint every five seconds,
* Chandy without checkpoints,
* PySpark's ``transformWithState`` on RocksDB with its changelog, the fastest that it has.

A batch is one day of the flights, once for each of many fleets with aircraft of their own: about 1.3 rows a
key, as a real day has. That is where state costs most. With few keys and many rows for each of them, Spark's
own time for a batch and for its rows weighs more, and the contestants come closer: the goal is not claimed
there. Batches are the very same files for all three; PySpark's stream is only shorter,
to end in time. All have two tasks, write to the ``noop`` sink, and write their logs without forking
processes, which Chandy chooses by itself. The figure is that of a stream that has warmed up: rows of all
batches but the first ones, divided by the time from the start of the first to the end of the last of them.
Contestants take turns in several rounds. What counts is the median of the rounds' own ratios, since a
machine's pace drifts from one round to the next.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from statistics import median
from typing import Any, Self

import attrs
import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator

from . import flights
from .chart import bars
from .lives import await_hosts, runtime

FASTER_THAN_PYSPARK = 10.0
"""Goal: how many times the rows a second of PySpark's operator, checkpoints included."""
KEPT_WITH_CHECKPOINTS = 0.95
"""Goal: the part of the rows a second that checkpoints leave."""
FILES_PER_BATCH = 2
"""One for each core to read."""
PLAIN_WIDTH = 120
"""Columns of the table where there is no terminal."""
RESULTS = Path(__file__).resolve().parent / "results"

CHECKPOINTS, BARE, PYSPARK = (
    "Chandy, a checkpoint every 5 s",
    "Chandy, no checkpoints",
    "PySpark transformWithState",
)


@attrs.frozen
class Stream:
    """The measured part of one stream."""

    contestant: str
    rows: int
    seconds: float
    batches: int
    checkpoints: int = 0
    """Completed in the whole stream."""

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds


@attrs.frozen
class Input:
    """Folders with the stream's files."""

    long: Path
    short: Path
    warm_up: int
    """Batches at the beginning of a stream that do not count."""


def measured(contestant: str, progress: Sequence[Any], warm_up: int, checkpoints: int = 0) -> Stream:
    """Cut the warm-up off a stream's progress reports.

    Args:
        contestant: whose stream it was.
        progress: Spark's reports, one a batch, in order.
        warm_up: batches that do not count.
        checkpoints: how many completed.
    """
    counted = [one for one in progress if one["numInputRows"] > 0][warm_up:]
    begin = datetime.datetime.fromisoformat(counted[0]["timestamp"])
    last = datetime.datetime.fromisoformat(counted[-1]["timestamp"])
    end = last + datetime.timedelta(milliseconds=counted[-1]["durationMs"]["triggerExecution"])
    rows = sum(one["numInputRows"] for one in counted)
    return Stream(contestant, rows, (end - begin).total_seconds(), len(counted), checkpoints)


def session(folder: Path) -> SparkSession:
    """Start Spark with two cores, all that it writes inside of the folder."""
    # PySpark takes the python3 of the PATH, which need not be this one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    streaming = "org.apache.spark.sql.execution.streaming"
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(folder / "spark"))
        .config("spark.sql.warehouse.dir", str(folder / "spark" / "warehouse"))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .config(
            "spark.sql.streaming.stateStore.providerClass", f"{streaming}.state.RocksDBStateStoreProvider"
        )
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        .config(
            "spark.sql.streaming.checkpointFileManagerClass",
            f"{streaming}.checkpointing.FileSystemBasedCheckpointFileManager",
        )
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class Contest:
    """The contestants over one input; each stream has folders of its own."""

    def __init__(self, spark: SparkSession, given: Input, folder: Path) -> None:
        self._spark = spark
        self._given = given
        self._folder = folder
        self._streams = 0

    def run(self, contestant: str, files: Path | None = None) -> Stream:
        """Run one stream to its end."""
        self._streams += 1
        folder = self._folder / str(self._streams)
        folder.mkdir()
        try:
            if contestant == PYSPARK:
                return self._pyspark(files or self._given.short, folder)
            interval = "5 s" if contestant == CHECKPOINTS else None
            return self._chandy(contestant, interval, files or self._given.long, folder)
        finally:
            shutil.rmtree(folder)

    def _chandy(self, contestant: str, interval: str | None, files: Path, folder: Path) -> Stream:
        config = CheckpointConfig(interval=interval, cache_dir=str(self._folder / "cache"))
        with CheckpointCoordinator(
            self._spark, pipeline="benchmark", storage=str(folder / "storage"), config=config
        ) as coordinator:
            totals = coordinator.transform_with_state(
                flights.stream(self._spark, files, FILES_PER_BATCH),
                key=[flights.KEY],
                processor=flights.AircraftDelays(),
                output=flights.OUTPUT,
                uid="delays",
            )
            writer = totals.writeStream.format("noop").outputMode("append").trigger(availableNow=True)
            query = coordinator.start(writer, name="delays")
            query.awaitTermination()
            completed = coordinator.statistics().counts.completed
            return measured(contestant, query.recentProgress, self._given.warm_up, completed)

    def _pyspark(self, files: Path, folder: Path) -> Stream:
        totals: DataFrame = (
            flights.stream(self._spark, files, FILES_PER_BATCH)
            .groupBy(flights.KEY)
            .transformWithState(
                statefulProcessor=flights.AircraftDelays(),
                outputStructType=flights.OUTPUT,
                outputMode="Append",
                timeMode="None",
            )
        )
        writer = totals.writeStream.format("noop").outputMode("append").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
        query.awaitTermination()
        return measured(PYSPARK, query.recentProgress, self._given.warm_up)


def write_input(folder: Path, fleets: int, batches: int, short: int, warm_up: int) -> Input:
    """Write day after day the flights of that day, once for each fleet, as two files with half the fleets each."""
    year = flights.read_flights()
    given = Input(folder / "long", folder / "short", warm_up)
    for place, count in ((given.long, batches + warm_up), (given.short, short + warm_up)):
        place.mkdir(parents=True)
        for number, day in enumerate(islice(flights.by_day(year), count)):
            for half in range(FILES_PER_BATCH):
                part = _fleets(day.select([flights.KEY, "dep_delay"]), range(half, fleets, FILES_PER_BATCH))
                file = number * FILES_PER_BATCH + half
                flights.write_file(part, place / f"{file:05}.parquet", file)
    return given


def _fleets(day: pa.Table, numbers: range) -> pa.Table:
    """The day once for each fleet, whose number is then part of its aircraft's."""
    rows = pa.array(np.tile(np.arange(len(day)), len(numbers)))
    fleet = pa.array(np.repeat(np.array(numbers), len(day))).cast(pa.string())
    repeated = day.take(rows).combine_chunks()
    names = pc.binary_join_element_wise(repeated.column(flights.KEY), fleet, "-")
    return repeated.set_column(0, flights.KEY, names)


def turns(rounds: int) -> Iterator[list[str]]:
    """Yield the order of each round; who goes first changes, for the sake of what a machine does over time."""
    order = [CHECKPOINTS, BARE, PYSPARK]
    for number in range(rounds):
        yield order if number % 2 == 0 else [BARE, CHECKPOINTS, PYSPARK]


@attrs.frozen
class Verdict:
    """The figures that the goals are about."""

    rates: dict[str, float]
    """Median rows a second by contestant."""
    times_pyspark: float
    kept: float

    @classmethod
    def of(cls, rounds: Sequence[Sequence[Stream]]) -> Self:
        """Judge the rounds, each of which has one stream of every contestant."""
        by_round = [{one.contestant: one.rate for one in streams} for streams in rounds]
        return cls(
            rates={name: median(one[name] for one in by_round) for name in (CHECKPOINTS, BARE, PYSPARK)},
            times_pyspark=median(one[CHECKPOINTS] / one[PYSPARK] for one in by_round),
            kept=median(one[CHECKPOINTS] / one[BARE] for one in by_round),
        )

    @property
    def met(self) -> bool:
        """Whether both goals are."""
        return self.times_pyspark >= FASTER_THAN_PYSPARK and self.kept >= KEPT_WITH_CHECKPOINTS


@click.command()
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option(
    "--fleets", type=click.IntRange(min=2), default=100, show_default=True, help="4,043 aircraft each."
)
@click.option(
    "--batches", type=click.IntRange(min=2), default=30, show_default=True, help="Chandy's, a stream."
)
@click.option(
    "--short", type=click.IntRange(min=2), default=2, show_default=True, help="PySpark's, a stream."
)
@click.option(
    "--warm-up", type=int, default=2, show_default=True, help="Batches of a stream that do not count."
)
@click.option("--check", is_flag=True, help="End with code 1 when a goal is not met.")
def main(rounds: int, fleets: int, batches: int, short: int, warm_up: int, check: bool) -> None:
    """Measure rows a second of one keyed processor on Chandy and on PySpark's own operator."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    folder = Path(tempfile.mkdtemp(prefix="chandy-")).resolve()
    os.environ["CHANDY_RUNTIME_DIR"] = str(runtime(folder))
    streams: list[list[Stream]] = []
    try:
        given = write_input(folder, fleets, batches, short, warm_up)
        with _output_to(folder / "spark.log"):
            spark = session(folder)
        contest = Contest(spark, given, folder)
        for name in (CHECKPOINTS, PYSPARK):
            console.print(f"warming up: {name}")
            contest.run(name, given.short)
        for number, order in enumerate(turns(rounds), start=1):
            streams.append([])
            for name in order:
                streams[-1].append(contest.run(name))
                console.print(f"round {number}: {name}: {streams[-1][-1].rate:,.0f} rows/s")
        spark.stop()
    finally:
        await_hosts(folder)
        shutil.rmtree(folder, ignore_errors=True)
    verdict = Verdict.of(streams)
    console.print(_table(streams, verdict))
    console.print(
        f"with checkpoints {verdict.times_pyspark:.1f} times PySpark's (goal {FASTER_THAN_PYSPARK:g}), "
        f"{verdict.kept:.1%} of what it is without (goal {KEPT_WITH_CHECKPOINTS:.0%}); "
        f"{fleets} fleets, {_rows_per_batch(streams):,} rows a batch"
    )
    _write(streams, verdict, fleets)
    if check and not verdict.met:
        raise SystemExit(1)


@contextlib.contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Have processes that are started in this context print into a file: the JVM, and through it its workers."""
    kept = os.dup(1), os.dup(2)
    try:
        with log.open("w") as target:
            os.dup2(target.fileno(), 1)
            os.dup2(target.fileno(), 2)
        yield
    finally:
        for number, descriptor in enumerate(kept, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)


def _table(streams: Sequence[Sequence[Stream]], verdict: Verdict) -> Table:
    table = Table(title="Rows a second", title_justify="left")
    table.add_column("contestant", no_wrap=True)
    for number in range(1, len(streams) + 1):
        table.add_column(f"round {number}", justify="right")
    for heading in ("median", "rows", "batches", "checkpoints"):
        table.add_column(heading, justify="right")
    for name, rate in verdict.rates.items():
        own = [one for streams_of_round in streams for one in streams_of_round if one.contestant == name]
        table.add_row(
            name,
            *(f"{one.rate:,.0f}" for one in own),
            f"[bold]{rate:,.0f}[/]",
            f"{sum(one.rows for one in own):,}",
            str(sum(one.batches for one in own)),
            str(sum(one.checkpoints for one in own)),
        )
    return table


def _rows_per_batch(streams: Sequence[Sequence[Stream]]) -> int:
    return round(median(one.rows / one.batches for one in chain(*streams)))


def _write(streams: Sequence[Sequence[Stream]], verdict: Verdict, fleets: int) -> None:
    """Write the figures as JSON, and the chart."""
    RESULTS.mkdir(exist_ok=True)
    facts = {
        "fleets": fleets,
        "rows_per_batch": _rows_per_batch(streams),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "verdict": attrs.asdict(verdict),
        "rounds": [
            [{**attrs.asdict(one), "rate": one.rate} for one in streams_of_round]
            for streams_of_round in streams
        ],
    }
    (RESULTS / "operator.json").write_text(json.dumps(facts, indent=2) + "\n")
    rounds = {
        name: [one.rate for streams_of_round in streams for one in streams_of_round if one.contestant == name]
        for name in verdict.rates
    }
    title = f"One keyed processor, {_rows_per_batch(streams):,} rows a batch, two cores"
    bars(RESULTS / "operator.png", title=title, axis="rows a second (dots: rounds)", rounds=rounds)


if __name__ == "__main__":
    main()
