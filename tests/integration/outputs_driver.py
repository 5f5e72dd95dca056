"""A driver with transactional sinks, which tests run as a process of its own and kill.

``python -m tests.integration.outputs_driver <options as JSON>``: events go to stdout. The end of stdin
stops it; if it is supervised, a signal does.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark import cloudpickle

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator, NoRestart
from tests.coordinator.sinks.two_phase import sqlite_sink
from tests.coordinator.sinks.two_phase.sqlite_sink import SqliteSink

from . import drivers
from .drivers import INPUT, chained, say, session, tell_progress

CHAIN_COLUMNS = ("k", "n", "total", "chain")
ID_COLUMNS = ("id", "k", "v")


def sinks(folder: Path) -> tuple[SqliteSink, SqliteSink]:
    """The targets: what the operator gives out, and the rows as they came."""
    return SqliteSink(folder / "chain.db", CHAIN_COLUMNS), SqliteSink(folder / "ids.db", ID_COLUMNS)


def run(options: dict[str, Any]) -> None:
    """Two queries over one folder, one with state; tells what happens until it is killed or told to stop."""
    folder = Path(options["folder"])
    cloudpickle.register_pickle_by_value(drivers)
    cloudpickle.register_pickle_by_value(sqlite_sink)
    spark = session("local[2]", folder)
    say("warm")
    coordinator = CheckpointCoordinator(
        spark,
        pipeline="killed",
        storage=str(folder / "store"),
        config=CheckpointConfig(
            interval=options["interval"],
            restart=NoRestart(),
            changelog=options["changelog"],
            takeover_timeout=options.get("takeover_timeout", "60 s"),
        ),
        standby=options.get("standby", False),
    )
    say("restored", coordinator.restored.id if coordinator.restored else 0)
    chain, ids = sinks(folder)
    rows = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    queries = [
        coordinator.start(chained(coordinator, spark, folder / "in").writeStream, sink=chain, name="chained"),
        coordinator.start(rows.writeStream, sink=ids, name="ids"),
    ]
    say("resumes" if all(one.in_place for one in coordinator.recoveries) else "replays")
    threading.Thread(target=tell_progress, args=(coordinator, queries), daemon=True).start()
    if options.get("supervised"):
        sys.exit(coordinator.run())
    sys.stdin.readline()
    for query in queries:
        query.processAllAvailable()
    coordinator.stop()
    say("stopped")


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
