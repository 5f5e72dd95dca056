"""What a manifest says, as commands tell it."""

from __future__ import annotations

from typing import Any

import attrs

from ...storage.checkpoints.catalog import CatalogEntry
from ...storage.checkpoints.manifest import Manifest, OperatorRecord


def facts_of(manifest: Manifest) -> dict[str, Any]:
    """Return what a list of checkpoints says of one."""
    return {
        "id": manifest.id,
        "kind": manifest.kind.value,
        "generation": manifest.generation,
        "triggered_at": manifest.triggered_at,
        "completed_at": manifest.completed_at,
        "seconds": manifest.completed_at - manifest.triggered_at,
        "size": manifest.size,
        "new_bytes": manifest.new_bytes,
        "shards": manifest.shard_count,
        "cut": {query.name: query.batch for query in manifest.queries},
        "unverified": manifest.unverified,
    }


def details_of(manifest: Manifest) -> dict[str, Any]:
    """Return what there is to say of one checkpoint."""
    queries = [
        {
            "name": query.name,
            "batch": query.batch,
            "files": len(query.files.files),
            "size": query.files.size,
        }
        for query in manifest.queries
    ]
    operators = [
        {
            "uid": operator.uid,
            "query": operator.query,
            "shards": len(operator.shards),
            "shards_with_state": filled_shards(operator),
            "size": size_of(operator),
            "key_schema": operator.key_schema,
            "states": {name: attrs.asdict(state) for name, state in operator.states.items()},
        }
        for operator in manifest.operators
    ]
    return facts_of(manifest) | {
        "pipeline": manifest.pipeline,
        "versions": manifest.versions,
        "queries": queries,
        "outputs": outputs_of(manifest),
        "channels": [
            attrs.asdict(channel)
            | {"partitions": [attrs.asdict(one) | {"unread": one.unread} for one in channel.partitions]}
            for channel in manifest.channels
        ],
        "operators": operators,
    }


def outputs_of(manifest: Manifest) -> list[dict[str, Any]]:
    """Return what a checkpoint has of each transactional sink."""
    return [
        {
            "query": query.name,
            "sink": output.sink,
            "published": output.published,
            "epochs_to_publish": len(output.epochs),
            "rows_to_publish": sum(epoch.rows for epoch in output.epochs),
        }
        for query in manifest.queries
        for output in query.outputs
    ]


def filled_shards(operator: OperatorRecord) -> int:
    """Return how many shards of an operator have state."""
    return sum(handle is not None for handle in operator.shards)


def size_of(operator: OperatorRecord) -> int:
    """Return the bytes of an operator's state."""
    return sum(handle.size for handle in operator.shards if handle)


def duration_of(manifest: Manifest) -> str:
    """Return the time from the trigger to the end, for people."""
    return f"{manifest.completed_at - manifest.triggered_at:.2f} s"


def problem_of(entry: CatalogEntry) -> str | None:
    """Return why a checkpoint cannot be read; None: it can."""
    return str(entry.problem) if entry.problem else None
