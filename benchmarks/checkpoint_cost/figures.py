"""What was measured, as values, and what is computed of it; nothing here runs anything."""

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
    """Of one batch, on keys at random."""
    value_bytes: int = 0
    """Bytes that are kept for each key beside its count; they change with it, and do not compress."""

    @property
    def key_bytes(self) -> int:
        """What the state of one key is as plain columns: the key, its count, the value."""
        return 8 + 8 + self.value_bytes


@attrs.frozen
class Timing:
    """How long a turn is, in seconds."""

    warm_up: float
    """From the start of the query to the part that counts."""
    window: float
    """The part that counts."""


@attrs.frozen
class Batches:
    """The batches that began in the part that counts."""

    rows: int
    seconds: float
    """From the start of the first to the end of the last."""
    latencies: tuple[float, ...]
    """Seconds of each one's ``triggerExecution``."""


@attrs.frozen
class Commits:
    """How state became durable in the part that counts: Chandy's checkpoints, or Spark's commits of each batch."""

    seconds: tuple[float, ...]
    """Of each."""
    stored: int
    """Bytes that all of them wrote into the store."""


@attrs.frozen
class Turn:
    """One contestant's stream, once."""

    batches: Batches
    commits: Commits
    changed: int
    """Bytes that the batches changed: keys, each in every batch that has it, as plain columns."""
    used: Used | None = None
    """By the state host, whatever for; None: unknown."""
    compactions: int | None = None
    """That RocksDB finished; None: unknown."""

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.batches.rows / self.batches.seconds


def first_tick(interval: float, warm_up: float) -> float:
    """Return the seconds from the start to the first checkpoint, so that one falls half an interval into the window.

    So a window of any number of whole intervals has just that many checkpoints, none at its edges.
    """
    return (warm_up + interval / 2) % interval


def window_start(now: float, start: float, interval: float | None, warm_up: float) -> float:
    """Return when the window begins: after the warm-up, or whole intervals later if that is over ``now``."""
    planned = start + warm_up
    if interval is None:
        return max(now, planned)
    while planned < now:
        planned += interval
    return planned


def in_window(progress: Sequence[Any], begin: float, end: float) -> list[Any]:
    """Return Spark's reports of the batches with rows that began from ``begin`` to before ``end``, seconds since 1970.

    Raises:
        ValueError: none did.
    """
    found = [one for one in progress if one["numInputRows"] > 0 and begin <= _began(one) < end]
    if not found:
        raise ValueError(f"no batch began in the {end - begin:g} s that count")
    return found


def batches_of(reports: Sequence[Any]) -> Batches:
    """Return what Spark's reports, at least one, in order, say of the batches."""
    latencies = tuple(one["durationMs"]["triggerExecution"] / 1000 for one in reports)
    return Batches(
        sum(one["numInputRows"] for one in reports),
        _began(reports[-1]) + latencies[-1] - _began(reports[0]),
        latencies,
    )


def spark_commits(reports: Sequence[Any], stored: int) -> Commits:
    """Return what Spark says of its state stores' commits."""
    return Commits(tuple(operator["commitTimeMs"] / 1000 for operator in _operators(reports)), stored)


def spark_updates(reports: Sequence[Any]) -> int:
    """Return how many keys batches have changed in Spark's own state, each in every batch that had it."""
    return sum(operator["numRowsUpdated"] for operator in _operators(reports))


def figures(turn: Turn) -> dict[str, float]:
    """Return all figures of a turn, by name; those that it does not have are not there."""
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
    """Return a contestant's rows of the report, one for each figure that all turns have."""
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
    """Return the seconds that all but one of a hundred batches stay within."""
    return figures(turn)["ms of a batch, p99"] / 1000


def amplification(turns: Sequence[Turn]) -> float:
    """Return the median of bytes stored for each byte changed."""
    return median(turn.commits.stored / turn.changed for turn in turns)


def _operators(reports: Sequence[Any]) -> list[Any]:
    return [operator for one in reports for operator in one["stateOperators"]]


def _began(report: Mapping[str, Any]) -> float:
    return datetime.datetime.fromisoformat(report["timestamp"]).timestamp()
