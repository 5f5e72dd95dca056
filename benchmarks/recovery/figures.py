"""Computes rows and ratios from recoveries: a row for each contestant, store, size and failure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Final

import attrs

from ..report import spread
from .scenario import Failure, Recovered

PARTS: Final = (
    "detect",
    "wait",
    "stop",
    "process",
    "coordinator",
    "slots",
    "deploy",
    "start query",
    "load state",
    "restore",
    "open",
    "first batch",
    "replay",
    "new batch",
)
"""The parts of recoveries in the order of their columns. Other parts come after them."""
OWN: Final = "Chandy"
BARE: Final = "Spark without state"
"""The restart of a query without state."""
_SHOWN_SECONDS: Final = 0.001
LOCAL: Final = "local"
"""The store on which peers are compared."""


@attrs.frozen
class Turn:
    """One recovery of one contestant."""

    contestant: str
    store: str
    state_mb: int
    recovered: Recovered


@attrs.frozen
class Case:
    """The key of a row."""

    contestant: str
    store: str
    state_mb: int
    failure: Failure

    @staticmethod
    def of(turn: Turn) -> Case:
        """Return the case of a recovery."""
        return Case(turn.contestant, turn.store, turn.state_mb, turn.recovered.failure)


def rows(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Return one row for each case, in the order of first occurrence. A part that a case does not have is 0.

    A part of less than a millisecond in all recoveries has no column.
    """
    cases: defaultdict[Case, list[Recovered]] = defaultdict(list)
    for turn in turns:
        cases[Case.of(turn)].append(turn.recovered)
    lengths = [length for turn in turns for length in turn.recovered.parts.items()]
    seen = {part for part, length in lengths if abs(length) >= _SHOWN_SECONDS}
    names = [part for part in PARTS if part in seen] + sorted(seen - set(PARTS))
    return [_row(case, recoveries, names) for case, recoveries in cases.items()]


def ratios(turns: Sequence[Turn]) -> dict[str, float]:
    """Return ratios of medians: each peer / Chandy in the same failure, and Chandy / bare restart for an exception.

    Turns are not paired, because contestants may have different numbers of them.
    """
    seconds = {case: figure for case, figure in _medians(turns).items() if case.store == LOCAL}
    found = {}
    for case, own in seconds.items():
        if case.contestant != OWN:
            continue
        for peer, other in seconds.items():
            if (peer.state_mb, peer.failure) != (case.state_mb, case.failure) or peer.contestant == OWN:
                continue
            where = f"{case.failure}, {case.state_mb} MB"
            if peer.contestant == BARE and case.failure is Failure.EXCEPTION:
                found[f"{where}: {OWN} / {BARE}"] = own / other
            else:
                found[f"{where}: {peer.contestant} / {OWN}"] = other / own
    return found


def first_commit_ratios(turns: Sequence[Turn]) -> dict[str, float]:
    """Return the ratios of killed drivers until the first commit, for the peers on Spark, which commit batches."""
    seconds = {
        case: figure
        for case, figure in _medians(turns, lambda one: one.first_commit).items()
        if case.store == LOCAL
    }
    return {
        f"{Failure.DRIVER}, {case.state_mb} MB, first commit: {peer.contestant} / {OWN}": other / own
        for case, own in seconds.items()
        if case.contestant == OWN and case.failure is Failure.DRIVER
        for peer, other in seconds.items()
        if peer.contestant.startswith("Spark") and attrs.evolve(peer, contestant=OWN) == case
    }


def _medians(
    turns: Sequence[Turn], measure: Callable[[Recovered], float] = lambda one: one.seconds
) -> dict[Case, float]:
    cases: defaultdict[Case, list[float]] = defaultdict(list)
    for turn in turns:
        cases[Case.of(turn)].append(measure(turn.recovered))
    return {case: median(figures) for case, figures in cases.items()}


def _row(case: Case, recoveries: Sequence[Recovered], names: Sequence[str]) -> dict[str, Any]:
    seconds = spread([one.seconds for one in recoveries])
    parts = {name: median(one.parts.get(name, 0.0) for one in recoveries) for name in names}
    return {
        "contestant": case.contestant,
        "store": case.store,
        "state_mb": case.state_mb,
        "failure": str(case.failure),
        "seconds": round(seconds["median"], 3),
        "least": round(seconds["least"], 3),
        "greatest": round(seconds["greatest"], 3),
        "first commit": round(median(one.first_commit for one in recoveries), 3),
        "turns": len(recoveries),
        **{name: round(length, 3) for name, length in parts.items()},
    }


def curves(rows: Sequence[Mapping[str, Any]], failure: Failure) -> dict[str, list[tuple[float, float]]]:
    """Return the points (state size, seconds) of each contestant on the local store."""
    found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if row["failure"] == failure and row["store"] == LOCAL:
            found[row["contestant"]].append((row["state_mb"], row["seconds"]))
    return {name: sorted(points) for name, points in found.items()}


def stacks(rows: Sequence[Mapping[str, Any]], size: int) -> dict[str, dict[str, float]]:
    """Return the parts of each contestant's recoveries at one size on the local store, failure by failure."""
    at_size = [row for row in rows if row["state_mb"] == size and row["store"] == LOCAL]
    failures = dict.fromkeys(row["failure"] for row in at_size)
    # Every bar has all parts, so that they are in the order of time.
    parts = [part for row in at_size[:1] for part in parts_of(row) if any(one[part] > 0 for one in at_size)]
    return {
        f"{row['contestant']}, {row['failure']}": {part: row[part] for part in parts}
        for failure in failures
        for row in at_size
        if row["failure"] == failure
    }


def parts_of(row: Mapping[str, Any]) -> list[str]:
    """Return the columns of a row that are parts of its time."""
    names = list(row)
    return names[names.index("turns") + 1 :]


def fullest(rows: Sequence[Mapping[str, Any]]) -> int:
    """Return the size with the most rows, or the greatest of several."""
    counts: defaultdict[int, int] = defaultdict(int)
    for row in rows:
        if row["store"] == LOCAL:
            counts[row["state_mb"]] += 1
    return max(counts, key=lambda size: (counts[size], size))
