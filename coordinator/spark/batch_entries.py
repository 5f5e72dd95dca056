"""What Spark has logged of one planned batch of a query: taken out of a working directory, and put into another one.

Spark runs a batch again that is planned and has not committed. So a directory that stands behind the batch before, and
gets this one's entries, gives the same batch: the same records, clock and watermark.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ...storage.checkpoints.batch_record import BatchRecord
from ...storage.ids import BatchId
from ..errors import incomplete
from .listing import folders_in, numbers_in
from .logs.compact_log import DEFAULT_INTERVAL, entry_number
from .logs.offset_log import LoggedOffset, log_end, offsets_in
from .seeding import mend

_OFFSETS: Final = "offsets"
_SOURCES: Final = "sources"


def read_entry(directory: Path, batch: BatchId) -> tuple[str, dict[str, str]]:
    """Return what was logged of a planned batch: its offset entry, and the entries of the sources' own logs.

    Of a source with a log of files, these are the entries since the batch before, as they were before Spark compacted
    them. Other sources log where they have begun: that belongs to their first batch.

    Args:
        directory: the query's working checkpoint directory. The query may be running.

    Returns:
        As ``BatchRecord.offsets`` and ``BatchRecord.sources``.

    Raises:
        IncompleteDirectoryError: Spark has deleted an entry, or has not written it yet.
    """
    try:
        offsets = _text(directory / _OFFSETS / str(batch))
        before = _before(directory, batch)
    except FileNotFoundError as error:
        raise incomplete(str(directory), batch, f"{_OFFSETS}/{Path(error.filename).name}") from None
    sources = dict[str, str]()
    for one in offsets_in(offsets):
        folder = directory / _SOURCES / one.source
        if one.source in folders_in(directory / _SOURCES):
            for number, entry in _entries(folder, before.get(one.source), one):
                name = f"{_SOURCES}/{one.source}/{number}"
                if entry is None:
                    raise incomplete(str(directory), batch, name)
                sources[name] = entry
    return offsets, sources


def write_entry(directory: Path, record: BatchRecord, compact_interval: int = DEFAULT_INTERVAL) -> None:
    """Make a batch the one that the query of a working directory runs next. The query does not run.

    Args:
        directory: the working directory, in which the batch before has committed.
        record: the batch.
        compact_interval: every how many batches Spark's settings say that the log of a file source is compacted.
    """
    for name, text in record.sources.items():
        path = directory / name
        # What is compacted already has the entry.
        if not any(number >= int(path.name) for number in _compacted(path.parent)):
            _put(path, text)
            mend(path.parent, compact_interval)
    # Last: without its offsets the batch is not planned.
    _put(directory / _OFFSETS / str(record.batch), record.offsets)


def _before(directory: Path, batch: BatchId) -> dict[str, LoggedOffset]:
    """Return where the sources stood before a batch."""
    if batch == 0:
        return {}
    # Asynchronous progress tracking leaves gaps between the numbers.
    before = max((number for number in numbers_in(directory / _OFFSETS) if number < batch), default=batch - 1)
    return {one.source: one for one in offsets_in(_text(directory / _OFFSETS / str(before)))}


def _entries(log: Path, before: LoggedOffset | None, end: LoggedOffset) -> Iterator[tuple[int, str | None]]:
    """Yield the entries of a source's log that belong to a batch, by their numbers; None for one that is gone."""
    last = log_end(end.offset)
    if last is not None:
        first = log_end(before.offset) if before else None
        for number in range(0 if first is None else first + 1, last + 1):
            yield number, _entry(log, number)
    elif before is None or before.offset is None:
        for number in sorted(numbers_in(log)):
            yield number, _entry(log, number)


def _entry(log: Path, number: int) -> str | None:
    with contextlib.suppress(FileNotFoundError):
        return _text(log / str(number))
    for compacted in _compacted(log):
        # Spark may delete a compact file once it has written a later one, which repeats it.
        with contextlib.suppress(FileNotFoundError):
            if compacted >= number:
                head, *lines = _text(log / f"{compacted}.compact").split("\n")
                found = [line for line in lines if line and json.loads(line)["batchId"] == number]
                return "\n".join([head, *found]) if found else None
    return None


def _compacted(log: Path) -> list[int]:
    names = [path.name for path in log.iterdir()] if log.is_dir() else []
    return sorted(
        number for name in names if name.endswith(".compact") and (number := entry_number(name)) is not None
    )


def _text(path: Path) -> str:
    return path.read_bytes().decode()


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(text.encode())
    # Hadoop would compare the text with what was there before, which may be a link of another file.
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    new.replace(path)
