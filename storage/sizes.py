"""Sizes in bytes, as Spark's settings have them: ``512m``, ``1g``."""

from __future__ import annotations

import re
from typing import Final

_TEXT: Final = re.compile(r"([0-9]{1,19})([a-z]*)")
_POWERS: Final = {"b": 0, "k": 1, "kb": 1, "m": 2, "mb": 2, "g": 3, "gb": 3, "t": 4, "tb": 4, "p": 5, "pb": 5}
"""The suffixes that Spark takes, and the power of 1024 that each stands for."""


def size_in_bytes(text: str, *, without_suffix: int | None = None) -> int:
    """Return the bytes that a size stands for. Case and blanks around it do not matter.

    Args:
        text: a whole number with a suffix: b, k, kb, m, mb, g, gb, t, tb, p or pb. All are powers of 1024.
        without_suffix: bytes that a number without a suffix counts in; None: it must have one.

    Raises:
        ValueError: it is no size.
    """
    found = _TEXT.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError(text)
    number, suffix = found.groups()
    if suffix in _POWERS:
        return int(number) << 10 * _POWERS[suffix]
    if suffix or without_suffix is None:
        raise ValueError(text)
    return int(number) * without_suffix
