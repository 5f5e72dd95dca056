"""Times and numbers as people read them."""

from __future__ import annotations

from datetime import UTC, datetime


def utc(seconds: float) -> datetime:
    """Return a time in seconds since 1970 as a ``datetime`` in UTC."""
    return datetime.fromtimestamp(seconds, UTC)


def shown(seconds: float | None) -> str:
    """Return a time in seconds since 1970 as text: ``2026-05-04 09:30:00.250 UTC``."""
    if seconds is None:
        return "None"
    return f"{utc(seconds).replace(tzinfo=None).isoformat(' ', 'milliseconds')} UTC"


def to_the_second(seconds: float) -> str:
    """Return a time in seconds since 1970 as text without fractions: ``2026-05-04 09:30:00 UTC``."""
    return f"{utc(seconds):%Y-%m-%d %H:%M:%S} UTC"


def rounded(number: float) -> str:
    """Return a number with as many digits as say something: four behind the point at most."""
    return f"{number:.4f}".rstrip("0").rstrip(".")
