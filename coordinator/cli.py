"""The command line `chandy`: list, show, compare and verify checkpoints, delete garbage, clean a machine."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from ..storage import locate
from ..storage.catalog import Catalog, Entry
from ..storage.collect import GRACE_SECONDS, collect_garbage
from ..storage.errors import ChandyError, DamagedError
from ..storage.manifest import ChannelRecord, Manifest, OperatorRecord, QueryRecord
from ..storage.store import Store
from ..storage.verification import Report, damaged_objects, verify, verify_all
from .spark.offset_log import LoggedOffset, offsets_in

if TYPE_CHECKING:
    from .differences import OperatorDifferences, QueryDifferences, StateDifferences
    from .recovery.leftovers import Leftover

PIPED_WIDTH = 200
"""Columns of a table when the output is not a terminal."""


class _Commands(click.Group):
    """Commands that print Chandy's own errors as one line on stderr, with exit code 1 and no traceback."""

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
    """Manage the checkpoints of Spark streaming pipelines.

    STORAGE_URI is the storage of a coordinator, the folder of one pipeline in it, or (for show, diff, verify and
    export) the folder of a savepoint: file:///path, /path, path, s3://bucket/prefix, ...
    """


def _absolute(context: click.Context, parameter: click.Parameter, uri: str) -> str:
    """Return a place as stores take it: a path below the current directory as an absolute one."""
    return uri if "://" in uri or uri.startswith("/") else str(Path(uri).resolve())


_uri = click.argument("uri", metavar="STORAGE_URI", callback=_absolute)
_pipeline = click.option(
    "--pipeline", metavar="NAME", help="Name of the pipeline, if the storage has several."
)
_checkpoint = click.option("--checkpoint", type=int, metavar="ID", help="Id of the checkpoint.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")


# --- list ---------------------------------------------------------------------------------------------------


@main.command("list")
@_uri
@_pipeline
@_json
def list_(uri: str, pipeline: str | None, as_json: bool) -> None:
    """List the checkpoints, or the pipelines if the storage has several."""
    pipelines = locate.pipelines(uri, pipeline)
    entries = {name: Catalog(store).entries() for name, store in pipelines.items()}
    if len(pipelines) == 1:
        ((name, store),) = pipelines.items()
        _list_checkpoints(name, store, entries[name], as_json)
    else:
        _list_pipelines(uri, entries, as_json)
    _print_problems(str(entry.problem) for found in entries.values() for entry in found if entry.problem)


def _list_checkpoints(name: str, store: Store, entries: list[Entry], as_json: bool) -> None:
    savepoints = [{"id": id, "uri": place} for id, place in locate.savepoints(store).items()]
    if as_json:
        checkpoints = [
            {"id": entry.id, "status": _status(entry), "problem": _problem(entry)}
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
        return [str(entry.id), "", _status(entry), "", "", "", "", "", ""]
    return [
        str(entry.id),
        manifest.kind.value,
        _status(entry) + (", unverified" if entry.completed and manifest.unverified else ""),
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
        completed = [entry.completed for entry in found if entry.completed]
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
    """Show one checkpoint, by default the latest, or a savepoint: what is in it, and where its sources stand."""
    found = _locate(uri, pipeline, checkpoint)
    manifest, offsets = found.manifest, _offsets(found)
    if as_json:
        _print_json(_details(manifest) | {"sources": offsets})
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
    if offsets:
        columns = ["query", "source", "next offset"]
        _print_table("sources", columns, [[str(value) for value in one.values()] for one in offsets])
    if outputs := _outputs(manifest):
        columns = ["query", "sink", "published up to", "epochs to publish", "rows to publish"]
        rows = [["-" if value is None else str(value) for value in one.values()] for one in outputs]
        _print_table("transactional sinks", columns, rows, numbers=columns[2:])
    if manifest.channels:
        columns = ["writer", "sink", "reader", "target", "published up to", "rows to publish", "not read"]
        rows = [_channel(channel) for channel in manifest.channels]
        _print_table("channels between queries", columns, rows, numbers=columns[4:6])
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


# --- diff ---------------------------------------------------------------------------------------------------


def _chosen(context: click.Context, parameter: click.Parameter, checkpoint: str) -> str:
    """Return "latest" and ids as they are, and all else as the URI of a savepoint."""
    is_place = checkpoint != locate.LATEST and not checkpoint.isdecimal()
    return _absolute(context, parameter, checkpoint) if is_place else checkpoint


@main.command()
@_uri
@click.argument("old", callback=_chosen)
@click.argument("new", callback=_chosen)
@_pipeline
@click.option("--operator", metavar="UID", help="Compare the state of this operator only.")
@click.option("--state", metavar="NAME", help="Compare this state only; '$timers': the timers.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=20,
    metavar="N",
    show_default=True,
    help="Differences to print of each state. All are counted.",
)
@_json
def diff(
    uri: str,
    old: str,
    new: str,
    pipeline: str | None,
    operator: str | None,
    state: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Compare two checkpoints: how far their queries have read, and their state key by key.

    OLD and NEW are each "latest", an id, or the folder of a savepoint. Only shards whose files differ are downloaded.
    """
    # It loads PySpark, which the other commands need not wait for.
    from .differences import compare_operators, compare_queries

    before, after = (locate.locate(uri, checkpoint, pipeline) for checkpoint in (old, new))
    queries = list(compare_queries(before, after))
    operators = list(compare_operators(before, after, operator=operator, state=state, limit=limit))
    if as_json:
        _print_json(
            {
                "old": {"id": before.manifest.id, "store": before.store.uri},
                "new": {"id": after.manifest.id, "store": after.store.uri},
                "queries": [attrs.asdict(query) for query in queries],
                "operators": [attrs.asdict(found) for found in operators],
            }
        )
        return
    for query in queries:
        _print_query(query)
    for found in operators:
        _print_operator(found)


def _print_query(query: QueryDifferences) -> None:
    was, now = ("none" if batch is None else f"batch {batch}" for batch in query.batches)
    click.echo(f"query {query.name}: {was}" + (f" -> {now}" if was != now else ", the same"))
    for source in query.sources:
        click.echo(f"  source {source.source}: {source.old or 'nothing'} -> {source.new or 'nothing'}")


def _print_operator(operator: OperatorDifferences) -> None:
    how = f" ({operator.change.value})" if operator.change else ""
    was, now = operator.shards
    shards = f"{now} shards" if was == now else f"{was} -> {now} shards"
    read = f"{operator.read} read" if operator.read else "all the same"
    click.echo(f"operator {operator.uid} of query {operator.query}{how}: {shards}, {read}")
    rows = [
        [state.name, state.kind, str(state.added), str(state.removed), str(state.changed)]
        for state in operator.states
        if state.total
    ]
    if rows:
        numbers = ("added", "removed", "changed")
        _print_table("", ["state", "kind", *numbers], rows, numbers)
    for state in operator.states:
        _print_state(operator.uid, state)


def _print_state(uid: str, state: StateDifferences) -> None:
    if not state.shown:
        return
    rows = [
        [
            one.change.value,
            _fields(one.key),
            _fields(one.place),
            "" if one.old is None else _fields(one.old),
            "" if one.new is None else _fields(one.new),
        ]
        for one in state.shown
    ]
    columns = [
        "",
        "key",
        {"list": "position", "map": "map key", "timers": "timer"}.get(state.kind, ""),
        "old",
        "new",
    ]
    # A value state has no places, and timers have no values.
    shown = [at for at in range(len(columns)) if at == 0 or any(row[at] for row in rows)]
    more = f", the first {len(rows)} of {state.total}" if len(rows) < state.total else ""
    title = f"{uid}, {state.name}{more}"
    _print_table(title, [columns[at] for at in shown], [[row[at] for at in shown] for row in rows])


def _fields(fields: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in fields.items())


# --- verify -------------------------------------------------------------------------------------------------


@attrs.frozen
class _Verified:
    """A checkpoint or savepoint that was looked at."""

    id: int
    report: Report | None = None
    """None: it could not be read."""
    problem: str | None = None
    """Why it could not."""
    place: str | None = None
    """The URI of a savepoint."""

    @property
    def name(self) -> str:
        return f"checkpoint {self.id}" if self.place is None else f"savepoint {self.id} in {self.place}"

    @property
    def verdict(self) -> str:
        if self.report is None:
            return "not there" if self.problem is None else "unreadable"
        return "whole" if self.report.ok else f"{len(self.report.problems)} files damaged or missing"

    @property
    def problems(self) -> list[str]:
        if self.report is None:
            return [] if self.problem is None else [f"{self.name}: {self.problem}"]
        return [f"{self.name}: {problem}" for problem in self.report.problems]

    def row(self) -> list[str]:
        numbers = ["", ""] if self.report is None else [str(self.report.files), decimal(self.report.bytes)]
        return [str(self.id), self.verdict, *numbers, *([] if self.place is None else [self.place])]

    def document(self) -> dict[str, Any]:
        place = {} if self.place is None else {"uri": self.place}
        if self.report is None:
            return {"id": self.id, "ok": False, "problem": self.problem} | place
        problems = [attrs.asdict(problem) for problem in self.report.problems]
        facts = {"files": self.report.files, "bytes": self.report.bytes, "problems": problems}
        return {"id": self.id, "ok": self.report.ok} | facts | place


@main.command("verify")
@_uri
@_pipeline
@_checkpoint
@_json
def verify_(uri: str, pipeline: str | None, checkpoint: int | None, as_json: bool) -> None:
    """Check every byte of all completed checkpoints and savepoints, or of one of them.

    Names every damaged or missing object and the checkpoints that need it. A savepoint that is no longer where the
    pipeline wrote it is said, but is no error.
    """
    unreadable: list[Entry] = []
    savepoints: dict[int, str] = {}
    one = None
    if checkpoint is not None:
        one = _locate(uri, pipeline, checkpoint)
    elif pipeline is None:
        one = locate.savepoint(uri)
    if one:
        store, manifests = one.store, [one.manifest]
    else:
        store = locate.pipeline(uri, pipeline)
        entries = Catalog(store).entries()
        manifests = [entry.completed for entry in entries if entry.completed]
        unreadable = [entry for entry in entries if entry.problem]
        savepoints = locate.savepoints(store)
    reports = dict(zip([manifest.id for manifest in manifests], verify_all(store, manifests), strict=True))
    damaged = damaged_objects(reports)
    verified = [_Verified(id, report) for id, report in reports.items()]
    verified += [_Verified(entry.id, problem=_problem(entry)) for entry in unreadable]
    saved = [_verify_savepoint(id, place) for id, place in savepoints.items()]
    if as_json:
        documents = {
            "store": store.uri,
            "checkpoints": [found.document() for found in verified],
            "damaged": [attrs.asdict(found) for found in damaged],
            "savepoints": [found.document() for found in saved],
        }
        _print_json(documents)
    else:
        columns = ["id", "result", "files", "whole"]
        _print_table(
            store.uri, columns, [found.row() for found in verified], numbers=("id", "files", "whole")
        )
        if saved:
            rows = [found.row() for found in saved]
            _print_table("savepoints", [*columns, "place"], rows, numbers=("id", "files", "whole"))
    problems = [problem for found in (*verified, *saved) for problem in found.problems]
    _print_problems([*problems, *map(str, damaged)])


def _verify_savepoint(id: int, place: str) -> _Verified:
    try:
        found = locate.savepoint(place)
        if found is None or found.manifest.id != id:
            return _Verified(id, place=place)
        return _Verified(id, verify(found.store, found.manifest), place=place)
    except (ChandyError, OSError) as error:
        return _Verified(id, problem=str(error), place=place)


# --- export -------------------------------------------------------------------------------------------------


@main.command("export")
@_uri
@click.option(
    "--to", required=True, metavar="DIR", help="A new or empty directory, where the export is to stay."
)
@_pipeline
@_checkpoint
@click.option("--query", "queries", multiple=True, metavar="NAME", help="Only this query; may be repeated.")
@_json
def export_(
    uri: str, to: str, pipeline: str | None, checkpoint: int | None, queries: tuple[str, ...], as_json: bool
) -> None:
    """Write a checkpoint, by default the latest, as what plain Spark goes on from, without Chandy.

    README.txt in DIR says how to go on. Stop the pipeline first. The storage and the outputs stay as they are.
    """
    # It loads PySpark, which the other commands need not wait for.
    from .export.exporter import README, export, facts

    exported = export(
        uri,
        to,
        pipeline=pipeline,
        checkpoint=locate.LATEST if checkpoint is None else checkpoint,
        queries=queries or None,
    )
    if as_json:
        _print_json(facts(exported))
        return
    click.echo((exported.directory / README).read_text(), nl=False)


# --- gc -----------------------------------------------------------------------------------------------------


@main.command()
@_uri
@_pipeline
@click.option("--dry-run", is_flag=True, help="Only print what would be deleted.")
@click.option("--force", is_flag=True, help="Delete young objects too. Only while the pipeline does not run!")
@_json
def gc(uri: str, pipeline: str | None, dry_run: bool, force: bool, as_json: bool) -> None:
    """Delete what no completed checkpoint needs: leftovers of crashes, and of aborted checkpoints and savepoints.

    Objects younger than a day are kept, because a checkpoint in flight may need them. So are all objects that a
    checkpoint with a damaged manifest may need.
    """
    catalog = Catalog(locate.pipeline(uri, pipeline))
    garbage = collect_garbage(catalog, time.time(), 0 if force else GRACE_SECONDS, dry_run)
    if as_json:
        _print_json(attrs.asdict(garbage) | {"dry_run": dry_run})
        _print_problems(_not_deleted(garbage.failed))
        return
    for key in garbage.keys:
        click.echo(key)
    verb = "would delete" if dry_run else "deleted"
    click.echo(
        f"{verb} {len(garbage.keys)} objects, {decimal(garbage.bytes)}; kept {garbage.young} young ones"
    )
    if garbage.damaged:
        click.echo(
            f"kept {garbage.spared} more, because these damaged manifests may need them: {', '.join(garbage.damaged)}; "
            "replace the manifests by intact copies, or delete them to give up their checkpoints, then run this again",
            err=True,
        )
    _print_problems(_not_deleted(garbage.failed))


def _not_deleted(failed: Mapping[str, str]) -> list[str]:
    return [f"could not delete {name}: {reason}" for name, reason in failed.items()]


# --- clean --------------------------------------------------------------------------------------------------


_folder = click.Path(path_type=Path, file_okay=False)


@main.command()
@click.option("--work-dir", type=_folder, metavar="DIR", help="CheckpointConfig.work_dir, if it was set.")
@click.option("--cache-dir", type=_folder, metavar="DIR", help="CheckpointConfig.cache_dir, if it was set.")
@click.option("--dry-run", is_flag=True, help="Only print what would be deleted.")
@click.option("--force", is_flag=True, help="Delete what is younger than a day, too.")
@_json
def clean(work_dir: Path | None, cache_dir: Path | None, dry_run: bool, force: bool, as_json: bool) -> None:
    """Delete what killed drivers and state hosts have left on this machine's disk.

    What a living process uses is kept. So is what is younger than a day: a driver that was killed resumes from it when
    it starts again.
    """
    # It loads PySpark, which the other commands need not wait for.
    from .recovery.leftovers import Places
    from .recovery.leftovers import clean as clean_up

    now = time.time()
    found = clean_up(Places.of(work_dir, cache_dir), now, 0 if force else GRACE_SECONDS, dry_run)
    if as_json:
        _print_json(
            {
                "deleted": [_leftover(one, now) for one in found.deleted],
                "young": [_leftover(one, now) for one in found.young],
                "in_use": found.in_use,
                "failed": found.failed,
                "dry_run": dry_run,
            }
        )
    else:
        rows = [
            [str(one.path), one.what, decimal(one.bytes), _age(now - one.written_at)] for one in found.deleted
        ]
        if rows:
            _print_table("", ["directory", "left by", "size", "last written"], rows, numbers=("size",))
        verb = "would delete" if dry_run else "deleted"
        click.echo(
            f"{verb} {len(rows)} directories, {decimal(found.bytes)}; kept {len(found.young)} young ones and "
            f"{found.in_use} in use"
        )
    _print_problems(_not_deleted(found.failed))


def _leftover(one: Leftover, now: float) -> dict[str, Any]:
    age = now - one.written_at
    return {"path": str(one.path), "what": one.what, "bytes": one.bytes, "age_seconds": age}


def _age(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours / 24:.0f} days ago" if hours >= 48 else f"{hours:.0f} hours ago"


# --- adoption -----------------------------------------------------------------------------------------------


@main.command()
@click.argument("path", metavar="PATH", type=_folder)
@_json
def adoption(path: Path, as_json: bool) -> None:
    """Say what a query would take over from the checkpoint of a plain Spark query. Nothing is changed.

    PATH is the checkpointLocation of the query. To adopt it, give the path to start(..., adopt=PATH).
    """
    # It loads PySpark, which the other commands need not wait for.
    from .adopt.findings import examine
    from .spark.plain_checkpoint import read_checkpoint

    found = examine(read_checkpoint(str(path.resolve())))
    if as_json:
        _print_json(attrs.asdict(found))
    else:
        click.echo(str(found))


# --- finding ------------------------------------------------------------------------------------------------


def _locate(uri: str, pipeline: str | None, checkpoint: int | None) -> locate.Located:
    return locate.locate(uri, locate.LATEST if checkpoint is None else checkpoint, pipeline)


def _status(entry: Entry) -> str:
    if entry.problem:
        return "damaged" if isinstance(entry.problem, DamagedError) else "too new"
    return "void" if entry.voided_by else "completed"


def _problem(entry: Entry) -> str | None:
    return str(entry.problem) if entry.problem else None


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
        "unverified": manifest.unverified,
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
        "outputs": _outputs(manifest),
        "channels": [
            attrs.asdict(channel)
            | {"partitions": [attrs.asdict(one) | {"unread": one.unread} for one in channel.partitions]}
            for channel in manifest.channels
        ],
        "operators": operators,
    }


def _offsets(found: locate.Located) -> list[dict[str, str]]:
    """Return where the sources of a checkpoint's queries stand, as Spark's offset log has them."""
    return [
        {"query": query.name, "source": one.source, "offset": one.offset}
        for query in found.manifest.queries
        for one in _logged(found.store, query)
    ]


def _logged(store: Store, query: QueryRecord) -> tuple[LoggedOffset, ...]:
    entry = f"offsets/{query.batch}"
    for file in query.files.files:
        if file.name == entry or file.name.endswith(f"/{entry}"):
            try:
                content = store.read(file.key, file.offset, file.size)
            except (ChandyError, OSError) as error:
                # The rest of the checkpoint is worth to be shown all the same; `chandy verify` looks for damage.
                return (LoggedOffset("?", f"cannot be read: {error}"),)
            return offsets_in(content.decode(errors="replace"))
    return ()


def _outputs(manifest: Manifest) -> list[dict[str, Any]]:
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


def _channel(channel: ChannelRecord) -> list[str]:
    published = "-" if channel.published is None else str(channel.published)
    start = [channel.writer, channel.sink or "-", channel.reader, channel.target]
    return [*start, published, str(channel.rows_to_publish), _not_read(channel)]


def _not_read(channel: ChannelRecord) -> str:
    """Say what was published and not read."""
    if channel.files is not None:
        files = channel.files
        rows = "" if files.rows is None else f", {files.rows} rows"
        return f"{files.files} files, {decimal(files.bytes)}{rows}"
    known = [one.unread for one in channel.partitions if one.unread is not None]
    if not known:
        return "not known"
    missing = len(channel.partitions) - len(known)
    return f"{sum(known)} offsets in {len(known)} partitions" + (f", {missing} not known" if missing else "")


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
        # As text, because rich would take some names for markup.
        table.add_row(*map(Text, row))
    Console(width=None if sys.stdout.isatty() else PIPED_WIDTH).print(table)


def _print_problems(problems: Iterable[str]) -> None:
    """Print problems to stderr, and exit with code 1 if there are any."""
    found = list(problems)
    for problem in found:
        click.echo(problem, err=True)
    if found:
        raise click.exceptions.Exit(1)
