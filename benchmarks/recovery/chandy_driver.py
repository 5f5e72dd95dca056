"""A driver with Chandy, in a process of its own: ``python -m benchmarks.recovery.chandy_driver``.

Restarts have no delay, like those of the peers. Checkpoints are taken only when the parent asks for them.
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path
from typing import Final

import attrs
import click

from ..lives import say, tell_when_warm

PIPELINE: Final = "recovery"
COMMIT_LOGS: Final = "work/*/*/checkpoint/commits"
"""Pattern of the commit logs of all runs of the query, below the contestant's folder."""
_POLL_SECONDS: Final = 0.02


@attrs.frozen
class Work:
    """The paths in Chandy's folder."""

    folder: Path

    @property
    def cache(self) -> Path:
        """Chandy's local copies of the state."""
        return self.folder / "cache"

    @property
    def directories(self) -> Path:
        """The queries' working directories."""
        return self.folder / "work"

    @property
    def request(self) -> Path:
        """The file by which the parent asks for a checkpoint. The driver deletes it."""
        return self.folder / "checkpoint"


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
@click.option("--storage", required=True, help="URI where checkpoints go.")
@click.option("--unfenced", is_flag=True, help="The store ignores the condition of an exclusive create.")
@click.option("--standby", is_flag=True, help="Wait while another driver leads.")
def main(folder: Path, storage: str, unfenced: bool, standby: bool) -> None:
    """Run the query from the latest checkpoint until killed."""
    say("process")
    # Imported after the event ``process``, because imports are part of the cost of a new process.
    from chandy.coordinator import CheckpointConfig, CheckpointCoordinator, FixedDelay

    from . import query as common

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    tell_when_warm()
    work, place = Work(folder), common.Place(folder, COMMIT_LOGS)
    spark = common.session(place)
    say("session")
    config = CheckpointConfig(
        interval=None,
        restart=FixedDelay("0 s", attempts=1_000_000),
        cache_dir=str(work.cache),
        work_dir=str(work.directories),
        allow_unfenced=unfenced,
    )
    coordinator = CheckpointCoordinator(
        spark, pipeline=PIPELINE, storage=storage, config=config, standby=standby
    )
    say("coordinator")
    # Keys hardly repeat within a batch, so combining their rows first would not help.
    rows = common.stream(spark, place)
    totals = coordinator.aggregate(rows, by=["k"], uid="totals", combine=False, v=("v", "max"))
    writer = common.into_sink(totals.writeStream.outputMode("append"), place)
    running = coordinator.start(writer, name="totals")
    told = 0
    while running.isActive:
        if work.request.exists():
            work.request.unlink()
            taken = coordinator.checkpoint().result()
            say("checkpoint", id=taken.id, seconds=taken.duration, bytes=taken.size)
        for recovery in coordinator.recoveries[told:]:
            if recovery.first_batch is None:
                break
            told += 1
            say("recovery", **attrs.asdict(recovery))
        time.sleep(_POLL_SECONDS)
    raise SystemExit(f"The query has ended: {running.exception()}")


if __name__ == "__main__":
    main()
