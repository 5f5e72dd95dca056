"""That a plain query's checkpoint is as it was."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

SNAPSHOTS = re.compile(r"state/.*(\.zip|\.snapshot|/SSTs/|\.tmp)")
"""Spark uploads snapshots of its state, also for a while after a query has stopped."""


def contents(folder: Path) -> dict[str, str]:
    """The files in a directory by name, with the hash of their bytes, but without snapshots of state."""
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and not SNAPSHOTS.search(name := path.relative_to(folder).as_posix())
    }


def check_untouched(folder: Path, before: dict[str, str]) -> None:
    """Compare a directory with what ``contents`` gave before."""
    assert contents(folder) == before
