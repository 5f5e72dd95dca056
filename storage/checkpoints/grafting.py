"""Grafts: a checkpoint of a pipeline with the state that a shadow has computed beside it, up to the same cut.

A shadow runs the batches of the pipeline's leader with another version of the program. When it takes the pipeline over,
progress and output are the leader's: what was read, what was published, what is still to be published. State is the
shadow's. So a graft has the records of the leader's last checkpoint but for operators and Spark's own state stores,
whose records are those of the shadow's checkpoint.

The shadow keeps its objects in a folder inside of the pipeline's storage, so that a graft names them where they are. No
byte is moved. They belong to the pipeline from then on: like all of its objects, each goes with the last checkpoint
that names it.
"""

from __future__ import annotations

import attrs

from ..errors import RefusedError, StorageError
from ..ids import NO_BATCH, BatchId, CheckpointId
from .manifest import CheckpointKind, Handle, Manifest, QueryRecord

_STATE = "working/state/"
"""Where in a query's snapshot Spark's own state stores are."""
_WITH_STATE = (_STATE, "working/commits/")
"""What goes with them: the log of commits may say which of their files count."""


class GraftError(RefusedError, StorageError):
    """The state of a shadow cannot be put into a checkpoint of its pipeline."""


def graft(leader: Manifest, shadow: Manifest, folder: str, id: CheckpointId, generation: int) -> Manifest:
    """Return the checkpoint of a pipeline that has the state of a shadow.

    Args:
        leader: a checkpoint of the pipeline.
        shadow: a checkpoint of the shadow, at the same cut.
        folder: where the shadow has its objects, relative to the pipeline's storage.
        id: of the new checkpoint.
        generation: the one that commits it.

    Raises:
        GraftError: they are not at one cut: the shadow has not run the same batches of the same queries.
    """
    cut, found = _cut(leader), _cut(shadow)
    if cut != found:
        raise GraftError(
            f"the shadow's state cannot be put into checkpoint {leader.id}",
            f"a checkpoint of the shadow with {_shown(cut)}",
            f"one with {_shown(found)}",
            "have the shadow run these batches of the leader, and no other",
        )
    queries = {query.name: query for query in shadow.queries}
    operators = tuple(
        attrs.evolve(one, shards=tuple(_moved(handle, folder) if handle else None for handle in one.shards))
        for one in shadow.operators
        if one.query in cut
    )
    return attrs.evolve(
        leader,
        id=id,
        kind=CheckpointKind.MANUAL,
        generation=generation,
        queries=tuple(_grafted(query, queries.get(query.name), folder) for query in leader.queries),
        operators=operators,
        new_bytes=0,
        versions=shadow.versions,
        unverified=leader.unverified or shadow.unverified,
    )


def _cut(manifest: Manifest) -> dict[str, tuple[BatchId, str]]:
    """Return by query the last batch, and the hash of what Spark has planned for it; nothing for one that never ran."""
    cut = {}
    for query in manifest.queries:
        if query.batch != NO_BATCH:
            planned = f"working/offsets/{query.batch}"
            hashes = [file.sha256 for file in query.files.files if file.name == planned]
            cut[query.name] = query.batch, "".join(hashes)
    return cut


def _shown(cut: dict[str, tuple[BatchId, str]]) -> str:
    batches = (f"batch {batch} of {name!r} ({hash[:8]})" for name, (batch, hash) in sorted(cut.items()))
    return ", ".join(batches) or "no batch"


def _grafted(leader: QueryRecord, shadow: QueryRecord | None, folder: str) -> QueryRecord:
    """Return the record of a query with Spark's own state stores as another one has them."""
    theirs = () if shadow is None else _moved(shadow.files, folder).files
    if not any(file.name.startswith(_STATE) for file in (*leader.files.files, *theirs)):
        return leader
    kept = [file for file in leader.files.files if not file.name.startswith(_WITH_STATE)]
    taken = [file for file in theirs if file.name.startswith(_WITH_STATE)]
    return attrs.evolve(leader, files=Handle(tuple(sorted([*kept, *taken], key=lambda file: file.name))))


def _moved(handle: Handle, folder: str) -> Handle:
    """Return a snapshot whose keys are relative to a folder above."""
    return Handle(tuple(attrs.evolve(file, key=f"{folder}{file.key}") for file in handle.files))
