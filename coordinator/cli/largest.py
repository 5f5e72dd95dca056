"""`chandy largest`: the keys of an operator that have the most state."""

from __future__ import annotations

import attrs
import click
from rich.filesize import decimal

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
from .printing import print_json, print_table


@main.command()
@storage_uri
@pipeline_option
@checkpoint_option
@operator_option
@limit_option(20, "Keys to print of each.")
@json_option
def largest(
    uri: str, pipeline: str | None, checkpoint: int | None, operator: str | None, limit: int, as_json: bool
) -> None:
    """Show the keys that have the most state in a checkpoint, by default the latest, or in a savepoint.

    All shards of the operators are downloaded, one at a time.
    """
    # It loads PySpark, which the other commands need not wait for.
    from ...state.reader.largest import largest_keys

    found = located(uri, pipeline, checkpoint)
    known = [one.uid for one in found.manifest.operators]
    if operator is not None and operator not in known:
        raise click.BadParameter(
            f"expected an operator of checkpoint {found.manifest.id} ({', '.join(known)})"
        )
    keys = {uid: largest_keys(found, uid, limit) for uid in ([operator] if operator is not None else known)}
    if as_json:
        operators = {uid: [attrs.asdict(one) for one in some] for uid, some in keys.items()}
        print_json({"checkpoint": found.manifest.id, "operators": operators})
        return
    for uid, some in keys.items():
        rows = [
            [
                ", ".join(f"{name}={value!r}" for name, value in one.key.items()),
                str(one.shard),
                decimal(one.bytes),
                ", ".join(f"{name}: {decimal(size)}" for name, size in sorted(one.states.items())),
            ]
            for one in some
        ]
        print_table(
            f"operator {uid}", ["key", "shard", "bytes", "by state"], rows, numbers=("shard", "bytes")
        )
