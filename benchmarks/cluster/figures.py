"""What the parts of the benchmark measure: figures by part, contestant and measure, and their ratios."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

import attrs

from ..report import paired_ratio


@attrs.frozen
class Figure:
    """What one turn of a contestant gave."""

    part: str
    contestant: str
    measure: str
    """What it is, and in which unit."""
    value: float

    def __str__(self) -> str:
        return f"{self.part}: {self.contestant}: {self.measure}: {self.value:,.3f}"


@attrs.frozen
class Pair:
    """Two measured things that are divided. A contestant can be compared with itself, by another measure."""

    part: str
    own: str
    """A contestant."""
    measure: str
    peer: str
    peer_measure: str | None = None
    """None: the same measure."""

    def __str__(self) -> str:
        one, other = self.measure, self.peer_measure
        if other is None or other == one:
            return f"{self.part}: {one}: {self.own} / {self.peer}"
        return f"{self.part}: {self.own}, {one} / {self.peer}, {other}"


def rows(figures: Iterable[Figure]) -> list[dict[str, Any]]:
    """Return one row for each measure of each contestant, in the order in which they came."""
    return [
        {
            "part": part,
            "contestant": contestant,
            "measure": measure,
            "median": median(values),
            "least": min(values),
            "greatest": max(values),
            "turns": len(values),
        }
        for (part, contestant, measure), values in _grouped(figures).items()
    ]


def ratios(figures: Iterable[Figure], pairs: Iterable[Pair]) -> dict[str, float]:
    """Return the ratios of those pairs that were measured: medians over the turns.

    A contestant with a single turn is compared with each turn of the other.
    """
    by_name = _grouped(figures)
    found = {}
    for pair in pairs:
        own = by_name.get((pair.part, pair.own, pair.measure), ())
        peers = by_name.get((pair.part, pair.peer, pair.peer_measure or pair.measure), ())
        if own and peers:
            turns = max(len(own), len(peers))
            found[str(pair)] = paired_ratio(_repeated(own, turns), _repeated(peers, turns), float)
    return found


def _grouped(figures: Iterable[Figure]) -> dict[tuple[str, str, str], list[float]]:
    found: dict[tuple[str, str, str], list[float]] = {}
    for one in figures:
        found.setdefault((one.part, one.contestant, one.measure), []).append(one.value)
    return found


def _repeated(values: Sequence[float], turns: int) -> Sequence[float]:
    return [values[0]] * turns if len(values) == 1 else values
