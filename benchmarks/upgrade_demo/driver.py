"""A driver of the demo of an upgrade, in a process of its own: ``python -m benchmarks.upgrade_demo.driver``.

The program is the same for each version and for a shadow: two arguments make the difference.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import click

from chandy import CheckpointConfig, CheckpointCoordinator, FilesSink, Shadow

from .. import driver
from ..file_source import reported_entry
from ..lives import batches_told, say
from ..watching import FAILED
from .flow import OUTPUT, PIPELINE, QUERY, VERSIONS, stream


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
@click.option("--storage", required=True, help="URI where checkpoints go.")
@click.option(
    "--version", type=click.Choice(sorted(VERSIONS)), required=True, help="What the program counts with."
)
@click.option("--shadow", is_flag=True, help="Run beside the driver that leads.")
def main(folder: Path, storage: str, version: str, shadow: bool) -> None:
    """Run the pipeline until a signal ends it."""
    say("process")
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    try:
        code = _run(driver.Work(folder, storage), version, shadow=shadow)
    except Exception as error:
        say(FAILED, why=driver.first_line(error))
        raise
    say("stopped", code=code)
    sys.exit(code)


def _run(work: driver.Work, version: str, *, shadow: bool) -> int:
    spark = driver.session(work)
    spark.sparkContext.setLogLevel("ERROR")
    say("session")
    # Where shadows are slow, as with three drivers on two cores, what they have not read yet must not be dropped.
    config = CheckpointConfig(
        interval="2 s", retained=100, record_batches=True, cache_dir=str(work.root / "cache")
    )
    with CheckpointCoordinator(
        spark,
        pipeline=PIPELINE,
        storage=work.storage,
        config=config,
        shadow=Shadow(name=version) if shadow else None,
    ) as coordinator:
        say("coordinator")
        totals = coordinator.transform_with_state(
            stream(spark, work.root / "input"),
            key=["carrier", "aircraft"],
            processor=VERSIONS[version](),
            output=OUTPUT,
            uid="totals",
        )
        writer = totals.writeStream.trigger(processingTime="500 milliseconds")
        query = coordinator.start(writer, sink=FilesSink(str(work.root / "totals")), name=QUERY)
        say("query")
        with batches_told(query, lambda report: {"entry": reported_entry(report)}):
            return coordinator.run()


if __name__ == "__main__":
    main()
