"""`chandy shadow`: what the shadows of a pipeline have found."""

from __future__ import annotations

import json
from typing import Any

import click

from ...storage import runtime
from ...storage.checkpoints import locate
from ...storage.codec import to_json
from ...storage.errors import NothingHereError
from ...storage.store import Store
from ..durations import text
from ..verdict import ShadowVerdict
from ..verdicts import read_verdicts
from .group import json_option, main, pipeline_option, storage_uri
from .printing import print_json, print_table, say


@main.command()
@storage_uri
@pipeline_option
@click.option("--name", metavar="NAME", help="Show this shadow only.")
@json_option
def shadow(uri: str, pipeline: str | None, name: str | None, as_json: bool) -> None:
    """Show whether the shadows of a pipeline are equal to it, or since which batch not, with an example.

    Exits with code 1 if one of them differs.
    """
    store = locate.pipeline(uri, pipeline)
    found = _found(store, name)
    if as_json:
        print_json({"shadows": [_document(one) for one in found]})
    else:
        for one in found:
            _print(store, one)
    if not all(one.is_equal for one in found):
        raise click.exceptions.Exit(1)


def _found(store: Store, name: str | None) -> list[ShadowVerdict]:
    there = read_verdicts(store)
    found = [one for one in there if name in (None, one.shadow)]
    if not found:
        raise NothingHereError(
            f"there is no shadow {name!r} of {store.uri}" if name else f"no shadow of {store.uri} has run",
            "one that has run",
            ", ".join(one.shadow for one in there) or "none",
            "start the new version of the program with CheckpointCoordinator(..., shadow=Shadow())",
        )
    return found


def _document(verdict: ShadowVerdict) -> dict[str, Any]:
    return {**json.loads(to_json(verdict)), "is_equal": verdict.is_equal, "says": verdict.says}


def _print(store: Store, verdict: ShadowVerdict) -> None:
    because = f": {verdict.because}" if verdict.because else ""
    ago = text(max(0.0, round(runtime.time() - verdict.updated_at)))
    say(f"shadow {verdict.shadow} {verdict.phase.value}{because} ({ago} ago)")
    say(f"  {verdict.says}")
    unrecorded = f", {verdict.unrecorded:,} of them by state alone" if verdict.unrecorded else ""
    say(f"  {verdict.batches:,} batches compared{unrecorded}; the newest {verdict.equal:,} of them are equal")
    say(f"  state compared at {verdict.states:,} checkpoints")
    if verdict.skipped:
        say(f"  {verdict.skipped:,} batches passed over: {verdict.skipped_because}")
    say(f"  {verdict.behind:,} batches behind{f'; {verdict.pace}' if verdict.pace else ''}")
    if verdict.ignored:
        say(f"  ignored: {', '.join(verdict.ignored)}")
    rows = [
        [
            str(one.batch),
            one.query,
            f"{one.what}: {one.says}",
            one.example,
            f"{store.uri}/{one.kept}" if one.kept else "",
        ]
        for one in verdict.findings
    ]
    if rows:
        more = f", the first {len(rows)}" if len(rows) < verdict.differing else ""
        columns = ["batch", "query", "what differs", "example", "kept in"]
        print_table(f"{verdict.differing:,} comparisons differ{more}", columns, rows, ("batch",))
