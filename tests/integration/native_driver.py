"""A driver with state of Spark's own on HDFS, which kills itself at a step of its start, or runs to the right answer.

``python -m tests.integration.native_driver OPTIONS``: JSON with ``folder``, ``work_dir`` and ``die_at``, the name of a
step or nothing. It prints what it has found as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator, NoRestart
from chandy.coordinator.recovery import launcher
from chandy.coordinator.restore.remote_directories import RemoteDirectories
from chandy.coordinator.spark.hadoop_folder import HadoopFolder
from chandy.coordinator.spark.mirror import Mirror

from ..spark_settings import LOCAL
from ..waiting import DEADLINE, eventually
from .support import Events

STEPS = ("committed", "claimed", "seeded", "uploaded", "started")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_around(owner: Any, name: str, is_it: Callable[..., bool] = lambda *_: True, *, after: bool) -> None:
    """Have this process die right before or after the first call of a function that a predicate picks."""
    real = getattr(owner, name)

    def wrapped(*arguments: Any, **named: Any) -> Any:
        if is_it(*arguments) and not after:
            die()
        found = real(*arguments, **named)
        if is_it(*arguments):
            die()
        return found

    setattr(owner, name, wrapped)


def prepare(step: str) -> None:
    match step:
        case "claimed":
            # The generation is taken; what the life before has left is still there.
            die_around(RemoteDirectories, "begin", after=False)
        case "seeded":
            die_around(Mirror, "publish", after=False)
        case "uploaded":
            # All but the file without which Spark refuses the directory.
            die_around(HadoopFolder, "upload", lambda _, names, __: names == ["metadata"], after=False)
        case "started":
            die_around(launcher, "start_spark", after=True)


def main(folder: Path, work_dir: str, die_at: str) -> None:
    spark = SparkSession.builder.master("local[2]").config(map=LOCAL).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    prepare(die_at)
    events = Events(folder / "in")
    events.files = len(list(events.folder.glob("*.json")))
    counts: dict[str, int] = {}

    def keep(batch: DataFrame, number: int) -> None:
        counts.update({row.k: row.n for row in batch.collect()})

    config = CheckpointConfig(interval=None, restart=NoRestart(), work_dir=work_dir)
    with CheckpointCoordinator(
        spark, pipeline="p", storage=str(folder / "store"), config=config
    ) as coordinator:
        counted = events.stream(spark).groupBy("k").agg(f.count("*").alias("n"))
        writer = counted.writeStream.outputMode("complete").foreachBatch(keep)
        query = coordinator.start(writer.trigger(processingTime="0 seconds"), name="q")
        expected = {key: rows for key, (rows, _) in events.totals(spark).items()}
        query.processAllAvailable()
        eventually(lambda: counts == expected, f"{expected} instead of {counts}")
        coordinator.checkpoint().result(DEADLINE)
        events.add(1)
        query.processAllAvailable()
        if die_at == "committed":
            die()
        lives = {name.partition("/")[0] for name in HadoopFolder(spark, work_dir).files_below()}
        restored = coordinator.restored
    # But for what Spark's state stores may still write when a query has stopped.
    left = [name for name in HadoopFolder(spark, work_dir).files_below() if "/state/" not in name]
    print(json.dumps({"lives": len(lives), "left": left, "restored": restored is not None}))
    spark.stop()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    main(Path(given["folder"]), given["work_dir"], given["die_at"])
