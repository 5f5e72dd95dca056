"""`chandy list`: the checkpoints of a pipeline, or the pipelines of a storage."""

from __future__ import annotations

from rich.filesize import decimal

from ...storage.checkpoints import locate
from ...storage.checkpoints.catalog import Catalog, CatalogEntry
from ...storage.errors import DamagedError
from ...storage.store import Store
from ...storage.times import to_the_second
from .facts import duration_of, facts_of, problem_of
from .group import json_option, main, pipeline_option, storage_uri
from .printing import print_json, print_problems, print_table, say


@main.command("list")
@storage_uri
@pipeline_option
@json_option
def list_(uri: str, pipeline: str | None, as_json: bool) -> None:
    """List the checkpoints, or the pipelines if the storage has several."""
    pipelines = locate.pipelines(uri, pipeline)
    entries = {name: Catalog(store).entries() for name, store in pipelines.items()}
    if len(pipelines) == 1:
        ((name, store),) = pipelines.items()
        _list_checkpoints(name, store, entries[name], as_json)
    else:
        _list_pipelines(uri, entries, as_json)
    print_problems(str(entry.problem) for found in entries.values() for entry in found if entry.problem)


def _list_checkpoints(name: str, store: Store, entries: list[CatalogEntry], as_json: bool) -> None:
    savepoints = [{"id": id, "uri": place} for id, place in locate.savepoints(store).items()]
    if as_json:
        checkpoints = [
            {"id": entry.id, "status": _status(entry), "problem": problem_of(entry)}
            | (facts_of(entry.manifest) if entry.manifest else {})
            for entry in entries
        ]
        print_json({"pipeline": name, "checkpoints": checkpoints, "savepoints": savepoints})
        return
    columns = ["id", "kind", "status", "completed", "took", "size", "new", "shards", "cut"]
    rows = [_row(entry) for entry in entries]
    print_table(
        f"{name}: {_many(len(rows), 'checkpoint')}",
        columns,
        rows,
        numbers=("id", "took", "size", "new", "shards"),
    )
    for savepoint in savepoints:
        say(f"savepoint {savepoint['id']}: {savepoint['uri']}")


def _row(entry: CatalogEntry) -> list[str]:
    manifest = entry.manifest
    if manifest is None:
        return [str(entry.id), "", _status(entry), "", "", "", "", "", ""]
    return [
        str(entry.id),
        manifest.kind.value,
        _status(entry) + (", unverified" if entry.completed and manifest.unverified else ""),
        to_the_second(manifest.completed_at),
        duration_of(manifest),
        decimal(manifest.size),
        decimal(manifest.new_bytes),
        str(manifest.shard_count),
        ", ".join(f"{query.name}@{query.batch}" for query in manifest.queries),
    ]


def _list_pipelines(uri: str, entries: dict[str, list[CatalogEntry]], as_json: bool) -> None:
    rows = []
    documents = []
    for name, found in entries.items():
        completed = [entry.completed for entry in found if entry.completed]
        latest = completed[-1] if completed else None
        documents.append(
            {"pipeline": name, "checkpoints": len(completed), "latest": facts_of(latest) if latest else None}
        )
        last = (
            [str(latest.id), to_the_second(latest.completed_at), decimal(latest.size)]
            if latest
            else ["", "", ""]
        )
        rows.append([name, str(len(completed)), *last])
    if as_json:
        print_json({"storage": uri, "pipelines": documents})
    else:
        columns = ["pipeline", "checkpoints", "latest", "completed", "size"]
        print_table(
            f"{uri}: {_many(len(rows), 'pipeline')}", columns, rows, numbers=("checkpoints", "latest", "size")
        )


def _status(entry: CatalogEntry) -> str:
    if entry.problem:
        return "damaged" if isinstance(entry.problem, DamagedError) else "too new"
    return "void" if entry.voided_by else "completed"


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
