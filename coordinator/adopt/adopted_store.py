"""What a pipeline keeps of a query that it has adopted: a savepoint of its own, from which the query begins.

Each life of the pipeline that adopts a query writes into a folder of its own. So a driver that was overtaken while it
adopts writes nothing into what its successor begins from, and of two that have written, the later one counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import attrs

from ...storage.backends.open import open_store
from ...storage.checkpoints.layout import pack_key
from ...storage.checkpoints.manifest import CheckpointKind, Handle, Manifest, OperatorRecord, QueryRecord
from ...storage.checkpoints.proof import FenceProof
from ...storage.checkpoints.savepoint import commit_savepoint, read_savepoint
from ...storage.checkpoints.snapshots import SnapshotWriter
from ...storage.codec import to_json
from ...storage.errors import ObjectExistsError, ObjectMissingError, StorageError
from ...storage.ids import BatchId, CheckpointId
from ...storage.logs import logger
from ...storage.uri import join_uri
from ...storage.verified import read_record
from ..restore.restore_point import RestorePoint

log = logger(__name__)

FOLDER: Final = "adopted"
"""Folder in a pipeline's storage with a folder for each adopted query, and in it one for each life that adopted it."""
_RECORD: Final = "adoption.json"
_ID: Final = CheckpointId(1)
"""The id of the savepoint, which is the only one in its folder."""


@attrs.frozen
class AdoptionRecord:
    """Which checkpoint of plain Spark a query was adopted from."""

    path: str
    query_id: str
    """Spark's id of the query that wrote it."""
    committed: BatchId
    planned: int
    """Its newest committed and its newest planned batch."""


@attrs.frozen
class Adopted:
    """What was adopted for a query, in the pipeline's storage."""

    point: RestorePoint
    source: AdoptionRecord


def place_of(root: str, query: str) -> str:
    """Return the URI of the folder with what lives of the pipeline have adopted for a query.

    Args:
        root: URI of the pipeline's store.
        query: the query's name.
    """
    return join_uri(root, FOLDER, query)


def find(root: str, query: str) -> Adopted | None:
    """Return what was adopted for a query; None if nothing was, or only a part of it was written.

    Raises:
        DamagedError, SchemaTooNewError: it cannot be read.
    """
    place = place_of(root, query)
    for generation in sorted(_generations(open_store(place).list()), reverse=True):
        store = open_store(join_uri(place, str(generation)))
        try:
            manifest = read_savepoint(store)
            source = read_record(store, _RECORD, AdoptionRecord, "the record of an adoption")
        except ObjectMissingError:
            continue
        return Adopted(RestorePoint(manifest, store.uri, is_adopted=True), source)
    return None


def _generations(keys: Iterable[str]) -> set[int]:
    return {int(first) for key in keys if (first := key.partition("/")[0]).isdecimal()}


@attrs.frozen
class AdoptingPipeline:
    """The life of a pipeline that adopts a query."""

    root: str
    """URI of the pipeline's store."""
    pipeline: str
    generation: int
    versions: Mapping[str, str]


def write(
    life: AdoptingPipeline,
    query: str,
    source: AdoptionRecord,
    files: Mapping[str, Path],
    operators: tuple[OperatorRecord, ...],
    shards: Mapping[tuple[str, int], Mapping[str, Path]],
    now: float,
    proof: FenceProof,
) -> Adopted:
    """Write what is adopted for a query. Until it is written as a whole, nothing is adopted.

    Args:
        life: who adopts.
        query: the query's name.
        source: where it comes from.
        files: the query's own, by their names in its snapshot.
        operators: its operators, without shards.
        shards: the files of the operators' shards, by uid and number.
        now: seconds since 1970.
        proof: a successor adopts what it finds.

    Raises:
        FencedError: there is a successor. Nothing was adopted.
    """
    store = open_store(join_uri(place_of(life.root, query), str(life.generation)))
    writer = SnapshotWriter(store, pack_key(_ID, "adopted"))
    writer.add("query", files)
    for (uid, number), snapshot in shards.items():
        writer.add(f"{uid}/{number}", snapshot)
    stored = writer.finish()
    handles = {name: one.handle for name, one in stored.items()}
    store.write(_RECORD, to_json(source))
    manifest = Manifest(
        id=_ID,
        kind=CheckpointKind.SAVEPOINT,
        pipeline=life.pipeline,
        generation=life.generation,
        triggered_at=now,
        completed_at=now,
        queries=(QueryRecord(query, source.committed, handles.get("query", Handle())),),
        operators=tuple(
            attrs.evolve(
                operator,
                query=query,
                shards=tuple(
                    handles.get(f"{operator.uid}/{number}") for number in range(len(operator.shards))
                ),
            )
            for operator in operators
        ),
        new_bytes=sum(one.new_bytes for one in stored.values()),
        versions=dict(life.versions),
    )
    proof.check_now()
    try:
        commit_savepoint(store, manifest)
    except ObjectExistsError:
        # An earlier attempt has written it after all.
        if (found := find(life.root, query)) is not None:
            return found
        raise
    _forget_older(life, query, proof)
    return Adopted(RestorePoint(manifest, store.uri, is_adopted=True), source)


def _forget_older(life: AdoptingPipeline, query: str, proof: FenceProof) -> None:
    """Delete what earlier lives have written of an adoption: a part, or what was written too late."""
    store = open_store(place_of(life.root, query))
    keys = store.list()
    older = {str(generation) for generation in _generations(keys) if generation < life.generation}
    try:
        proof.check()
        store.delete_all([key for key in keys if key.partition("/")[0] in older])
    except StorageError as error:
        log.warning("cannot delete what an earlier driver has adopted in part", query=query, error=str(error))
