"""Rows a second of every interface for keyed state, Chandy's and Spark's, over the same batches.

A per-key counter on two cores, measured after a warm-up. Contestants take turns in one session, and ratios are medians
over the turns. Spark keeps its state in RocksDB with changelog checkpointing, its fastest setting. Chandy takes a
checkpoint every ten seconds. The streams of PySpark's own processors are shorter because these processors are slow;
the table has their numbers of batches. Spark's own count runs twice: with Spark's defaults, and with the file manager
that writes logs and state without forking processes, which Chandy chooses by itself for local directories. Spark's
windows always have the latter.

The parts beyond the counter: ``--only "rows a key"`` has batches of two million rows on more or fewer keys.
``aggregate`` gives every row to Python; ``aggregate_batches`` has each batch combined where the one before says that it
is faster, in Python or by Spark's SQL. ``--only window`` counts by key and window of event time. Each batch has the
rows of one minute and windows have five, so every fifth batch closes those of all keys. A stream in mode "append"
outputs the windows that close, one in mode "update" those that change. Sessions have a gap of ten seconds, and a key
has ten rows a minute.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any, Final

import attrs
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator

from . import keyed
from .chart import bars, lines
from .counters import OUTPUT, PandasCounter, RowCounter
from .keyed import Workload
from .report import Options, Report, console, paired_ratio
from .stage import DEFAULT_MANAGER, Stream, balanced, file_manager, measured, stage

AGGREGATE: Final = "Chandy aggregate"
BATCHES: Final = "Chandy aggregate_batches"
ROWS: Final = "Chandy transform_with_state"
PANDAS: Final = "Chandy transform_with_state_in_pandas"
COUNT: Final = "Spark groupBy().count()"
COUNT_TUNED: Final = "Spark groupBy().count(), with Chandy's file manager"
SPARK_ROWS: Final = "PySpark transformWithState"
SPARK_PANDAS: Final = "PySpark transformWithStateInPandas"
AGGREGATE_TTL: Final = "Chandy aggregate, ttl"
ROWS_TTL: Final = "Chandy transform_with_state, ttl"
SPARK_ROWS_TTL: Final = "PySpark transformWithState, ttl"
STATELESS: Final = "no state (Spark's shuffle and Arrow alone)"
WINDOW: Final = "Chandy aggregate, window"
WINDOW_BATCHES: Final = "Chandy aggregate_batches, window"
WINDOW_APPEND: Final = "Chandy aggregate, window, append"
SESSIONS: Final = "Chandy aggregate, sessions"
SPARK_WINDOW: Final = "Spark groupBy(window)"
SPARK_WINDOW_APPEND: Final = "Spark groupBy(window), append"
SPARK_SESSIONS: Final = "Spark groupBy(session_window)"

PEERS: Final = {
    AGGREGATE: (COUNT, COUNT_TUNED),
    AGGREGATE_TTL: (AGGREGATE,),
    ROWS: (SPARK_ROWS,),
    ROWS_TTL: (SPARK_ROWS_TTL, ROWS),
    PANDAS: (SPARK_PANDAS,),
    BATCHES: (AGGREGATE, COUNT, COUNT_TUNED),
    WINDOW: (SPARK_WINDOW, AGGREGATE),
    WINDOW_BATCHES: (SPARK_WINDOW, AGGREGATE),
    WINDOW_APPEND: (SPARK_WINDOW_APPEND,),
    SESSIONS: (SPARK_SESSIONS,),
}
"""Spark's counterparts of each of Chandy's interfaces; and of those with a time to live or windows, those without."""
GOALS: Final = {AGGREGATE: 3.0, ROWS: 20.0, PANDAS: 50.0}
"""The goal of each interface: rows a second, as a multiple of its peer's."""


@attrs.frozen
class Turns:
    """The length of a contestant's streams."""

    warm_up: int
    batches: int


_FAST: Final = Turns(warm_up=4, batches=10)
_FAST_QUICK: Final = Turns(warm_up=1, batches=5)
_SLOW: Final = Turns(warm_up=1, batches=1)
_SLOWEST: Final = frozenset({SPARK_ROWS, SPARK_ROWS_TTL, SPARK_PANDAS})
_TTL_MS: Final = 3_600_000
"""Longer than a stream: what is measured is to write down when each count expires, and to look for any that has."""

SMALL: Final = Workload("200k rows, 20k keys", 200_000, 20_000)
LARGE: Final = Workload("1M rows, 100k keys", 1_000_000, 100_000)
SKEWED: Final = Workload("200k rows, 20k keys, Zipf", 200_000, 20_000, zipf=True)
WIDE: Final = Workload("200k rows, 20k keys, 1 KB values", 200_000, 20_000, value_bytes=1000)
REPEATED: Final = {
    each: Workload(f"2M rows, {each:,} rows a key", 2_000_000, 2_000_000 // each)
    for each in (1, 10, 100, 5_000)
}
"""By how often a key comes in a batch, on average."""
WINDOWS: Final = (
    Workload("windows, 200k rows, 20k keys", 200_000, 20_000, timed=True),
    Workload("windows, 1M rows, 100k keys", 1_000_000, 100_000, timed=True),
)
_WINDOWED: Final = (
    *(WINDOW, WINDOW_BATCHES, WINDOW_APPEND, SESSIONS),
    *(SPARK_WINDOW, SPARK_WINDOW_APPEND, SPARK_SESSIONS, AGGREGATE),
)

PLAN: Final[dict[Workload, tuple[str, ...]]] = {
    SMALL: (
        *(STATELESS, AGGREGATE, AGGREGATE_TTL, COUNT, COUNT_TUNED),
        *(ROWS, ROWS_TTL, SPARK_ROWS, SPARK_ROWS_TTL, PANDAS, SPARK_PANDAS),
    ),
    # PySpark's processor of DataFrames would take minutes for such batches.
    LARGE: (STATELESS, AGGREGATE, AGGREGATE_TTL, COUNT, COUNT_TUNED, ROWS, ROWS_TTL, SPARK_ROWS, PANDAS),
    SKEWED: (AGGREGATE, COUNT, COUNT_TUNED, ROWS, SPARK_ROWS, PANDAS, SPARK_PANDAS),
    WIDE: (ROWS, SPARK_ROWS, PANDAS, SPARK_PANDAS),
    **dict.fromkeys(REPEATED.values(), (AGGREGATE, BATCHES, COUNT, COUNT_TUNED)),
    **dict.fromkeys(WINDOWS, _WINDOWED),
}
_QUICK_PLAN: Final = {
    Workload("20k rows, 2k keys", 20_000, 2_000): (*PLAN[SMALL], BATCHES),
    Workload("windows, 20k rows, 2k keys", 20_000, 2_000, timed=True): _WINDOWED,
}


def run(options: Options) -> Report:
    """Measure; see the module."""
    plan = {
        workload: [name for name in contestants if options.takes(f"{workload.name}: {name}")]
        for workload, contestants in (_QUICK_PLAN if options.quick else PLAN).items()
    }
    fast = _FAST_QUICK if options.quick else _FAST
    repetitions = options.repetitions or (1 if options.quick else 3)
    streams: dict[Workload, dict[str, list[Stream]]] = {}
    # PySpark's processor with a time to live would run batches without data for ever.
    with stage(spark__sql__streaming__noDataMicroBatches__enabled="false") as (spark, folder):
        for workload, contestants in plan.items():
            if not contestants:
                continue
            files = keyed.write(workload, fast.warm_up + fast.batches, folder / "long")
            short = keyed.write(workload, _SLOW.warm_up + _SLOW.batches, folder / "short")
            contest = Contest(spark, workload, folder / "streams")
            for name in contestants:
                if name not in _SLOWEST:
                    contest.run(name, short, _SLOW)
            streams[workload] = {name: [] for name in contestants}
            for turn in range(repetitions):
                for name in balanced(contestants, turn):
                    # One turn of the slowest takes minutes, and its variation is small compared with the gap.
                    if name in _SLOWEST and streams[workload][name]:
                        continue
                    slow = name in _SLOWEST
                    found = contest.run(name, short if slow else files, _SLOW if slow else fast)
                    streams[workload][name].append(found)
                    console().print(f"{workload.name}: {name}: {found.rate:,.0f} rows/s")
            shutil.rmtree(files)
            shutil.rmtree(short)
    rows = [
        {
            "part": workload.name,
            "contestant": name,
            "rows_per_second": median(one.rate for one in found),
            "least": min(one.rate for one in found),
            "greatest": max(one.rate for one in found),
            "batches": sum(one.batches for one in found),
            "turns": len(found),
        }
        for workload, by_name in streams.items()
        for name, found in by_name.items()
    ]
    ratios = {
        f"{workload.name}: {name} / {peer}": _ratio(by_name[name], by_name[peer])
        for workload, by_name in streams.items()
        for name in by_name
        for peer in PEERS.get(name, ())
        if peer in by_name
    }
    return Report("throughput", rows, ratios, {"repetitions": repetitions, "goals": GOALS})


def draw(report: Report, path: Path) -> None:
    """Draw the first part's figures, and those by rows of a key into a second file, ``...-repetition.*``."""
    repeated = {workload.name: each for each, workload in REPEATED.items()}
    points: dict[str, list[tuple[float, float]]] = {}
    bar: dict[str, list[float]] = {}
    first = next((row["part"] for row in report.rows if row["part"] not in repeated), None)
    for row in report.rows:
        if row["part"] in repeated:
            point = repeated[row["part"]], row["rows_per_second"]
            points.setdefault(row["contestant"], []).append(point)
        elif row["part"] == first:
            bar[row["contestant"]] = [row["least"], row["rows_per_second"], row["greatest"]]
    if bar:
        bars(path, title=f"A counter by key, {first} a batch, two cores", axis="rows a second", rounds=bar)
    if points:
        beside = path.with_stem(f"{path.stem}-repetition")
        title = "A counter by key, two cores"
        lines(beside, title=title, x="rows of a key in a batch", y="rows a second", series=points)


def _ratio(own: Sequence[Stream], peers: Sequence[Stream]) -> float:
    """Return the ratio of rows a second. A peer with a single turn is compared with each turn of the other."""
    paired = [peers[0]] * len(own) if len(peers) == 1 else peers
    return paired_ratio(own, paired, lambda stream: stream.rate)


def into_nothing(rows: DataFrame, batch: int) -> None:
    """Compute a batch, as a function of ``foreachBatch``, and write it nowhere."""
    rows.write.format("noop").mode("overwrite").save()


def _late(rows: DataFrame) -> DataFrame:
    """Return rows with a watermark."""
    return rows.withWatermark("t", "30 seconds")


def _window(contestant: str) -> Column:
    """Return the windows of a contestant."""
    if contestant in (SESSIONS, SPARK_SESSIONS):
        return F.session_window("t", "10 seconds")
    return F.window("t", "5 minutes")


class Contest:
    """Runs the contestants on one workload, each stream in folders of its own."""

    def __init__(self, spark: SparkSession, workload: Workload, folder: Path) -> None:
        self._spark = spark
        self._workload = workload
        self._folder = folder

    def run(self, contestant: str, files: Path, turns: Turns) -> Stream:
        """Run one stream to its end."""
        self._folder.mkdir(exist_ok=True)
        # Each stream has a new folder: the previous host may still be writing into the old one.
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        source = keyed.stream(self._spark, files, timed=self._workload.timed)
        try:
            native = self._native(contestant)
            if native is not None:
                frame, mode = native(source)
                writer = frame.writeStream.format("noop").outputMode(mode).trigger(availableNow=True)
                tuned = contestant == COUNT_TUNED or self._workload.timed
                with file_manager(self._spark, None if tuned else DEFAULT_MANAGER):
                    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
                    query.awaitTermination()
                return measured(contestant, query.recentProgress, turns.warm_up)
            return self._chandy(contestant, source, folder, turns.warm_up)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _native(self, contestant: str) -> Callable[[DataFrame], tuple[DataFrame, str]] | None:
        size = self._workload.value_bytes
        match contestant:
            case name if name in (COUNT, COUNT_TUNED):
                return lambda rows: (rows.groupBy("k").count(), "update")
            case name if name == STATELESS:
                return lambda rows: (
                    rows.select("k", F.lit(1).cast("long").alias("n"))
                    .repartitionById(2, F.expr("cast(pmod(xxhash64(k), 2) as int)"))
                    .mapInArrow(lambda batches: (batch.slice(0, 1) for batch in batches), OUTPUT),
                    "append",
                )
            case name if name == SPARK_ROWS:
                return lambda rows: (
                    rows.groupBy("k").transformWithState(RowCounter(size), OUTPUT, "Update", "None"),
                    "update",
                )
            case name if name == SPARK_ROWS_TTL:
                counter = RowCounter(size, _TTL_MS)
                return lambda rows: (
                    rows.groupBy("k").transformWithState(counter, OUTPUT, "Update", "ProcessingTime"),
                    "update",
                )
            case name if name == SPARK_PANDAS:
                return lambda rows: (
                    rows.groupBy("k").transformWithStateInPandas(
                        PandasCounter(size), OUTPUT, "Update", "None"
                    ),
                    "update",
                )
            case name if name in (SPARK_WINDOW, SPARK_WINDOW_APPEND, SPARK_SESSIONS):
                mode = "update" if name == SPARK_WINDOW else "append"
                return lambda rows: (_late(rows).groupBy(_window(contestant), "k").count(), mode)
        return None

    def _chandy(self, contestant: str, source: DataFrame, folder: Path, warm_up: int) -> Stream:
        config = CheckpointConfig(interval="10 s", cache_dir=str(folder / "cache"))
        with CheckpointCoordinator(
            self._spark, pipeline="benchmark", storage=str(folder / "storage"), config=config
        ) as coordinator:
            writer: Any
            if contestant in (BATCHES, WINDOW_BATCHES):
                source, window = (
                    (source, None) if contestant == BATCHES else (_late(source), _window(contestant))
                )
                totals = coordinator.aggregate_batches(
                    source, by=["k"], window=window, uid="counts", n=("*", "count")
                )
                writer = totals.writeStream.foreachBatch(into_nothing)
            else:
                frame = self._operator(coordinator, contestant, source)
                writer = frame.writeStream.format("noop").outputMode("append")
            writer = writer.trigger(availableNow=True)
            query = coordinator.start(writer, name="counts")
            query.awaitTermination()
            return measured(contestant, query.recentProgress, warm_up)

    def _operator(self, coordinator: CheckpointCoordinator, contestant: str, rows: DataFrame) -> DataFrame:
        if contestant in (AGGREGATE, AGGREGATE_TTL):
            ttl = timedelta(milliseconds=_TTL_MS) if contestant == AGGREGATE_TTL else None
            return coordinator.aggregate(rows, by=["k"], uid="counts", ttl=ttl, n=("*", "count"))
        if self._workload.timed:
            mode: Any = "update" if contestant == WINDOW else "append"
            return coordinator.aggregate(
                _late(rows),
                by=["k"],
                window=_window(contestant),
                output_mode=mode,
                uid="counts",
                n=("*", "count"),
            )
        size = self._workload.value_bytes
        if contestant in (ROWS, ROWS_TTL):
            ttl_ms = _TTL_MS if contestant == ROWS_TTL else None
            return coordinator.transform_with_state(
                rows,
                key=["k"],
                processor=RowCounter(size, ttl_ms),
                output=OUTPUT,
                uid="counts",
                time_mode="None" if ttl_ms is None else "ProcessingTime",
            )
        return coordinator.transform_with_state_in_pandas(
            rows, key=["k"], processor=PandasCounter(size), output=OUTPUT, uid="counts"
        )
