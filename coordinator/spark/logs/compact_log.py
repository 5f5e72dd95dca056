"""The compacting logs of Spark's file source and file sink: which files have one, and which ones Spark will look for.

Such a log has a file ``<n>`` for each batch. About every tenth is a ``<n>.compact`` instead: it repeats all entries
before it, whose files Spark deletes some time later.

Spark does not write down how often it compacts a log. Each time it opens one, it derives that from the names of the
compact files (``CompactibleFileStreamLog.compactInterval``), and then expects a compact file wherever one would be.
From the same log without older files it can derive something else. With ``19.compact`` alone it compacts every 20
batches: it writes ``29`` and ``39.compact`` next. With ``39.compact`` alone it takes 10 for the interval, and fails if
there is ``49`` and no ``49.compact``. So a copy keeps two compact files, whose distance is the interval, and a log that
Spark would misunderstand is mended before Spark opens it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

DEFAULT_INTERVAL: Final = 10
"""Spark's default compaction interval of a log, in batches, unless its settings or an older log say otherwise."""
_COMPACT: Final = ".compact"
_ENTRY = re.compile(r"(\d+)(\.compact)?")


def entry_number(name: str) -> int | None:
    """Return the batch number of a log file; None if the file is not an entry."""
    found = _ENTRY.fullmatch(name)
    return int(found[1]) if found else None


def names_at(names: Iterable[str], batch: int) -> list[str]:
    """Choose the files that have the log as of ``batch``.

    They are its latest compact file and the entries after it, and the compact file before, which tells the interval.
    The checksum of an entry (``<entry>.crc``) is chosen with the entry. Files that are not entries are kept.
    """
    numbers = {name: entry_number(name.removesuffix(".crc")) for name in names}
    compacted = _compacted(name for name, number in numbers.items() if number is not None and number <= batch)
    first = max(compacted, default=-1)

    def wanted(name: str, number: int | None) -> bool:
        if number is None or first < number <= batch:
            return True
        return number in compacted[-2:] and name.removesuffix(".crc").endswith(_COMPACT)

    return sorted(name for name, number in numbers.items() if wanted(name, number))


def missing_entry(names: Iterable[str], batch: int) -> int | None:
    """Return the first entry that the log as of ``batch`` lacks, given what ``names_at`` has chosen; None if none."""
    names = set(names)
    numbers = {number for name in names if (number := entry_number(name)) is not None}
    first = max(_compacted(names), default=0)
    return next((number for number in range(first, batch + 1) if number not in numbers), None)


def mended(log: Mapping[str, bytes], default: int) -> dict[str, bytes]:
    """Return a log that Spark reads as it was meant.

    Args:
        log: the contents of its entries by name, without gaps.
        default: every how many batches Spark's settings say that a log is compacted.
    """
    at = entry_to_compact(log, default)
    if at is None:
        return dict(log)
    last = max(_compacted(log), default=-1)
    # What the latest compact file repeats is left out; so is a plain entry beside it.
    entries = {_number(name): name for name in log if _number(name) > last or name == f"{last}{_COMPACT}"}
    merged = [log[entries[number]] for number in sorted(entries) if number <= at]
    head, _, _ = merged[0].partition(b"\n")
    lines = [line for one in merged for line in one.split(b"\n")[1:] if line]
    kept = {name: content for name, content in log.items() if _number(name) > at}
    return {f"{at}{_COMPACT}": b"\n".join([head, *lines]), **kept}


def entry_to_compact(names: Iterable[str], default: int) -> int | None:
    """Return the entry that must become the log's only compact file, so that Spark can read it; None: it can."""
    names = set(names)
    compacted, newest = _compacted(names), max(map(_number, names), default=-1)
    last = max(compacted, default=0)
    at = first_read(newest, interval_of(compacted, default))
    if at == last:
        return None
    at = max(at, last)
    # From another compact file Spark derives another interval, by which it may look for a later one.
    while (found := first_read(newest, interval_of([at], default))) > at:
        at = found
    return at


def first_read(newest: int, interval: int) -> int:
    """Return the entry from which Spark reads a log: the one that it takes for the latest compact file, or 0."""
    return max(0, (newest + 1) // interval * interval - 1)


def interval_of(compacted: Sequence[int], default: int) -> int:
    """Return every how many batches Spark takes a log to be compacted.

    Args:
        compacted: the numbers of its compact files, ascending.
        default: what its settings say.
    """
    if not compacted:
        return default
    if len(compacted) > 1:
        return compacted[-1] - compacted[-2]
    entries = compacted[-1] + 1
    if default >= entries // 2:
        return entries
    return next(divisor for divisor in range(default, entries + 1) if entries % divisor == 0)


def _compacted(names: Iterable[str]) -> list[int]:
    return sorted({_number(name) for name in names if name.endswith(_COMPACT)} - {-1})


def _number(name: str) -> int:
    number = entry_number(name)
    return -1 if number is None else number
