"""What sinks cost: rows a second, and the time from a row's timestamp to the moment when a reader sees it.

Chandy's transactional sinks publish with checkpoints every 1, 5 and 10 s; ``PostgresSink`` also with each batch
(``publish="batch"``). Spark's own sinks for the same targets publish with each batch: its Kafka sink, its file sink,
and ``foreachBatch`` with JDBC (with psycopg's COPY instead, and named so, where the JDBC driver cannot be had). Only
those that the column ``guarantee`` calls exactly once write no row twice after a failure. Flink's exactly-once sink for
Kafka publishes with checkpoints as well, at the same intervals. Servers, drivers and readers share two cores. Each
contestant has the same rows: a number, a mark, and 96 characters that do not compress. Tables of PostgreSQL have a
primary key, and upserts have 100,000 keys, which come in turn.

**Latency.** Spark's ``rate`` source makes 5,000 rows a second with timestamps at equal distances. It gives them out a
second at a time: so each row waits up to a second before any contestant can have it, half a second in the median. With
an interval of 1 s, how soon a checkpoint comes after the source's second is chance, and stays so for a turn. A reader
in a process of its own looks every 10 ms: into Kafka with ``read_committed``, into the table by SQL, into Spark's log
of a directory of files, into the log of a Delta table, into the manifests of an Iceberg table. A row is visible when it
and all rows before it are. Percentiles are over the rows with timestamps in the window, which begins a second after the
reader has first seen rows, and is at least two intervals long. No query has a trigger: a batch begins when there are
rows and the one before has ended. Flink has its rows as CSV files, one for each second, at the end of it, in a folder
that it lists every 10 ms.

**Rows a second.** Spark's ``rate-micro-batch`` source gives every batch 50,000 rows at once, as fast as the query takes
them. Flink has its own sequence of numbers. Counted is what becomes visible to the reader, between two moments at which
rows have just appeared. At most two checkpoints wait for their target in these queries: then the query
pauses. So the target, what it takes to write the rows, and Spark all count, at their common pace.

PostgreSQL runs with ``fsync``, Kafka with one broker, three partitions and its defaults, which leave syncing to the
kernel. Files and tables are on the local disk. The order of the contestants is reversed in every other round. There is
one round unless ``--repetitions`` says more. A contestant that cannot take part, or whose reader does not see the rows
in time, is named with the reason in the settings.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from chandy import ChandyError

from ..chart import stacked
from ..report import Options, Report, console
from ..stage import balanced, stage
from . import figures
from .contestants import Contestant, Place, contestants
from .figures import MICROSECONDS, Figures
from .servers import Servers, servers
from .watch import Watcher


@attrs.frozen
class Timing:
    """The lengths of turns in seconds."""

    warm_up: float
    """From the first sight of rows to the window."""
    window: float
    """The least length of a window, which is at least two intervals."""
    deadline: float
    """How long rows may take to appear, besides some intervals."""

    def window_of(self, contestant: Contestant) -> float:
        """Return the length of a contestant's window."""
        return max(self.window, 2 * contestant.seconds)

    def deadline_of(self, contestant: Contestant) -> float:
        """Return how long a contestant may take for anything."""
        return self.deadline + self.window_of(contestant) + 5 * contestant.seconds


@attrs.frozen
class Size:
    """What the contestants are given."""

    intervals: tuple[int, ...]
    timing: Timing
    rows_per_second: int = 5_000
    rows_per_batch: int = 50_000


FULL: Final = Size((1, 5, 10), Timing(warm_up=1, window=10, deadline=60))
QUICK: Final = Size((1,), Timing(warm_up=0, window=2, deadline=60), rows_per_batch=10_000)


def run(options: Options) -> Report:
    """Measure; see the package."""
    size = QUICK if options.quick else FULL
    repetitions = options.repetitions or 1
    screen = console()
    with _setting() as (found, spark, folder):
        field = [one for one in contestants(found, size.intervals) if options.takes(one.name)]
        missing = dict(found.missing)
        if not field:
            raise ValueError(f"no contestant has {options.only!r} in its name; missing are {missing}")
        turns: dict[Contestant, list[Figures]] = {one: [] for one in field}
        for number in range(repetitions):
            for contestant in balanced(field, number):
                name = f"{contestant.name}, {contestant.visible}"
                own = folder / f"turn-{number}-{field.index(contestant)}"
                try:
                    turn = Turn(spark, found, contestant, size, own).run()
                except (TimeoutError, RuntimeError, ValueError, ChandyError) as error:
                    missing[name] = str(error)
                    screen.print(f"{name}: {error}", markup=False)
                    continue
                finally:
                    shutil.rmtree(own, ignore_errors=True)
                turns[contestant].append(turn)
                told = f"{turn.rows_per_second:,.0f} rows/s, p50 {turn.p50:.2f} s, p99 {turn.p99:.2f} s"
                screen.print(f"{name}: {told}")
    rows = [figures.row(one.name, one.visible, one.guarantee, done) for one, done in turns.items() if done]
    settings = {"repetitions": repetitions, "missing": missing, **attrs.asdict(size)}
    return Report("sinks", rows, figures.ratios(rows), settings)


def draw(report: Report, path: Path) -> None:
    """Draw the latencies."""
    parts = {
        f"{row['sink']}, {row['visible']}": {
            "half of the rows": row["p50_s"],
            "99% of the rows": row["p99_s"] - row["p50_s"],
        }
        for row in report.rows
    }
    stacked(path, title="From a row's timestamp to a reader, two cores", axis="seconds", parts=parts)


@contextlib.contextmanager
def _setting() -> Iterator[tuple[Servers, SparkSession, Path]]:
    with (
        tempfile.TemporaryDirectory(prefix="chandy-sinks-") as own,
        servers(Path(own)) as found,
        stage(**({"spark__jars": ",".join(found.jars)} if found.jars else {})) as (spark, folder),
    ):
        yield found, spark, folder


@attrs.frozen
class Turn:
    """One contestant, once: a query for rows a second, and one for the latency."""

    spark: SparkSession
    servers: Servers
    contestant: Contestant
    size: Size
    folder: Path

    def run(self) -> Figures:
        """Measure both.

        Raises:
            TimeoutError, RuntimeError, ValueError, ChandyError: the contestant cannot do it.
        """
        return Figures(self._rows_per_second(), self._latencies())

    def _rows_per_second(self) -> float:
        with self._watched("rate", is_counted=True) as (watcher, begin):
            end = begin + self.size.timing.window_of(self.contestant)

            def is_over() -> bool:
                counted = [one for one in watcher.seen if one.at >= begin]
                return len(counted) > 1 and counted[-1].at >= end

            watcher.wait(is_over, end + self.size.timing.deadline_of(self.contestant))
        return figures.rows_per_second(watcher.seen, begin)

    def _latencies(self) -> tuple[float, ...]:
        with self._watched("latency", is_counted=False) as (watcher, begin):
            end = begin + self.size.timing.window_of(self.contestant)
            watcher.wait(
                lambda: watcher.seen[-1].mark >= end * MICROSECONDS,
                end + self.size.timing.deadline_of(self.contestant),
            )
        return figures.latencies(watcher.seen, begin, end, self.size.rows_per_second)

    @contextlib.contextmanager
    def _watched(self, name: str, *, is_counted: bool) -> Iterator[tuple[Watcher, float]]:
        """Run a query with a reader; provide that and the beginning of the window, in seconds since 1970."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        place = Place(self.servers, folder, is_counted, self.size.rows_per_second)
        rows = self._counted() if is_counted else self._timed()
        with (
            self.contestant.running(self.spark, rows, place) as target,
            Watcher(target, folder / "reader") as watcher,
        ):
            deadline = time.time() + self.size.timing.deadline_of(self.contestant)
            watcher.wait(lambda: bool(watcher.seen), deadline)
            yield watcher, time.time() + self.size.timing.warm_up

    def _timed(self) -> DataFrame:
        """Rows that come at equal distances, marked with their timestamps."""
        source = self.spark.readStream.format("rate").option("rowsPerSecond", self.size.rows_per_second)
        return _rows(source.option("numPartitions", 2).load(), F.expr("unix_micros(timestamp)"))

    def _counted(self) -> DataFrame:
        """Rows that come as fast as they are taken, marked with their numbers."""
        source = self.spark.readStream.format("rate-micro-batch")
        source = source.option("rowsPerBatch", self.size.rows_per_batch)
        return _rows(source.option("numPartitions", 2).load(), F.col("value"))


def _rows(source: DataFrame, mark: Column) -> DataFrame:
    payload = F.concat(*(F.lpad(F.hex(F.xxhash64("value", F.lit(n))), 16, "0") for n in range(6)))
    return source.select(F.col("value").alias("k"), mark.alias("mark"), payload.alias("payload"))
