"""What a life of a pipeline leaves behind on a machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StructType

from chandy.coordinator.restore import local_recovery as module
from chandy.coordinator.restore.restore_point import RestorePoint
from chandy.coordinator.restore.run_record import RunRecord, base_of
from chandy.state.local.changelog import Changelog, admit, shard_folder
from chandy.storage.checkpoints.manifest import CheckpointKind, Handle, OperatorRecord, QueryRecord
from chandy.storage.disk.directories import QUERIES
from chandy.storage.disk.owners import OwnerRecord, write_owner
from chandy.storage.disk.workspace import ALIVE

from ...builders import make_manifest

ROOT = "file:///store/p"
KEY = StructType().add("k", LongType(), nullable=False)
OPERATOR = OperatorRecord("op", "q", KEY.json(), {}, (None, None))


def checkpoint(
    id: int = 7,
    *,
    generation: int = 4,
    kind: CheckpointKind = CheckpointKind.PERIODIC,
    root: str = ROOT,
    **batches: int,
) -> RestorePoint:
    queries = tuple(QueryRecord(name, batch, Handle(())) for name, batch in batches.items())
    return RestorePoint(make_manifest(id, generation, kind=kind, queries=queries, operators=()), root)


RECORD = RunRecord(
    root=ROOT,
    generation=4,
    round=0,
    base=base_of(checkpoint(7, generation=3)),
    boot="this start",
    query="q",
    query_id="id",
    operators=(OPERATOR,),
    output=None,
)


@pytest.fixture
def changelogs(tmp_path: Path) -> Path:
    return tmp_path / "changelogs"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    made = tmp_path / "queries"
    made.mkdir(mode=0o700)
    return made


def left_behind(
    base: Path, changelogs: Path, record: RunRecord, *, committed: int, place: str = "dead"
) -> Path:
    """Create the files of one run of a killed driver. Its shards' changelogs have all batches after 2."""
    folder = base / place / f"{record.round}-{record.query}"
    (folder / "checkpoint" / "commits").mkdir(parents=True)
    (folder / "checkpoint" / "commits" / str(committed)).touch()
    write_owner(base / place / ALIVE, OwnerRecord(QUERIES))
    record.write(folder)
    admit(changelogs, record.query_id, base / place)
    for operator in record.operators:
        for shard in range(len(operator.shards)):
            changelog = Changelog(shard_folder(changelogs, record.query_id, operator.uid, shard))
            for batch in range(3, committed + 1):
                changelog.append(batch)
            changelog.close()
    return folder / "checkpoint"


@pytest.fixture(autouse=True)
def start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "boot_id", lambda: "this start")
