"""How clients of tables say that something is not there for now: their errors have no types for it."""

from __future__ import annotations

import re
from typing import Final

PASSING: Final = re.compile(
    r"connect|time[d ]?-? ?out|temporar|unavailable|(?:host|network|server) (?:is )?unreachable|reset by peer|"
    r"broken pipe|"
    r"error sending request|error decoding response|dns|slow ?down|throttl|too many requests|try again|"
    r"\b(?:408|429|500|502|503|504)\b|no space left|os error (?:5|11|28|116|122)\b|database is locked|deadlock",
    re.IGNORECASE,
)
"""Found in the text of an error of a network, of a server that is busy or away, or of a disk that is full."""
