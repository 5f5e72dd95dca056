"""What many state hosts cost the coordinator: messages, bytes and processor time with 200 to 2,000 hosts. No Spark.

Each host has 16 shards of one operator: 3,200 to 32,000. The state machine, the watch over silent hosts and the
messages are the product's own, see ``crowd``; there is no network, so what gRPC itself takes is not counted. The steps:

* all hosts join and claim their shards, and a batch begins on all of them;
* a checkpoint, from the request until all hosts know that it is complete;
* one of twenty hosts loses its power: the pipeline goes back to its checkpoint on the others, which claim all shards;
* one host joins for every four. No shard is free, and no shard moves: each is told where the shards of its tasks are;
* another checkpoint, and a second in which nothing happens.

Sizes take turns. Ratios give the factor by which processor time and bytes grow with ten times as many hosts: ten is
linear. The first checkpoint of a crowd has no older one to delete, so there are as many before as retention keeps.

A checkpoint over the real RPC with 200 hosts is in the benchmark ``scale`` if its ``Fleet`` is given 16 shards a host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from .. import chart
from ..report import Options, Report
from ..scale.alone import RETAINED
from .crowd import BATCH, CHECKPOINT, GROWTH, IDLE, JOIN, LOSS, SHARDS_A_HOST, Cost, Crowd

HOSTS: Final = (200, 600, 2_000)
TURNS: Final = 3
STEPS: Final = (JOIN, BATCH, CHECKPOINT, LOSS, GROWTH, IDLE)
_SECONDS: Final = "processor time (s)"
_BYTES: Final = "MB sent and received"

Measured = Mapping[int, Mapping[str, Sequence[Cost]]]
"""The costs of each time that a step was taken, by the number of hosts at first and the name of the step."""


def run(options: Options) -> Report:
    """Measure all sizes. A quick run has a tenth of the hosts."""
    sizes = tuple(size // 10 for size in HOSTS) if options.quick else HOSTS
    turns = options.repetitions or (1 if options.quick else TURNS)
    measured = measure(sizes, turns)
    settings = {"hosts": list(sizes), "shards_a_host": SHARDS_A_HOST, "turns": turns, "retained": RETAINED}
    return Report("hosts", rows(measured), growth(measured), settings)


def measure(sizes: Sequence[int], turns: int) -> Measured:
    """Take all steps with each number of hosts, in turns."""
    costs: dict[int, dict[str, list[Cost]]] = {size: {step: [] for step in STEPS} for size in sizes}
    for _ in range(turns):
        for size in sizes:
            crowd = Crowd(size)
            lived(crowd)
            for step, found in crowd.costs.items():
                costs[size][step] += found
    return costs


def lived(crowd: Crowd) -> None:
    """Take all steps of a crowd."""
    lost, joining = crowd.hosts // 20, crowd.hosts // 4
    crowd.join()
    for _ in range(RETAINED + 1):
        crowd.begin()
        crowd.checkpoint()
    del crowd.costs[CHECKPOINT][:RETAINED]
    crowd.begin()
    crowd.lose(lost)
    crowd.grow(joining)
    crowd.begin()
    crowd.checkpoint()
    crowd.idle()


def rows(measured: Measured) -> list[dict[str, Any]]:
    """Return one row for each step with each number of hosts: medians."""
    return [
        {
            "step": step,
            "hosts": hosts,
            "messages received": _median([one.received for one in found]),
            "messages sent": _median([one.sent for one in found]),
            _BYTES: median(one.received_bytes + one.sent_bytes for one in found) / 1e6,
            _SECONDS: median(one.seconds for one in found),
            "of it under the lock (s)": median(one.locked for one in found),
            "longest event (s)": median(one.longest for one in found),
        }
        for step in STEPS
        for hosts, costs in measured.items()
        if (found := costs[step])
    ]


def growth(measured: Measured) -> dict[str, float]:
    """Return the factors by which processor time and bytes of each step grow from the least number of hosts to the
    greatest."""
    small, large = min(measured), max(measured)
    by_step = {(row["step"], row["hosts"]): row for row in rows(measured)}
    return {
        f"{figure}, {step}: {large:,} / {small:,} hosts": by_step[step, large][figure]
        / by_step[step, small][figure]
        for figure in (_SECONDS, _BYTES)
        for step in STEPS
    }


def draw(report: Report, path: Path) -> None:
    """Draw how the processor time of each step grows with the number of hosts."""
    series = {
        step: [(row["hosts"], row[_SECONDS]) for row in report.rows if row["step"] == step] for step in STEPS
    }
    chart.lines(
        path, title="What hosts cost the coordinator", x="hosts", y="seconds", y_scale="log", series=series
    )


def _median(counts: Sequence[int]) -> int:
    return round(median(counts))
