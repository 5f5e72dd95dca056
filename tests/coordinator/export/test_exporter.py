"""Checkpoints in real stores become directories for plain Spark; Spark's files are written by hand."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

import chandy
from chandy.coordinator.cli import main
from chandy.coordinator.export.errors import ExportError
from chandy.coordinator.export.exporter import export
from chandy.coordinator.export.positions import READ_BATCH
from chandy.coordinator.export.target import UNFINISHED
from chandy.coordinator.spark.progress import newest_committed, query_id
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.manifest import (
    EpochRecord,
    Manifest,
    OperatorRecord,
    OutputRecord,
    QueryRecord,
)
from chandy.storage.checkpoints.snapshots import SnapshotWriter
from chandy.storage.errors import DamagedError, NothingHereError

from ...builders import NO_FILES, make_manifest
from ...effort import sampled
from ...waiting import DEADLINE

TIMES = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'
LARGE = "z" * 100_000
"""Above the size up to which files go into a pack; a file of RocksDB with it is a hard link in the storage."""


def line(**fields: Any) -> str:
    return json.dumps(fields)


def spark_files(output: Path) -> dict[str, str]:
    """What a checkpoint keeps of a query after batch 1."""
    added = [line(path=f"file://{output}/part-{n}.parquet", action="add") for n in range(2)]
    return {
        "working/metadata": line(id="old"),
        "working/offsets/0": f'v1\n{TIMES}\n{{"logOffset":0}}',
        "working/offsets/1": f'v1\n{TIMES}\n{{"logOffset":1}}',
        "working/commits/1": "v1\n{}",
        "working/sources/0/0": "v1\n" + line(path="file:///in/a", timestamp=5, batchId=0),
        "working/sources/0/1": "v1\n" + line(path="file:///in/b", timestamp=6, batchId=1),
        "working/state/0/0/2.zip": "zip",
        "working/state/0/0/SSTs/1-a.sst": LARGE,
        "working/state/0/_metadata/v2/0": "v2\n"
        + line(stateStoreInfo=[{"stateSchemaFilePaths": ["file:/old/state/0/_stateSchema/default/0_a"]}]),
        "working/state/0/_stateSchema/default/0_a": "schema",
        "sink/0": f"v1\n{added[0]}",
        "sink/1": f"v1\n{added[1]}",
    }


def keep(store: LocalStore, scratch: Path, files: dict[str, str], id: int = 1) -> Manifest:
    """Store a checkpoint of the query "delays" with these files; its manifest is yet to be committed."""
    paths = {}
    for name, content in files.items():
        paths[name] = scratch / name
        paths[name].parent.mkdir(parents=True, exist_ok=True)
        paths[name].write_text(content)
    writer = SnapshotWriter(store, f"checkpoints/{id}/driver.pack")
    writer.add("delays", paths)
    handle = writer.finish()["delays"].handle
    return make_manifest(id, queries=(QueryRecord("delays", 1, handle),), operators=())


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """The output of the file sink, as the checkpoint has it."""
    log = tmp_path / "output" / "_spark_metadata"
    log.mkdir(parents=True)
    for batch in range(2):
        (log / str(batch)).write_text("v1")
    return tmp_path / "output"


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    catalog = Catalog(LocalStore(tmp_path / "storage" / "flights"))
    catalog.take_over("driver-1", 1.0)
    return catalog


@pytest.fixture
def manifest(catalog: Catalog, tmp_path: Path, output: Path) -> Manifest:
    assert isinstance(catalog.store, LocalStore)
    manifest = keep(catalog.store, tmp_path / "scratch", spark_files(output))
    catalog.commit(manifest)
    return manifest


@pytest.fixture
def storage(manifest: Manifest, tmp_path: Path) -> str:
    return str(tmp_path / "storage")


def contents(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


# --- what is written ----------------------------------------------------------------------------------------


def test_a_query_of_sparks_own_operators_goes_on_with_its_next_batch(
    storage: str, output: Path, tmp_path: Path
) -> None:
    before = contents(tmp_path / "storage") | contents(output)
    done = chandy.export(storage, tmp_path / "export")
    (query,) = done.queries
    assert (query.name, query.batch, query.goes_on) == ("delays", 1, True)
    directory = tmp_path / "export" / "checkpoints" / "delays"
    assert query.directory == directory
    assert newest_committed(directory) == 1
    assert query_id(directory) not in (None, "old")
    assert (directory / "sources/0/1").read_text().endswith("}")
    assert (directory / "state/0/0/SSTs/1-a.sst").read_text() == LARGE
    # It leads to where the directory is, not to where it was written.
    operator = json.loads((directory / "state/0/_metadata/v2/0").read_text().split("\n")[1])
    (path,) = operator["stateStoreInfo"][0]["stateSchemaFilePaths"]
    assert Path(path.removeprefix("file:")).read_text() == "schema"
    assert any("must stay where it is" in note for note in query.notes)
    assert contents(tmp_path / "storage") | contents(output) == before
    assert sorted(path.name for path in (tmp_path / "export").iterdir()) == [
        "README.txt",
        "checkpoints",
        "export.json",
        "file-sinks",
    ]


def test_an_export_shares_nothing_with_the_storage(storage: str, tmp_path: Path) -> None:
    done = export(storage, tmp_path / "export")
    for path in done.directory.rglob("*"):
        assert path.is_dir() or path.stat().st_nlink == 1, path
    before = contents(tmp_path / "storage")
    with (done.directory / "checkpoints/delays/state/0/0/SSTs/1-a.sst").open("r+") as stream:
        stream.write("changed in place")
    assert contents(tmp_path / "storage") == before


def test_the_readme_and_the_facts_say_how_to_go_on(storage: str, tmp_path: Path) -> None:
    done = export(storage, tmp_path / "export")
    text = (done.directory / "README.txt").read_text()
    assert "goes on with batch 2" in text
    assert f'.option("checkpointLocation", "{tmp_path}/export/checkpoints/delays")' in text
    facts = json.loads((done.directory / "export.json").read_text())
    assert facts["checkpoint"] == 1
    assert facts["queries"][0]["directory"] == f"{tmp_path}/export/checkpoints/delays"


def test_a_query_that_has_run_nothing_needs_no_directory(catalog: Catalog, tmp_path: Path) -> None:
    catalog.commit(make_manifest(1, queries=(QueryRecord("delays", -1, NO_FILES),), operators=()))
    done = export(str(tmp_path / "storage"), tmp_path / "export")
    assert done.queries[0].directory is None
    assert "has run no batch" in (done.directory / "README.txt").read_text()


# --- file sinks ---------------------------------------------------------------------------------------------


def notes_of(storage: str, folder: Path) -> str:
    return " ".join(export(storage, folder).queries[0].notes)


def test_an_output_that_is_where_the_checkpoint_is_is_gone_on_in(
    storage: str, output: Path, tmp_path: Path
) -> None:
    assert f"Go on in its output {output}" in notes_of(storage, tmp_path / "export")
    kept = tmp_path / "export" / "file-sinks" / "delays" / "_spark_metadata"
    assert sorted(path.name for path in kept.iterdir()) == ["0", "1"]


def test_an_output_that_is_ahead_is_told_of(storage: str, output: Path, tmp_path: Path) -> None:
    (output / "_spark_metadata" / "2").write_text("v1")
    found = notes_of(storage, tmp_path / "export")
    assert "is ahead of the checkpoint" in found
    assert "batches 2 to 2" in found


def test_an_output_that_is_behind_or_gone_is_told_of(storage: str, output: Path, tmp_path: Path) -> None:
    (output / "_spark_metadata" / "1").unlink()
    assert "lacks what the checkpoint has" in notes_of(storage, tmp_path / "1")
    output.rename(tmp_path / "moved")
    assert "not on this machine now" in notes_of(storage, tmp_path / "2")


# --- queries that start over --------------------------------------------------------------------------------


def test_a_query_of_chandys_operators_begins_anew_and_reads_on(
    catalog: Catalog, output: Path, tmp_path: Path
) -> None:
    assert isinstance(catalog.store, LocalStore)
    files = spark_files(output) | {
        "working/offsets/1": f'v1\n{TIMES}\n{{"logOffset":1}}\n{{"batch": 1}}\n{{"t":{{"0":9}}}}\n17'
    }
    manifest = keep(catalog.store, tmp_path / "scratch", files)
    key = '{"type":"struct","fields":[{"name":"k","type":"string","nullable":true,"metadata":{}}]}'
    operator = OperatorRecord("totals", "delays", key, {}, (None, None))
    catalog.commit(attrs.evolve(manifest, operators=(operator,)))
    done = export(str(tmp_path / "storage"), tmp_path / "export")
    (query,) = done.queries
    assert not query.goes_on
    directory = tmp_path / "export" / "checkpoints" / "delays"
    found = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
    assert found == ["metadata", "sources/0/0"]
    read = (directory / "sources/0/0").read_text().splitlines()[1:]
    assert [(json.loads(one)["path"], json.loads(one)["batchId"]) for one in read] == [
        ("file:///in/a", READ_BATCH),
        ("file:///in/b", READ_BATCH),
    ]
    said = " ".join(query.notes)
    assert "Source 0 is a file source" in said
    assert "Source 1 is Kafka" in said
    assert 'startingOffsets = {"t":{"0":9}}' in said
    assert "Source 2 must begin behind the offset 17" in said
    assert "a new output directory" in said
    assert "LOST: it also has state of Spark's own operators" in said
    assert [(one.uid, one.keys, one.key_columns) for one in done.operators] == [("totals", 0, ("k",))]


# --- what is refused ----------------------------------------------------------------------------------------


def test_a_directory_that_is_not_empty_is_refused(storage: str, tmp_path: Path) -> None:
    export(storage, tmp_path / "export")
    before = contents(tmp_path / "export")
    with pytest.raises(ExportError, match="new or empty directory"):
        export(storage, tmp_path / "export")
    assert contents(tmp_path / "export") == before


def test_a_checkpoint_or_query_that_is_not_there_is_refused(storage: str, tmp_path: Path) -> None:
    with pytest.raises(NothingHereError, match="no checkpoint 7"):
        export(storage, tmp_path / "export", checkpoint=7)
    with pytest.raises(NothingHereError, match="no pipeline 'other'"):
        export(storage, tmp_path / "export", pipeline="other")
    with pytest.raises(ExportError, match=r"\(delays\), found 'arrivals'"):
        export(storage, tmp_path / "export", queries=["delays", "arrivals"])
    assert not (tmp_path / "export").exists()


def test_a_flipped_byte_is_named_and_nothing_is_written(
    storage: str, manifest: Manifest, tmp_path: Path
) -> None:
    for key in sorted(manifest.keys()):
        path = tmp_path / "storage" / "flights" / key
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.chmod(0o600)
        path.write_bytes(data)
        with pytest.raises(DamagedError) as caught:
            export(storage, tmp_path / "export")
        assert caught.value.key == key
        assert not (tmp_path / "export").exists()
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    export(storage, tmp_path / "export")


def test_output_that_may_not_be_published_is_refused(
    catalog: Catalog, manifest: Manifest, tmp_path: Path
) -> None:
    (query,) = manifest.queries
    waiting = attrs.evolve(query, outputs=(OutputRecord("sink", (EpochRecord(2, 5),), published=1),))
    catalog.commit(attrs.evolve(manifest, id=2, queries=(waiting,)))
    with pytest.raises(ExportError, match=r"5 rows of query 'delays' for its sink 'sink'.*stop\(savepoint="):
        export(str(tmp_path / "storage"), tmp_path / "export")
    assert not (tmp_path / "export").exists()
    published = attrs.evolve(query, outputs=(OutputRecord("sink", (), published=2),))
    catalog.commit(attrs.evolve(manifest, id=3, queries=(published,)))
    done = export(str(tmp_path / "storage"), tmp_path / "export")
    assert done.checkpoint == 3


# --- the command line ---------------------------------------------------------------------------------------


def test_the_command_line_does_the_same(storage: str, tmp_path: Path) -> None:
    to = str(tmp_path / "export")
    done = CliRunner().invoke(
        main, ["export", storage, "--to", to, "--checkpoint", "1", "--pipeline", "flights"]
    )
    assert done.exit_code == 0, done.output
    assert "goes on with batch 2" in done.output
    again = CliRunner().invoke(main, ["export", storage, "--to", to])
    assert again.exit_code == 1
    assert "new or empty directory" in again.output
    facts = CliRunner().invoke(main, ["export", storage, "--to", f"{to}-2", "--query", "delays", "--json"])
    assert json.loads(facts.stdout)["queries"][0]["name"] == "delays"


# --- kills --------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from chandy.coordinator.export import queries
from chandy.coordinator.export.exporter import export

step, function = sys.argv[3], getattr(queries, sys.argv[3])

def killed(*given, **more):
    if sys.argv[4] == "after":
        function(*given, **more)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(queries, step, killed)
export(sys.argv[1], sys.argv[2])
"""


@pytest.mark.parametrize(
    ("step", "moment"), sampled([*product(["restore_files", "seed"], ["before", "after"])], 2)
)
def test_a_killed_export_is_known_and_the_storage_is_whole(
    storage: str, tmp_path: Path, step: str, moment: str
) -> None:
    before = contents(tmp_path / "storage")
    target = tmp_path / "export"
    command = [sys.executable, "-c", KILLED, storage, str(target), step, moment]
    done = subprocess.run(command, timeout=DEADLINE, check=False, env=dict(os.environ))
    assert done.returncode == -signal.SIGKILL
    assert [path.name for path in target.iterdir()] == [UNFINISHED]
    assert contents(tmp_path / "storage") == before
    with pytest.raises(ExportError, match="was killed"):
        export(storage, target)
    export(storage, tmp_path / "again")
