"""Reads out of a checkpoint how far its queries have read each of their sources."""

from __future__ import annotations

from ...storage.checkpoints.manifest import Handle, QueryRecord
from ...storage.checkpoints.restore import restore_files
from ...storage.disk.scratch import scratch_directory
from ...storage.store import Store
from .logs.offset_log import offsets_in


def source_offsets(store: Store, query: QueryRecord, folder: str) -> dict[str, str | None]:
    """Return by source the offset up to which a query has read it, as Spark has written it down; None: not at all.

    Spark counts the sources of a query from 0, or has a name for each.

    Args:
        store: what the record's keys are relative to.
        folder: where in the query's snapshot the files of its working checkpoint directory are.

    Raises:
        DamagedError, ObjectMissingError: the file with the offsets cannot be read.
    """
    name = f"{folder}/offsets/{query.batch}"
    files = tuple(file for file in query.files.files if file.name == name)
    if not files:
        return {}
    with scratch_directory("offsets") as scratch:
        restore_files(store, Handle(files), scratch)
        return {one.source: one.offset for one in offsets_in((scratch / name).read_text())}
