"""What a new savepoint takes over from a checkpoint in another store: a disk, real S3, or both in turn."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from chandy.state.writer.copied_state import carry
from chandy.storage.backends.open import open_store
from chandy.storage.checkpoints.layout import STAGED, pack_key
from chandy.storage.checkpoints.locate import Located
from chandy.storage.checkpoints.manifest import EpochRecord, FileRef, Handle, OutputRecord, QueryRecord
from chandy.storage.checkpoints.restore import restore_files
from chandy.storage.checkpoints.snapshots import PACK_BELOW, SnapshotWriter
from chandy.storage.checkpoints.verification import verify
from chandy.storage.errors import DamagedError
from chandy.storage.store import Store

from ...builders import make_manifest
from ...storage.conftest import moto, s3_keys, s3_uri

__all__ = ["moto", "s3_keys"]

Open = Callable[[str], Store]
"""Opens a new, empty place: "disk" or "moto"."""


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    def new(backend: str) -> Store:
        folder = uuid.uuid4().hex
        if backend == "disk":
            return open_store(str(tmp_path / folder))
        return open_store(s3_uri(request.getfixturevalue("moto"), folder))

    return new


CONTENTS = {
    "query": {"working/offsets/7": b"v1", "working/sources/0/7": os.urandom(2 * PACK_BELOW)},
    "changed": {"000011.sst": os.urandom(2 * PACK_BELOW)},
    "stays": {
        "000011.sst": os.urandom(3 * PACK_BELOW),
        "000012.sst": os.urandom(PACK_BELOW),
        "CURRENT": b"1",
    },
}
ROWS = {f"{STAGED}delays/{number}.parquet": os.urandom(1000 * (number + 1)) for number in range(3)}


def checkpoint(store: Store, folder: Path) -> Located:
    """Write a checkpoint of one query, with two shards and rows that two sinks have still to publish."""
    writer = SnapshotWriter(store, pack_key(3, "host"))
    for group, files in CONTENTS.items():
        for name, data in files.items():
            path = folder / group / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        writer.add(group, {name: folder / group / name for name in files})
    handles = {group: one.handle for group, one in writer.finish().items()}
    for key, data in ROWS.items():
        store.write(key, data)
    rows = tuple(
        FileRef(key.rpartition("/")[2], key, len(data), hashlib.sha256(data).hexdigest())
        for key, data in ROWS.items()
    )
    epochs = EpochRecord(2, 5, Handle(rows[:2])), EpochRecord(3, 1, Handle(rows[2:]))
    outputs = OutputRecord("table", epochs, 1), OutputRecord("topic", epochs[1:], 2)
    query = QueryRecord("delays", 7, handles["query"], outputs)
    return Located(make_manifest(3, shards=[handles["changed"], handles["stays"]], queries=(query,)), store)


def contents_of(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("disk", "disk"),
        pytest.param("disk", "moto", marks=pytest.mark.server),
        pytest.param("moto", "moto", marks=pytest.mark.server),
        pytest.param("moto", "disk", marks=pytest.mark.server),
    ],
)
def test_what_stays_and_rows_that_are_not_published_outlive_the_checkpoint(
    source: str, target: str, place: Open, tmp_path: Path
) -> None:
    base, savepoint = checkpoint(place(source), tmp_path / "files"), place(target)
    (operator,) = base.manifest.operators
    stays = operator.shards[1]
    assert stays is not None
    carried = carry(base, savepoint, {("totals", 1): stays})
    base.store.delete_all(base.store.list())

    shard = carried.shards["totals", 1]
    restore_files(savepoint, shard.handle, tmp_path / "shard")
    assert contents_of(tmp_path / "shard") == CONTENTS["stays"]
    (query,) = carried.queries
    restore_files(savepoint, query.files, tmp_path / "query")
    assert contents_of(tmp_path / "query") == CONTENTS["query"]
    assert query.outputs == base.manifest.queries[0].outputs
    assert {key: savepoint.read(key) for key in savepoint.list(STAGED)} == ROWS
    assert carried.new_bytes == sum(
        map(len, [*CONTENTS["query"].values(), *CONTENTS["stays"].values(), *ROWS.values()])
    )
    written: dict[str, Any] = {
        "queries": carried.queries,
        "operators": (_with(operator, None, shard.handle),),
    }
    assert verify(savepoint, attrs.evolve(base.manifest, **written)).ok
    # What is changed is written again, and not taken along.
    changed = hashlib.sha256(CONTENTS["changed"]["000011.sst"]).hexdigest()
    assert not any(changed in key for key in savepoint.list())


def _with(operator: Any, *shards: Handle | None) -> Any:
    return attrs.evolve(operator, shards=shards)


@pytest.mark.parametrize(("source", "target"), [("disk", "moto"), ("moto", "moto"), ("moto", "disk")])
@pytest.mark.server
def test_rows_that_are_damaged_are_not_taken_along(
    source: str, target: str, place: Open, tmp_path: Path
) -> None:
    base = checkpoint(place(source), tmp_path / "files")
    damaged = next(iter(ROWS))
    base.store.write(damaged, ROWS[damaged][:-1] + b"?")
    with pytest.raises(DamagedError, match=damaged):
        carry(base, place(target), {})
