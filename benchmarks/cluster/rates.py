"""Rows a second of a counter by key on a cluster, and the share of accesses that stay on an executor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from ..keyed import Workload
from ..report import Options
from ..stage import balanced, measured
from .arena import Arena, arena
from .figures import Figure, Pair
from .streams import AGGREGATE, COUNT, ROWS, SPARK_ROWS, UID, Feed, running, taking_part

PART: Final = "rates"
CONTESTANTS: Final = (AGGREGATE, COUNT, ROWS, SPARK_ROWS)
RATE: Final = "rows a second"
LOCAL: Final = "local accesses (%)"
CHARTED: Final = RATE
PAIRS: Final = (
    Pair(PART, AGGREGATE, RATE, COUNT),
    Pair(PART, ROWS, RATE, SPARK_ROWS),
)


@attrs.frozen
class Turns:
    """The length of a stream, in batches."""

    warm_up: int
    batches: int


_FULL: Final = Workload("300k rows, 30k keys", 300_000, 30_000)
_QUICK: Final = Workload("60k rows, 6k keys", 60_000, 6_000)
_TURNS: Final = Turns(warm_up=3, batches=8)
_QUICK_TURNS: Final = Turns(warm_up=2, batches=4)
_SHORT: Final = Turns(warm_up=1, batches=1)
"""Of PySpark's processor, which is slow, and of what comes before the first turn."""


def measure(options: Options) -> Iterator[Figure]:
    """Run all contestants in turns. PySpark's processor has one turn."""
    names = taking_part(options, PART, CONTESTANTS)
    if not names:
        return
    workload, turns = (_QUICK, _QUICK_TURNS) if options.quick else (_FULL, _TURNS)
    with arena(anchored=True) as cluster:
        for name in names:
            if name != SPARK_ROWS:
                list(_figures(cluster, name, workload, _SHORT))
        for turn in range(options.repetitions or (1 if options.quick else 3)):
            for name in balanced(names, turn):
                if name != SPARK_ROWS:
                    yield from _figures(cluster, name, workload, turns)
                elif turn == 0:
                    yield from _figures(cluster, name, workload, _SHORT)


def _figures(cluster: Arena, contestant: str, workload: Workload, turns: Turns) -> Iterator[Figure]:
    feed = Feed(cluster)
    with running(cluster, contestant, feed.stream(), interval="10 s") as stream:
        for _ in range(turns.warm_up):
            feed.batch(stream, workload.keys, workload.rows)
        for _ in range(turns.batches):
            feed.add(workload.keys, workload.rows)
        feed.wait(stream)
        found = measured(contestant, stream.query.recentProgress, turns.warm_up)
        yield Figure(PART, contestant, RATE, found.rate)
        if stream.coordinator is not None:
            metrics = stream.coordinator.metrics(UID)
            local = 1 - metrics.remote_shards / metrics.shards
            yield Figure(PART, contestant, LOCAL, 100 * local)
