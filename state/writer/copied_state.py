"""Copies what stays as it is from a checkpoint into the folder of a new savepoint."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ...storage.checkpoints.layout import pack_key
from ...storage.checkpoints.locate import Located
from ...storage.checkpoints.manifest import Handle, QueryRecord
from ...storage.checkpoints.restore import restore_files
from ...storage.checkpoints.snapshots import SnapshotWriter, StoredSnapshot, copy_snapshot
from ...storage.checkpoints.verification import check
from ...storage.disk.scratch import scratch_directory
from ...storage.store import Store


@attrs.frozen
class Carried:
    """What was copied, durable in the savepoint's folder."""

    queries: tuple[QueryRecord, ...]
    shards: Mapping[tuple[str, int], StoredSnapshot]
    """By operator and number of the shard."""
    new_bytes: int


def carry(base: Located, target: Store, shards: Mapping[tuple[str, int], Handle]) -> Carried:
    """Copy all queries of a checkpoint, and some shards.

    A service copies large files itself if it can. Otherwise they come through this machine, and are verified: a few
    files at a time are on its disk, and none is in memory as a whole.

    Args:
        base: the checkpoint, which stays as it is.
        target: the savepoint's folder.
        shards: files of shards by operator and number.

    Raises:
        DamagedError, ObjectMissingError: a file of the checkpoint cannot be read.
    """
    queries = {f"query-{number}": query for number, query in enumerate(base.manifest.queries)}
    groups = {f"shard-{number}": shard for number, shard in enumerate(shards)}
    handles = {group: query.files for group, query in queries.items()}
    handles |= {group: shards[shard] for group, shard in groups.items()}
    with scratch_directory("copy") as folder:
        writer = SnapshotWriter(target, pack_key(base.manifest.id, "carried"))
        for group, handle in handles.items():
            copy_snapshot(base.store, handle, writer, group, folder / group)
        stored = writer.finish()
    new_bytes = sum(snapshot.new_bytes for snapshot in stored.values())
    return Carried(
        queries=tuple(attrs.evolve(query, files=stored[group].handle) for group, query in queries.items()),
        shards={shard: stored[group] for group, shard in groups.items()},
        new_bytes=new_bytes + _copy_staged(base, target),
    )


def _copy_staged(base: Located, target: Store) -> int:
    """Copy the rows that sinks have still to publish, which keep their keys; return how many bytes that wrote."""
    outputs = [output for query in base.manifest.queries for output in query.outputs]
    # Several sinks publish the same files.
    files = {file.key: file for output in outputs for epoch in output.epochs for file in epoch.staged.files}
    with scratch_directory("copy") as folder:
        for file in files.values():
            if target.copy(base.store, file.key, file.key):
                check(target, file)
            else:
                restore_files(base.store, Handle((attrs.evolve(file, name="staged"),)), folder)
                target.upload(folder / "staged", file.key)
    return sum(file.size for file in files.values())
