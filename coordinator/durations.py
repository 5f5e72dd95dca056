"""Durations: reads what users write, as Spark does, into seconds, and writes seconds as text."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

from .errors import ConfigError

Duration = str | timedelta
"""What a user may give: text such as ``"10 s"`` or ``"1 hour 30 minutes"``, or a ``timedelta``."""

LONGEST = timedelta(days=36_500)
"""The longest duration that is accepted. Waiting longer than ``threading.TIMEOUT_MAX``, 292 years, is an error."""

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

_FORM = (
    'a duration with its unit and without a sign, such as "10 s", "5 minutes", "1 hour 30 minutes" or "250 ms" '
    "(weeks to microseconds), or a timedelta"
)
_PART = r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([a-z]+)"
_TEXT = re.compile(rf"\s*(?:interval\s+)?{_PART}(?:\s*{_PART})*\s*")
_PARTS = re.compile(_PART)


def seconds(value: Duration) -> float:
    """Return the length of a duration in seconds.

    The units are those of Spark's intervals that have a fixed length, from weeks to microseconds, in full or
    abbreviated. Case does not matter, and Spark's leading word ``interval`` may be there. Parts add up.

    Args:
        value: such as ``"10 s"``, ``"1 hour 30 minutes"``, ``"250 ms"`` or a ``timedelta``.

    Returns:
        Seconds, 0 or more.

    Raises:
        ConfigError: it is not a duration, it is negative, or it is longer than ``LONGEST``.
    """
    if isinstance(value, timedelta):
        length = value.total_seconds()
    elif isinstance(value, str) and _TEXT.fullmatch(written := value.lower()):
        parts = _PARTS.findall(written)
        if not all(unit in _UNITS for _, unit in parts):
            raise _invalid(value, _FORM)
        # Decimal: in binary, 700 * 0.001 is not 0.7.
        length = float(sum(Decimal(number) * _UNITS[unit] for number, unit in parts))
    else:
        raise _invalid(value, _FORM)
    if not 0 <= length <= LONGEST.total_seconds():
        raise _invalid(value, "a duration from 0 to 100 years")
    return length


def text(length: float) -> str:
    """Write a duration, to the microsecond, so that ``seconds`` reads it back: 5400 is ``"1 h 30 min"``."""
    rest = round(length * 1_000_000)
    words = []
    for size, unit in _WRITTEN:
        number, rest = divmod(rest, size)
        words += [f"{number} {unit}"] if number else []
    words += [f"{rest} us"] if rest else []
    return " ".join(words) or "0 s"


def _invalid(value: object, expected: str) -> ConfigError:
    return ConfigError("invalid duration", expected, repr(value))
