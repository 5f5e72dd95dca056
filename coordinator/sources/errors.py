"""The error of sources that no longer have what a query goes on with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs

from ..errors import RestoreError


@attrs.frozen
class LostOffsets:
    """What a source no longer has, of one of its parts."""

    part: str
    """The part, such as ``partition 0 of topic 'flights'``."""
    needed: int
    """The offset that the query goes on with."""
    earliest: int | None
    """The first offset that is still there; None if there is no such part any more."""
    end: int | None
    """The offset after the last one; None as before."""


@attrs.define(eq=False)
class SourceLostError(RestoreError):
    """A source no longer has the records that a query goes on with. Nothing has been started."""

    losses: tuple[LostOffsets, ...] = ()
    """All parts with a loss; the message names the first ones."""
    files: tuple[str, ...] = ()
    """The URIs of all files that are gone, if it is a source of files."""


NAMED: Final = 3
"""How many losses an error names."""


def listed(texts: Iterable[str]) -> str:
    """Return the first of some texts, and how many more there are."""
    all_texts = list(texts)
    named = all_texts[:NAMED]
    if more := len(all_texts) - len(named):
        named.append(f"{more} more")
    return ", ".join(named)
