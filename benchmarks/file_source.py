"""How far a query is in the input of Spark's file source.

The source writes an entry into its own log for each set of files that it takes, and only then Spark plans a batch that
ends with the newest entry. If the driver dies between the two, the next life plans one batch for two entries. So a
query may need fewer batches than entries, and a wait for a batch's number may never end. The entries stay the same:
wait for them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

NOTHING: Final = -1
"""Stands for the newest entry where no batch has run yet."""


def reported_entry(report: Mapping[str, Any]) -> int:
    """Return the newest entry that a query has processed, from its progress report; it reads one file source."""
    (source,) = report["sources"]
    return _entry(source["endOffset"])


def committed_entry(directory: Path) -> int:
    """Return the newest entry that a query has processed, from its working directory; it reads one file source.

    The query may run, and its directory may go meanwhile.
    """
    # Purged or gone after it was listed.
    with contextlib.suppress(FileNotFoundError):
        names = [path.name for path in (directory / "commits").iterdir()]
        newest = max((int(name) for name in names if name.isdecimal()), default=None)
        if newest is not None:
            return planned_entry(directory, newest)
    return NOTHING


def planned_entry(directory: Path, batch: int) -> int:
    """Return the entry that a planned batch ends with.

    Raises:
        FileNotFoundError: the batch has not been planned, or its record is gone.
    """
    # A version, the batch's times, the offset of each source.
    _, _, offset = (directory / "offsets" / str(batch)).read_text().splitlines()
    return _entry(offset)


def _entry(offset: str) -> int:
    found = json.loads(offset)
    return NOTHING if found is None else int(found["logOffset"])
