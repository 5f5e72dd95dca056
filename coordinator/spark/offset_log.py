"""Reads Spark's offset log: where each source of a query stood after a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import attrs

_NOTHING: Final = "-"
"""What the log has of a source that has given nothing yet."""


@attrs.frozen
class LoggedOffset:
    """Where a source stood."""

    source: str
    """The number of the source in its query, or its name if the user has given it one."""
    offset: str
    """As the source writes it, mostly JSON."""


def offsets_in(entry: str) -> tuple[LoggedOffset, ...]:
    """Return the offsets in an entry of the log, without sources that have given nothing yet.

    An entry has a version, then the batch's times and settings, then a line for each source. In version 2, the source's
    name is ahead of its offset.
    """
    lines = entry.splitlines()
    is_named = lines[:1] == ["v2"]
    found = []
    for number, line in enumerate(lines[2:]):
        name, offset = str(number), line
        if is_named:
            name, _, offset = line.partition(":")
        if offset and offset != _NOTHING:
            found.append(LoggedOffset(name, offset))
    return tuple(found)


def offsets_at(directory: Path, batch: int) -> tuple[LoggedOffset, ...]:
    """Return where the sources of a query stood after a batch, from its working checkpoint directory.

    Raises:
        OSError: there is no such entry; Spark deletes old ones.
    """
    return offsets_in((directory / "offsets" / str(batch)).read_text())
