"""Reads the log of a file source in a query's working directory: which files its batches read."""

from __future__ import annotations

import json
from pathlib import Path

from .compact_log import entry_number


def files_after(log: Path, entry: int) -> frozenset[str]:
    """Return the files, by their URIs, that a query reads which goes on after an entry of the log.

    They are those of planned batches that have not committed, or whose effects are given up.

    Args:
        log: the folder ``sources/<source>``. There need be none.
        entry: the entry; -1: the query begins with the first one.
    """
    found: set[str] = set()
    for path in log.iterdir() if log.is_dir() else ():
        number = entry_number(path.name)
        if number is None or number <= entry:
            continue
        # A compact file repeats all files before it, each with the number of its entry.
        lines = [json.loads(line) for line in path.read_bytes().split(b"\n")[1:] if line]
        found |= {line["path"] for line in lines if line["batchId"] > entry}
    return frozenset(found)
