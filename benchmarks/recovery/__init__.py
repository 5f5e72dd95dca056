"""The time from a failure until the first new batch has committed, and its parts.

A stream keeps the greatest value of each of many keys, as strings of 1 KB. When all keys have arrived, each failure
happens several times (``scenario.Failure``): a checkpoint, five small batches that commit after it, then the failure,
and at once the next batch. The time is from the failure until that batch has committed, with all work that must be
repeated before it. Flink goes back to its checkpoint and runs on from there. So does Chandy if the disk of a machine or
the local copy of the state is lost. If the disk remains, Chandy resumes with the next batch, from the checkpoint and
its changelogs. Spark's own state goes back to the batch that failed, because Spark stores the state of each batch. All
restart without a delay, and a killed process is started again at once.

The contestants:

* Chandy (``chandy.py``), on a local store, on S3, and on S3 with 30 ms to each request (``benchmarks/stores.py``);
* Chandy with a warm standby, on a local store (``standby.py``): a second driver waits while the first one runs. Only
  the driver is killed;
* Spark without state, a bare restart: the same query without the aggregate (``spark.py``);
* Spark's RocksDB state, with changelog checkpointing and without (``spark.py``);
* Apache Flink with RocksDB and incremental checkpoints (``flink.py``), if there is one for this machine.

At each size all contestants are filled. After that, in the same process, each one has its exceptions and its killed
hosts. Drivers are killed in rounds: one contestant after the other is started, commits, is killed, recovers, and is
stopped, so only one runs at a time. Every other round goes backwards. Everything is on one machine with one disk, whose
cache holds recent writes. All contestants would read more slowly on a machine with a cold cache.

``--only`` takes a failure, a size, a contestant, or all of them, as in ``killed driver: 10 MB: Chandy``.
"""

from __future__ import annotations

from pathlib import Path

from ..report import Options, Report


def run(options: Options) -> Report:
    """Measure; see the module."""
    # Imported here and below, because a driver's process must import no more than it needs.
    from .turns import run

    return run(options)


def draw(report: Report, path: Path) -> None:
    """Draw the recovery time of a killed driver over the size of the state, and in a second chart the parts."""
    from ..chart import lines, stacked
    from .figures import curves, fullest, stacks
    from .scenario import Failure

    lines(
        path,
        title="From the kill of the driver to the first new batch",
        x="MB of state",
        y="seconds",
        series=curves(report.rows, Failure.DRIVER),
    )
    size = fullest(report.rows)
    stacked(
        path.with_name(f"{path.stem}-parts{path.suffix}"),
        title=f"What recovery consists of, with {size:,} MB of state",
        axis="seconds",
        parts=stacks(report.rows, size),
    )
