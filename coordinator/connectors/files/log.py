"""The log of a directory of files: what Spark's readers read, with the position of each writer in the same entries.

``<directory>/_spark_metadata/<n>`` names the files that entry n adds, as the log of Spark's own file sink does. Every
tenth entry is a ``<n>.compact`` that repeats all before it. The last line of an entry is for Chandy: it has the
positions of all writers. It is a line about a folder, and Spark reads past those.

Entry n is created exclusively, after entry n - 1. So the log is one chain: the writer of an entry knows all before it.
An entry that repeats all before it may also leave some out: so files are taken back, and so they are forgotten.

Spark does not write down how often a log is compacted. It takes the distance of the two newest compact entries for it,
and only where there are fewer than two, a setting of the reader's session. So a log begins with two of them, and two
stay. What is older is deleted. So a slow writer may create an entry that already existed and was deleted. It notices
afterwards, because the newest entry is too far ahead.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

import attrs

from ....storage.codec import plain, structure
from ....storage.errors import (
    CodecError,
    DamagedError,
    ObjectExistsError,
    ObjectMissingError,
    StorageError,
    UnfitError,
)
from ....storage.logs import logger
from ....storage.store import Store
from ....storage.verified import read_verified, verified
from ...sinks.directory_log import (
    COMPACTED,
    FOLDER,
    NOTE,
    SHA256,
    first_read,
    following,
    hash_of,
    is_compacted,
    key_of,
    newest_of,
    note_of,
    numbers_of,
    positions_in,
)
from ...sinks.two_phase.contract import Position
from ...sinks.two_phase.errors import OutputError
from .layout import DirectoryLayout
from .rewinds import Rewinds

log = logger(__name__)

VERSION: Final = "v1"

_REWINDS = "rewinds"
_REMOVED = "removed"
_LAYOUT = "layout"
_OWN: Final = ("writer", "epoch", "key", "staged")
"""What a line about a file has for Chandy, by the names of ``DataFile``."""


@attrs.frozen
class DataFile:
    """A file that an entry adds."""

    uri: str
    """As Spark's readers have to name it, percent-encoded."""
    size: int
    """Bytes of the file."""
    rows: int
    writer: str = ""
    """The writer of the entry."""
    epoch: int = -1
    """The epoch that its rows are of."""
    key: str = ""
    """Its key in the directory, whatever readers call that; empty if an older version has published it."""
    staged: str = ""
    """The identity of the epoch, ``Epoch.identity``; empty if an older version has published it."""


@attrs.frozen
class LogEntry:
    """The newest entry of a log: which one it is, and what is known with it."""

    number: int
    """-1: the log is empty."""
    positions: Mapping[str, Position]
    """The positions of all writers, by their names."""
    rewinds: Mapping[str, Rewinds] = attrs.field(factory=dict)
    """What was taken back, by writer."""
    removed: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    """By writer, the lines about files that were taken back, and that are not deleted."""
    layout: DirectoryLayout | None = None
    """What all files have in common; None: there are none, or an older version has published them."""
    at: float | None = attrs.field(default=None, eq=False)
    """When it was created, in seconds since 1970 by its writer's clock."""

    def with_position(self, writer: str, position: Position) -> LogEntry:
        """Return what is known with another position of a writer."""
        return attrs.evolve(self, positions={**self.positions, writer: position})


EMPTY: Final = LogEntry(-1, {})


def encode(added: Iterable[str], known: LogEntry, directory: str, modified: float) -> bytes:
    """Return the bytes of an entry.

    Args:
        added: the lines about files.
        known: what is known with it.
        directory: the directory's URI, for Spark's readers.
        modified: seconds since 1970.
    """
    note = _line(f"{directory}/_chandy", 0, modified, is_folder=True) | {NOTE: plain(dict(known.positions))}
    if known.rewinds:
        note[_REWINDS] = plain(dict(known.rewinds))
    if known.layout:
        note[_LAYOUT] = plain(known.layout)
    if known.removed:
        note[_REMOVED] = {writer: list(lines) for writer, lines in known.removed.items()}
    lines = [VERSION, *added]
    note[SHA256] = hash_of([*lines, json.dumps(note)])
    return "\n".join([*lines, json.dumps(note)]).encode()


def decode(number: int, data: bytes) -> LogEntry | None:
    """Return what is known with an entry; None if it is not Chandy's.

    Raises:
        CodecError, UnfitError, ValueError: it cannot be read.
    """
    note = note_of(data)
    if note is None:
        return None
    return LogEntry(
        number,
        positions_in(note),
        {name: structure(Rewinds, one) for name, one in note.get(_REWINDS, {}).items()},
        {writer: tuple(lines) for writer, lines in note.get(_REMOVED, {}).items()},
        structure(DirectoryLayout, note[_LAYOUT]) if _LAYOUT in note else None,
        note["modificationTime"] / 1000,
    )


def line_of(file: DataFile, modified: float) -> str:
    """Return the line of an entry about a file."""
    # Spark reads past what it does not know.
    own = {name: getattr(file, name) for name in _OWN} if file.writer else {}
    return json.dumps(_line(file.uri, file.size, modified, rows=file.rows) | own)


def lines_of(data: bytes) -> list[str]:
    """Return the lines of an entry about files."""
    return [line for line in data.decode().splitlines()[1:] if NOTE not in json.loads(line)]


def file_of(line: str) -> DataFile:
    """Return the file that a line is about."""
    one = json.loads(line)
    return DataFile(
        one["path"],
        one["size"],
        one.get("rows", 0),
        **{name: one[name] for name in _OWN if name in one},
    )


def published_at(line: str) -> float:
    """Return when the file that a line is about was published, in seconds since 1970."""
    return float(json.loads(line)["modificationTime"]) / 1000


def _lines_of(number: int, data: bytes) -> list[str]:
    """Return the lines of an entry about files, if the entry is whole: its last line is the one for Chandy."""
    try:
        lines, note = lines_of(data), note_of(data)
    except (ValueError, IndexError) as error:
        raise UnfitError("an entry", f"entry {number} that cannot be read: {error}") from error
    if note is None:
        raise UnfitError("an entry", _foreign(number))
    return lines


def _foreign(number: int) -> str:
    return f"entry {number} of another program, such as Spark's own file sink"


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
    retention: float | None = None
    """Seconds after which a file of the writer leaves the log, with the next entry that repeats all; None: never."""
    writer: str = ""
    """The identity of the writer. Entries of other writers, which may share the log, are theirs to drop."""

    def newest(self) -> LogEntry:
        """Read the newest entry.

        Raises:
            OutputError: it is another program's, or damaged.
            StorageError: the directory cannot be read.
        """
        number = newest_of(self.store.list(FOLDER))
        if number < 0:
            return EMPTY

        def read(data: bytes) -> LogEntry:
            try:
                found = decode(number, data)
            except (CodecError, ValueError, TypeError, AttributeError) as error:
                raise UnfitError("an entry", f"entry {number} that cannot be read: {error}") from error
            if found is None:
                raise UnfitError("an entry", _foreign(number))
            return found

        try:
            return read_verified(self.store, key_of(number), read)
        except DamagedError as error:
            raise self._unusable(error.found) from error

    def create(self, known: LogEntry, files: Iterable[DataFile], modified: float) -> LogEntry:
        """Create the entry that follows another one.

        Args:
            known: the entry before, with what is to be known from now on.
            files: what the entry adds.
            modified: seconds since 1970, as a ``LogClock`` has them. Files that are older than the retention may leave.

        Raises:
            ObjectExistsError: somebody else has, or the entry before is not there any more.
            OutputError: the log has a gap.
            StorageError: the directory cannot be read or written.
        """
        number = following(known.number)
        if known.number >= 0:
            self._check_there(known.number)
        added = [line_of(file, modified) for file in files]
        if is_compacted(number):
            added = self._kept(self.lines(known.number), modified) + added
        return self._create(attrs.evolve(known, number=number), added, modified)

    def replace(self, known: LogEntry, lines: Sequence[str], modified: float) -> LogEntry:
        """Create an entry that follows another one and says all that there is: lines that were, without some.

        It is the next compact entry. Those that are missing before it are created as well, and say nothing.

        Raises:
            As ``create``; entries may have been created.
        """
        before = self.newest()
        if before.number != known.number:
            raise ObjectExistsError(self.store.uri, key_of(following(known.number)))
        while not is_compacted(following(before.number)):
            before = self.create(before, (), modified)
        new = attrs.evolve(known, number=following(before.number))
        return self._create(new, self._kept(lines, modified), modified)

    def lines(self, number: int) -> list[str]:
        """Return the lines about all files as of an entry.

        Raises:
            OutputError: the log has a gap.
            StorageError: the directory cannot be read.
        """
        entries = range(first_read(number), number + 1)
        return [line for one in entries for line in self._lines(one)]

    def ensure_two_compact_entries(self) -> None:
        """Make sure that there are two compact entries, by whose distance Spark reads the log."""
        numbers = numbers_of(self.store.list(FOLDER))
        compacted = [number for number in numbers if is_compacted(number)]
        if len(compacted) == 1 and (missing := compacted[0] - COMPACTED) >= 0:
            with contextlib.suppress(ObjectExistsError):
                # Its name alone is read.
                self.store.create(key_of(missing), encode((), EMPTY, self.directory, 0.0))

    def _check_there(self, number: int) -> None:
        """Check that nobody has put the log back or deleted it: what follows would be behind a gap."""
        try:
            verified(self.store, key_of(number), lambda store: store.stat(key_of(number)))
        except ObjectMissingError as error:
            # What there is instead is for the caller to read, as after another one's entry.
            raise ObjectExistsError(self.store.uri, key_of(following(number))) from error

    def _create(self, new: LogEntry, lines: Sequence[str], modified: float) -> LogEntry:
        key = key_of(new.number)
        self.store.create(key, encode(lines, new, self.directory, modified))
        numbers = numbers_of(self.store.list(FOLDER))
        if numbers and numbers[-1] - COMPACTED > new.number:
            # It may have been there, and have been deleted.
            raise ObjectExistsError(self.store.uri, key)
        if is_compacted(new.number):
            self._forget([number for number in numbers if number < new.number - COMPACTED])
        return new

    def _forget(self, numbers: Sequence[int]) -> None:
        """Delete entries that no reader needs, unless it began before the last ten of them were there."""
        try:
            self.store.delete_all([key_of(number) for number in numbers])
        except StorageError as error:
            # The next entry that repeats all before it does it.
            log.warning("cannot delete old entries of a log", directory=self.directory, error=str(error))

    def _kept(self, lines: Sequence[str], now: float) -> list[str]:
        if self.retention is None:
            return list(lines)
        # An older version has not said whose a file is.
        return [
            line
            for line in lines
            if file_of(line).writer not in ("", self.writer) or published_at(line) > now - self.retention
        ]

    def _lines(self, number: int) -> list[str]:
        try:
            return read_verified(self.store, key_of(number), partial(_lines_of, number))
        except DamagedError as error:
            raise self._unusable(error.found) from error
        except ObjectMissingError as error:
            newest = newest_of(self.store.list(FOLDER))
            if newest - COMPACTED > number:
                # It is deleted, because there is more after it.
                raise ObjectExistsError(self.store.uri, key_of(newest)) from error
            raise self._unusable(f"no entry {number}") from error

    def _unusable(self, found: str) -> OutputError:
        return OutputError(
            f"the directory {self.directory} cannot be written",
            f"a log of Chandy's own in {FOLDER}, without gaps",
            found,
            "use another directory",
        )
