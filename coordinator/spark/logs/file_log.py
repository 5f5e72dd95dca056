"""Reads what entries of the logs of Spark's file sinks and file sources say of files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_FILE: Final = re.compile(rb'\{"path": ?"([^"\\]+)"(?:, ?"size": ?(\d+))?(?:, ?"rows": ?(\d+))?[,}]')
"""How the line about a file begins in the log of a file sink, and in that of a file source."""
_FOLDER: Final = re.compile(rb'"isDir": ?true')
"""In the one line of an entry of Chandy's own that is not about a file."""


class LoggedFile(NamedTuple):
    """A file that an entry names."""

    uri: str
    size: int = 0
    """In bytes. The log of a source does not say it."""
    rows: int | None = None
    """Only Chandy's own sink says it."""


def logged_files(entry: bytes) -> Iterator[LoggedFile]:
    """Yield the files of an entry, in their order.

    An entry has a version, and then a line of JSON for each file.
    """
    # Logs name all files since the query's first batch, so what most lines are like goes fast.
    for line in entry.split(b"\n")[1:]:
        if not line:
            continue
        if (found := _FILE.match(line)) is not None:
            uri, size, rows = found.groups()
            if size != b"0" or not _FOLDER.search(line):
                yield LoggedFile(uri.decode(), int(size or 0), None if rows is None else int(rows))
            continue
        document = json.loads(line)
        # Other sources keep other things there: that of Kafka has its first offsets.
        if isinstance(document, dict) and "path" in document and not document.get("isDir"):
            yield LoggedFile(document["path"], document.get("size", 0))
