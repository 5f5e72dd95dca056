"""Numbers and durations as the pages' texts have them."""

from __future__ import annotations

from ...durations import text


def seconds(length: float) -> str:
    """Return a duration with as many digits as say something."""
    if length < 1:
        return f"{length * 1000:.0f} ms"
    return f"{length:.1f} s" if length < 100 else text(round(length))


def rounded(number: float | None) -> str:
    """Return a number without fractions; empty if it is not known."""
    return "" if number is None else f"{number:,.0f}"


def many(count: int, what: str, plural: str | None = None) -> str:
    """Return a number of things."""
    return f"{count} {what}" if count == 1 else f"{count:,} {plural or what + 's'}"


def ago(now: float, then: float) -> str:
    """Return how long ago something was."""
    return f"{text(max(0, round(now - then)))} ago"


def first_line(told: str) -> str:
    """Return the first line of an error's text."""
    return told.partition("\n")[0]


def ordinal(number: int) -> str:
    """Return ``1st``, ``2nd``, ``3rd``, ``11th``, ..."""
    last = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{last}"
