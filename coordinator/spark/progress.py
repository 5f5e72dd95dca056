"""Reads a query's working checkpoint directory: its planned and committed batches, and the files that restore one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from ...state.operators.batch_log import newest_committed as newest_committed
from ...storage.ids import NO_BATCH, BatchId
from ..errors import IncompleteDirectoryError, incomplete
from .listing import files_below, folders_in, link_or_copy, numbers_in
from .logs.compact_log import missing_entry, names_at
from .logs.offset_log import log_end, offsets_at
from .state_files import state_files_at

METADATA = "metadata"
"""Name of the file with the query's id."""

SOURCES = "sources"
"""Name of the folder with Spark's logs of sources, each in a folder that is named as the offset log names it."""

Files = dict[str, Path]
"""Paths of files by their names relative to a directory, with ``/`` between the parts."""

_ATTEMPTS = 5


def newest_planned(directory: Path) -> BatchId:
    """Return the newest batch in the offset log; -1 if none has been planned."""
    return BatchId(max(numbers_in(directory / "offsets"), default=NO_BATCH))


def is_committed(directory: Path, batch: BatchId) -> bool:
    """Return whether a batch has committed; False, too, once Spark has deleted its record."""
    return (directory / "commits" / str(batch)).exists()


def query_id(directory: Path) -> str | None:
    """Return Spark's id of the query of a working directory; None if no query has been started in it."""
    try:
        return str(json.loads((directory / METADATA).read_text())["id"])
    except FileNotFoundError:
        return None


def files_at(directory: Path, batch: BatchId) -> Files:
    """Return the files that a query needs to go on with batch ``batch`` + 1, and no others; none for batch -1.

    The query may be running, and Spark may delete any of the files at any moment: ``hold`` keeps them.

    Raises:
        IncompleteDirectoryError: the batch has not committed, or files that restore it are gone.
        FileNotFoundError: Spark deleted a file while it was read; list again.
    """
    if batch < 0:
        return {}
    logged = [METADATA, f"offsets/{batch}", f"commits/{batch}"]
    # Spark also reads the batch before the last one. Asynchronous progress tracking leaves gaps between the numbers.
    before = max((number for number in numbers_in(directory / "offsets") if number < batch), default=None)
    if before is not None:
        logged.append(f"offsets/{before}")
    for name in logged:
        if not (directory / name).exists():
            raise incomplete(str(directory), batch, name)
    names = logged + [f"{name}.crc" for name in logged if (directory / f"{name}.crc").exists()]
    ends = _source_ends(directory, batch)
    for source in folders_in(directory / SOURCES):
        found = names_at(files_below(directory / SOURCES / source), ends.get(source, batch))
        if source in ends and (missing := missing_entry(found, ends[source])) is not None:
            raise incomplete(str(directory), batch, f"{SOURCES}/{source}/{missing}")
        names += [f"{SOURCES}/{source}/{name}" for name in found]
    names += state_files_at(directory, batch)
    return {name: directory / name for name in sorted(names)}


def _source_ends(directory: Path, batch: BatchId) -> dict[str, int]:
    """Return for each file source, by the name of its folder, the entry of its log that a batch ends with.

    It may be a later one than the batch's number says. The source writes its log before the offset log, so a query that
    is killed between the two leaves an entry without a batch, and the next batch ends with the entry after it.
    """
    ends = {one.source: log_end(one.offset) for one in offsets_at(directory, batch)}
    return {source: end for source, end in ends.items() if end is not None and end >= 0}


def hold(list_files: Callable[[], Files], target: Path) -> Files:
    """Link or copy files that Spark may delete at any moment to a directory where it does not.

    Args:
        list_files: lists the files, e.g. ``lambda: files_at(directory, batch)``.
        target: the directory for the links; its contents are deleted.

    Returns:
        The links by the names in the listing.

    Raises:
        IncompleteDirectoryError: files are missing each time they are listed, or vanish before they are linked.
    """
    for attempt in range(_ATTEMPTS):
        shutil.rmtree(target, ignore_errors=True)
        try:
            return _link_all(list_files(), target)
        except (FileNotFoundError, IncompleteDirectoryError) as error:
            # Spark deleted old files in between: the next listing does not need them.
            if attempt < _ATTEMPTS - 1:
                continue
            if isinstance(error, FileNotFoundError):
                raise _vanished(str(error.filename)) from error
            raise
    raise AssertionError("unreachable")


def _link_all(files: Files, target: Path) -> Files:
    held = {name: target / name for name in files}
    for name, path in files.items():
        link_or_copy(path, held[name])
    return held


def _vanished(name: str) -> IncompleteDirectoryError:
    return IncompleteDirectoryError(
        "the files of a batch cannot be kept",
        "files to exist until they are linked",
        f"{name} deleted right after it was listed, {_ATTEMPTS} times in a row",
        "have Spark keep more batches: raise spark.sql.streaming.minBatchesToRetain (100 by default)",
    )
