"""The names of files in the compacting logs of Spark's file source and file sink.

Such a log has a file ``<n>`` for each batch. About every tenth is a ``<n>.compact`` instead: it repeats all entries
before it, whose files Spark deletes some time later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_ENTRY = re.compile(r"(\d+)(\.compact)?")


def entry_number(name: str) -> int | None:
    """Return the batch number of a log file; None if the file is not an entry."""
    found = _ENTRY.fullmatch(name)
    return int(found[1]) if found else None


def names_at(names: Iterable[str], batch: int) -> list[str]:
    """Choose the files that have the log as of ``batch``: its latest compact file and the entries after it.

    The checksum of an entry (``<entry>.crc``) is chosen with the entry. Files that are not entries are kept.
    """
    numbers = {name: entry_number(name.removesuffix(".crc")) for name in names}
    compacted = (
        number
        for name, number in numbers.items()
        if number is not None and number <= batch and name.endswith(".compact")
    )
    first = max(compacted, default=-1)

    def wanted(name: str, number: int | None) -> bool:
        if number is None or first < number <= batch:
            return True
        return number == first and name.removesuffix(".crc").endswith(".compact")

    return sorted(name for name, number in numbers.items() if wanted(name, number))


def missing_entry(names: Iterable[str], batch: int) -> int | None:
    """Return the first entry that the log as of ``batch`` lacks, given what ``names_at`` has chosen; None if none."""
    names = set(names)
    numbers = {number for name in names if (number := entry_number(name)) is not None}
    # The only compact file that is chosen stands for all entries before it.
    first = min(numbers) if any(f"{number}.compact" in names for number in numbers) else 0
    return next((number for number in range(first, batch + 1) if number not in numbers), None)
