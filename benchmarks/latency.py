"""How short a micro-batch can be that goes through keyed state, Chandy's and Spark's, beside one without any.

A counter by key over tiny batches, on two cores. Spark's ``rate-micro-batch`` source gives every batch the same few
rows, in two partitions; a batch begins as soon as the one before has committed. What is measured is Spark's
``triggerExecution`` of each batch of a warm stream, and its parts as Spark reports them. Contestants take turns in one
session: a block of batches each, in an order that alternates. Ratios compare the medians of blocks of the same turn,
and are medians over the turns. A percentile is over all batches of all turns.

Three streams without state show what a batch costs in any case: Spark's plan alone; rows through a shuffle to Python
and back, as PySpark does it; and the same acknowledged at once (``chandy.state.operators.prompt``), as Chandy does it,
the floor of everything in Python. They run with the setting by which Spark's logs are written without forking
processes, which Chandy chooses by itself for local directories. Streams with Spark's own state (RocksDB with changelog
checkpointing) run as they come, and once more with that setting ("tuned"). Chandy takes a checkpoint every ten seconds.

All columns are in milliseconds. ``p50_ms`` is the median of the blocks' medians, which ``least`` and ``greatest`` span;
``shortest`` is a single batch. ``logs`` (Spark's ``walCommit`` and ``commitOffsets``), ``planning``, ``running``
(``addBatch``) and ``other`` are medians. ``task`` is what Chandy's tasks take once their batch has begun, by its own
account, a task's mean; two run side by side; ``input`` and ``state`` are the waits for Spark and the state host in it.
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
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator
from chandy.state.aggregation.aggregate_operator import Combine
from chandy.state.operators.quick_ack import with_quick_ack
from chandy.state.rpc.metrics import OperatorMetrics

from .chart import stacked
from .counters import OUTPUT, ArrowCounter, RowCounter
from .report import Options, Report, console, paired_ratio
from .stage import DEFAULT_MANAGER, balanced, file_manager, stage

PLAIN: Final = "no state"
PYTHON: Final = "no state, through Python"
PYTHON_PROMPT: Final = "no state, through Python, prompt"
COUNT: Final = "Spark groupBy().count()"
COUNT_TUNED: Final = "Spark groupBy().count(), tuned"
SPARK_ROWS: Final = "PySpark transformWithState"
SPARK_ROWS_TUNED: Final = "PySpark transformWithState, tuned"
AGGREGATE: Final = "Chandy aggregate"
UNCOMBINED: Final = "Chandy aggregate, combine=False"
ROWS: Final = "Chandy transform_with_state"
ARROW: Final = "Chandy transform_with_arrow"

CONTESTANTS: Final = (
    PLAIN,
    PYTHON,
    PYTHON_PROMPT,
    COUNT,
    COUNT_TUNED,
    SPARK_ROWS,
    SPARK_ROWS_TUNED,
    AGGREGATE,
    UNCOMBINED,
    ROWS,
    ARROW,
)
PEERS: Final = {
    AGGREGATE: (COUNT, COUNT_TUNED, PYTHON_PROMPT),
    UNCOMBINED: (COUNT, COUNT_TUNED, PYTHON_PROMPT),
    ROWS: (SPARK_ROWS, SPARK_ROWS_TUNED, PYTHON_PROMPT),
    ARROW: (COUNT, COUNT_TUNED, PYTHON_PROMPT),
    PYTHON_PROMPT: (PLAIN, PYTHON),
}
"""Whose batches each contestant's are compared with."""
_AS_IT_COMES: Final = frozenset({COUNT, SPARK_ROWS})

PARTS: Final = {
    "logs": ("walCommit", "commitOffsets"),
    "planning": ("queryPlanning",),
    "running": ("addBatch",),
}
"""Columns of a batch's parts: Spark's names of what they are the sum of."""
OTHER: Final = "other"
"""The column of what is none of these."""

SIZES: Final = (1, 100, 1_000)
"""Rows of a batch."""
KEYS: Final = 10
_POLL_SECONDS: Final = 0.2
_BATCH_SECONDS: Final = 60.0
"""After so long without a batch a stream is given up."""


@attrs.frozen
class Length:
    """How many batches a stream has."""

    warm_up: int
    batches: int

    @property
    def last(self) -> int:
        """Number of the last batch that counts, the first one being 0."""
        return self.warm_up + self.batches - 1


_LENGTH: Final = Length(warm_up=15, batches=60)
_QUICK: Final = Length(warm_up=2, batches=6)


@attrs.frozen
class Block:
    """The measured batches of one stream."""

    batches: tuple[Mapping[str, float], ...]
    """Of each the milliseconds by Spark's name of the part, ``triggerExecution`` among them."""
    metrics: OperatorMetrics | None = None
    """What Chandy's tasks spent meanwhile."""

    @property
    def totals(self) -> tuple[float, ...]:
        """Milliseconds of each batch."""
        return tuple(one["triggerExecution"] for one in self.batches)

    @property
    def p50(self) -> float:
        """Milliseconds of the median batch."""
        return median(self.totals)


def block(progress: Sequence[Any], length: Length, metrics: OperatorMetrics | None = None) -> Block:
    """Cut warm-up and what came after the end off a stream's progress reports.

    Args:
        progress: Spark's reports, one a batch; those of batches without rows do not count.
        length: how many batches do.
        spent: goes with them.
    """
    counted = [
        one for one in progress if one["numInputRows"] > 0 and length.warm_up <= one["batchId"] <= length.last
    ]
    if len(counted) != length.batches:
        raise ValueError(f"expected reports of {length.batches} batches, found {len(counted)}")
    return Block(tuple(dict(one["durationMs"]) for one in counted), metrics)


def parts(batch: Mapping[str, float]) -> dict[str, float]:
    """Return what a batch consists of, by column; the parts' sum is the batch's milliseconds."""
    known = {column: sum(batch.get(name, 0) for name in names) for column, names in PARTS.items()}
    return {**known, OTHER: batch["triggerExecution"] - sum(known.values())}


def task_parts(blocks: Sequence[Block]) -> dict[str, float]:
    """Return the milliseconds of a Chandy task, and of its waits; means over all blocks, zeros if there was none."""
    total = OperatorMetrics()
    for one in blocks:
        total.add(one.metrics or OperatorMetrics())
    seconds = {"task": total.seconds, "input": total.input_seconds, "state": total.state_seconds}
    return {name: value * 1000 / max(total.tasks, 1) for name, value in seconds.items()}


def row(size: int, contestant: str, blocks: Sequence[Block]) -> dict[str, Any]:
    """Return a contestant's line of the table, in milliseconds: figures of blocks, of all batches, and parts."""
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
    """Draw of what a batch of one size consists."""
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
    """The contestants over batches of one size; each stream has folders of its own."""

    def __init__(self, spark: SparkSession, size: int, folder: Path) -> None:
        self._spark = spark
        self._size = size
        self._folder = folder

    def run(self, contestant: str, length: Length) -> Block:
        """Run one stream, and end it after its last batch."""
        self._folder.mkdir(exist_ok=True)
        # A new name each time: a host that is ending may still write into the folder of the stream before.
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
            case name if name in (PYTHON, PYTHON_PROMPT):
                through = with_quick_ack if name == PYTHON_PROMPT else iter
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
            frame = _operator(coordinator, contestant, self._source())
            query = coordinator.start(frame.writeStream.format("noop").outputMode("append"), name="counts")
            _await(query, length.warm_up - 1)
            before = coordinator.metrics("counts")
            _await(query, length.last)
            metrics = coordinator.metrics("counts").minus(before)
            query.stop()
            return block(query.recentProgress, length, metrics)


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
    """Wait until a batch of a query has been reported; the source never ends."""
    deadline, seen = time.monotonic() + _BATCH_SECONDS, -1
    while seen < batch:
        if not query.isActive:
            raise RuntimeError(f"the query has ended: {query.exception()}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"no batch after number {seen} in {_BATCH_SECONDS:g} s")
        # Rarely: each look takes time from the batches, and the same from everybody's.
        time.sleep(_POLL_SECONDS)
        last = query.lastProgress
        if last is not None and last["batchId"] > seen:
            deadline, seen = time.monotonic() + _BATCH_SECONDS, last["batchId"]
