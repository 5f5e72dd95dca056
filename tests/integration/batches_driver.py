"""A driver that publishes batches at once and takes no checkpoint, run as a process of its own and killed.

``python -m tests.integration.batches_driver <options as JSON>``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator, NoRestart
from chandy.coordinator.connectors.postgres.sink import PostgresSink

from .drivers import session
from .support import TOTALS, Events, Totals


def run(options: dict[str, str], spark: SparkSession) -> None:
    """Run the query until the process is killed."""
    folder = Path(options["folder"])
    coordinator = CheckpointCoordinator(
        spark,
        pipeline="p",
        storage=str(folder / "store"),
        config=CheckpointConfig(interval=None, restart=NoRestart(), changelog=bool(options["changelog"])),
    )
    totals = coordinator.transform_with_state(
        Events(folder / "in").stream(spark),
        key=["k"],
        processor=Totals(),
        output=TOTALS,
        uid="totals",
        shards=4,
    )
    sink = PostgresSink(
        conninfo=options["conninfo"], table="totals", mode="upsert", key="k", publish="batch", timeout=20
    )
    coordinator.start(totals.writeStream, sink=sink, name="totals").awaitTermination()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    run(given, session("local[2]", Path(given["folder"])))
