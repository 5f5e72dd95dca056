"""Rows a second of the demo's operator, beside PySpark's own ``transformWithState``: ``python -m benchmarks.operator``.

Three contestants run the very same processor class over the same stream, on two cores in one Spark session:

* Chandy with a checkpoint every five seconds,
* Chandy without checkpoints,
* PySpark's ``transformWithState`` on RocksDB with its changelog, the fastest that it has.

There are two workloads. With *many keys*, a batch is one day of the flights, once for each of many fleets
with aircraft of their own: about 1.3 rows a key, as a real day has. That is where state costs most, and what
the goals are about. With *few keys*, a batch is one month of the flights as they are, 4,043 aircraft in all:
Spark's own time for a batch and for its rows weighs more there, and the contestants come closer. Batches are
the very same files for all three; PySpark's stream is only shorter, to end in time. All have two tasks, write
to the ``noop`` sink, and write their logs without forking processes, which Chandy chooses by itself. The
figure is that of a stream that has warmed up: rows of all batches but the first ones, divided by the time
from the start of the first to the end of the last of them. Contestants take turns in several rounds. What
counts is the median of the rounds' own ratios, since a machine's pace drifts from one round to the next.
"""

from __future__ import annotations

import contextlib
import datetime
import json
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

MANY, FEW = "many keys", "few keys"

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
        folder.mkdir(exist_ok=True)
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


def write_months(folder: Path, years: int, short: int, warm_up: int) -> Input:
    """Write month after month the flights as they are, as two files with half the rows each."""
    year = flights.read_flights()
    months = [year.filter(pc.equal(year.column("month"), month)) for month in range(1, 13)]
    given = Input(folder / "long", folder / "short", warm_up)
    for place, count in ((given.long, 12 * years), (given.short, short + warm_up)):
        place.mkdir(parents=True)
        for number in range(count):
            rows = months[number % 12].select([flights.KEY, "dep_delay"])
            for half in range(FILES_PER_BATCH):
                file = number * FILES_PER_BATCH + half
                part = rows.take(pa.array(range(half, len(rows), FILES_PER_BATCH)))
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
    folder = Path(tempfile.mkdtemp(prefix="chandy-")).resolve()
    os.environ["CHANDY_RUNTIME_DIR"] = str(runtime(folder))
    streams: dict[str, list[list[Stream]]] = {MANY: [], FEW: []}
    try:
        inputs = {
            MANY: write_input(folder / "days", fleets, batches, short, warm_up),
            FEW: write_months(folder / "months", years=3, short=6, warm_up=warm_up),
        }
        with _output_to(folder / "spark.log"):
            spark = session(folder)
        for workload, given in inputs.items():
            contest = Contest(spark, given, folder / f"streams-{given.long.parent.name}")
            for name in (CHECKPOINTS, PYSPARK):
                console.print(f"{workload}: warming up: {name}")
                contest.run(name, given.short)
            for number, order in enumerate(turns(rounds), start=1):
                streams[workload].append([])
                for name in order:
                    streams[workload][-1].append(contest.run(name))
                    rate = streams[workload][-1][-1].rate
                    console.print(f"{workload}: round {number}: {name}: {rate:,.0f} rows/s")
        spark.stop()
    finally:
        await_hosts(folder)
        shutil.rmtree(folder, ignore_errors=True)
    verdicts = {workload: Verdict.of(measured) for workload, measured in streams.items()}
    for workload, verdict in verdicts.items():
        console.print(_table(workload, streams[workload], verdict))
        console.print(
            f"{workload}: with checkpoints {verdict.times_pyspark:.1f} times PySpark's, {verdict.kept:.1%} of what "
            f"it is without; {_rows_per_batch(streams[workload]):,} rows a batch"
        )
    console.print(
        f"goals, for {MANY}: {FASTER_THAN_PYSPARK:g} times PySpark's, {KEPT_WITH_CHECKPOINTS:.0%} of what it is without"
    )
    _write(streams, verdicts, fleets)
    if check and not verdicts[MANY].met:
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


def _table(workload: str, streams: Sequence[Sequence[Stream]], verdict: Verdict) -> Table:
    table = Table(title=f"Rows a second, {workload}", title_justify="left")
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


def _write(streams: dict[str, list[list[Stream]]], verdicts: dict[str, Verdict], fleets: int) -> None:
    """Write the figures as JSON, and a chart for each workload."""
    RESULTS.mkdir(exist_ok=True)
    facts = {
        "fleets": fleets,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "workloads": {
            workload: {
                "rows_per_batch": _rows_per_batch(rounds),
                "verdict": attrs.asdict(verdicts[workload]),
                "rounds": [[{**attrs.asdict(one), "rate": one.rate} for one in turn] for turn in rounds],
            }
            for workload, rounds in streams.items()
        },
    }
    (RESULTS / "operator.json").write_text(json.dumps(facts, indent=2) + "\n")
    for workload, rounds in streams.items():
        by_name = {
            name: [one.rate for turn in rounds for one in turn if one.contestant == name]
            for name in verdicts[workload].rates
        }
        title = f"One keyed processor, {workload}, {_rows_per_batch(rounds):,} rows a batch, two cores"
        path = RESULTS / f"operator-{workload.replace(' ', '-')}.png"
        bars(path, title=title, axis="rows a second (dots: rounds)", rounds=by_name)


if __name__ == "__main__":
    main()
