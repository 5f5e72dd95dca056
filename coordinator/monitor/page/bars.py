"""Bars and their scales, as values: parts in hundredths of a width."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs

from .texts import seconds
from .words import look

_FLATTENED: Final = 4.0
"""What is so many times as long as the median is cut off, so that one long bar does not flatten all others."""

_ROUNDED: Final = 100.5
"""Where a bar ends at the latest that is as long as the scale: its parts are rounded."""


@attrs.frozen
class Part:
    """A part of a bar."""

    name: str
    start: float
    width: float
    says: str

    @property
    def look(self) -> str:
        """The classes by which it is drawn."""
        return look(self.name)


@attrs.frozen
class Bar:
    """Parts that follow each other."""

    parts: tuple[Part, ...]
    is_cut: bool = False
    """Whether it is longer than the scale."""

    @property
    def says(self) -> str:
        """What is drawn, for those who do not see it."""
        return ", ".join(part.says for part in self.parts)


def scale(values: Iterable[float]) -> float:
    """Return the value at the end of a scale: the largest, unless it would flatten half of the others."""
    ranked = sorted(value for value in values if value > 0)
    if not ranked:
        return 0.0
    return min(ranked[-1], _FLATTENED * ranked[(len(ranked) - 1) // 2])


def share(value: float, of: float) -> float:
    """Return hundredths of a whole."""
    return round(100 * max(value, 0.0) / of, 2) if of > 0 else 0.0


def bar(phases: Iterable[tuple[str, float]], top: float) -> Bar:
    """Return a bar of phases, names and seconds, that follow each other on a scale from 0 to ``top`` seconds."""
    parts, start = [], 0.0
    for name, length in phases:
        width = share(length, top)
        shown = round(min(width, 100.0 - start), 2)
        if shown > 0:
            parts.append(Part(name, round(start, 2), shown, f"{name}: {seconds(length)}"))
        start += width
    return Bar(tuple(parts), start > _ROUNDED)
