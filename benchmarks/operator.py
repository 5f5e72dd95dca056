"""Rows a second of the demo's operator, beside PySpark's own ``transformWithState``.

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

import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator

from . import flights
from .chart import bars
from .keyed import FILES_PER_BATCH
from .report import Options, Report, console, paired_ratio
from .stage import Stream, measured, stage

GOALS: Final = {"times PySpark": 10.0, "kept with checkpoints": 0.95}
"""For many keys: how many times the rows a second of PySpark's operator, and the part that checkpoints leave."""

MANY, FEW = "many keys", "few keys"

CHECKPOINTS, BARE, PYSPARK = (
    "Chandy, a checkpoint every 5 s",
    "Chandy, no checkpoints",
    "PySpark transformWithState",
)
CONTESTANTS: Final = (CHECKPOINTS, BARE, PYSPARK)
WARM_UP: Final = 2
"""Batches at the beginning of a stream that do not count."""


@attrs.frozen
class Input:
    """Folders with the stream's files."""

    long: Path
    short: Path


def run(options: Options) -> Report:
    """Measure; see the module."""
    rounds = options.repetitions or (1 if options.quick else 3)
    fleets, batches, months, short_months = (5, 4, 6, 2) if options.quick else (100, 30, 36, 6)
    streams: dict[str, dict[str, list[Stream]]] = {
        workload: {name: [] for name in CONTESTANTS} for workload in (MANY, FEW)
    }
    with stage() as (spark, folder):
        inputs = {
            MANY: write_input(folder / "days", fleets, batches, short=2),
            FEW: write_months(folder / "months", months, short=short_months),
        }
        for workload, given in inputs.items():
            contest = Contest(spark, given, folder / f"streams-{given.long.parent.name}")
            for name in (CHECKPOINTS, PYSPARK):
                contest.run(name, given.short)
            for number, order in enumerate(turns(rounds), start=1):
                for name in order:
                    found = contest.run(name)
                    streams[workload][name].append(found)
                    console().print(f"{workload}: round {number}: {name}: {found.rate:,.0f} rows/s")
    rows = [
        {
            "workload": workload,
            "contestant": name,
            "rows_per_second": median(one.rate for one in own),
            "least": min(one.rate for one in own),
            "greatest": max(one.rate for one in own),
            "rows_per_batch": round(median(one.rows / one.batches for one in own)),
            "batches": sum(one.batches for one in own),
            "checkpoints": sum(one.checkpoints for one in own),
        }
        for workload, by_name in streams.items()
        for name, own in by_name.items()
    ]
    ratios = {
        f"{workload}: {what}": paired_ratio(by_name[CHECKPOINTS], by_name[peer], lambda one: one.rate)
        for workload, by_name in streams.items()
        for what, peer in (("times PySpark", PYSPARK), ("kept with checkpoints", BARE))
    }
    return Report("operator", rows, ratios, {"repetitions": rounds, "fleets": fleets, "goals": GOALS})


def draw(report: Report, path: Path) -> None:
    """Draw the figures of many keys."""
    rounds = {
        row["contestant"]: [row["least"], row["rows_per_second"], row["greatest"]]
        for row in report.rows
        if row["workload"] == MANY
    }
    bars(
        path,
        title="One keyed processor over real flights, many keys, two cores",
        axis="rows a second",
        rounds=rounds,
    )


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
            return measured(contestant, query.recentProgress, WARM_UP, completed)

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
        return measured(PYSPARK, query.recentProgress, WARM_UP)


def write_input(folder: Path, fleets: int, batches: int, short: int) -> Input:
    """Write day after day the flights of that day, once for each fleet, as two files with half the fleets each."""
    year = flights.read_flights()
    given = Input(folder / "long", folder / "short")
    for place, count in ((given.long, batches + WARM_UP), (given.short, short + WARM_UP)):
        place.mkdir(parents=True)
        for number, day in enumerate(islice(flights.by_day(year), count)):
            for half in range(FILES_PER_BATCH):
                part = _fleets(day.select([flights.KEY, "dep_delay"]), range(half, fleets, FILES_PER_BATCH))
                file = number * FILES_PER_BATCH + half
                flights.write_file(part, place / f"{file:05}.parquet", file)
    return given


def write_months(folder: Path, count: int, short: int) -> Input:
    """Write month after month the flights as they are, as two files with half the rows each."""
    year = flights.read_flights()
    months = [year.filter(pc.equal(year.column("month"), month)) for month in range(1, 13)]
    given = Input(folder / "long", folder / "short")
    for place, files in ((given.long, count), (given.short, short + WARM_UP)):
        place.mkdir(parents=True)
        for number in range(files):
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
    order = [*CONTESTANTS]
    for number in range(rounds):
        yield order if number % 2 == 0 else [BARE, CHECKPOINTS, PYSPARK]
