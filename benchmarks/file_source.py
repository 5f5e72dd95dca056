"""Writes files for Spark's file source, and reads how far a query has processed them.

The source adds an entry to its own log for each set of files that it takes. Only then does Spark plan a batch that
ends with the newest entry. If the driver dies between the two, its successor plans one batch for two entries. A query
may therefore need fewer batches than there are entries, and a wait for a batch number may never end. The entries stay
the same: wait for them.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

NOTHING: Final = -1
"""The newest entry of a query that has not run a batch yet."""
_FIRST_FILE: Final = 1_700_000_000
"""Modification time of the first file of a stream, in seconds since 1970. Any time would do."""


def write_file(rows: pa.Table, path: Path, number: int, *, compression: str = "snappy") -> None:
    """Write the ``number``-th file of a stream. A query may be reading the folder at the same time."""
    # Spark ignores names that begin with a dot, so it never sees a half-written file.
    hidden = path.with_name(f".{path.name}")
    pq.write_table(rows, hidden, compression=compression)
    # The source takes files in the order of their modification times.
    os.utime(hidden, (_FIRST_FILE + number, _FIRST_FILE + number))
    hidden.rename(path)


def reported_entry(report: Mapping[str, Any]) -> int:
    """Return the newest entry that a query has processed, from its progress report; it reads one file source."""
    (source,) = report["sources"]
    return _entry(source["endOffset"])


def reported_source(report: Mapping[str, Any]) -> str:
    """Return the description of the source of a reported batch, which has its folder."""
    (source,) = report["sources"]
    return str(source["description"])


def committed_entry(directory: Path) -> int:
    """Return the newest entry that a query has processed, from its working directory; it reads one file source.

    The query may be running, and its directory may be deleted meanwhile.
    """
    # The file may be purged after it was listed.
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
