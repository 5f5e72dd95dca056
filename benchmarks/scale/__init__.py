"""What a checkpoint costs the coordinator with 10 to 10,000 shards, and how each cost grows with them. No Spark.

The coordinator is the real one (``CheckpointExecutor``, its Arrow Flight service, ``Catalog`` on a local store), in a
process of its own. It has one query, whose batches commit at once. Another process simulates state hosts with 100
shards each. Each host has its own connection, its order stream and its ACK. A shard's handle has four files, one of
them a new SST file in each checkpoint. The objects exist, so deleting an old checkpoint really deletes files.

* *Barrier to last ACK handled*: from the request until the cut is chosen, from there until the last host has its order,
  and from the time when all hosts send their ACKs at once until the last one is handled. The work of a host between
  order and ACK does not count: all hosts wait for each other, with ACKs that are already encoded.
* *Processor time for all ACKs*: of the coordinator's whole process (gRPC, JSON, state machine, and storing the query's
  progress) in the last of these periods. It is measured with one message for each host, as real hosts send them, and,
  as the worst case, with one message for each shard. *The protocol alone* is the state machine without RPC, in one
  thread.
* *Manifest*: it is encoded, written to the local store (synced), read and decoded; each step is measured separately.
* *Memory*: what the state machine holds, by ``tracemalloc``, after more checkpoints than its history remembers; how
  much of that the last five have added; and the peak resident size of the process.

Sizes take turns. Each checkpoint gives one value, except the first ones, before retention deletes one checkpoint for
each that completes. Ratios give the factor by which a figure grows from size to size: near ten is linear.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Final

import attrs

from chandy.coordinator.protocol.statistics import SHARD_RECORDS
from chandy.storage.codec import structure, to_json

from .. import chart
from ..lives import Life
from ..report import Options, Report
from . import alone
from .alone import RETAINED
from .figures import (
    ACKS_CPU,
    ACKS_CPU_SINGLE,
    DISCARD,
    GROWN,
    HELD,
    MANIFEST_IN,
    MANIFEST_OUT,
    ROUND_TRIP,
    Costs,
    growth,
    rows,
)
from .made import FILES, Fleet
from .plans import Plan

SHARDS: Final = (10, 100, 1_000, 10_000)
CHECKPOINTS: Final = 5
"""Measured checkpoints of each turn."""
TURNS: Final = 3
REMEMBERED: Final = 45
"""Memory is measured after so many checkpoints: more than the history remembers for any number of shards."""
GOAL: Final = "10,000 ACKs are handled in under a second of the coordinator's time"
LAST: Final = 5
"""The memory that so many of the last checkpoints add is measured."""
_ALONE: Final = "the protocol alone: all ACKs (s)"
_ALONE_SINGLE: Final = "the protocol alone: a message for each ACK (s)"
_ALONE_OUTCOME: Final = "the protocol alone: from the last ACK to completed (s)"
_ALONE_LONGEST: Final = "the protocol alone: its longest event, under the lock (s)"


@attrs.frozen
class Measured:
    """All measurements."""

    costs: dict[int, list[Costs]]
    """The costs of each checkpoint over RPC with one message for each host, by the number of shards."""
    figures: dict[int, dict[str, list[float]]]


def run(options: Options) -> Report:
    """Measure all sizes. A quick run leaves out the largest."""
    sizes = SHARDS[:-1] if options.quick else SHARDS
    checkpoints = 2 if options.quick else CHECKPOINTS
    turns = options.repetitions or (1 if options.quick else TURNS)
    measured = measure(sizes, checkpoints, turns, REMEMBERED)
    most = sizes[-1]
    ratios = {f"processor time for {most:,} ACKs / 1 s": median(measured.figures[most][ACKS_CPU])}
    settings = {
        "shards": list(sizes),
        "shards_a_host": Fleet(1).shards_a_host,
        "files_a_shard": FILES,
        "checkpoints_a_turn": checkpoints,
        "turns": turns,
        "retained": RETAINED,
        "goals": [GOAL],
    }
    return Report("scale", rows(measured.figures), {**ratios, **growth(measured.figures)}, settings)


def measure(sizes: tuple[int, ...], checkpoints: int, turns: int, remembered: int) -> Measured:
    """Measure some sizes, in turns.

    Args:
        sizes: numbers of shards.
        checkpoints: number of measured checkpoints in each turn.
        turns: number of turns of each size.
        remembered: number of checkpoints after which memory is measured.
    """
    costs: dict[int, list[Costs]] = {size: [] for size in sizes}
    figures: dict[int, dict[str, list[float]]] = {size: defaultdict(list) for size in sizes}
    for _ in range(turns):
        for size in sizes:
            fleet = Fleet(size)
            single = attrs.evolve(fleet, acks_a_message=1)
            found = live(fleet, checkpoints)
            costs[size] += found
            for one in found:
                for name, figure in one.figures.items():
                    figures[size][name].append(figure)
            figures[size][ACKS_CPU_SINGLE] += [one.acks_cpu for one in live(single, checkpoints)]
            handled = alone.handled(fleet, checkpoints)
            figures[size][_ALONE] += [one.acks_cpu for one in handled]
            figures[size][_ALONE_SINGLE] += [one.acks_cpu for one in alone.handled(single, checkpoints)]
            figures[size][_ALONE_OUTCOME] += [one.outcome_cpu for one in handled]
            figures[size][_ALONE_LONGEST] += [one.longest for one in handled]
    for size in sizes:
        last = looked_at(size, remembered)
        earlier, held = alone.held(Fleet(size), (last - LAST, last))
        figures[size][HELD] = [held / 1e6]
        figures[size][GROWN] = [(held - earlier) / 1e6]
    return Measured(costs, {size: dict(own) for size, own in figures.items()})


def looked_at(shards: int, remembered: int) -> int:
    """Return after how many checkpoints memory is measured: ``LAST`` more than the history remembers shards of.

    Args:
        shards: number of shards.
        remembered: a number of checkpoints that is enough for any number of shards.
    """
    return min(remembered, RETAINED + SHARD_RECORDS // shards + LAST)


def live(fleet: Fleet, checkpoints: int) -> list[Costs]:
    """Run a coordinator in a process of its own, and return the costs of its checkpoints.

    Raises:
        RuntimeError: the coordinator failed. The message has the end of its output.
    """
    folder = Path(tempfile.mkdtemp(prefix="chandy-scale-")).resolve()
    plan = Plan(fleet, RETAINED, checkpoints, str(folder))
    log = folder / "log"
    try:
        with Life(
            [to_json(plan).decode()], module=f"{__package__}.coordinator", folder=folder, log=log
        ) as coordinator:
            costs = [structure(Costs, event["costs"]) for event in coordinator.events()]
            if coordinator.wait() != 0:
                raise RuntimeError(
                    f"The coordinator with {fleet.shards} shards failed: {log.read_text()[-2000:]}"
                )
        return costs
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def draw(report: Report, path: Path) -> None:
    """Draw how the times grow with the number of shards."""
    names = (ROUND_TRIP, ACKS_CPU, MANIFEST_OUT, MANIFEST_IN, DISCARD)
    series = {
        name.removesuffix(" (s)"): [
            (row["shards"], row["median"]) for row in report.rows if row["figure"] == name
        ]
        for name in names
    }
    chart.lines(path, title="A checkpoint at scale", x="shards", y="seconds", y_scale="log", series=series)
