"""Reads Spark's offset log: where each source of a query stood after a batch."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import attrs

from ....storage.ids import BatchId

_NOTHING: Final = "-"
"""What the log has of a source that has given nothing yet."""
_LONGEST: Final = 20_000
"""The most characters of offsets that are told: all tasks of a batch are told them."""
_LOG_END: Final = re.compile(r'\{"logOffset":\s*(-?\d+)\}')
"""How a file source writes down where a batch ends."""


def version_of(line: str) -> int | None:
    """Return the version that the first line of an entry of a log says; None if it says none."""
    found = re.fullmatch(r"v(\d+)\s*", line)
    return int(found[1]) if found else None


@attrs.frozen
class LoggedOffset:
    """Where a source stood."""

    source: str
    """The number of the source in its query, or its name if the user has given it one."""
    offset: str | None
    """As the source writes it, mostly JSON; None if the source has given nothing yet."""
    is_named: bool = False
    """Whether the log names its sources, so that their numbers do not matter."""


def offsets_in(entry: str) -> tuple[LoggedOffset, ...]:
    """Return the offsets in an entry of the log, one for each source.

    An entry has a version, then the batch's times and settings, then a line for each source. From version 2 on, the
    source's name is ahead of its offset.
    """
    version, *rest = entry.splitlines() or [""]
    is_named = (version_of(version) or 1) >= 2
    found = []
    for number, line in enumerate(rest[1:]):
        name, offset = str(number), line
        if is_named:
            name, _, offset = line.partition(":")
        found.append(LoggedOffset(name, None if offset in ("", _NOTHING) else offset, is_named))
    return tuple(found)


def read_between(directory: Path, batch: BatchId) -> str:
    """Return from where to where the sources of a planned batch are read.

    Args:
        directory: the query's working checkpoint directory.

    Returns:
        A JSON object: by source a pair of offsets as the source writes them, null before its first row. Empty if the
        log does not say, or more than 20,000 characters.
    """
    try:
        end = offsets_at(directory, batch)
        begin = offsets_at(directory, BatchId(batch - 1)) if batch else ()
    except OSError:
        return ""
    before = {one.source: one.offset for one in begin}
    text = json.dumps({one.source: [before.get(one.source), one.offset] for one in end})
    return text if len(text) <= _LONGEST else ""


def moved(directory: Path, batch: BatchId) -> frozenset[str]:
    """Return the sources of which a planned batch has data, as the log calls them; none if the log does not say."""
    try:
        end = offsets_at(directory, batch)
        begin = offsets_at(directory, BatchId(batch - 1)) if batch else ()
    except OSError:
        return frozenset()
    before = {one.source: one.offset for one in begin}
    return frozenset(one.source for one in end if one.offset != before.get(one.source))


def log_end(offset: str | None) -> int | None:
    """Return the entry of a file source's log that an offset means, -1 before the first; None if it means none."""
    found = _LOG_END.fullmatch(offset or "")
    return int(found[1]) if found else None


def offsets_at(directory: Path, batch: BatchId) -> tuple[LoggedOffset, ...]:
    """Return where the sources of a query stood after a batch, from its working checkpoint directory.

    Raises:
        OSError: there is no such entry; Spark deletes old ones.
    """
    return offsets_in((directory / "offsets" / str(batch)).read_text())
