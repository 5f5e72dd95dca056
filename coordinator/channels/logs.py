"""What the logs of a channel's two ends name: the files that are published, the files and offsets that were read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from ..sinks.place import plain_path
from ..spark.logs.offset_log import offsets_in

_FILE = re.compile(rb'\{"path": ?"([^"\\]+)"(?:, ?"size": ?(\d+))?(?:, ?"rows": ?(\d+))?[,}]')
"""How the line about a file begins in the log of a file sink, and in that of a file source."""
_FOLDER = re.compile(rb'"isDir": ?true')
"""In the one line of an entry of Chandy's own that is not about a file."""
_LOCAL: Final = "file:///"
_EPOCH = re.compile(r"part-(\d{8,})-\d{5,}-[0-9a-f]{8}-[0-9a-f]{16}\.\w+")
"""The name of a file that Chandy has published."""

Offsets = Mapping[tuple[str, int], int]
"""By topic and partition, the offset behind the last row."""


@attrs.frozen
class PublishedFile:
    """A file that the log of a directory names."""

    path: str
    size: int
    rows: int | None = None
    """None: nobody has written it down."""

    @property
    def epoch(self) -> int | None:
        """The epoch that it belongs to; None if it is not Chandy's."""
        found = _EPOCH.fullmatch(self.path.rpartition("/")[2])
        return int(found[1]) if found else None


def published(entry: bytes) -> tuple[PublishedFile, ...]:
    """Return the files that an entry of the log of a directory adds, in their order."""
    return tuple(
        PublishedFile(path, int(size or 0), None if rows is None else int(rows))
        for path, size, rows in _lines(entry)
    )


def read(entry: bytes) -> frozenset[str]:
    """Return the files that an entry of the log of a file source names."""
    return frozenset(path for path, _, _ in _lines(entry))


def _lines(entry: bytes) -> Iterable[tuple[str, bytes | None, bytes | None]]:
    # Logs name all files since the query's first batch, so what most lines are like goes fast.
    for line in entry.split(b"\n")[1:]:
        if not line:
            continue
        if (found := _FILE.match(line)) is not None:
            encoded, size, rows = found.groups()
            if size == b"0" and _FOLDER.search(line):
                continue
            uri = encoded.decode()
            is_plain = uri.startswith(_LOCAL) and "%" not in uri
            yield uri[len(_LOCAL) - 1 :] if is_plain else plain_path(uri), size, rows
            continue
        document = json.loads(line)
        # Other sources keep other things there: that of Kafka has its first offsets.
        if isinstance(document, dict) and "path" in document and not document.get("isDir"):
            yield plain_path(document["path"]), b"%d" % document.get("size", 0), None


def offsets(entry: str) -> dict[tuple[str, int], int]:
    """Return the offsets of Kafka in an entry of a query's offset log."""
    found: dict[tuple[str, int], int] = {}
    for one in offsets_in(entry):
        try:
            document = json.loads(one.offset or "")
        except ValueError:
            continue
        for topic, partitions in document.items() if isinstance(document, dict) else ():
            if isinstance(partitions, dict) and all(
                key.isdecimal() and type(end) is int for key, end in partitions.items()
            ):
                found.update({(topic, int(number)): end for number, end in partitions.items()})
    return found
