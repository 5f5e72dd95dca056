"""How long until the first new batch after a failure has committed, and of what that time consists.

A stream keeps the greatest value of each of many keys, strings of 1 KB. When all keys are there, each failure happens
some times (``scenario.Failure``): a checkpoint, five small batches that commit after it, then the failure, and at once
the next batch. The time is that from the failure until that batch has committed, whatever must be done again before.
Flink goes back to its checkpoint unless only the query has failed, and runs on from there. So does Chandy where a
machine's disk is lost, or its local copy; where it is left, Chandy goes on with the next batch, from the checkpoint and
its changelogs. Spark's own state goes back to the batch that failed, for it stores each. All restart without a delay,
and a process that was killed is started again at once.

The contestants:

* Chandy (``chandy.py``), on a local store, on S3, and on S3 with 30 ms to each request (``benchmarks/stores.py``);
* Spark without state, a bare restart: the same query without the aggregate (``spark.py``);
* Spark's RocksDB state, with changelog checkpointing and without (``spark.py``);
* Apache Flink with RocksDB and incremental checkpoints (``flink.py``), if there is one for this machine.

At each size all contestants are filled. After its filling, and in the same life, each one has its exceptions and its
killed hosts. Drivers are killed in rounds: one contestant after the other is started, commits, is killed, comes back,
and is put to rest, so only one is alive at a time; every other round goes backwards. Everything is on one machine with
one disk, whose cache holds what was written lately: a machine that starts cold reads slower, whoever
recovers on it.
"""

from __future__ import annotations

from pathlib import Path

from ..report import Options, Report


def run(options: Options) -> Report:
    """Measure; see the module."""
    # Not at the top, here and below: a driver's process is to import no more than it needs.
    from .turns import run

    return run(options)


def draw(report: Report, path: Path) -> None:
    """Draw the time of a killed driver over the size of the state, and, beside it, the parts at one size."""
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
