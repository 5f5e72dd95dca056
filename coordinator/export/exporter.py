"""Exports a checkpoint or a savepoint: the steps in their order."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from ...storage import locate
from ...storage.errors import DamagedError
from ...storage.manifest import Manifest
from ...storage.verification import verify
from .contents import Exported
from .errors import ExportError
from .native import NativeState, SparkOperator
from .operators import write_operator
from .queries import CHECKPOINTS, write_query
from .readme import readme
from .target import check_empty, directory_of, filled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

README: Final = "README.txt"
FACTS: Final = "export.json"


def export(
    storage: str,
    to: str | Path,
    *,
    pipeline: str | None = None,
    checkpoint: str | int = locate.LATEST,
    queries: Collection[str] | None = None,
    operators: Mapping[str, SparkOperator] | None = None,
    spark: SparkSession | None = None,
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
        operators: the operators of Chandy, by uid, whose query is to go on with Spark's own ``transformWithState``, and
            how it will run. Each must be the only stateful operator of its query. Of other operators, the state is
            exported for an initial state.
        spark: the session that writes these states; None: the active one.

    Raises:
        NothingHereError: there is no such checkpoint.
        ExportError: the directory is not empty, the checkpoint has no such query, it has output that is not known to
            be published, or a state cannot become that of Spark's own.
        DamagedError, ObjectMissingError: the checkpoint is damaged. Nothing was written.
        SchemaTooNewError: a newer version of Chandy wrote it.
    """
    directory = directory_of(to)
    check_empty(directory)
    found = locate.locate(storage, checkpoint, pipeline)
    manifest = chosen(found.manifest, queries)
    check_published(manifest)
    wanted = dict(operators or {})
    check_operators(manifest, wanted)
    session = _session(spark) if wanted else None
    if problems := verify(found.store, manifest).problems:
        first = problems[0]
        raise DamagedError(found.store.uri, first.key, f"{first.expected} for {first.file}", first.found)
    with filled(directory, last=CHECKPOINTS) as folder:
        states = {one.uid: write_operator(found.store, one, folder, directory) for one in manifest.operators}
        written = []
        for query in manifest.queries:
            own = tuple(one for one in manifest.operators if one.query == query.name)
            native = None
            if session is not None and own and own[0].uid in wanted:
                uid = own[0].uid
                rows = folder / states[uid].directory.relative_to(directory)
                native = NativeState(session, own[0], wanted[uid], rows)
            written.append(write_query(found.store, query, own, folder, directory, native))
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


def check_operators(manifest: Manifest, wanted: Collection[str]) -> None:
    """Refuse operators that cannot become Spark's own.

    Raises:
        ExportError: there is none of this uid, or its query has others.
    """
    by_uid = {operator.uid: operator for operator in manifest.operators}
    for uid in wanted:
        if uid not in by_uid:
            raise ExportError(
                f"checkpoint {manifest.id} cannot be exported",
                f"uids of its operators ({', '.join(by_uid) or 'it has none'})",
                repr(uid),
            )
        query = by_uid[uid].query
        if others := [other.uid for other in manifest.operators if other.query == query and other.uid != uid]:
            raise ExportError(
                f"the state of operator {uid!r} cannot be written as that of Spark's own",
                f"no other stateful operator in query {query!r}",
                ", ".join(map(repr, others)),
                f"leave out SparkOperator for {uid!r}, and the state is exported for an initial state alone",
            )


def _session(spark: SparkSession | None) -> SparkSession:
    from pyspark.sql import SparkSession

    if (found := spark or SparkSession.getActiveSession()) is None:
        raise ExportError(
            "the state of operators cannot be written as that of Spark's own",
            "a Spark session that writes it",
            "none that is active",
            "pass one: export(..., spark=spark)",
        )
    return found


def facts(exported: Exported) -> dict[str, Any]:
    """Return an export as JSON has it."""
    return attrs.asdict(
        exported, value_serializer=lambda _, __, value: str(value) if isinstance(value, Path) else value
    )
