"""How short a micro-batch with keyed state can be, with Chandy and with Spark, compared with one without state.

A counter by key over tiny batches, on two cores. Spark's ``rate-micro-batch`` source gives every batch the same few
rows, in two partitions. A batch begins as soon as the one before has committed. The benchmark measures Spark's
``triggerExecution`` of each batch after a warm-up, and its parts as Spark reports them. Contestants take turns in one
session. Each runs a block of batches, and the order alternates. Ratios compare the medians of blocks of the same turn,
and are medians over the turns. A percentile is over all batches of all turns.

Three streams without state show what every batch costs: Spark's plan alone; rows through a shuffle to Python and back,
as PySpark does it; and the same with acknowledgements at once (``chandy.state.operators.quick_ack``), as Chandy does
it. The last one is the lower bound of everything in Python. These streams use the file manager that writes Spark's logs
without forking processes, which Chandy chooses by itself for local directories. Streams with Spark's own state
(RocksDB with changelog checkpointing) run with Spark's defaults, and once more with that file manager ("tuned"). Chandy
takes a checkpoint every ten seconds.

All columns are in milliseconds. ``p50_ms`` is the median of the blocks' medians. ``least`` and ``greatest`` are their
range. ``shortest`` is a single batch. ``logs`` (Spark's ``walCommit`` and ``commitOffsets``), ``planning``, ``running``
(``addBatch``) and ``other`` are medians. ``task`` is the mean time of a Chandy task from the beginning of its batch, by
Chandy's own metrics. Two tasks run in parallel. ``input`` and ``state`` are its waits for Spark and the state host.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import attrs
import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.streaming.readwriter import DataStreamWriter

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator
from chandy.coordinator.batch_aggregate import BatchWriter
from chandy.state.aggregation.aggregate_operator import Combine
from chandy.state.operators.quick_ack import with_quick_ack
from chandy.state.rpc.metrics import OperatorMetrics

from .chart import stacked
from .counters import OUTPUT, ArrowCounter, RowCounter
from .report import Options, Report, console, paired_ratio
from .stage import DEFAULT_MANAGER, balanced, file_manager, stage
from .throughput import into_nothing

PLAIN: Final = "no state"
PYTHON: Final = "no state, through Python"
PYTHON_QUICK_ACK: Final = "no state, through Python, quick ACK"
COUNT: Final = "Spark groupBy().count()"
COUNT_TUNED: Final = "Spark groupBy().count(), tuned"
SPARK_ROWS: Final = "PySpark transformWithState"
SPARK_ROWS_TUNED: Final = "PySpark transformWithState, tuned"
AGGREGATE: Final = "Chandy aggregate"
UNCOMBINED: Final = "Chandy aggregate, combine=False"
BATCHES: Final = "Chandy aggregate_batches"
ROWS: Final = "Chandy transform_with_state"
ARROW: Final = "Chandy transform_with_arrow"

CONTESTANTS: Final = (
    PLAIN,
    PYTHON,
    PYTHON_QUICK_ACK,
    COUNT,
    COUNT_TUNED,
    SPARK_ROWS,
    SPARK_ROWS_TUNED,
    AGGREGATE,
    UNCOMBINED,
    BATCHES,
    ROWS,
    ARROW,
)
PEERS: Final = {
    AGGREGATE: (COUNT, COUNT_TUNED, PYTHON_QUICK_ACK),
    UNCOMBINED: (COUNT, COUNT_TUNED, PYTHON_QUICK_ACK),
    BATCHES: (COUNT, COUNT_TUNED, AGGREGATE),
    ROWS: (SPARK_ROWS, SPARK_ROWS_TUNED, PYTHON_QUICK_ACK),
    ARROW: (COUNT, COUNT_TUNED, PYTHON_QUICK_ACK),
    PYTHON_QUICK_ACK: (PLAIN, PYTHON),
}
"""The contestants with which each one is compared."""
_AS_IT_COMES: Final = frozenset({COUNT, SPARK_ROWS})

PARTS: Final = {
    "logs": ("walCommit", "commitOffsets"),
    "planning": ("queryPlanning",),
    "running": ("addBatch",),
}
"""The columns of a batch's parts. Each is the sum of these times, by Spark's names."""
OTHER: Final = "other"
"""The column of the rest of a batch."""

SIZES: Final = (1, 100, 1_000)
"""Numbers of rows in a batch."""
KEYS: Final = 10
_POLL_SECONDS: Final = 0.2
_BATCH_SECONDS: Final = 60.0
"""A stream without a new batch for so many seconds is given up."""


@attrs.frozen
class Length:
    """The number of batches of a stream."""

    warm_up: int
    batches: int

    @property
    def last(self) -> int:
        """The number of the last measured batch. The first batch of the stream is 0."""
        return self.warm_up + self.batches - 1


_LENGTH: Final = Length(warm_up=15, batches=60)
_QUICK: Final = Length(warm_up=2, batches=6)


@attrs.frozen
class Block:
    """The measured batches of one stream."""

    batches: tuple[Mapping[str, float], ...]
    """The milliseconds of each batch's parts by Spark's names, with ``triggerExecution``."""
    metrics: OperatorMetrics | None = None
    """The metrics of Chandy's tasks in these batches."""

    @property
    def totals(self) -> tuple[float, ...]:
        """Milliseconds of each batch."""
        return tuple(one["triggerExecution"] for one in self.batches)

    @property
    def p50(self) -> float:
        """Milliseconds of the median batch."""
        return median(self.totals)


def block(progress: Sequence[Any], length: Length, metrics: OperatorMetrics | None = None) -> Block:
    """Select the measured batches from a stream's progress reports.

    Args:
        progress: Spark's reports, one for each batch. Batches without rows are ignored.
        length: the number of batches to skip and to measure.
        metrics: the metrics of these batches.
    """
    counted = [
        one for one in progress if one["numInputRows"] > 0 and length.warm_up <= one["batchId"] <= length.last
    ]
    if len(counted) != length.batches:
        raise ValueError(f"expected reports of {length.batches} batches, found {len(counted)}")
    return Block(tuple(dict(one["durationMs"]) for one in counted), metrics)


def parts(batch: Mapping[str, float]) -> dict[str, float]:
    """Return the parts of a batch by column. They add up to the batch's milliseconds."""
    known = {column: sum(batch.get(name, 0) for name in names) for column, names in PARTS.items()}
    return {**known, OTHER: batch["triggerExecution"] - sum(known.values())}


def task_parts(blocks: Sequence[Block]) -> dict[str, float]:
    """Return the mean milliseconds of a Chandy task and of its waits over all blocks, or zeros without tasks."""
    total = OperatorMetrics()
    for one in blocks:
        total.add(one.metrics or OperatorMetrics())
    seconds = {"task": total.seconds, "input": total.input_seconds, "state": total.state_seconds}
    return {name: value * 1000 / max(total.tasks, 1) for name, value in seconds.items()}


def row(size: int, contestant: str, blocks: Sequence[Block]) -> dict[str, Any]:
    """Return a contestant's row of the table, in milliseconds: figures of blocks and of all batches, and parts."""
    batches = [batch for one in blocks for batch in one.batches]
    totals = [total for one in blocks for total in one.totals]
    medians = [one.p50 for one in blocks]
    split = [parts(batch) for batch in batches]
    return {
        "rows": size,
        "contestant": contestant,
        "p50_ms": median(medians),
        "least": min(medians),
        "greatest": max(medians),
        "p99_ms": float(np.percentile(totals, 99)),
        "shortest": min(totals),
        **{column: median(one[column] for one in split) for column in (*PARTS, OTHER)},
        **task_parts(blocks),
    }


def run(options: Options) -> Report:
    """Measure; see the module."""
    sizes = (SIZES[1],) if options.quick else SIZES
    length = _QUICK if options.quick else _LENGTH
    repetitions = options.repetitions or (1 if options.quick else 3)
    rows: list[dict[str, Any]] = []
    ratios: dict[str, float] = {}
    with stage() as (spark, folder):
        for size in sizes:
            contest = Contest(spark, size, folder / "streams")
            blocks: dict[str, list[Block]] = {name: [] for name in CONTESTANTS}
            for turn in range(repetitions):
                for name in balanced(CONTESTANTS, turn):
                    blocks[name].append(contest.run(name, length))
                    console().print(f"{size:,} rows a batch: {name}: {blocks[name][-1].p50:,.0f} ms")
            rows += [row(size, name, found) for name, found in blocks.items()]
            ratios |= {
                f"{size:,} rows a batch: {name} / {peer}": paired_ratio(
                    blocks[name], blocks[peer], lambda one: one.p50
                )
                for name, peers in PEERS.items()
                for peer in peers
            }
    settings = {
        "repetitions": repetitions,
        "warm_up": length.warm_up,
        "batches": length.batches,
        "keys": KEYS,
    }
    return Report("latency", rows, ratios, settings)


def draw(report: Report, path: Path) -> None:
    """Draw the parts of a batch of one size."""
    sizes = sorted({one["rows"] for one in report.rows})
    size = sizes[len(sizes) // 2]
    labels = {
        "planning": "plan",
        "running": "run",
        "logs": "write what it will do and has done",
        OTHER: "other",
    }
    consists = {
        one["contestant"]: {label: max(one[column], 0) for column, label in labels.items()}
        for one in report.rows
        if one["rows"] == size
    }
    title = f"A micro-batch of {size:,} rows, a counter by key, two cores"
    stacked(path, title=title, axis="milliseconds (medians)", parts=consists)


class Contest:
    """Runs the contestants with batches of one size, each stream in folders of its own."""

    def __init__(self, spark: SparkSession, size: int, folder: Path) -> None:
        self._spark = spark
        self._size = size
        self._folder = folder

    def run(self, contestant: str, length: Length) -> Block:
        """Run one stream, and stop it after its last batch."""
        self._folder.mkdir(exist_ok=True)
        # Each stream has a new folder: the previous host may still be writing into the old one.
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        try:
            native = self._native(contestant)
            if native is None:
                return self._chandy(contestant, folder, length)
            frame, mode = native(self._source())
            writer = frame.writeStream.format("noop").outputMode(mode)
            with file_manager(self._spark, DEFAULT_MANAGER if contestant in _AS_IT_COMES else None):
                query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
                try:
                    _await(query, length.last)
                finally:
                    query.stop()
            return block(query.recentProgress, length)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _source(self) -> DataFrame:
        reader = self._spark.readStream.format("rate-micro-batch")
        rows = reader.option("rowsPerBatch", self._size).option("numPartitions", 2).load()
        return rows.select(F.expr(f"value % {KEYS}").alias("k"))

    def _native(self, contestant: str) -> Callable[[DataFrame], tuple[DataFrame, str]] | None:
        match contestant:
            case name if name == PLAIN:
                return lambda rows: (rows.select("k", F.lit(1).alias("n")), "append")
            case name if name in (PYTHON, PYTHON_QUICK_ACK):
                through = with_quick_ack if name == PYTHON_QUICK_ACK else iter
                return lambda rows: (
                    rows.select("k", F.lit(1).cast("long").alias("n"))
                    .repartitionById(2, F.expr("cast(pmod(xxhash64(k), 2) as int)"))
                    .mapInArrow(lambda batches: through(batches), OUTPUT),
                    "append",
                )
            case name if name in (COUNT, COUNT_TUNED):
                return lambda rows: (rows.groupBy("k").count(), "update")
            case name if name in (SPARK_ROWS, SPARK_ROWS_TUNED):
                return lambda rows: (
                    rows.groupBy("k").transformWithState(RowCounter(), OUTPUT, "Update", "None"),
                    "update",
                )
        return None

    def _chandy(self, contestant: str, folder: Path, length: Length) -> Block:
        config = CheckpointConfig(interval="10 s", cache_dir=str(folder / "cache"))
        with CheckpointCoordinator(
            self._spark, pipeline="benchmark", storage=str(folder / "storage"), config=config
        ) as coordinator:
            query = coordinator.start(_writer(coordinator, contestant, self._source()), name="counts")
            _await(query, length.warm_up - 1)
            before = coordinator.metrics("counts")
            _await(query, length.last)
            metrics = coordinator.metrics("counts").minus(before)
            query.stop()
            return block(query.recentProgress, length, metrics)


def _writer(
    coordinator: CheckpointCoordinator, contestant: str, rows: DataFrame
) -> DataStreamWriter | BatchWriter:
    if contestant != BATCHES:
        return _operator(coordinator, contestant, rows).writeStream.format("noop").outputMode("append")
    totals = coordinator.aggregate_batches(rows, by=["k"], uid="counts", n=("*", "count"))
    return totals.writeStream.foreachBatch(into_nothing)


def _operator(coordinator: CheckpointCoordinator, contestant: str, rows: DataFrame) -> DataFrame:
    match contestant:
        case name if name in (AGGREGATE, UNCOMBINED):
            combine: Combine = "auto" if name == AGGREGATE else False
            return coordinator.aggregate(rows, by=["k"], uid="counts", combine=combine, n=("*", "count"))
        case name if name == ROWS:
            return coordinator.transform_with_state(
                rows, key=["k"], processor=RowCounter(), output=OUTPUT, uid="counts"
            )
        case name if name == ARROW:
            return coordinator.transform_with_arrow(
                rows, key=["k"], processor=ArrowCounter(), output=OUTPUT, uid="counts"
            )
    raise ValueError(f"expected one of Chandy's contestants, found {contestant!r}")


def _await(query: Any, batch: int) -> None:
    """Wait until a query has reported a batch. The source never ends."""
    deadline, seen = time.monotonic() + _BATCH_SECONDS, -1
    while seen < batch:
        if not query.isActive:
            raise RuntimeError(f"the query has ended: {query.exception()}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"no batch after number {seen} in {_BATCH_SECONDS:g} s")
        # Poll rarely: each poll takes time from the batches, the same for all contestants.
        time.sleep(_POLL_SECONDS)
        last = query.lastProgress
        if last is not None and last["batchId"] > seen:
            deadline, seen = time.monotonic() + _BATCH_SECONDS, last["batchId"]
