"""The log of a directory of files: what Spark's readers read, with the position of each writer in the same entries.

``<directory>/_spark_metadata/<n>`` names the files that entry n adds, as the log of Spark's own file sink does. Entries
have no gaps, and every tenth is a ``<n>.compact`` that repeats all before it. The last line of an entry is for Chandy:
it has the positions of all writers. It is a line about a folder, and Spark reads past those.

Entry n is created exclusively, after entry n - 1. So the log is one chain: who creates an entry knows all before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from ....storage.codec import plain, structure
from ....storage.errors import CodecError, ObjectMissingError
from ....storage.store import Store
from ...sinks.two_phase.contract import Position
from ...sinks.two_phase.errors import OutputError

FOLDER: Final = "_spark_metadata/"
"""Spark's folder for the log."""
COMPACTED: Final = 10
"""Every so many entries there is one that repeats all before it; Spark's default."""
VERSION: Final = "v1"

_NAME = re.compile(r"(\d+)(?:\.compact)?")
_NOTE = "chandy"
"""The key of the line that is for Chandy."""


@attrs.frozen
class DataFile:
    """A file that an entry adds."""

    uri: str
    """As Spark's readers have to name it, percent-encoded."""
    size: int
    """Bytes of the file."""
    rows: int


@attrs.frozen
class Entry:
    """The newest entry of a log: which one it is, and what was published up to it."""

    number: int
    """-1: the log is empty."""
    positions: Mapping[str, Position]
    """The positions of all writers, by their names."""


EMPTY: Final = Entry(-1, {})


def key_of(number: int) -> str:
    """Return the key of an entry."""
    return f"{FOLDER}{number}{'.compact' if is_compacted(number) else ''}"


def is_compacted(number: int) -> bool:
    """Whether an entry repeats all before it."""
    return (number + 1) % COMPACTED == 0


def before(number: int) -> range:
    """Return the entries that a compacted one repeats: the last compacted one, and those after it."""
    return range(max(0, number - COMPACTED), number)


def newest_of(keys: Iterable[str]) -> int:
    """Return the number of the newest entry among the keys of a directory, -1 if there is none."""
    names = [key.removeprefix(FOLDER) for key in keys if key.startswith(FOLDER)]
    return max((int(found[1]) for name in names if (found := _NAME.fullmatch(name))), default=-1)


def encode(added: Iterable[str], positions: Mapping[str, Position], directory: str, modified: float) -> bytes:
    """Return the bytes of an entry.

    Args:
        added: the lines about files.
        positions: the positions of all writers.
        directory: the directory's URI, for Spark's readers.
        modified: seconds since 1970.
    """
    note = _line(f"{directory}/_chandy", 0, modified, is_folder=True) | {_NOTE: plain(dict(positions))}
    return "\n".join([VERSION, *added, json.dumps(note)]).encode()


def line_of(file: DataFile, modified: float) -> str:
    """Return the line of an entry about a file."""
    # Spark reads past what it does not know.
    return json.dumps(_line(file.uri, file.size, modified, rows=file.rows))


def lines_of(data: bytes) -> list[str]:
    """Return the lines of an entry about files."""
    return [line for line in data.decode().splitlines()[1:] if _NOTE not in json.loads(line)]


def positions_of(data: bytes) -> dict[str, Position] | None:
    """Return the positions that an entry has; None if the entry is not Chandy's.

    Raises:
        CodecError: the positions cannot be read.
    """
    last = data.decode().splitlines()[-1]
    document = json.loads(last) if last.startswith("{") else {}
    if _NOTE not in document:
        return None
    return {name: structure(Position, one) for name, one in document[_NOTE].items()}


def _line(
    uri: str, size: int, modified: float, *, rows: int | None = None, is_folder: bool = False
) -> dict[str, object]:
    return {
        "path": uri,
        "size": size,
        **({} if rows is None else {"rows": rows}),
        "isDir": is_folder,
        "modificationTime": int(modified * 1000),
        "blockReplication": 1,
        "blockSize": 128 << 20,
        "action": "add",
    }


@attrs.frozen
class FileLog:
    """The log of one directory."""

    store: Store
    directory: str
    """The directory's URI, for Spark's readers."""

    def newest(self) -> Entry:
        """Read the newest entry.

        Raises:
            OutputError: it is another program's, or damaged.
            StorageError: the directory cannot be read.
        """
        number = newest_of(self.store.list(FOLDER))
        if number < 0:
            return EMPTY
        data = self.store.read(key_of(number))
        try:
            positions = positions_of(data)
        except (CodecError, ValueError) as error:
            raise self._unusable(f"entry {number} that cannot be read: {error}") from error
        if positions is None:
            raise self._unusable(f"entry {number} of another program, such as Spark's own file sink")
        return Entry(number, positions)

    def create(
        self, after: Entry, files: Iterable[DataFile], positions: Mapping[str, Position], modified: float
    ) -> Entry:
        """Create the entry that follows another one.

        Raises:
            ObjectExistsError: somebody else has.
            OutputError: the log has a gap.
            StorageError: the directory cannot be read or written.
        """
        number = after.number + 1
        added = [line_of(file, modified) for file in files]
        if is_compacted(number):
            added = [line for one in before(number) for line in self._lines(one)] + added
        self.store.create(key_of(number), encode(added, positions, self.directory, modified))
        return Entry(number, dict(positions))

    def _lines(self, number: int) -> list[str]:
        try:
            return lines_of(self.store.read(key_of(number)))
        except ObjectMissingError as error:
            raise self._unusable(f"no entry {number}") from error

    def _unusable(self, found: str) -> OutputError:
        return OutputError(
            f"the directory {self.directory} cannot be written",
            f"a log of Chandy's own in {FOLDER}, without gaps",
            found,
            "use another directory",
        )
