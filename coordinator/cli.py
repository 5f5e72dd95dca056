"""The command line: what is in a storage, whether it is whole, and cleaning it up."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import attrs
import click
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from ..storage import locate
from ..storage.catalog import Catalog
from ..storage.collect import GRACE_SECONDS, collect_garbage
from ..storage.errors import (
    ChandyError,
    DamagedError,
    NothingHereError,
    ObjectMissingError,
    SchemaTooNewError,
)
from ..storage.fencing import voided_by
from ..storage.layout import CHECKPOINTS, checkpoint_of, savepoint_key
from ..storage.manifest import Manifest, OperatorRecord
from ..storage.store import Store
from ..storage.verification import Report, damaged_objects, verify_all

PIPED_WIDTH = 200
"""Columns of a table that no terminal shows."""


class _Commands(click.Group):
    """Commands whose errors on purpose are one line on stderr and exit code 1, never a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (ChandyError, OSError) as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="chandy")
def main() -> None:
    """Look after the checkpoints of Spark streaming pipelines.

    STORAGE_URI is what the coordinator was given as its storage, or one pipeline's folder in it, or (for show
    and verify) a savepoint's folder: file:///path, /path, s3://bucket/prefix, ...
    """


_uri = click.argument("uri", metavar="STORAGE_URI")
_pipeline = click.option("--pipeline", metavar="NAME", help="The pipeline, if the storage has several.")
_checkpoint = click.option("--checkpoint", type=int, metavar="ID", help="The checkpoint.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


# --- list ---------------------------------------------------------------------------------------------------


@attrs.frozen
class Entry:
    """A manifest in a pipeline's store, readable or not."""

    id: int
    status: str
    """``completed``, ``void`` (its coordinator had been replaced), ``damaged``, or ``too new`` to be read."""
    manifest: Manifest | None
    problem: str | None

    @property
    def readable(self) -> bool:
        """Whether there is a manifest to look at."""
        return self.manifest is not None


@main.command("list")
@_uri
@_pipeline
@_json
def list_(uri: str, pipeline: str | None, as_json: bool) -> None:
    """List checkpoints; or the pipelines, if the storage has several."""
    pipelines = locate.pipelines(uri, pipeline)
    entries = {name: _entries(Catalog(store)) for name, store in pipelines.items()}
    if len(pipelines) == 1:
        ((name, store),) = pipelines.items()
        _list_checkpoints(name, store, entries[name], as_json)
    else:
        _list_pipelines(uri, entries, as_json)
    _tell_problems(entry.problem for found in entries.values() for entry in found if entry.problem)


def _list_checkpoints(name: str, store: Store, entries: list[Entry], as_json: bool) -> None:
    savepoints = _savepoints(store)
    if as_json:
        checkpoints = [
            {"id": entry.id, "status": entry.status, "problem": entry.problem}
            | (_facts(entry.manifest) if entry.manifest else {})
            for entry in entries
        ]
        _print_json({"pipeline": name, "checkpoints": checkpoints, "savepoints": savepoints})
        return
    columns = ["id", "kind", "status", "completed", "took", "size", "new", "shards", "cut"]
    rows = [_row(entry) for entry in entries]
    _print_table(
        f"{name}: {len(rows)} checkpoints", columns, rows, numbers=("id", "took", "size", "new", "shards")
    )
    for savepoint in savepoints:
        click.echo(f"savepoint {savepoint['id']}: {savepoint['uri']}")


def _row(entry: Entry) -> list[str]:
    manifest = entry.manifest
    if manifest is None:
        return [str(entry.id), "", entry.status, "", "", "", "", "", ""]
    return [
        str(entry.id),
        manifest.kind.value,
        entry.status,
        _when(manifest.completed_at),
        _took(manifest),
        decimal(manifest.size),
        decimal(manifest.new_bytes),
        str(manifest.shard_count),
        ", ".join(f"{query.name}@{query.batch}" for query in manifest.queries),
    ]


def _list_pipelines(uri: str, entries: dict[str, list[Entry]], as_json: bool) -> None:
    rows = []
    documents = []
    for name, found in entries.items():
        completed = [entry.manifest for entry in found if entry.status == "completed" and entry.manifest]
        latest = completed[-1] if completed else None
        documents.append(
            {"pipeline": name, "checkpoints": len(completed), "latest": _facts(latest) if latest else None}
        )
        last = [str(latest.id), _when(latest.completed_at), decimal(latest.size)] if latest else ["", "", ""]
        rows.append([name, str(len(completed)), *last])
    if as_json:
        _print_json({"storage": uri, "pipelines": documents})
    else:
        columns = ["pipeline", "checkpoints", "latest", "completed", "size"]
        _print_table(
            f"{uri}: {len(rows)} pipelines", columns, rows, numbers=("checkpoints", "latest", "size")
        )


# --- show ---------------------------------------------------------------------------------------------------


@main.command()
@_uri
@_pipeline
@_checkpoint
@_json
def show(uri: str, pipeline: str | None, checkpoint: int | None, as_json: bool) -> None:
    """Show one checkpoint, the latest unless said, or a savepoint."""
    _, manifest = _savepoint(uri, pipeline, checkpoint) or _one(uri, pipeline, checkpoint)
    if as_json:
        _print_json(_details(manifest))
        return
    facts = [
        ("pipeline", manifest.pipeline),
        ("kind", manifest.kind.value),
        ("generation", str(manifest.generation)),
        ("triggered", _when(manifest.triggered_at)),
        ("completed", f"{_when(manifest.completed_at)}, {_took(manifest)} after the trigger"),
        ("size", f"{decimal(manifest.size)}, {decimal(manifest.new_bytes)} of it new"),
        ("shards", str(manifest.shard_count)),
        ("written by", ", ".join(f"{name} {version}" for name, version in sorted(manifest.versions.items()))),
    ]
    _print_table(f"checkpoint {manifest.id}", ["", ""], [list(fact) for fact in facts])
    queries = [
        [query.name, str(query.batch), str(len(query.files.files)), decimal(query.files.size)]
        for query in manifest.queries
    ]
    _print_table("queries", ["query", "batch", "files", "size"], queries, numbers=("batch", "files", "size"))
    operators = [
        [
            operator.uid,
            operator.query,
            str(len(operator.shards)),
            str(_filled(operator)),
            decimal(_size(operator)),
            ", ".join(sorted(operator.states)),
        ]
        for operator in manifest.operators
    ]
    columns = ["operator", "query", "shards", "with state", "size", "states"]
    _print_table("operators", columns, operators, numbers=("shards", "with state", "size"))


# --- verify -------------------------------------------------------------------------------------------------


@main.command("verify")
@_uri
@_pipeline
@_checkpoint
@_json
def verify_(uri: str, pipeline: str | None, checkpoint: int | None, as_json: bool) -> None:
    """Read every byte of all completed checkpoints, of one, or of a savepoint, and check it.

    Names every damaged or missing object and the checkpoints that need it.
    """
    unreadable: list[Entry] = []
    savepoint = _savepoint(uri, pipeline, checkpoint)
    if savepoint or checkpoint is not None:
        store, manifest = savepoint or _one(uri, pipeline, checkpoint)
        manifests = [manifest]
    else:
        store = _only(uri, pipeline)
        entries = _entries(Catalog(store))
        manifests = [entry.manifest for entry in entries if entry.manifest and entry.status == "completed"]
        unreadable = [entry for entry in entries if not entry.readable]
    reports = list(zip([manifest.id for manifest in manifests], verify_all(store, manifests), strict=True))
    damaged = damaged_objects(dict(reports))
    if as_json:
        found = [_report(id, report) for id, report in reports]
        found += [{"id": entry.id, "ok": False, "problem": entry.problem} for entry in unreadable]
        objects = [attrs.asdict(one) for one in damaged]
        _print_json({"store": store.uri, "checkpoints": found, "damaged": objects})
    else:
        rows = [
            [str(id), _verdict(report), str(report.files), decimal(report.bytes)] for id, report in reports
        ]
        rows += [[str(entry.id), entry.status, "", ""] for entry in unreadable]
        columns = ["id", "result", "files", "whole"]
        _print_table(store.uri, columns, rows, numbers=("id", "files", "whole"))
    problems = [f"checkpoint {id}: {problem}" for id, report in reports for problem in report.problems]
    _tell_problems([*problems, *map(str, damaged), *(entry.problem or entry.status for entry in unreadable)])


def _verdict(report: Report) -> str:
    return "whole" if report.ok else f"{len(report.problems)} files damaged or missing"


def _report(id: int, report: Report) -> dict[str, Any]:
    problems = [attrs.asdict(problem) for problem in report.problems]
    return {"id": id, "ok": report.ok, "files": report.files, "bytes": report.bytes, "problems": problems}


# --- gc -----------------------------------------------------------------------------------------------------


@main.command()
@_uri
@_pipeline
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@click.option("--force", is_flag=True, help="Delete young files too. Only while the pipeline does not run!")
@_json
def gc(uri: str, pipeline: str | None, dry_run: bool, force: bool, as_json: bool) -> None:
    """Delete what no completed checkpoint needs: leftovers of crashes and of aborted checkpoints.

    Objects younger than a day are spared, for a checkpoint in flight may need them, and so is all that a damaged
    manifest may need.
    """
    catalog = Catalog(_only(uri, pipeline))
    garbage = collect_garbage(catalog, time.time(), 0 if force else GRACE_SECONDS, dry_run)
    if as_json:
        _print_json(attrs.asdict(garbage) | {"dry_run": dry_run})
        return
    for key in garbage.keys:
        click.echo(key)
    verb = "would delete" if dry_run else "deleted"
    click.echo(
        f"{verb} {len(garbage.keys)} objects, {decimal(garbage.bytes)}; spared {garbage.young} young ones"
    )
    if garbage.damaged:
        click.echo(
            f"spared {garbage.spared} more, for what these damaged manifests need nobody knows: "
            f"{', '.join(garbage.damaged)}; put intact copies in their places, or delete them to give their "
            "checkpoints up, then run this again",
            err=True,
        )


# --- finding ------------------------------------------------------------------------------------------------


def _only(uri: str, pipeline: str | None) -> Store:
    pipelines = locate.pipelines(uri, pipeline)
    if len(pipelines) > 1:
        raise NothingHereError(uri, "one pipeline, or --pipeline to say which", ", ".join(pipelines))
    return next(iter(pipelines.values()))


def _savepoint(uri: str, pipeline: str | None, checkpoint: int | None) -> tuple[Store, Manifest] | None:
    """Return the savepoint at a URI; None if there is none, or a checkpoint is asked for."""
    if pipeline is not None or checkpoint is not None:
        return None
    found = locate.savepoint(uri)
    return None if found is None else (found.store, found.manifest)


def _one(uri: str, pipeline: str | None, checkpoint: int | None) -> tuple[Store, Manifest]:
    store = _only(uri, pipeline)
    catalog = Catalog(store)
    if checkpoint is None:
        manifest = catalog.latest()
    elif checkpoint in (ids := catalog.list_ids()):
        manifest = catalog.read(checkpoint)
    else:
        raise NothingHereError(store.uri, f"checkpoint {checkpoint}", ", ".join(map(str, ids)) or "none")
    if manifest is None:
        raise NothingHereError(store.uri, "a completed checkpoint", "none")
    return store, manifest


def _entries(catalog: Catalog) -> list[Entry]:
    return [entry for id in catalog.list_ids() if (entry := _entry(catalog, id))]


def _entry(catalog: Catalog, id: int) -> Entry | None:
    try:
        manifest = catalog.read(id)
    except ObjectMissingError:
        return None  # retention dropped it meanwhile
    except DamagedError as error:
        return Entry(id, "damaged", None, str(error))
    except SchemaTooNewError as error:
        return Entry(id, "too new", None, str(error))
    void = voided_by(manifest.generation, manifest.id, catalog.generations())
    return Entry(id, "void" if void else "completed", manifest, None)


def _savepoints(store: Store) -> list[dict[str, Any]]:
    """Return where savepoints of a pipeline were asked for; whether they are there only their stores know."""
    keys = store.list(CHECKPOINTS)
    ids = sorted(id for key in keys if (id := checkpoint_of(key)) and key == savepoint_key(id))
    return [{"id": id, "uri": store.read(savepoint_key(id)).decode(errors="replace")} for id in ids]


# --- printing -----------------------------------------------------------------------------------------------


def _facts(manifest: Manifest) -> dict[str, Any]:
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
    }


def _details(manifest: Manifest) -> dict[str, Any]:
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
            "shards_with_state": _filled(operator),
            "size": _size(operator),
            "key_schema": operator.key_schema,
            "states": {name: attrs.asdict(state) for name, state in operator.states.items()},
        }
        for operator in manifest.operators
    ]
    return _facts(manifest) | {
        "pipeline": manifest.pipeline,
        "versions": manifest.versions,
        "queries": queries,
        "operators": operators,
    }


def _filled(operator: OperatorRecord) -> int:
    return sum(handle is not None for handle in operator.shards)


def _size(operator: OperatorRecord) -> int:
    return sum(handle.size for handle in operator.shards if handle)


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _took(manifest: Manifest) -> str:
    return f"{manifest.completed_at - manifest.triggered_at:.2f} s"


def _print_json(document: object) -> None:
    click.echo(json.dumps(document, indent=2))


def _print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = ()
) -> None:
    table = Table(title=Text(title), title_justify="left", show_header=any(columns))
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        # As text: names may have what rich would take for markup.
        table.add_row(*map(Text, row))
    Console(width=None if sys.stdout.isatty() else PIPED_WIDTH).print(table)


def _tell_problems(problems: Iterable[str]) -> None:
    """Print problems to stderr, and end with exit code 1 if there are any."""
    found = list(problems)
    for problem in found:
        click.echo(problem, err=True)
    if found:
        raise click.exceptions.Exit(1)
