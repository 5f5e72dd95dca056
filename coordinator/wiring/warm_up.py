"""Warms a standby driver up: runs a pipeline of no consequence, so that the real one finds everything loaded.

Most of what a new driver waits for is done once in a process: the JVM loads and compiles Spark's streaming classes,
Python imports modules, workers start. None of it needs the real pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...state.host.discovery import keep_spare
from ...storage import runtime
from ...storage.disk.directories import private_directory, runtime_directory
from ...storage.disk.owners import OwnerRecord
from ...storage.disk.workspace import Workspace
from ...storage.logs import logger
from ..config import CheckpointConfig
from ..hosts.local_host import is_here
from ..recovery.restart import NoRestart

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logger(__name__)

FOLDER: Final = "warm-up"
"""Name of the folder in the runtime directory that this works in."""
PIPELINE: Final = "warm-up"
_BATCHES: Final = 3
_ROWS: Final = 100
_KEEP_SECONDS: Final = 30.0
"""From one use of the workers to the next."""
_SECONDS: Final = 60.0
"""How long a query may take. It is given up then: the machine is busy."""


def warm_up(spark: SparkSession, coordinators: Callable[..., Any], needed: runtime.Flag) -> None:
    """Run batches with state, a checkpoint and a restore, in a session and a folder of their own; then keep warm.

    Spark ends Python workers that have been idle for a minute, so they get something to do until then. The user's
    session, listeners and files see nothing of it. It takes some seconds of two cores. A failure is only logged: a
    driver that is not warm does the same things later.

    Args:
        spark: the user's session.
        coordinators: the class ``CheckpointCoordinator``.
        needed: set when the process has better things to do.
    """
    try:
        # Sessions of one application share the JVM, the workers and the executors, but no settings or listeners.
        apart = spark.newSession()
        if is_here(spark):
            _rehearse_both_lives(apart, coordinators, needed)
            # Not before: the rehearsal would use it.
            keep_spare()
        _use_workers(apart)
        log.info("warm: a take-over needs no new session and no imports")
        while not needed.wait(_KEEP_SECONDS):
            _use_workers(apart)
    except Exception as error:  # noqa: BLE001 (nothing depends on it)
        log.warning("could not warm up; a take-over takes longer", error=str(error))


def _use_workers(spark: SparkSession) -> None:
    """Run a small job on as many Python workers as the first batch will need."""
    parallel = spark.sparkContext.defaultParallelism
    spark.range(parallel, numPartitions=parallel).mapInArrow(_same, "id long").collect()


def _rehearse_both_lives(spark: SparkSession, coordinators: Callable[..., Any], needed: runtime.Flag) -> None:
    base = private_directory(runtime_directory()) / FOLDER
    workspace = Workspace.create(base, runtime.token()[:12], OwnerRecord(FOLDER))
    try:
        # The second time it restores what the first has checkpointed.
        for life in range(2):
            if not needed.is_set():
                _rehearse(spark, coordinators, workspace.path, life)
    finally:
        workspace.remove()


def _rehearse(spark: SparkSession, coordinators: Callable[..., Any], folder: Path, life: int) -> None:
    # Not above: every driver imports this module, and few stand by.
    import pyarrow as pa
    import pyarrow.parquet as pq

    inputs = folder / "in"
    inputs.mkdir(exist_ok=True)
    for number in range(_BATCHES):
        table = pa.table({"k": pa.array(range(_ROWS)), "v": pa.array(range(_ROWS))})
        pq.write_table(table, inputs / f"{life}-{number}.parquet")
    config = CheckpointConfig(
        interval=None,
        restart=NoRestart(),
        work_dir=str(folder / "work"),
        cache_dir=str(folder / "cache"),
    )
    with coordinators(spark, pipeline=PIPELINE, storage=str(folder / "store"), config=config) as coordinator:
        files = spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1).parquet(str(inputs))
        totals = coordinator.aggregate(files, by=["k"], uid="totals", shards=2, total=("v", "sum"))
        writer = totals.writeStream.outputMode("append").trigger(availableNow=True).foreachBatch(_drop)
        coordinator.start(writer, name=PIPELINE).awaitTermination(_SECONDS)


def _drop(batch: DataFrame, number: int) -> None:
    batch.write.format("noop").mode("append").save()


def _same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches
