"""Durations as Spark writes them, in and out of seconds."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

from .errors import DurationError

Duration = str | timedelta
"""What a user may give: text such as ``"10 s"`` or ``"1 hour 30 minutes"``, or a ``timedelta``."""

LONGEST = timedelta(days=36_500)
"""The longest duration taken: what waits for one breaks beyond ``threading.TIMEOUT_MAX``, some 292 years."""

_NAMES = {
    "604800": "w week weeks",
    "86400": "d day days",
    "3600": "h hour hours",
    "60": "m min mins minute minutes",
    "1": "s sec secs second seconds",
    "0.001": "ms msec msecs millisecond milliseconds",
    "0.000001": "us usec usecs microsecond microseconds",
}
_UNITS = {name: Decimal(length) for length, names in _NAMES.items() for name in names.split()}
_WRITTEN = ((86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "min"), (1_000_000, "s"), (1000, "ms"))

_PART = r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([a-z]+)"
_TEXT = re.compile(rf"\s*(?:interval\s+)?{_PART}(?:\s*{_PART})*\s*")
_PARTS = re.compile(_PART)


def seconds(value: Duration) -> float:
    """The length of a duration.

    Units are those of Spark's intervals that have a fixed length, weeks to microseconds, in full or short,
    in any case, with or without Spark's leading word ``interval``. Parts add up.

    Args:
        value: such as ``"10 s"``, ``"1 hour 30 minutes"``, ``"250 ms"`` or a ``timedelta``.

    Returns:
        Seconds, 0 or more.

    Raises:
        DurationError: it is no duration, is negative or is longer than ``LONGEST``.
    """
    if isinstance(value, timedelta):
        length = value.total_seconds()
    elif isinstance(value, str) and _TEXT.fullmatch(written := value.lower()):
        parts = _PARTS.findall(written)
        if not all(unit in _UNITS for _, unit in parts):
            raise DurationError(repr(value))
        # Decimal, because 700 * 0.001 is not 0.7 in binary.
        length = float(sum(Decimal(number) * _UNITS[unit] for number, unit in parts))
    else:
        raise DurationError(repr(value))
    if not 0 <= length <= LONGEST.total_seconds():
        raise DurationError(repr(value))
    return length


def text(length: float) -> str:
    """A duration in words that ``seconds`` reads back, to the microsecond; ``"1 h 30 min"`` for 5400."""
    rest = round(length * 1_000_000)
    words = []
    for size, unit in _WRITTEN:
        number, rest = divmod(rest, size)
        words += [f"{number} {unit}"] if number else []
    words += [f"{rest} us"] if rest else []
    return " ".join(words) or "0 s"
