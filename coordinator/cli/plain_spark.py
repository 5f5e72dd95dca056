"""`chandy export` and `chandy adoption`: to plain Spark and from it."""

from __future__ import annotations

import attrs
import click

from ...storage.checkpoints import locate
from .group import absolute, checkpoint_option, json_option, main, pipeline_option, storage_uri
from .printing import print_json, say


@main.command("export")
@storage_uri
@click.option(
    "--to", required=True, metavar="DIR", help="A new or empty directory, where the export is to stay."
)
@pipeline_option
@checkpoint_option
@click.option("--query", "queries", multiple=True, metavar="NAME", help="Only this query; may be repeated.")
@json_option
def export_(
    uri: str, to: str, pipeline: str | None, checkpoint: int | None, queries: tuple[str, ...], as_json: bool
) -> None:
    """Write a checkpoint, by default the latest, in the form from which plain Spark resumes, without Chandy.

    README.txt in DIR says how to go on. Stop the pipeline first. The storage and the outputs stay as they are.
    """
    # It loads PySpark, which the other commands need not wait for.
    from ..export.exporter import README, export, facts

    exported = export(
        uri,
        to,
        pipeline=pipeline,
        checkpoint=locate.LATEST if checkpoint is None else checkpoint,
        queries=queries or None,
    )
    if as_json:
        print_json(facts(exported))
        return
    say((exported.directory / README).read_text(), nl=False)


@main.command()
@click.argument("path", metavar="PATH", callback=absolute)
@json_option
def adoption(path: str, as_json: bool) -> None:
    """Say what a query would take over from the checkpoint of a plain Spark query. Nothing is changed.

    PATH is the checkpointLocation of the query. To adopt it, give the path to start(..., adopt=PATH).
    """
    # It loads PySpark, which the other commands need not wait for.
    from ..adopt.findings import examine
    from ..spark.plain_checkpoint import read_checkpoint

    found = examine(read_checkpoint(path))
    if as_json:
        print_json(attrs.asdict(found))
    else:
        say(str(found))
