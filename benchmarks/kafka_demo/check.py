"""Whether a target has every flight counted once, by its rows alone, and whether a copy is the state. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

import attrs

Totals = dict[str, tuple[int, int]]
"""By aircraft its flights and the sum of their delays."""


@attrs.frozen
class Finding:
    """What was found in one target."""

    target: str
    rows: int
    twice: int
    """Rows that are there more than once."""
    flights: int
    """The flights that its rows count as new."""
    differing: tuple[str, ...]
    """Aircraft whose totals are wrong, or whose rows do not add up to them."""

    @property
    def is_right(self) -> bool:
        """Whether every flight is counted once."""
        return not self.twice and not self.differing


def check(target: str, rows: Iterable[str], expected: Totals) -> Finding:
    """Compare the rows of a target with what is right.

    Args:
        target: its name.
        rows: the rows as JSON, in any order: ``aircraft``, ``new``, ``flights`` and ``delay``.
        expected: what is right after all flights.
    """
    counts = Counter(rows)
    new: Counter[str] = Counter()
    last: Totals = {}
    for row, times in counts.items():
        fields = json.loads(row)
        aircraft = fields["aircraft"]
        new[aircraft] += fields["new"] * times
        last[aircraft] = max(last.get(aircraft, (0, 0)), (fields["flights"], fields["delay"]))
    wrong = {
        aircraft
        for aircraft in expected.keys() | last.keys()
        if last.get(aircraft) != expected.get(aircraft) or new[aircraft] != expected.get(aircraft, (0, 0))[0]
    }
    twice = sum(times - 1 for times in counts.values())
    return Finding(target, counts.total(), twice, new.total(), tuple(sorted(wrong)))


@attrs.frozen
class Copy:
    """What was found in a copy of the state."""

    target: str
    keys: int
    differing: tuple[str, ...]
    """Aircraft that it has and should not have, lacks, or has with other totals."""

    @property
    def is_right(self) -> bool:
        """Whether it is the state."""
        return not self.differing


def check_copy(target: str, found: Totals, expected: Totals) -> Copy:
    """Compare a copy of the state with what is right after all flights."""
    wrong = (one for one in found.keys() | expected.keys() if found.get(one) != expected.get(one))
    return Copy(target, len(found), tuple(sorted(wrong)))


def differing_rows(first: Iterable[str], second: Iterable[str]) -> int:
    """Return how many rows one of two targets has and the other has not."""
    one, other = Counter(first), Counter(second)
    return ((one - other) + (other - one)).total()
