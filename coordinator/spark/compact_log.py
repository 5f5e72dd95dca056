"""Which files of a compacting log of Spark's, a file source's or sink's, hold what was so at a batch.

Such a log has a file ``<n>`` for each batch; every tenth or so is ``<n>.compact`` instead and repeats all
before it, which are deleted some time later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_ENTRY = re.compile(r"(\d+)(\.compact)?")


def entry_number(name: str) -> int | None:
    """Return the number of the batch that a file of a log is for, None if it is no entry."""
    found = _ENTRY.fullmatch(name)
    return int(found[1]) if found else None


def names_at(names: Iterable[str], batch: int) -> list[str]:
    """Choose the latest compact file up to ``batch`` and the entries after it; keep what is no entry.

    An entry's checksum by Spark (``<entry>.crc``) goes with the entry.
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
