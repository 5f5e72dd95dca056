"""`chandy show`: one checkpoint, with the offsets of its sources and what is between its queries."""

from __future__ import annotations

from rich.filesize import decimal

from ...storage.checkpoints import locate
from ...storage.checkpoints.manifest import ChannelRecord, QueryRecord
from ...storage.checkpoints.restore import read_file
from ...storage.errors import ChandyError
from ...storage.store import Store
from ...storage.times import to_the_second
from ..spark.logs.offset_log import LoggedOffset, offsets_in
from .facts import details_of, duration_of, filled_shards, outputs_of, size_of
from .group import checkpoint_option, json_option, located, main, pipeline_option, storage_uri
from .printing import print_json, print_table


@main.command()
@storage_uri
@pipeline_option
@checkpoint_option
@json_option
def show(uri: str, pipeline: str | None, checkpoint: int | None, as_json: bool) -> None:
    """Show one checkpoint, by default the latest, or a savepoint: what is in it, and where its sources stand."""
    found = located(uri, pipeline, checkpoint)
    manifest, offsets = found.manifest, _offsets(found)
    if as_json:
        print_json(details_of(manifest) | {"sources": offsets})
        return
    facts = [
        ("pipeline", manifest.pipeline),
        ("kind", manifest.kind.value),
        ("generation", str(manifest.generation)),
        ("triggered", to_the_second(manifest.triggered_at)),
        ("completed", f"{to_the_second(manifest.completed_at)}, {duration_of(manifest)} after the trigger"),
        ("size", f"{decimal(manifest.size)}, {decimal(manifest.new_bytes)} of it new"),
        ("shards", str(manifest.shard_count)),
        ("written by", ", ".join(f"{name} {version}" for name, version in sorted(manifest.versions.items()))),
    ]
    print_table(f"checkpoint {manifest.id}", ["", ""], [list(fact) for fact in facts])
    queries = [
        [query.name, str(query.batch), str(len(query.files.files)), decimal(query.files.size)]
        for query in manifest.queries
    ]
    print_table("queries", ["query", "batch", "files", "size"], queries, numbers=("batch", "files", "size"))
    if offsets:
        columns = ["query", "source", "next offset"]
        print_table("sources", columns, [[str(value) for value in one.values()] for one in offsets])
    if outputs := outputs_of(manifest):
        columns = ["query", "sink", "published up to", "epochs to publish", "rows to publish"]
        rows = [["-" if value is None else str(value) for value in one.values()] for one in outputs]
        print_table("transactional sinks", columns, rows, numbers=columns[2:])
    if manifest.channels:
        columns = ["writer", "sink", "reader", "target", "published up to", "rows to publish", "not read"]
        rows = [_channel(channel) for channel in manifest.channels]
        print_table("channels between queries", columns, rows, numbers=columns[4:6])
    operators = [
        [
            operator.uid,
            operator.query,
            str(len(operator.shards)),
            str(filled_shards(operator)),
            decimal(size_of(operator)),
            ", ".join(sorted(operator.states)),
        ]
        for operator in manifest.operators
    ]
    columns = ["operator", "query", "shards", "with state", "size", "states"]
    print_table("operators", columns, operators, numbers=("shards", "with state", "size"))


def _offsets(found: locate.Located) -> list[dict[str, str]]:
    """Return where the sources of a checkpoint's queries stand, as Spark's offset log has them."""
    return [
        {"query": query.name, "source": one.source, "offset": one.offset or "-"}
        for query in found.manifest.queries
        for one in _logged(found.store, query)
    ]


def _logged(store: Store, query: QueryRecord) -> tuple[LoggedOffset, ...]:
    entry = f"offsets/{query.batch}"
    for file in query.files.files:
        if file.name == entry or file.name.endswith(f"/{entry}"):
            try:
                content = read_file(store, file)
            except (ChandyError, OSError) as error:
                # The rest of the checkpoint is worth to be shown all the same; `chandy verify` looks for damage.
                return (LoggedOffset("?", f"cannot be read: {error}"),)
            return offsets_in(content.decode(errors="replace"))
    return ()


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
