"""`chandy dead-letters`: what operators have given up, with the exception and the rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from ...storage.checkpoints.locate import Located
from ...storage.times import to_the_second
from .group import (
    checkpoint_option,
    json_option,
    limit_option,
    located,
    main,
    operator_option,
    pipeline_option,
    storage_uri,
)
from .printing import print_json, say

_AT_ONCE: Final = 1000
"""How many letters are in memory besides those that are shown."""


@main.command("dead-letters")
@storage_uri
@pipeline_option
@checkpoint_option
@operator_option
@limit_option(20, "Letters to print of each operator, the latest first. All are counted.")
@json_option
def dead_letters(
    uri: str,
    pipeline: str | None,
    checkpoint: int | None,
    operator: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show the dead letters in a checkpoint, by default the latest, or in a savepoint.

    A dead letter has the rows of a key that an operator has given up in a batch, and the exception of the user's code.
    All shards of the operators are downloaded.
    """
    found = located(uri, pipeline, checkpoint)
    uids = [operator] if operator is not None else [one.uid for one in found.manifest.operators]
    by_operator = {uid: _latest(found, uid, limit) for uid in uids}
    if as_json:
        operators = {
            uid: {"letters": count, "shown": letters} for uid, (count, letters) in by_operator.items()
        }
        print_json({"checkpoint": found.manifest.id, "operators": operators})
        return
    for uid, (count, letters) in by_operator.items():
        more = f", the latest {limit} of them" if count > limit else ""
        say(f"operator {uid}: {count} dead letters{more}")
        for one in letters:
            _print(one)


def _latest(found: Located, uid: str, limit: int) -> tuple[int, list[dict[str, Any]]]:
    """Return how many letters an operator has, and the latest of them, newest first."""
    count, latest = 0, list[dict[str, Any]]()
    for letter in _letters(found, uid):
        count += 1
        latest.append(letter)
        # There may be very many in all.
        if len(latest) >= limit + _AT_ONCE:
            latest = sorted(latest, key=_age)[:limit]
    return count, sorted(latest, key=_age)[:limit]


def _letters(found: Located, uid: str) -> Iterator[dict[str, Any]]:
    # They load PySpark, which the other commands need not wait for.
    from ...state.format.keyspace import LETTERS
    from ...state.format.schema import from_json
    from ...state.operators.dead_letters import rows_of
    from ...state.reader.selection import selected

    selection = selected(found, uid, LETTERS)
    names = selection.state.schema.names
    own = len(from_json(selection.state.key_schema))
    for shard in filter(None, selection.shards):
        for batch in selection.batches(shard):
            for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                time, number, _, place, error, traceback, rows, offsets = values[own:]
                yield {
                    "key": dict(zip(names[:own], values[:own], strict=True)),
                    "time": time,
                    "batch": number,
                    "place": place,
                    "error": error,
                    "traceback": traceback,
                    "rows": [] if rows is None else rows_of(rows).to_pylist(),
                    "offsets": None if offsets is None else json.loads(offsets),
                }


def _age(letter: dict[str, Any]) -> tuple[float, str]:
    return -letter["time"].timestamp(), str(letter["key"])


def _print(letter: dict[str, Any]) -> None:
    say(f"\n{to_the_second(letter['time'].timestamp())}, batch {letter['batch']}, key {_text(letter['key'])}")
    if letter["place"]:
        say(f"  {letter['place']}")
    for line in letter["traceback"].strip().splitlines():
        say(f"  {line}")
    for source, (begin, end) in (letter["offsets"] or {}).items():
        say(f"  source {source} is read from {begin or 'its beginning'} to {end}")
    for row in letter["rows"]:
        say(f"  row {_text(row)}")


def _text(fields: dict[str, Any]) -> str:
    return json.dumps(fields, ensure_ascii=False, default=str)
