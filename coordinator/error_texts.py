"""What the text of an error says besides the names of places, where a text is all that there is to decide by."""

from __future__ import annotations

import re
from typing import Final

_PLACES: Final = re.compile(
    r"[a-z][a-z0-9+.-]*://[^\s'\"]+|/?(?:[\w.=%+@:-]+/)+[\w.=%+@:-]*|\b\d+(?:\.\d+)?\s?(?:ns|us|µs|ms|s)\b",
    re.IGNORECASE,
)
"""URLs, paths and durations: a table below ``append-only/`` and an answer in 403.2 ms refuse nothing."""


def without_places(text: str) -> str:
    """Return the part of an error's text that decides what kind of an error it is: no URLs, paths and durations."""
    return _PLACES.sub(" ", text)
