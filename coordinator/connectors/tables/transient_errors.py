"""How clients of tables say that something is not there for now: their errors have no types for it."""

from __future__ import annotations

import re
from typing import Final

from ...error_texts import without_places
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


def unavailable(target: str, text: str, *, is_known: bool = False) -> TargetUnavailableError:
    """Return the error for one of a client that does not refuse. What nobody knows to pass is tried for a while.

    Args:
        target: what it is, for messages.
        text: what the client says.
        is_known: whether its type says already that it passes.
    """
    if _FULL.search(without_places(text)):
        return TargetFullError(target, text)
    return TargetUnavailableError(
        target, text, is_understood=is_known or bool(_PASSING.search(without_places(text)))
    )
