"""What the logs of a channel's two ends name: the files that are published, the files and offsets that were read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

import attrs

from ..sinks.place import plain_path
from ..spark.logs.file_log import logged_files
from ..spark.logs.offset_log import offsets_in

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
    return tuple(PublishedFile(_path(file.uri), file.size, file.rows) for file in logged_files(entry))


def read(entry: bytes) -> frozenset[str]:
    """Return the files that an entry of the log of a file source names."""
    return frozenset(_path(file.uri) for file in logged_files(entry))


def _path(uri: str) -> str:
    # What most URIs are like goes fast.
    is_plain = uri.startswith(_LOCAL) and "%" not in uri
    return uri[len(_LOCAL) - 1 :] if is_plain else plain_path(uri)


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
