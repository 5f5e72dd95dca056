"""A driver whose sink is a data source of PySpark's, which tests run as a process of its own and kill.

``python -m tests.integration.data_source_driver <options as JSON>``: events go to stdout; the end of stdin stops it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark import cloudpickle

from chandy import CheckpointConfig, CheckpointCoordinator, DataSourceSink, NoRestart
from tests.coordinator.connectors import file_source
from tests.coordinator.connectors.file_source import FileSource

from .drivers import INPUT, say, session


def run(options: dict[str, Any]) -> None:
    """One query over one folder, two partitions a batch; runs until it is killed or told to stop."""
    folder = Path(options["folder"])
    cloudpickle.register_pickle_by_value(file_source)
    # Two threads, and a task may fail twice.
    spark = session("local[2,3]", folder)
    coordinator = CheckpointCoordinator(
        spark,
        pipeline="killed",
        storage=str(folder / "store"),
        config=CheckpointConfig(interval="300 ms", restart=NoRestart(), takeover_timeout="60 s"),
    )
    say("restored", coordinator.restored.id if coordinator.restored else 0)
    rows = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    sink = DataSourceSink(FileSource, options={"path": folder / "out"})
    query = coordinator.start(rows.repartition(2).writeStream, sink=sink, name="rows")
    say("started")
    sys.stdin.readline()
    query.processAllAvailable()
    coordinator.stop()
    say("stopped")


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
