"""A driver on one of several machines, ``python -m tests.cluster.takeover_driver <options as JSON>``.

It streams until it is killed or fenced, and tells what happens to it, one event a line. With ``shadow`` it begins as
the pipeline's shadow of that name.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from chandy import CheckpointConfig, CheckpointCoordinator, FilesSink, FixedDelay, Shadow
from chandy.storage.errors import ChandyError

from ..integration import drivers
from ..integration.drivers import say
from ..waiting import DEADLINE


def run(options: dict[str, Any]) -> None:
    """Lead the pipeline, at once or after having stood by, or follow its leader."""
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    cloudpickle.register_pickle_by_value(drivers)
    folder = Path(options["folder"])
    spark = SparkSession.builder.config(map=options["settings"]).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    say("session")
    coordinator = CheckpointCoordinator(
        spark,
        pipeline="p",
        storage=str(folder / "store"),
        config=CheckpointConfig(
            interval="1 s",
            host_timeout="6 s",
            takeover_timeout="6 s",
            restart=FixedDelay("100 ms", attempts=1000),
            shared=True,
        ),
        standby=options["standby"],
        shadow=Shadow(name=options["shadow"]) if options["shadow"] else None,
    )
    say(
        "leads" if coordinator.verdict is None else "follows",
        coordinator.restored.id if coordinator.restored else 0,
    )
    rows = drivers.chained(coordinator, spark, folder / "in")
    query = coordinator.start(rows.writeStream, sink=FilesSink(str(folder / "out")), name="chained")
    try:
        query.awaitTermination()
    except Exception as error:  # noqa: BLE001 (whatever it is, the test is to know)
        say("ended", repr(str(error)))
    try:
        coordinator.checkpoint().result(DEADLINE)
        say("completed a checkpoint")
    except ChandyError as error:
        say("completes no checkpoint", repr(str(error)))


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
