"""A driver with two queries, of which one reads what the other writes; tests run it as a process and kill it.

``python -m tests.integration.channels_driver <options as JSON>``: events go to stdout; the end of stdin stops it.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator, CheckpointedQuery, NoRestart
from chandy.coordinator.connectors.files.sink import FilesSink
from chandy.coordinator.sinks.two_phase.errors import OutputAheadError

from ..waiting import DEADLINE
from .drivers import INPUT, say, session, tell_progress

PIPELINE = "killed"


def run(options: dict[str, Any]) -> None:
    """Copy a folder of files into a directory, and that into another one."""
    folder = Path(options["folder"])
    spark = session("local[2]", folder)
    coordinator = CheckpointCoordinator(
        spark,
        pipeline=PIPELINE,
        storage=str(folder / "store"),
        config=CheckpointConfig(
            interval=options["interval"],
            retained=20,
            restart=NoRestart(),
            takeover_timeout="60 s",
        ),
        restore=options["restore"],
    )
    say("restored", coordinator.restored.id if coordinator.restored else 0)
    rows = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    try:
        transactional = options["transactional"]
        copied = _start(coordinator, "copied", rows.writeStream, folder / "middle", transactional)
        again = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 2).parquet(str(folder / "middle"))
        queries = [copied, _start(coordinator, "again", again.writeStream, folder / "out", transactional)]
    except OutputAheadError as error:
        say("refused", type(error).__name__)
        coordinator.stop(checkpoint=False)
        return
    say("started")
    threading.Thread(target=tell_progress, args=(coordinator, queries), daemon=True).start()
    sys.stdin.readline()
    queries[0].processAllAvailable()
    coordinator.checkpoint().result(DEADLINE)
    queries[1].processAllAvailable()
    coordinator.stop()
    say("stopped")


def _start(
    coordinator: CheckpointCoordinator, name: str, writer: Any, output: Path, transactional: bool
) -> CheckpointedQuery:
    if transactional:
        return coordinator.start(writer, sink=FilesSink(str(output)), name=name)
    return coordinator.start(writer.format("parquet").option("path", str(output)), name=name)


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
