"""A driver with dynamic allocation on a cluster of its own, ``python -m tests.cluster.allocation_driver FOLDER``.

It adds files, waits until executors that idle have left, adds more, and prints what it has seen as a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from benchmarks.cluster import choice
from benchmarks.cluster.standalone import SOON, Standalone
from chandy.coordinator import CheckpointConfig, CheckpointCoordinator

from ..integration import drivers
from ..spark_settings import WITH_EXECUTORS
from ..waiting import DEADLINE, eventually
from .stream import rows_in

_MACHINES = ("d1", "d2")
_FILES, _AGAIN = 3, 1
_IDLE = "3s"


def main(folder: Path) -> None:
    """Run the stream."""
    cloudpickle.register_pickle_by_value(drivers)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    visible = [folder, Path(__file__).parents[2], Path(sys.prefix)]
    machines = choice.machines(_MACHINES, visible, isolated=choice.are_isolated())
    with machines, Standalone(machines, folder / "logs") as standalone:
        settings = {
            **standalone.session_settings(),
            **SOON,
            **WITH_EXECUTORS,
            "spark.executor.memory": "512m",
            "spark.sql.shuffle.partitions": "3",
            "spark.shuffle.reduceLocality.enabled": "false",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.shuffleTracking.enabled": "true",
            "spark.dynamicAllocation.shuffleTracking.timeout": _IDLE,
            "spark.dynamicAllocation.executorIdleTimeout": _IDLE,
            # The anchor is cached; without this an executor that has a part of it never leaves.
            "spark.dynamicAllocation.cachedExecutorIdleTimeout": _IDLE,
            "spark.dynamicAllocation.initialExecutors": "2",
            "spark.dynamicAllocation.maxExecutors": "2",
        }
        spark = SparkSession.builder.config(map=settings).getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        found = _stream(spark, folder)
        spark.stop()
    print(json.dumps(found))


def _stream(spark: SparkSession, folder: Path) -> dict[str, object]:
    config = CheckpointConfig(interval=None, shared=True)
    (folder / "in").mkdir()
    with CheckpointCoordinator(
        spark, pipeline="p", storage=str(folder / "store"), config=config
    ) as coordinator:
        rows = drivers.chained(coordinator, spark, folder / "in")
        coordinator.start(
            rows.writeStream.format("parquet").option("path", str(folder / "out")), name="chained"
        )
        seconds = [_batch(folder, file) for file in range(_FILES)]
        before = _executors(spark)
        hosts = {(one.machine, one.executor) for one in coordinator.assignment()}
        eventually(lambda: _executors(spark) == 0, "all executors leave when they idle")
        seconds += [_batch(folder, file) for file in range(_FILES, _FILES + _AGAIN)]
        after = _executors(spark)
        kept = hosts == {(one.machine, one.executor) for one in coordinator.assignment()}
        checkpoint = coordinator.checkpoint().result(DEADLINE)
        return {
            "executors": [before, after],
            "hosts": len(hosts),
            "kept": kept,
            "recoveries": len(coordinator.recoveries),
            "checkpoint": checkpoint.batches["chained"],
            "seconds": [round(one, 2) for one in seconds],
        }


def _batch(folder: Path, file: int) -> float:
    """Add a file, wait until the output of all is exact, and return the seconds that it took."""
    wanted, began = drivers.answer(range(file + 1)), time.monotonic()
    drivers.add_file(folder / "in", file)
    eventually(lambda: rows_in(folder / "out") == wanted, f"the output of {file + 1} files")
    return time.monotonic() - began


def _executors(spark: SparkSession) -> int:
    # The driver is one of them.
    return int(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1


if __name__ == "__main__":
    main(Path(sys.argv[1]))
