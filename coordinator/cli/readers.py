"""`chandy readers`: who reads the changes of a pipeline, and which checkpoints are kept for that."""

from __future__ import annotations

from typing import Any

import click
from rich.filesize import decimal

from ...storage.checkpoints import locate
from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.manifest import Manifest
from ...storage.checkpoints.pins import Pins, pins
from ...storage.checkpoints.proof import Unshared
from ...storage.errors import NothingHereError
from ...storage.ids import CheckpointId
from ...storage.store import Store
from .group import json_option, main, pipeline_option, storage_uri
from .printing import print_json, print_table, say


@main.command()
@storage_uri
@pipeline_option
@click.option(
    "--release", metavar="READER", help="Keep nothing for a reader any more, because it never comes back."
)
@json_option
def readers(uri: str, pipeline: str | None, release: str | None, as_json: bool) -> None:
    """Show who reads the changes of a pipeline's state: replicas and streams.

    For each reader, the pipeline keeps the checkpoint whose state it has passed on. "Kept for it" are bytes that no
    other checkpoint has.
    """
    store = locate.pipeline(uri, pipeline)
    if release is not None:
        _release(store, release)
    found = _found(store)
    if as_json:
        print_json({"readers": found})
        return
    rows = [
        [
            one["reader"],
            ", ".join(map(str, one["checkpoints"])),
            str(one["behind"]),
            decimal(one["kept_bytes"]),
        ]
        for one in found
    ]
    columns = ["reader", "checkpoints", "newer ones", "kept for it"]
    print_table(f"readers of {store.uri}", columns, rows, numbers=("newer ones", "kept for it"))


def _release(store: Store, reader: str) -> None:
    there = pins(store)
    if reader not in there:
        raise NothingHereError(
            f"there is no reader {reader!r} of {store.uri}",
            "the name of one that is there",
            ", ".join(there) or "no reader",
        )
    released = Pins(store, reader).release(Unshared())
    say(f"released {len(released)} checkpoints; the next checkpoint deletes them", err=True)


def _found(store: Store) -> list[dict[str, Any]]:
    manifests = {manifest.id: manifest for manifest in Catalog(store).readable()}
    return [
        {
            "reader": reader,
            "checkpoints": list(held),
            "behind": sum(id > max(held) for id in manifests),
            "kept_bytes": _own_bytes([manifests[id] for id in held if id in manifests], manifests, held),
        }
        for reader, held in pins(store).items()
    ]


def _own_bytes(kept: list[Manifest], all_: dict[CheckpointId, Manifest], held: tuple[int, ...]) -> int:
    """Return the bytes of objects that only these checkpoints have."""
    others = frozenset[str]().union(*(manifest.keys() for id, manifest in all_.items() if id not in held))
    sizes = {
        (file.key, file.offset): file.size
        for manifest in kept
        for operator in manifest.operators
        for handle in operator.shards
        if handle
        for file in handle.files
        if file.key not in others
    }
    return sum(sizes.values())
