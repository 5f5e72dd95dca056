"""A pipeline on three machines: rows a second, losses, a machine that joins, and what standbys and mTLS cost.

The machines are made on this one, in namespaces: each has a network, files and processes of its own, and all share its
processors. On each one Spark's standalone cluster runs an executor with two cores. So figures say little, and ratios
between contestants on the same cluster say more. Checkpoints, and the state of Spark's own, are in a folder that all
machines see. The parts, each with a cluster of its own:

* ``rates``: a counter by key, as in ``throughput``: Chandy's aggregate and processor, Spark's count in RocksDB,
  PySpark's ``transformWithState``. For Chandy also the share of accesses that stayed on the task's own executor, from
  the first batch on.
* ``losses``: an executor or a state host is killed, or a machine loses its power, at the moment at which the input of a
  batch appears. Measured is the time from then until the batch has committed, beside the median of five batches before.
  Five batches have committed since Chandy's checkpoint.
* ``standby``: seconds of a batch of a counter by key with a standby of each shard, without one, and without changelogs,
  too. The streams live on the same machines, and take turns of some batches each.
* ``join``: a machine joins, and its part of the shards moves there while the query runs, batch after batch: the bytes
  of these shards in their checkpoint, how long a batch waited for a hand-over, and the longest batch until all machines
  have their part. To tell what takes the time, the longest batch of other times stands beside it: of half a minute
  before, with its checkpoints; while another machine joins that is drained, and so gets tasks and no shards; and until
  the state host of the new one is there. Without anchors, so that shards are balanced.
* ``transport``: the calls of one task (begin, fetch, apply) over a state host's Unix socket and over mTLS on the
  loopback interface. There is no Spark.

Contestants take turns. ``--only`` takes a part, a contestant, or both, as in ``rates: Chandy``. A contestant "with a
standby" takes part if this version has ``CheckpointConfig(standbys=...)``.
"""

from __future__ import annotations

from pathlib import Path

from ..chart import bars
from ..report import Options, Report, console
from . import choice, joining, losses, rates, standby, transport
from .figures import Figure, ratios, rows
from .streams import has_standbys

PARTS = (rates, standby, losses, joining, transport)
"""The modules of the parts, in order. Each has ``PART``, ``PAIRS``, ``CHARTED`` and ``measure(options)``."""


def run(options: Options) -> Report:
    """Measure; see the package.

    Raises:
        OSError: no machines with their own network can be made here.
    """
    screen = console()
    if not choice.are_isolated():
        raise OSError("machines with a network of their own need root, and unshare, nsenter and ip")
    found: list[Figure] = []
    for part in PARTS:
        for figure in part.measure(options):
            found.append(figure)
            screen.print(str(figure), markup=False)
    if not has_standbys():
        screen.print("Contestants with a standby did not take part: this version has none")
    pairs = [pair for part in PARTS for pair in part.PAIRS]
    return Report("cluster", rows(found), ratios(found, pairs), {"machines": 3, "quick": options.quick})


def draw(report: Report, path: Path) -> None:
    """Draw the first part that was measured: rows a second, or seconds."""
    for part in PARTS:
        charted = {
            row["contestant"]: [row["least"], row["median"], row["greatest"]]
            for row in report.rows
            if (row["part"], row["measure"]) == (part.PART, part.CHARTED)
        }
        if charted:
            return bars(path, title=f"Three machines on one: {part.PART}", axis=part.CHARTED, rounds=charted)
    raise ValueError(f"no figures to draw in {path}")
