"""What the loss of an executor, a state host or a machine costs: seconds of the batch that meets it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median
from typing import Final

import attrs

from ..report import Options, console
from ..stage import balanced
from .arena import Arena, arena
from .figures import Figure, Pair
from .machine import Machine
from .streams import (
    AGGREGATE,
    COUNT,
    NO_CHANGELOG,
    STANDBY,
    Feed,
    Running,
    StreamEndedError,
    running,
    taking_part,
)

PART: Final = "losses"
EXECUTOR: Final = "executor"
HOST: Final = "state host"
MACHINE: Final = "machine"
LOSSES: Final = {
    AGGREGATE: (EXECUTOR, HOST, MACHINE),
    STANDBY: (EXECUTOR, HOST, MACHINE),
    # What an executor or a machine takes along has nothing to do with changelogs.
    NO_CHANGELOG: (HOST,),
    COUNT: (EXECUTOR, MACHINE),
}
"""By contestant what it loses."""
CONTESTANTS: Final = tuple(LOSSES)
CALM: Final = 5
"""Batches since the checkpoint. The median of their times is what a batch takes without a loss."""
_WARM_UP: Final = 4
_PROCESSES: Final = {EXECUTOR: "CoarseGrainedExecutorBackend", HOST: "chandy.state.host.process"}
"""In the command line of what is killed."""


def without(loss: str) -> str:
    """Return the measure of the batches before a loss."""
    return f"batch before the {loss} is lost (s)"


def meeting(loss: str) -> str:
    """Return the measure of the batch that meets a loss."""
    return f"batch that loses the {loss} (s)"


CHARTED: Final = meeting(MACHINE)
PAIRS: Final = (
    *(
        Pair(PART, name, meeting(loss), name, without(loss))
        for name, losses in LOSSES.items()
        for loss in losses
    ),
    *(Pair(PART, own, meeting(loss), COUNT) for own in (AGGREGATE, STANDBY) for loss in LOSSES[COUNT]),
    *(Pair(PART, own, meeting(HOST), NO_CHANGELOG) for own in (AGGREGATE, STANDBY)),
)


@attrs.frozen
class Size:
    """The size of the state, and of a batch."""

    keys: int
    rows: int


_FULL: Final = Size(keys=500_000, rows=50_000)
_QUICK: Final = Size(keys=50_000, rows=10_000)


def measure(options: Options) -> Iterator[Figure]:
    """Run all contestants in turns. Each suffers its losses once a turn."""
    names = taking_part(options, PART, CONTESTANTS)
    if not names:
        return
    size = _QUICK if options.quick else _FULL
    with arena(anchored=True) as cluster:
        for turn in range(options.repetitions or (1 if options.quick else 2)):
            for name in balanced(names, turn):
                try:
                    yield from _figures(cluster, name, size)
                except StreamEndedError as error:
                    if name != COUNT:
                        raise
                    console().print(f"{PART}: {name}: {error}", markup=False)


def _figures(cluster: Arena, contestant: str, size: Size) -> Iterator[Figure]:
    feed = Feed(cluster)
    feed.fill(size.keys, size.keys // 2)
    with running(cluster, contestant, feed.stream()) as stream:
        feed.wait(stream)
        for loss in LOSSES[contestant]:
            for _ in range(_WARM_UP):
                feed.batch(stream, size.keys, size.rows)
            stream.checkpoint()
            calm = [feed.batch(stream, size.keys, size.rows) for _ in range(CALM)]
            yield Figure(PART, contestant, without(loss), median(calm))
            machine = _with_state(cluster, stream)
            begun = time.monotonic()
            feed.add(size.keys, size.rows)
            if loss == MACHINE:
                cluster.kill(machine)
            else:
                machine.run("pkill", "-KILL", "-f", _PROCESSES[loss])
            try:
                feed.wait(stream)
                yield Figure(PART, contestant, meeting(loss), time.monotonic() - begun)
            finally:
                if loss == MACHINE:
                    cluster.add()
                cluster.await_executors()


def _with_state(cluster: Arena, stream: Running) -> Machine:
    """Return a machine that has state of the stream. Of Spark's own each has a part, for there are as many tasks."""
    if stream.coordinator is None:
        return cluster.live[0]
    names = {shard.machine for shard in stream.coordinator.assignment()}
    return next(machine for machine in cluster.live if machine.name in names)
