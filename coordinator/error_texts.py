"""What the text of a client's error says besides the names of places, and without secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_PLACES: Final = re.compile(
    r"[a-z][a-z0-9+.-]*://[^\s'\"]+|/?(?:[\w.=%+@:-]+/)+[\w.=%+@:-]*|\b\d+(?:\.\d+)?\s?(?:ns|us|µs|ms|s)\b",
    re.IGNORECASE,
)
"""URLs, paths and durations: a table below ``append-only/`` and an answer in 403.2 ms refuse nothing."""
_USER: Final = re.compile(r"://[^/?#\s]*@")


def without_places(text: str) -> str:
    """Return the part of an error's text that decides what kind of an error it is: no URLs, paths and durations."""
    return _PLACES.sub(" ", text)


def without_secrets(text: str, options: Mapping[str, object]) -> str:
    """Return a client's text without users and passwords in its URLs, and without the values of options.

    A client repeats, in quotes, a value that it does not understand, such as a password for the wrong option.

    Args:
        text: what the client says.
        options: what it was given.
    """
    for value in filter(None, map(str, options.values())):
        for quote in "\"'`":
            text = text.replace(f"{quote}{value}{quote}", f"{quote}...{quote}")
    return _USER.sub("://...@", text)
