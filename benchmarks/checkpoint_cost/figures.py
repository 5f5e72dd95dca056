"""Measurements as values, and pure functions that compute figures from them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

import attrs

from chandy.coordinator.protocol.statistics import Summary

from ..report import spread
from .disk import Used

MEGABYTE: Final = 1_000_000


@attrs.frozen
class Course:
    """The stream that all contestants of one workload run."""

    name: str
    keys: int
    rows: int
    """Rows of one batch, on random keys."""
    value_bytes: int = 0
    """Bytes that are stored for each key in addition to its count. They change with it and do not compress."""

    @property
    def key_bytes(self) -> int:
        """The size of one key's state as plain columns: the key, its count, the value."""
        return 8 + 8 + self.value_bytes


@attrs.frozen
class Timing:
    """The length of a turn in seconds."""

    warm_up: float
    """From the start of the query to the window."""
    window: float
    """The measured window."""


@attrs.frozen
class Batches:
    """The batches that began in the window."""

    rows: int
    seconds: float
    """From the start of the first batch to the end of the last."""
    latencies: tuple[float, ...]
    """The ``triggerExecution`` of each batch in seconds."""


@attrs.frozen
class Commits:
    """The commits in the window: Chandy's checkpoints, or the state commits of Spark's batches."""

    seconds: tuple[float, ...]
    """The duration of each commit."""
    stored: int
    """Bytes that all commits wrote to the store."""


@attrs.frozen
class Turn:
    """One run of a contestant's stream."""

    batches: Batches
    commits: Commits
    changed: int
    """Bytes that the batches changed, as plain columns. A key counts in every batch that has it."""
    used: Used | None = None
    """All resources that the state host used. None: unknown."""
    compactions: int | None = None
    """Compactions that RocksDB finished. None: unknown."""

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.batches.rows / self.batches.seconds


def first_tick(interval: float, warm_up: float) -> float:
    """Return the seconds from the start to the first checkpoint, so that one falls half an interval into the window.

    A window of any number of whole intervals then has exactly that many checkpoints, and none at its edges.
    """
    return (warm_up + interval / 2) % interval


def window_start(now: float, start: float, interval: float | None, warm_up: float) -> float:
    """Return when the window begins: after the warm-up, or whole intervals later if that time has passed ``now``."""
    planned = start + warm_up
    if interval is None:
        return max(now, planned)
    while planned < now:
        planned += interval
    return planned


def in_window(progress: Sequence[Any], begin: float, end: float) -> list[Any]:
    """Return Spark's reports of the batches with rows that began from ``begin`` to before ``end``, seconds since 1970.

    Raises:
        ValueError: no such batch began in that time.
    """
    found = [one for one in progress if one["numInputRows"] > 0 and begin <= _began(one) < end]
    if not found:
        raise ValueError(f"no batch began in the window of {end - begin:g} s")
    return found


def batches_of(reports: Sequence[Any]) -> Batches:
    """Return the batches of Spark's reports, which are in order and at least one."""
    latencies = tuple(one["durationMs"]["triggerExecution"] / 1000 for one in reports)
    return Batches(
        sum(one["numInputRows"] for one in reports),
        _began(reports[-1]) + latencies[-1] - _began(reports[0]),
        latencies,
    )


def spark_commits(reports: Sequence[Any], stored: int) -> Commits:
    """Return the commits of Spark's state stores."""
    return Commits(tuple(operator["commitTimeMs"] / 1000 for operator in _operators(reports)), stored)


def spark_updates(reports: Sequence[Any]) -> int:
    """Return how many keys the batches changed in Spark's state. A key counts in every batch that has it."""
    return sum(operator["numRowsUpdated"] for operator in _operators(reports))


def figures(turn: Turn) -> dict[str, float]:
    """Return the figures of a turn by name, without those that are unknown."""
    latency, commit = Summary.of(turn.batches.latencies), Summary.of(turn.commits.seconds)
    assert latency is not None, "there is no turn without a batch"
    found: dict[str, float] = {
        "rows a second": turn.rate,
        "ms of a batch, p50": latency.p50 * 1000,
        "ms of a batch, p99": latency.p99 * 1000,
        "batches": len(turn.batches.latencies),
        "commits": len(turn.commits.seconds),
        "MB changed a second": turn.changed / turn.batches.seconds / MEGABYTE,
    }
    if commit is not None:
        found |= {
            "ms of a commit, p50": commit.p50 * 1000,
            "ms of a commit, p99": commit.p99 * 1000,
            "MB stored a commit": turn.commits.stored / len(turn.commits.seconds) / MEGABYTE,
            "bytes stored / changed": turn.commits.stored / turn.changed,
        }
    if turn.used is not None:
        found["bytes the host wrote / changed"] = turn.used.written / turn.changed
        found["us of the host's processor a row"] = turn.used.processor_seconds * 1e6 / turn.batches.rows
    if turn.compactions is not None:
        found["compactions"] = turn.compactions
    return found


def rows_of(workload: str, contestant: str, turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Return a contestant's rows of the report: one for each figure that all its turns have."""
    found = [figures(turn) for turn in turns]
    names = [name for name in found[0] if all(name in one for one in found)]
    return [
        {
            "workload": workload,
            "contestant": contestant,
            "figure": name,
            **spread([one[name] for one in found]),
            "turns": len(turns),
        }
        for name in names
    ]


def p99(turn: Turn) -> float:
    """Return the 99th percentile of the batches in seconds."""
    return figures(turn)["ms of a batch, p99"] / 1000


def amplification(turns: Sequence[Turn]) -> float:
    """Return the median of the turns' bytes stored for each byte changed."""
    return median(turn.commits.stored / turn.changed for turn in turns)


def _operators(reports: Sequence[Any]) -> list[Any]:
    return [operator for one in reports for operator in one["stateOperators"]]


def _began(report: Mapping[str, Any]) -> float:
    return datetime.datetime.fromisoformat(report["timestamp"]).timestamp()
