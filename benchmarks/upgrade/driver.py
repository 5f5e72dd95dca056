"""A driver of the benchmark of upgrades, in a process of its own: ``python -m benchmarks.upgrade.driver``."""

from __future__ import annotations

import datetime
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from ..lives import batches_told, say, tell_when_warm
from ..watching import FAILED

PIPELINE: Final = "upgrade"
SHADOW: Final = "next"
_KEYS: Final = 20_000


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
@click.option("--rows", type=int, required=True, help="Rows of a batch.")
@click.option("--pace", default="0 seconds", show_default=True, help="From one batch to the next.")
@click.option("--shadow", is_flag=True, help="Run beside the driver that leads.")
@click.option("--standby", is_flag=True, help="Wait for the end of the driver that leads.")
def main(folder: Path, rows: int, pace: str, shadow: bool, standby: bool) -> None:
    """Count rows by key until a signal ends it."""
    # py4j tells of each call.
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("chandy").setLevel("INFO")
    tell_when_warm()
    try:
        code = _run(folder, rows, pace, shadow=shadow, standby=standby)
    except Exception as error:
        say(FAILED, why=f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")
        raise
    sys.exit(code)


def _run(folder: Path, rows: int, pace: str, *, shadow: bool, standby: bool) -> int:
    from chandy import CheckpointConfig, CheckpointCoordinator, FilesSink, Shadow

    from ..stage import session

    own = folder / "spark" / ("shadow" if shadow else "leader")
    own.mkdir(parents=True, exist_ok=True)
    settings = {"spark.driver.memory": "2g", "spark.sql.streaming.numRecentProgressUpdates": "20"}
    spark = session(own, settings)
    with CheckpointCoordinator(
        spark,
        pipeline=PIPELINE,
        storage=str(folder / "storage"),
        config=CheckpointConfig(interval="2 s", record_batches=True, cache_dir=str(folder / "cache")),
        standby=standby,
        shadow=Shadow(name=SHADOW) if shadow else None,
    ) as coordinator:
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
        numbers = source.option("numPartitions", 2).load().selectExpr(f"value % {_KEYS} AS k")
        counts = coordinator.aggregate(numbers, by=["k"], uid="counts", n=("*", "count"))
        writer = counts.writeStream.trigger(processingTime=pace)
        query = coordinator.start(writer, sink=FilesSink(str(folder / "counts")), name="counts")
        with batches_told(query, _facts):
            return coordinator.run()


def _facts(report: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what is told of a batch; nothing of one that a shadow has run beside its leader."""
    if report["name"] != "counts":
        return None
    began = datetime.datetime.fromisoformat(report["timestamp"]).timestamp()
    return {
        "rows": report["numInputRows"],
        "began": began,
        "ended": began + report["durationMs"]["triggerExecution"] / 1000,
    }


if __name__ == "__main__":
    main()
