"""Drivers that tests run as processes of their own and kill, and the stream that all of them count.

``python -m tests.integration.drivers <options as JSON>``: events go to stdout, one a line; commands come on stdin.
"""
# The methods have PySpark's names.
# ruff: noqa: N802, N803

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator, CheckpointedQuery, NoRestart
from chandy.coordinator.protocol.statistics import Status
from chandy.coordinator.sinks.file_sink_log import newest
from chandy.coordinator.spark.progress import newest_committed

from .. import insides
from ..spark_settings import LOCAL
from ..waiting import pause

EVENT = "@ "
"""What an event's line begins with: Spark prints, too."""
HAND_OVER = "hand over"
"""What a driver that streams is told if a standby is to go on."""
KEYS = 23
ROWS = 40
SHARDS = 6
INPUT = "id long, k string, v long"
OUTPUT = "k string, n long, total long, chain long"

Output = tuple[str, int, int, int]


def records(file: int) -> list[tuple[int, str, int]]:
    """The rows of an input file: ids grow from file to file; most keys are in it, not all."""
    ids = range(file * ROWS, (file + 1) * ROWS)
    return [(number, f"k{number * number % 1009 % KEYS}", number % 97) for number in ids]


def add_file(folder: Path, file: int) -> None:
    """Put an input file there, at once and as the newest.

    With one file a batch, batch n has file n, unless the query is killed while it plans: see ``files_sunk``.
    """
    hidden = folder / f".{file:04}"
    hidden.write_text(
        "\n".join(json.dumps(dict(zip(("id", "k", "v"), row, strict=True))) for row in records(file))
    )
    os.utime(hidden, (1_600_000_000 + file, 1_600_000_000 + file))
    hidden.rename(folder / f"{file:04}.json")


def linked(chain: int, number: int) -> int:
    """The next value of a hash over all ids in their order: it tells any loss, repetition or exchange."""
    return zlib.crc32(f"{chain}:{number}".encode())


def answer(files: Iterable[int]) -> Counter[Output]:
    """What the operator gives out for these files, one batch each."""
    return answer_of_batches([file] for file in files)


def answer_of_batches(batches: Iterable[Collection[int]]) -> Counter[Output]:
    """What the operator gives out for batches with these files: one row for each key in each batch."""
    state: dict[str, tuple[int, int, int]] = {}
    rows: Counter[Output] = Counter()
    for files in batches:
        given = [record for file in files for record in records(file)]
        for number, key, value in given:
            n, total, chain = state.get(key, (0, 0, 0))
            state[key] = n + 1, total + value, linked(chain, number)
        rows.update((key, *state[key]) for key in {key for _, key, _ in given})
    return rows


def batches_in(rows: Counter[Output], files: int) -> list[list[int]]:
    """Return which files were in one batch, as the operator's output tells.

    A query that is killed between its source's log and the offset log runs two files as one batch: then no key shows
    its state after the first of them, unless the second one does not have the key.
    """
    batches: list[list[int]] = []
    for file in range(files):
        if batches and not rows >= answer_of_batches(batches):
            batches[-1].append(file)
        else:
            batches.append([file])
    return batches


class Chain(StatefulProcessor):
    """Counts, sums and chains, and shows the state after each batch."""

    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("state", "n long, total long, chain long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, total, chain = self.state.get() or (0, 0, 0)
        for row in sorted(rows, key=lambda row: row.id):
            n, total, chain = n + 1, total + row.v, linked(chain, row.id)
        self.state.update((n, total, chain))
        yield Row(k=key[0], n=n, total=total, chain=chain)

    def close(self) -> None:
        pass


def chained(
    coordinator: CheckpointCoordinator, spark: SparkSession, inputs: Path, files_per_batch: int = 1
) -> DataFrame:
    """The operator over the input folder."""
    stream = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", files_per_batch).json(str(inputs))
    return coordinator.transform_with_state(
        stream, key=["k"], processor=Chain(), output=OUTPUT, uid="chain", shards=SHARDS
    )


def trouble(
    marks: Path, error: str = "made to fail"
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for ``mapInArrow`` that notes each attempt and fails where a mark lies, once a mark.

    It fails after it has taken all its input: the operator before it in the stage has ended then, and has applied
    its batch. Marks are files named ``<batch>-<partition>``. Where a mark has ``-held`` behind that, it waits for the
    mark to go.
    """
    folder = str(marks)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        held = list(batches)
        place = f"{context.getLocalProperty('streaming.sql.batchId')}-{context.partitionId()}"
        (Path(folder) / f"seen-{time.time_ns()}-{place}").touch()
        while (Path(folder) / f"{place}-held").exists():
            time.sleep(0.01)
        try:
            (Path(folder) / place).unlink()
        except FileNotFoundError:
            yield from held
        else:
            raise RuntimeError(f"{error} at {place}")

    return run


def seen(marks: Path) -> list[tuple[int, int]]:
    """The (batch, partition) of every attempt that ``trouble`` has noted, in their order."""
    names = sorted(path.name for path in marks.glob("seen-*"))
    return [(int(batch), int(partition)) for _, _, batch, partition in (name.split("-") for name in names)]


def files_sunk(coordinator: CheckpointCoordinator, out: Path) -> int:
    """How many input files are in the sink.

    Not by the number of its newest batch: of a query that is killed between its source's log and the offset log, the
    next life plans one batch for two entries of the source's log.
    """
    run = insides.run(coordinator, "chained")
    if run is None:
        return 0
    try:
        planned = (run.directory / "offsets" / str(newest(out))).read_text()
    except FileNotFoundError:
        # Nothing has run, or a run is just being made.
        return 0
    return int(json.loads(planned.splitlines()[-1])["logOffset"]) + 1


# --- the processes ---------------------------------------------------------------------------------------


def say(*words: object) -> None:
    """Tell the test that something has happened."""
    os.write(1, (EVENT + " ".join(str(word) for word in words) + "\n").encode())


def session(master: str, folder: Path) -> SparkSession:
    """A Spark session that starts soon, warmed up as far as that goes without a stream."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master(master)
        .config(map=LOCAL)
        .config("spark.driver.memory", "512m")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.range(4).repartition(2).mapInArrow(lambda batches: batches, "id long").collect()
    return spark


def batches_committed(coordinator: CheckpointCoordinator) -> int:
    """How many batches the query has committed. Its sink has each a moment before."""
    run = insides.run(coordinator, "chained")
    return 0 if run is None else newest_committed(run.directory) + 1


def watch(coordinator: CheckpointCoordinator, out: Path) -> None:
    """Tell how many files are in the sink, of batches that commit and of checkpoints, as they come; for a thread."""
    told: set[tuple[str, int]] = set()
    files = files_sunk(coordinator, out)
    say("begins", files)
    batches = 0
    while True:
        looked = time.monotonic()
        if (committed := batches_committed(coordinator)) > batches:
            batches = committed
            say("committed", batches)
        if (now := files_sunk(coordinator, out)) > files:
            files = now
            say("sank", files)
        for one in coordinator.statistics().checkpoints:
            events = ["triggered"] + ([one.status.value] if one.status is not Status.IN_PROGRESS else [])
            for event in events:
                if (event, one.id) not in told:
                    told.add((event, one.id))
                    say(event, one.id, one.reason.name if one.reason else "")
        pause(looked)


def tell_progress(coordinator: CheckpointCoordinator, queries: Collection[CheckpointedQuery]) -> None:
    """Tell how many checkpoints have completed, and of each query its newest batch and its failure; for a thread."""
    told: dict[str, object] = {}
    failed: set[str] = set()
    while True:
        looked = time.monotonic()
        for query in queries:
            if query.name not in failed and (error := query.exception()) is not None:
                failed.add(query.name)
                say("failed", query.name, repr(str(error)))
        now: dict[str, object] = {"checkpoint": coordinator.statistics().counts.completed}
        for query in queries:
            # Its JVM may have ended.
            with contextlib.suppress(OSError):
                last = query.lastProgress
                now[query.name] = last["batchId"] if last else None
        for name, value in now.items():
            if told.get(name) != value:
                told[name] = value
                say("event", name, value)
        pause(looked)


def stream(options: dict[str, Any]) -> None:
    """The operator into parquet, told step by step; runs until it is killed or told to stop."""
    folder = Path(options["folder"])
    if options.get("standby"):
        logging.basicConfig(level=logging.INFO)
    spark = session(options["master"], folder)
    say("warm")
    sys.stdin.readline()
    say("constructing")
    coordinator = CheckpointCoordinator(
        spark,
        pipeline="killed",
        storage=str(folder / "store"),
        config=CheckpointConfig(
            interval=options["interval"],
            restart=NoRestart(),
            changelog=options["changelog"],
            takeover_timeout=options["takeover_timeout"],
        ),
        standby=options.get("standby", False),
    )
    say("restored", coordinator.restored.id if coordinator.restored else 0)
    rows = chained(coordinator, spark, folder / "in")
    if options["marks"]:
        rows = rows.mapInArrow(trouble(Path(options["marks"])), rows.schema)
    out = folder / "out"
    say("starting")
    query = coordinator.start(rows.writeStream.format("parquet").option("path", str(out)), name="chained")
    say("started")
    (first,) = coordinator.recoveries
    say("resumes" if first.in_place else "replays", first.checkpoint or 0)
    threading.Thread(target=watch, args=(coordinator, out), daemon=True).start()
    threading.Thread(target=_tell_of_end, args=(query,), daemon=True).start()
    coordinator.stop(hand_over=sys.stdin.readline().strip() == HAND_OVER)
    say("stopped")


def _tell_of_end(query: Any) -> None:
    try:
        query.awaitTermination()
    except Exception as error:  # noqa: BLE001 (whatever it is, the test is to know)
        say("died", repr(str(error)))


if __name__ == "__main__":
    stream(json.loads(sys.argv[1]))
