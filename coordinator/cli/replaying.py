"""`chandy replay`: runs recorded batches again with a program, and says where they give something else."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from ...storage.ids import CheckpointId
from .group import absolute, check_java, json_option, main, pipeline_option, storage_uri
from .printing import print_json, say

if TYPE_CHECKING:
    from ..upgrade.replay import ReplayResult, ReplayStep


def _place(
    context: click.Context, parameter: click.Parameter, place: str | None
) -> CheckpointId | str | None:
    """Return an id as a number, the folder of a savepoint as a URI, and all else as it is."""
    if place is None:
        return None
    if place.isdecimal():
        return CheckpointId(int(place))
    is_word = place in ("oldest", "latest") or place.startswith("batch=")
    return place if is_word else absolute(context, parameter, place)


def _break_at(
    context: click.Context, parameter: click.Parameter, given: tuple[str, str] | None
) -> tuple[str, object] | None:
    """Return the batch, as ``BreakAt`` has it, and the key."""
    if given is None:
        return None
    found = dict(one.partition("=")[::2] for one in given)
    try:
        return found["batch"], json.loads(found["key"])
    except (KeyError, ValueError):
        raise click.BadParameter(
            "a batch and a key, as JSON, as in: batch=53 key='\"N14228\"'; of several key columns a list or an object",
            context,
            parameter,
        ) from None


@main.command()
@storage_uri
@click.option(
    "--program",
    required=True,
    type=click.Path(exists=True, dir_okay=False),
    help="The program that starts the pipeline's queries. It is run unchanged.",
)
@click.option(
    "--from",
    "begin",
    callback=_place,
    metavar="PLACE",
    help="A checkpoint by its id, the folder of a savepoint, or batch=N (batch=QUERY:N); by default the oldest one.",
)
@click.option("--to", "end", callback=_place, metavar="PLACE", help="As --from; by default the latest one.")
@click.option(
    "--break",
    "break_at",
    nargs=2,
    callback=_break_at,
    metavar="batch=N key=JSON",
    help="Run up to this batch, and then the processor for this key in a debugger, as PYTHONBREAKPOINT says.",
)
@click.option("--operator", metavar="UID", help="The operator for --break, if the query has several.")
@pipeline_option
@click.option(
    "--keep", type=click.Path(file_okay=False), metavar="FOLDER", help="Keep there what differs, as Parquet."
)
@click.option(
    "--until-different",
    is_flag=True,
    help="Try halves of the stretch, the later one first, each on the recorded state where it begins.",
)
@click.option(
    "--may-write", is_flag=True, help="Call functions of foreachBatch and foreach, which write by themselves."
)
@click.option(
    "--ignore",
    multiple=True,
    metavar="FIELD",
    help="A field that may differ, as totals.updated; may be repeated.",
)
@json_option
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENT...]")
def replay(
    uri: str,
    program: str,
    begin: CheckpointId | str | None,
    end: CheckpointId | str | None,
    break_at: tuple[str, object] | None,
    operator: str | None,
    pipeline: str | None,
    keep: str | None,
    until_different: bool,
    may_write: bool,
    ignore: tuple[str, ...],
    as_json: bool,
    arguments: tuple[str, ...],
) -> None:
    """Run recorded batches again with a program, and say where their output or the state is not what it was.

    The pipeline must have been run with CheckpointConfig(record_batches=True), or beside a shadow. It is not touched:
    its checkpoints are read, and its targets are not even asked. Sources are read again, and must still have the data.
    The exit code is 1 if something differs or fails.
    """
    if break_at is not None and as_json:
        raise click.UsageError("--json is not for people, and a debugger is.")
    check_java()
    # They load PySpark, which the other commands need not wait for.
    from ..upgrade.break_at import BreakAt
    from ..upgrade.replay import Replay

    found = Replay.of(
        uri,
        begin,
        end,
        name=pipeline,
        until_different=until_different,
        keep=None if keep is None else Path(keep),
        ignore=ignore,
        break_at=None if break_at is None else BreakAt(*break_at, operator),
        tell=(lambda step: None) if as_json else _say_step,
    )

    def run() -> None:
        sys.argv = [program, *arguments]
        sys.path.insert(0, str(Path(program).resolve().parent))
        runpy.run_path(program, run_name="__main__")

    result = found.by(run, may_write=may_write)
    if as_json:
        print_json(attrs.asdict(result))
    else:
        _say_result(result)
    if break_at is not None:
        say("step into the processor where the debugger stops")
        for row in found.debug():
            say(f"gives {row}")
    if result.differences:
        raise click.exceptions.Exit(1)


def _say_step(step: ReplayStep) -> None:
    what = (
        f"batch {step.number} of query {step.query}" if step.query else f"state at checkpoint {step.number}"
    )
    says = "differs" if step.differences else "equal" if step.compared else "ran; no digest was recorded"
    say(f"{what}: {says}")


def _say_result(result: ReplayResult) -> None:
    for one in result.differences:
        say(str(one))
        if one.kept:
            say(f"  kept in {one.kept}")
    if not result.differences:
        say(
            f"{result.batches:,} batches and the state at {len(result.checkpoints):,} checkpoints are as recorded"
            + ("" if result.compared == result.batches else f"; {result.compared:,} batches had a digest")
        )
