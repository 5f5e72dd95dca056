"""What a reader has seen, as values, and pure functions that compute figures from it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import numpy as np

MICROSECONDS: Final = 1_000_000
EACH_BATCH: Final = "each batch"
"""The interval of a sink that publishes each batch."""


@attrs.frozen
class Seen:
    """A reader has seen all rows up to a mark."""

    at: float
    """Seconds since 1970."""
    mark: int


@attrs.frozen
class Figures:
    """What one contestant's turns have come to."""

    rows_per_second: float
    latencies: tuple[float, ...]
    """Seconds, of rows that follow each other at equal distances."""

    @property
    def p50(self) -> float:
        """The median latency in seconds."""
        return float(np.percentile(self.latencies, 50))

    @property
    def p99(self) -> float:
        """The 99th percentile of the latencies in seconds."""
        return float(np.percentile(self.latencies, 99))


def latencies(seen: Sequence[Seen], begin: float, end: float, rows_per_second: int) -> tuple[float, ...]:
    """Return the seconds from a row's timestamp to the moment when a reader sees it, for the rows of a window.

    Args:
        seen: by time; marks are timestamps in microseconds since 1970.
        begin: timestamp of the first row, in seconds since 1970.
        end: that of the last one.
        rows_per_second: how many rows there are, at equal distances.

    Raises:
        ValueError: the reader has not seen all of them.
    """
    marks = [one.mark for one in seen]
    count = int((end - begin) * rows_per_second)
    if not count or not marks or marks[-1] < end * MICROSECONDS:
        raise ValueError("expected a reader that has seen all rows of the window")
    rows = [begin + number / rows_per_second for number in range(count)]
    return tuple(seen[bisect_left(marks, row * MICROSECONDS)].at - row for row in rows)


def rows_per_second(seen: Sequence[Seen], begin: float) -> float:
    """Return how many rows become visible in a second, from the first sight after the warm-up to the last one.

    Both are moments at which rows have just appeared, so that whole epochs are counted with all of their time.

    Args:
        seen: by time; marks are numbers of rows.
        begin: the end of the warm-up, in seconds since 1970.

    Raises:
        ValueError: there are not two such moments.
    """
    counted = [one for one in seen if one.at >= begin]
    if len(counted) < 2:
        raise ValueError(f"expected rows to appear at least twice, found {len(counted)}")
    first, last = counted[0], counted[-1]
    return (last.mark - first.mark) / (last.at - first.at)


def row(sink: str, interval: str, guarantee: str, figures: Sequence[Figures]) -> dict[str, Any]:
    """Return a contestant's row of the report: medians over its turns."""
    return {
        "sink": sink,
        "visible": interval,
        "guarantee": guarantee,
        "rows a second": float(np.median([one.rows_per_second for one in figures])),
        "p50_s": float(np.median([one.p50 for one in figures])),
        "p99_s": float(np.median([one.p99 for one in figures])),
        "turns": len(figures),
    }


PEERS: Final = {
    "Chandy KafkaSink": ("Spark's Kafka sink", "Flink's Kafka sink"),
    "Chandy FilesSink, Parquet": ("Spark's file sink",),
    "Chandy PostgresSink, append": ("Spark foreachBatch with JDBC", "Spark foreachBatch with psycopg"),
}
"""What each sink is compared with."""


def ratios(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the ratios of sinks to their peers in rows a second, by name.

    A peer has the same interval, or publishes each batch.
    """
    found = {(one["sink"], one["visible"]): one["rows a second"] for one in rows}
    return {
        f"rows a second, {one['sink']}, {one['visible']} / {peer}": one["rows a second"]
        / found[peer, visible]
        for one in rows
        for peer in PEERS.get(one["sink"], ())
        for visible in (one["visible"], EACH_BATCH)
        if (peer, visible) in found
    }
