"""How clients of tables say that something is not there for now: their errors have no types for it."""

from __future__ import annotations

import re
from typing import Final

from ...sinks.two_phase.errors import TargetFullError, TargetUnavailableError

_PASSING: Final = re.compile(
    r"connect|time[d ]?-? ?out|temporar|unavailable|(?:host|network|server) (?:is )?unreachable|reset by peer|"
    r"broken pipe|"
    r"error sending request|error decoding response|dns|slow ?down|throttl|too many requests|try again|"
    r"\b(?:408|429|500|502|503|504)\b|os error (?:5|11|116)\b|database is locked|deadlock",
    re.IGNORECASE,
)
"""Found in the text of an error of a network, or of a server that is busy or away."""
_FULL: Final = re.compile(
    r"no space left|disk quota exceeded|os error (?:28|122)\b|\b507\b|disk is full", re.IGNORECASE
)
"""Found in the text of an error of a disk, or of a server's, that is full."""


_PLACES: Final = re.compile(
    r"[a-z][a-z0-9+.-]*://[^\s'\"]+|/?(?:[\w.=%+@:-]+/)+[\w.=%+@:-]*|\b\d+(?:\.\d+)?\s?(?:ns|us|µs|ms|s)\b",
    re.IGNORECASE,
)
"""URLs, paths and durations: a table below ``append-only/`` and an answer in 403.2 ms refuse nothing."""
_USER: Final = re.compile(r"://[^/?#\s]*@")


def said(error: Exception) -> str:
    """Return what a client says, without users and passwords in its URLs."""
    return _USER.sub("://...@", str(error))


def judged(text: str) -> str:
    """Return the part of a client's text that decides what kind of an error it is."""
    return _PLACES.sub(" ", text)


def unavailable(target: str, text: str, *, is_known: bool = False) -> TargetUnavailableError:
    """Return the error for one of a client that does not refuse. What nobody knows to pass is tried for a while.

    Args:
        target: what it is, for messages.
        text: what the client says.
        is_known: whether its type says already that it passes.
    """
    if _FULL.search(judged(text)):
        return TargetFullError(target, text)
    return TargetUnavailableError(target, text, is_understood=is_known or bool(_PASSING.search(judged(text))))
