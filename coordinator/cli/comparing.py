"""`chandy diff`: what differs between two checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs
import click

from ...storage.checkpoints import locate
from .group import absolute, json_option, limit_option, main, pipeline_option, storage_uri
from .printing import print_json, print_table, say

if TYPE_CHECKING:
    from ..differences import OperatorDifferences, QueryDifferences, StateDifferences


def _chosen(context: click.Context, parameter: click.Parameter, checkpoint: str) -> str:
    """Return "latest" and ids as they are, and all else as the URI of a savepoint."""
    is_place = checkpoint != locate.LATEST and not checkpoint.isdecimal()
    return absolute(context, parameter, checkpoint) if is_place else checkpoint


@main.command()
@storage_uri
@click.argument("old", callback=_chosen)
@click.argument("new", callback=_chosen)
@pipeline_option
@click.option("--operator", metavar="UID", help="Compare the state of this operator only.")
@click.option("--state", metavar="NAME", help="Compare this state only; '$timers': the timers.")
@limit_option(20, "Differences to print of each state. All are counted.", least=0)
@json_option
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
    from ..differences import compare_operators, compare_queries

    before, after = (locate.locate(uri, checkpoint, pipeline) for checkpoint in (old, new))
    queries = list(compare_queries(before, after))
    operators = list(compare_operators(before, after, operator=operator, state=state, limit=limit))
    if as_json:
        print_json(
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
    say(f"query {query.name}: {was}" + (f" -> {now}" if was != now else ", the same"))
    for source in query.sources:
        say(f"  source {source.source}: {source.old or 'nothing'} -> {source.new or 'nothing'}")


def _print_operator(operator: OperatorDifferences) -> None:
    how = f" ({operator.change.value})" if operator.change else ""
    was, now = operator.shards
    shards = f"{now} shards" if was == now else f"{was} -> {now} shards"
    read = f"{operator.read} read" if operator.read else "all the same"
    say(f"operator {operator.uid} of query {operator.query}{how}: {shards}, {read}")
    rows = [
        [state.name, state.kind, str(state.added), str(state.removed), str(state.changed)]
        for state in operator.states
        if state.total
    ]
    if rows:
        numbers = ("added", "removed", "changed")
        print_table("", ["state", "kind", *numbers], rows, numbers)
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
    print_table(title, [columns[at] for at in shown], [[row[at] for at in shown] for row in rows])


def _fields(fields: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in fields.items())
