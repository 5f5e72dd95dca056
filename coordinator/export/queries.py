"""Writes the checkpoint directories from which plain Spark resumes, one a query."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ...storage.checkpoints.manifest import OperatorRecord, QueryRecord
from ...storage.checkpoints.restore import restore_files
from ...storage.store import Store
from ..restore.restore_point import SINK, WORKING
from ..sinks.file_sink_log import LOG, contents
from ..spark.listing import files_below
from ..spark.logs.compact_log import DEFAULT_INTERVAL, entry_number, mended, missing_entry, names_at
from ..spark.progress import METADATA
from ..spark.seeding import seed
from . import notes
from .contents import ExportedQuery
from .positions import SourcePosition, positions, read_files

CHECKPOINTS: Final = "checkpoints"
"""The folder with the checkpoint directories."""
SINK_LOGS: Final = "file-sinks"
"""The folder with the logs of file sinks."""
_SCRATCH: Final = ".restored"


def write_query(
    store: Store,
    query: QueryRecord,
    operators: tuple[OperatorRecord, ...],
    folder: Path,
    final: Path,
) -> ExportedQuery:
    """Write what plain Spark needs of a query.

    Args:
        store: has the query's files.
        query: the query at the checkpoint.
        operators: those of Chandy's that are part of it.
        folder: the export's folder for now.
        final: what it will be.

    Raises:
        DamagedError, ObjectMissingError: a file is not as it was written.
    """
    if query.batch < 0:
        return ExportedQuery(query.name, query.batch, goes_on=not operators, directory=None)
    restored = folder / _SCRATCH
    try:
        restore_files(store, query.files, restored)
        _unlink_from_store(restored)
        log = _sink_log(query, restored, folder)
        if operators:
            return _beginning(query, restored / WORKING, log, folder, final)
        return _going_on(query, restored / WORKING, log, folder, final)
    finally:
        shutil.rmtree(restored, ignore_errors=True)


def _going_on(
    query: QueryRecord,
    files: Path,
    log: Mapping[str, bytes] | None,
    folder: Path,
    final: Path,
) -> ExportedQuery:
    """Make the directory of a query that goes on with its next batch."""
    place = Path(CHECKPOINTS) / query.name
    seed(files, folder / place, root=final / place)
    kept = final / SINK_LOGS / query.name / LOG
    if log is not None:
        said = notes.about_file_sink(query.batch, log, kept)
    elif query.outputs:
        said = notes.about_output(query)
    else:
        said = notes.about_other_sink(query)
    if any(files.glob("state/*/_metadata/v2/*")):
        said.append(
            "This directory must stay where it is: the metadata of its state has paths that lead here. To have it "
            "elsewhere, export again to there."
        )
    sink_log = None if log is None else kept
    return ExportedQuery(query.name, query.batch, True, final / place, sink_log, tuple(said))


def _beginning(
    query: QueryRecord, files: Path, log: Mapping[str, bytes] | None, folder: Path, final: Path
) -> ExportedQuery:
    """Make the directory of a query that begins with batch 0, and whose sources read on."""
    place = Path(CHECKPOINTS) / query.name
    directory = folder / place
    directory.mkdir(parents=True)
    seeded: list[SourcePosition] = []
    others: list[SourcePosition] = []
    for position in positions((files / "offsets" / str(query.batch)).read_text()):
        (seeded if _seed_source(position, files, directory) else others).append(position)
    (directory / METADATA).write_text(json.dumps({"id": str(uuid.uuid4())}))
    said = notes.about_sources(seeded, others)
    said += notes.about_beginning(query, log is not None, (files / "state").exists())
    said += notes.about_output(query)
    sink_log = None if log is None else final / SINK_LOGS / query.name / LOG
    return ExportedQuery(query.name, query.batch, False, final / place, sink_log, tuple(said))


def _seed_source(position: SourcePosition, files: Path, directory: Path) -> bool:
    """Have a file source begin where it stands; return whether it does."""
    end = position.log_end
    if end is None:
        return False
    source = files / "sources" / position.folder
    names = [name for name in names_at(files_below(source), end) if entry_number(name) is not None]
    if end >= 0 and missing_entry(names, end) is not None:
        return False
    entry = read_files({name: (source / name).read_bytes() for name in names})
    if entry is not None:
        target = directory / "sources" / position.plain_folder
        target.mkdir(parents=True)
        (target / "0").write_bytes(entry)
    return True


def _sink_log(query: QueryRecord, restored: Path, folder: Path) -> dict[str, bytes] | None:
    """Write the log of a query's file sink as it was, and return it; None if the query has another sink."""
    kept = restored / SINK
    if not kept.is_dir():
        return None
    log = mended(contents({path.name: path for path in kept.iterdir()}), DEFAULT_INTERVAL)
    target = folder / SINK_LOGS / query.name / LOG
    target.mkdir(parents=True)
    for name, content in log.items():
        (target / name).write_bytes(content)
    return log


def _unlink_from_store(folder: Path) -> None:
    """Replace hard links by copies: what becomes of an export is nothing to the storage."""
    for name in files_below(folder):
        path = folder / name
        if path.stat().st_nlink > 1:
            copy = path.with_name(f".{path.name}")
            shutil.copyfile(path, copy)
            copy.replace(path)
