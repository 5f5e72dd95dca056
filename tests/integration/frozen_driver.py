"""A driver with a file sink, files and a table, which tests freeze while another one takes over.

``python -m tests.integration.frozen_driver <options as JSON>``: events go to stdout; each line on stdin is the name
of a savepoint to take, or empty for a stop.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark import cloudpickle

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator, FixedDelay
from chandy.coordinator.connectors.files.sink import FilesSink
from chandy.coordinator.connectors.postgres.sink import PostgresSink
from chandy.coordinator.spark.session import java_process

from . import drivers
from .drivers import INPUT, chained, say, session, tell_progress


def run(options: dict[str, Any]) -> None:
    """Two queries over one folder, one with state; tells what happens until it is killed or told to stop."""
    folder = Path(options["folder"])
    logging.basicConfig(level=logging.INFO)
    cloudpickle.register_pickle_by_value(drivers)
    spark = session("local[2]", folder)
    say("java", java_process(spark).pid)
    say("warm")
    sys.stdin.readline()
    coordinator = CheckpointCoordinator(
        spark,
        pipeline="frozen",
        storage=str(folder / "store"),
        config=CheckpointConfig(
            interval="500 ms",
            restart=FixedDelay("100 ms", attempts=5),
            takeover_timeout=options["takeover_timeout"],
            java_timeout="3 s",
        ),
        standby=True,
    )
    say("restored", coordinator.restored.id if coordinator.restored else 0)
    rows = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    targets = [
        FilesSink(f"file://{folder}/files", uid="files"),
        PostgresSink(conninfo=options["conninfo"], table=options["table"], timeout=20),
    ]
    chain = chained(coordinator, spark, folder / "in").writeStream
    queries = [
        coordinator.start(chain.format("parquet").option("path", str(folder / "out")), name="chained"),
        coordinator.start(rows.writeStream, sink=targets, name="ids"),
    ]
    say("started")
    threading.Thread(target=tell_progress, args=(coordinator, queries), daemon=True).start()
    for line in sys.stdin:
        if not line.strip():
            break
        try:
            saved = coordinator.savepoint(str(folder / "savepoints" / line.strip())).result()
            say("saved", line.strip(), saved.id)
        except Exception as error:  # noqa: BLE001 (the test is to know)
            say("unsaved", line.strip(), repr(str(error)))
    for query in queries:
        query.processAllAvailable()
    coordinator.stop()
    say("stopped")


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
