"""`chandy history`: what has happened to a pipeline, in all lives of its driver that are remembered."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from ...storage.checkpoints import locate
from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.journal import JournalEntry, read_journal
from ...storage.store import Store
from ...storage.times import to_the_second
from .facts import duration_of
from .group import json_option, limit_option, main, pipeline_option, storage_uri
from .printing import print_json, print_table


@main.command()
@storage_uri
@pipeline_option
@limit_option(50, "How much to print: the latest.")
@json_option
def history(uri: str, pipeline: str | None, limit: int, as_json: bool) -> None:
    """Show what has happened to a pipeline: checkpoints that completed or failed, recoveries, the end.

    Failures and recoveries are those of the latest 20 lives of its driver, checkpoints those that retention has kept.
    """
    found = {
        name: sorted(_entries(store), key=lambda one: one.at)[-limit:]
        for name, store in locate.pipelines(uri, pipeline).items()
    }
    if as_json:
        print_json(
            {"history": {name: [attrs.asdict(one) for one in entries] for name, entries in found.items()}}
        )
        return
    for name, entries in found.items():
        rows = [
            [
                to_the_second(one.at),
                str(one.generation),
                one.how_often,
                "" if one.checkpoint is None else str(one.checkpoint),
                one.says.partition("\n")[0],
            ]
            for one in entries
        ]
        columns = ["when", "generation", "what", "checkpoint", ""]
        print_table(name, columns, rows, numbers=("generation", "checkpoint"))


def _entries(store: Store) -> Iterator[JournalEntry]:
    yield from read_journal(store)
    for manifest in Catalog(store).readable():
        yield JournalEntry(
            at=manifest.completed_at,
            what="checkpoint completed",
            says=f"{manifest.kind.value}, in {duration_of(manifest)}",
            checkpoint=manifest.id,
            generation=manifest.generation,
        )
