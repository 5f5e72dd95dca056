"""Exports a checkpoint or a savepoint: the steps in their order."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import attrs

from ...storage.checkpoints import locate
from ...storage.checkpoints.manifest import Manifest
from ...storage.checkpoints.verification import verify
from .contents import Exported
from .errors import ExportError
from .operators import write_operator
from .queries import CHECKPOINTS, write_query
from .readme import readme
from .target import check_empty, directory_of, filled

README: Final = "README.txt"
FACTS: Final = "export.json"


def export(
    storage: str,
    to: str | Path,
    *,
    pipeline: str | None = None,
    checkpoint: str | int = locate.LATEST,
    queries: Collection[str] | None = None,
) -> Exported:
    """Write a checkpoint as what plain Spark, without Chandy, goes on from.

    The directory gets a checkpoint directory for each query, the state of Chandy's operators as Parquet files, the logs
    of file sinks, and a README.txt that says how to go on. It is all there, or nothing of it can be used. The storage
    and the outputs stay as they are.

    Args:
        storage: a storage as a coordinator is given it, the folder of one pipeline in it, or that of a savepoint.
        to: a new or empty directory on this machine. It should be where it is to stay.
        pipeline: name of the pipeline, if the storage has several.
        checkpoint: "latest", the id of a completed checkpoint, or the URI of a savepoint.
        queries: names of the queries to export; None: all.

    Raises:
        NothingHereError: there is no such checkpoint.
        ExportError: the directory is not empty, the checkpoint has no such query, or it has output that is not known
            to be published.
        DamagedError, ObjectMissingError: the checkpoint is damaged. Nothing was written.
        SchemaTooNewError: a newer version of Chandy wrote it.
    """
    directory = directory_of(to)
    check_empty(directory)
    found = locate.locate(storage, checkpoint, pipeline)
    manifest = chosen(found.manifest, queries)
    check_published(manifest)
    if problems := verify(found.store, manifest).problems:
        raise problems[0].error(found.store.uri)
    with filled(directory, last=CHECKPOINTS) as folder:
        states = {one.uid: write_operator(found.store, one, folder, directory) for one in manifest.operators}
        written = []
        for query in manifest.queries:
            own = tuple(one for one in manifest.operators if one.query == query.name)
            written.append(write_query(found.store, query, own, folder, directory))
        exported = Exported(
            directory,
            manifest.pipeline,
            manifest.id,
            manifest.versions,
            tuple(written),
            tuple(states.values()),
        )
        (folder / README).write_text(readme(exported))
        (folder / FACTS).write_text(json.dumps(facts(exported), indent=2))
    return exported


def chosen(manifest: Manifest, names: Collection[str] | None) -> Manifest:
    """Return the manifest with some of its queries and their operators alone.

    Raises:
        ExportError: it has no such query.
    """
    if names is None:
        return manifest
    known = [query.name for query in manifest.queries]
    if unknown := sorted(set(names) - set(known)):
        raise ExportError(
            f"checkpoint {manifest.id} cannot be exported",
            f"names of its queries ({', '.join(known) or 'it has none'})",
            ", ".join(map(repr, unknown)),
        )
    return attrs.evolve(
        manifest,
        queries=tuple(query for query in manifest.queries if query.name in names),
        operators=tuple(operator for operator in manifest.operators if operator.query in names),
    )


def check_published(manifest: Manifest) -> None:
    """Refuse a checkpoint with output that plain Spark would never publish.

    Raises:
        ExportError: it has some. Names the query and the sink.
    """
    for query in manifest.queries:
        for output in query.outputs:
            if output.epochs:
                rows = sum(epoch.rows for epoch in output.epochs)
                raise ExportError(
                    f"checkpoint {manifest.id} cannot be exported",
                    "no output that only Chandy can publish",
                    f"{rows} rows of query {query.name!r} for its sink {output.sink!r}, which may not be published yet",
                    'stop the pipeline by coordinator.stop(savepoint="for-export") while the targets are there, which '
                    "publishes all output, and export that savepoint",
                )


def facts(exported: Exported) -> dict[str, Any]:
    """Return an export as JSON has it."""
    return attrs.asdict(
        exported, value_serializer=lambda _, __, value: str(value) if isinstance(value, Path) else value
    )
