"""What a standby of each shard costs in throughput, and what changelogs do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

import attrs

from ..keyed import Workload
from ..report import Options
from ..stage import balanced
from .arena import Arena, arena
from .figures import Figure, Pair
from .streams import AGGREGATE, NO_CHANGELOG, STANDBY, Feed, Running, running, taking_part

PART: Final = "standby"
CONTESTANTS: Final = (AGGREGATE, STANDBY, NO_CHANGELOG)
_WORKLOADS: Final = (
    Workload("1M rows, 100k keys", 1_000_000, 100_000),
    Workload("100k rows, 100k keys", 100_000, 100_000),
)
_QUICK: Final = (Workload("60k rows, 6k keys", 60_000, 6_000),)
_TURNS: Final = 8
_QUICK_TURNS: Final = 2
_BATCHES: Final = 3
"""Batches of a turn."""
_WARM_UP: Final = 5


def measure_of(workload: Workload) -> str:
    """Return the name of what is measured of a workload."""
    return f"batch of {workload.name} (s)"


CHARTED: Final = measure_of(_WORKLOADS[0])
PAIRS: Final = tuple(
    pair
    for workload in (*_WORKLOADS, *_QUICK)
    for pair in (
        Pair(PART, STANDBY, measure_of(workload), AGGREGATE),
        Pair(PART, AGGREGATE, measure_of(workload), NO_CHANGELOG),
    )
)


@attrs.frozen
class _Stream:
    """One of the streams that live side by side. One that has no input costs next to nothing."""

    feed: Feed
    running: Running

    def turn(self, workload: Workload, batches: int) -> float:
        """Give some batches, one after the other, and return the median of their seconds."""
        return median(self.feed.batch(self.running, workload.keys, workload.rows) for _ in range(batches))


def measure(options: Options) -> Iterator[Figure]:
    """Run the streams in turns; a figure is the median batch of a turn."""
    names = taking_part(options, PART, CONTESTANTS)
    if not names:
        return
    turns = options.repetitions or (_QUICK_TURNS if options.quick else _TURNS)
    with arena(anchored=True) as cluster:
        for workload in _QUICK if options.quick else _WORKLOADS:
            yield from _figures(cluster, names, workload, turns)


def _figures(cluster: Arena, names: Sequence[str], workload: Workload, turns: int) -> Iterator[Figure]:
    with contextlib.ExitStack() as streams:
        found = {name: streams.enter_context(_stream(cluster, name)) for name in names}
        for stream in found.values():
            stream.turn(workload, _WARM_UP)
            # The standbys come into being with it.
            stream.running.checkpoint()
            stream.turn(workload, _BATCHES)
        for turn in range(turns):
            for name in balanced(names, turn):
                yield Figure(PART, name, measure_of(workload), found[name].turn(workload, _BATCHES))


@contextlib.contextmanager
def _stream(cluster: Arena, contestant: str) -> Iterator[_Stream]:
    feed = Feed(cluster)
    with running(cluster, contestant, feed.stream()) as stream:
        yield _Stream(feed, stream)
