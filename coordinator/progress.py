"""Reads a query's working directory: what it has planned and committed, and what restores a batch."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from ..state.operators.batch_log import newest_committed as newest_committed
from .compact_log import names_at
from .errors import FilesVanishedError, IncompleteDirectoryError
from .listing import files_below, folders_in, link_or_copy, numbers_in
from .state_files import state_files_at

METADATA = "metadata"
"""The file with the query's id."""

Files = dict[str, Path]
"""Files by their name inside a directory, with ``/`` between parts."""

_ATTEMPTS = 5
_FILE_OFFSET = re.compile(r'\{"logOffset":(\d+)\}')
"""How a file source writes down where a batch ends."""


def newest_planned(directory: Path) -> int:
    """Return the newest batch in the offset log, -1 if none has been planned."""
    return max(numbers_in(directory / "offsets"), default=-1)


def is_committed(directory: Path, batch: int) -> bool:
    """Say whether a batch has committed, as far as Spark still keeps its record."""
    return (directory / "commits" / str(batch)).exists()


def query_id(directory: Path) -> str | None:
    """Return Spark's id of the query whose working directory this is, None if none has been started in it."""
    try:
        return str(json.loads((directory / METADATA).read_text())["id"])
    except FileNotFoundError:
        return None


def files_at(directory: Path, batch: int) -> Files:
    """Return the least files with which a query goes on at ``batch`` + 1; none for batch -1.

    The query may be running. Spark may delete a file that is named here any moment: ``hold`` keeps them.

    Raises:
        IncompleteDirectoryError: the batch has not committed, or what restores it is gone.
        FileNotFoundError: Spark has deleted a file while it was read; list again.
    """
    if batch < 0:
        return {}
    logged = [METADATA, f"offsets/{batch}", f"commits/{batch}"]
    # Spark also reads the batch before the last. Async progress tracking leaves gaps between numbers.
    before = max((number for number in numbers_in(directory / "offsets") if number < batch), default=None)
    if before is not None:
        logged.append(f"offsets/{before}")
    for name in logged:
        if not (directory / name).exists():
            raise IncompleteDirectoryError(str(directory), batch, name)
    names = logged + [f"{name}.crc" for name in logged if (directory / f"{name}.crc").exists()]
    ends = _source_ends(directory, batch)
    for source in folders_in(directory / "sources"):
        found = names_at(files_below(directory / "sources" / source), ends.get(source, batch))
        names += [f"sources/{source}/{name}" for name in found]
    names += state_files_at(directory, batch)
    return {name: directory / name for name in sorted(names)}


def _source_ends(directory: Path, batch: int) -> dict[str, int]:
    """Return for each file source, by the name of its folder, the entry of its log that a batch ends with.

    It may be a later one than the batch's number says. The source writes its log before the offset log, so a query that
    is killed between the two leaves an entry without a batch, and the next batch ends with the entry after it.
    """
    # A version, the batch's times, then a line for each source; in version 2 the source's name is ahead of its offset.
    lines = (directory / "offsets" / str(batch)).read_text().splitlines()[2:]
    ends = {}
    for number, line in enumerate(lines):
        name, brace, offset = line.partition("{")
        found = _FILE_OFFSET.fullmatch(brace + offset)
        if found is not None:
            ends[name.rstrip(":") or str(number)] = int(found[1])
    return ends


def hold(list_files: Callable[[], Files], target: Path) -> Files:
    """List files that Spark may delete any moment, and link or copy them to where it cannot.

    Args:
        list_files: the listing, e.g. ``lambda: files_at(directory, batch)``.
        target: the folder for the links; whatever is in it goes.

    Returns:
        The links by the names that the listing gave.

    Raises:
        IncompleteDirectoryError: the listing still raises it when repeated.
        FilesVanishedError: files go on vanishing between listing and link.
    """
    for attempt in range(_ATTEMPTS):
        shutil.rmtree(target, ignore_errors=True)
        try:
            return _link_all(list_files(), target)
        except (FileNotFoundError, IncompleteDirectoryError) as error:
            # What a clean-up deleted under this listing, the next listing does not need.
            if attempt < _ATTEMPTS - 1:
                continue
            if isinstance(error, FileNotFoundError):
                raise FilesVanishedError(str(error.filename), _ATTEMPTS) from error
            raise
    raise AssertionError("unreachable")


def _link_all(files: Files, target: Path) -> Files:
    held = {name: target / name for name in files}
    for name, path in files.items():
        link_or_copy(path, held[name])
    return held
