"""The command line, on real stores."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner, Result

from chandy.coordinator.cli import main
from chandy.storage import Store
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints import locate
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.manifest import (
    ChannelRecord,
    EpochRecord,
    Manifest,
    OutputRecord,
    TopicPartition,
    UnreadFiles,
)
from chandy.storage.checkpoints.manifest_json import encode_manifest
from chandy.storage.checkpoints.savepoint import claim_savepoint, commit_savepoint
from chandy.storage.checkpoints.snapshots import SnapshotWriter
from chandy.storage.disk.owners import OwnerRecord, write_owner

from ..builders import make_manifest, shared


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def run_json(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def stored(
    store: Store,
    folder: Path,
    id: int,
    generation: int = 1,
    pipeline: str = "flights",
    offsets: str = "v1",
) -> Manifest:
    """Store the files of a checkpoint; its manifest is yet to be committed."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{id}.sst").write_bytes(bytes([id]) * 70_000)
    (folder / "offsets").write_text(offsets)
    writer = SnapshotWriter(store, f"checkpoints/{id}/host.pack")
    writer.add("shard", {f"{id}.sst": folder / f"{id}.sst"})
    writer.add("query", {"offsets/41": folder / "offsets"})
    snapshots = writer.finish()
    return make_manifest(
        id,
        generation,
        (None, snapshots["shard"].handle),
        snapshots["query"].handle,
        pipeline=pipeline,
        triggered_at=1_000_000_000.0,
        completed_at=1_000_000_001.5,
        new_bytes=70_002,
    )


@pytest.fixture
def storage(tmp_path: Path) -> str:
    """A storage with one pipeline and two checkpoints."""
    store = LocalStore(tmp_path / "storage" / "flights")
    catalog = Catalog(store)
    catalog.take_over("driver-1", 1.0)
    for id in (1, 2):
        catalog.commit(stored(store, tmp_path / "files", id))
    return (tmp_path / "storage").as_uri()


@pytest.fixture
def flights(storage: str, tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "storage" / "flights")


@pytest.fixture
def savepoint(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "savepoint")
    claim_savepoint(store, "driver-1")
    commit_savepoint(store, stored(store, tmp_path / "files", 7))
    return store


def test_list_shows_the_checkpoints_of_the_only_pipeline(storage: str) -> None:
    result = run("list", storage)
    assert result.exit_code == 0
    assert "flights: 2 checkpoints" in result.stdout
    assert "delays@41" in result.stdout
    assert "2001-09-09 01:46:41 UTC" in result.stdout
    assert "1.50 s" in result.stdout


def test_list_for_programs_has_the_facts_of_each_checkpoint(storage: str) -> None:
    listed = run_json("list", storage)
    assert listed["pipeline"] == "flights"
    assert listed["savepoints"] == []
    assert [checkpoint["id"] for checkpoint in listed["checkpoints"]] == [1, 2]
    # The size is the sum of bytes.
    assert listed["checkpoints"][1] == {
        "id": 2,
        "status": "completed",
        "problem": None,
        "kind": "periodic",
        "generation": 1,
        "triggered_at": 1_000_000_000.0,
        "completed_at": 1_000_000_001.5,
        "seconds": 1.5,
        "size": 70_002,
        "new_bytes": 70_002,
        "shards": 2,
        "cut": {"delays": 41},
        "unverified": False,
    }


def test_show_tells_where_the_sources_stand(storage: str, flights: LocalStore, tmp_path: Path) -> None:
    assert run_json("show", storage)["sources"] == []
    entry = 'v1\n{"conf":{}}\n{"flights":{"0":5,"1":7}}\n{"logOffset":3}'
    Catalog(flights).commit(stored(flights, tmp_path / "files", 3, offsets=entry))
    assert run_json("show", storage)["sources"] == [
        {"query": "delays", "source": "0", "offset": '{"flights":{"0":5,"1":7}}'},
        {"query": "delays", "source": "1", "offset": '{"logOffset":3}'},
    ]
    text = run("show", storage).stdout
    assert '{"flights":{"0":5,"1":7}}' in text
    assert "next offset" in text


def test_show_shows_the_rest_of_a_checkpoint_whose_offsets_cannot_be_read(
    storage: str, flights: LocalStore
) -> None:
    (pack,) = (key for key in flights.list("checkpoints/2/") if key.endswith(".pack"))
    flights.delete(pack)
    (found,) = run_json("show", storage)["sources"]
    assert f"there is no object {pack!r}" in found["offset"]
    assert "delays" in run("show", storage).stdout


def test_list_says_which_checkpoints_are_unverified(
    storage: str, flights: LocalStore, tmp_path: Path
) -> None:
    Catalog(flights).commit(attrs.evolve(stored(flights, tmp_path / "files", 3), unverified=True))
    rows = [line for line in run("list", storage).stdout.splitlines() if "delays@41" in line]
    assert ["unverified" in row for row in rows] == [False, False, True]
    listed = run_json("list", storage)["checkpoints"]
    assert [(one["status"], one["unverified"]) for one in listed] == [
        ("completed", False),
        ("completed", False),
        ("completed", True),
    ]


@pytest.mark.parametrize(
    "form", ["uri", "path", "relative", "from below", "here", "pipeline folder", "slash"]
)
def test_the_storage_may_be_said_in_several_ways(
    storage: str, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path / "storage" if form in ("here", "from below") else tmp_path)
    said = {
        "uri": storage,
        "path": str(tmp_path / "storage"),
        "relative": "storage",
        "from below": "../storage",
        "here": ".",
        "pipeline folder": storage + "/flights",
        "slash": storage + "/",
    }[form]
    assert run_json("list", said)["pipeline"] == "flights"


def test_list_shows_pipelines_if_there_are_several(storage: str, tmp_path: Path) -> None:
    Catalog(LocalStore(tmp_path / "storage" / "trains")).take_over("driver-1", 1.0)
    listed = run_json("list", storage)
    assert [(one["pipeline"], one["checkpoints"]) for one in listed["pipelines"]] == [
        ("flights", 2),
        ("trains", 0),
    ]
    assert listed["pipelines"][0]["latest"]["id"] == 2
    assert listed["pipelines"][1]["latest"] is None
    assert "2 pipelines" in run("list", storage).stdout
    assert len(run_json("list", storage, "--pipeline", "flights")["checkpoints"]) == 2


@pytest.mark.parametrize("command", ["show", "verify", "gc"])
def test_a_command_for_one_pipeline_asks_which_if_there_are_several(
    storage: str, tmp_path: Path, command: str
) -> None:
    Catalog(LocalStore(tmp_path / "storage" / "trains")).take_over("driver-1", 1.0)
    result = run(command, storage)
    assert result.exit_code == 1
    assert "--pipeline" in result.stderr
    assert "flights, trains" in result.stderr
    assert run(command, storage, "--pipeline", "flights").exit_code == 0


def test_list_tells_a_damaged_manifest_and_shows_the_others(storage: str, flights: LocalStore) -> None:
    flights.write("checkpoints/2/manifest.json", b"{}")
    result = run("list", storage, "--json")
    assert result.exit_code == 1
    assert [one["status"] for one in json.loads(result.stdout)["checkpoints"]] == ["completed", "damaged"]
    assert "checkpoints/2/manifest.json" in result.stderr
    assert run("list", storage).exit_code == 1


def test_list_tells_void_manifests_from_completed_ones(
    storage: str, flights: LocalStore, tmp_path: Path
) -> None:
    catalog = Catalog(flights)
    catalog.take_over("driver-2", 2.0)
    catalog.commit(stored(flights, tmp_path / "files", 3, generation=1))
    statuses = [one["status"] for one in run_json("list", storage)["checkpoints"]]
    assert statuses == ["completed", "completed", "void"]


def test_list_says_where_savepoints_were_asked_for(storage: str, flights: LocalStore) -> None:
    flights.create("checkpoints/3/savepoint", b"s3://bucket/before")
    assert run_json("list", storage)["savepoints"] == [{"id": 3, "uri": "s3://bucket/before"}]
    assert "savepoint 3: s3://bucket/before" in run("list", storage).stdout


def take_savepoint(pipeline: LocalStore, folder: Path, place: LocalStore, id: int = 3) -> None:
    """Write a savepoint as a coordinator does."""
    pipeline.create(f"checkpoints/{id}/savepoint", place.uri.encode())
    claim_savepoint(place, "driver-1")
    commit_savepoint(place, stored(place, folder, id))


def own_savepoint(pipeline: LocalStore) -> LocalStore:
    return LocalStore(pipeline.root / "savepoints" / "before")


@pytest.mark.parametrize("original_stays", [True, False])
def test_a_copied_storage_shows_its_own_savepoints(
    storage: str, flights: LocalStore, tmp_path: Path, original_stays: bool
) -> None:
    take_savepoint(flights, tmp_path / "files", own_savepoint(flights))
    elsewhere = LocalStore(tmp_path / "savepoints" / "before")
    take_savepoint(flights, tmp_path / "files", elsewhere, id=4)
    shutil.copytree(tmp_path / "storage", tmp_path / "copy")
    if not original_stays:
        shutil.rmtree(tmp_path / "storage")
    copy = (tmp_path / "copy" / "flights" / "savepoints" / "before").as_uri()
    assert run_json("list", str(tmp_path / "copy"))["savepoints"] == [
        {"id": 3, "uri": copy},
        {"id": 4, "uri": elsewhere.uri},
    ]
    assert locate.find(Catalog(LocalStore(tmp_path / "copy" / "flights")), 3).store.uri == copy
    assert str(tmp_path / "storage") not in run("list", str(tmp_path / "copy")).stdout


def test_show_describes_the_latest_checkpoint_or_the_one_asked_for(storage: str) -> None:
    assert run_json("show", storage)["id"] == 2
    shown = run_json("show", storage, "--checkpoint", "1")
    assert shown["id"] == 1
    assert shown["queries"] == [{"name": "delays", "batch": 41, "files": 1, "size": 2}]
    (operator,) = shown["operators"]
    assert (operator["uid"], operator["shards"], operator["shards_with_state"], operator["size"]) == (
        "totals",
        2,
        1,
        70_000,
    )
    text = run("show", storage).stdout
    assert all(word in text for word in ("checkpoint 2", "delays", "totals", "chandy 0.1.0", "70.0 kB"))


def test_show_and_verify_take_a_savepoint_folder(savepoint: LocalStore) -> None:
    assert run_json("show", savepoint.uri)["id"] == 7
    assert run_json("verify", savepoint.uri)["checkpoints"][0]["ok"] is True


def test_show_tells_what_sinks_have_still_to_publish(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "savepoint")
    claim_savepoint(store, "driver-1")
    manifest = stored(store, tmp_path / "files", 7)
    outputs = (OutputRecord("kafka", (EpochRecord(6, 5), EpochRecord(7, 20)), 4), OutputRecord("files", ()))
    queries = tuple(attrs.evolve(query, outputs=outputs) for query in manifest.queries)
    commit_savepoint(store, attrs.evolve(manifest, queries=queries))
    found = [tuple(one.values()) for one in run_json("show", store.uri)["outputs"]]
    assert found == [("delays", "kafka", 4, 2, 25), ("delays", "files", None, 0, 0)]
    text = run("show", store.uri).stdout
    assert "transactional sinks" in text
    assert "25" in text
    assert "channels" not in text


def test_show_tells_what_is_between_queries(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "savepoint")
    claim_savepoint(store, "driver-1")
    partitions = (
        TopicPartition("t", 0, 10, 4),
        TopicPartition("t", 1, 7, 9),
        TopicPartition("t", 2, None, 3),
    )
    channels = (
        ChannelRecord("a", None, "b", "/out", 4, 0, UnreadFiles(3, 5000)),
        ChannelRecord("a", "own", "b", "/own", None, 11, UnreadFiles(2, 70, 9)),
        ChannelRecord("a", "sink", "c", "topic t", 6, 25, None, partitions),
        ChannelRecord("a", "sink", "d", "/away", 6, 25),
    )
    commit_savepoint(store, attrs.evolve(stored(store, tmp_path / "files", 7), channels=channels))
    found = run_json("show", store.uri)["channels"]
    assert [one["reader"] for one in found] == ["b", "b", "c", "d"]
    assert found[1]["files"] == {"files": 2, "bytes": 70, "rows": 9}
    assert [one["unread"] for one in found[2]["partitions"]] == [6, 0, None]
    text = run("show", store.uri).stdout
    for words in (
        "3 files, 5.0 kB ",
        "2 files, 70 bytes, 9 rows",
        "6 offsets in 2 partitions, 1 not known",
        " not known ",
    ):
        assert words in text


def test_verify_finds_all_whole(storage: str) -> None:
    verified = run_json("verify", storage)["checkpoints"]
    assert [(one["id"], one["ok"], one["bytes"]) for one in verified] == [
        (1, True, 70_002),
        (2, True, 70_002),
    ]
    assert "whole" in run("verify", storage).stdout


@pytest.mark.parametrize("change", ["flip", "delete"])
def test_verify_names_the_damaged_file_and_fails(storage: str, flights: LocalStore, change: str) -> None:
    key = next(key for key in flights.list("shared/") if flights.read(key)[0] == 2)
    if change == "flip":
        flights.write(key, b"\xff" + flights.read(key)[1:])
    else:
        flights.delete(key)
    result = run("verify", storage, "--json")
    assert result.exit_code == 1
    assert [one["ok"] for one in json.loads(result.stdout)["checkpoints"]] == [True, False]
    (damaged,) = json.loads(result.stdout)["damaged"]
    assert (damaged["key"], damaged["checkpoints"]) == (key, [2])
    assert f"{key}: " in result.stderr
    assert "needed by checkpoints 2" in result.stderr
    assert "operator totals shard 1 2.sst" in result.stderr
    assert run("verify", storage, "--checkpoint", "1").exit_code == 0
    assert run("verify", storage, "--checkpoint", "2").exit_code == 1


def test_verify_covers_the_savepoints_of_a_pipeline(
    storage: str, flights: LocalStore, tmp_path: Path
) -> None:
    own = own_savepoint(flights)
    take_savepoint(flights, tmp_path / "files", own)
    flights.create("checkpoints/5/savepoint", (tmp_path / "moved away").as_uri().encode())
    verified = run_json("verify", storage)
    assert [(one["id"], one["ok"]) for one in verified["checkpoints"]] == [(1, True), (2, True)]
    assert [(one["id"], one["ok"], one["uri"]) for one in verified["savepoints"]] == [
        (3, True, own.uri),
        (5, False, (tmp_path / "moved away").as_uri()),
    ]
    text = run("verify", storage).stdout
    assert "not there" in text
    (key,) = own.list("shared/")
    own.write(key, b"\xff" + own.read(key)[1:])
    result = run("verify", storage, "--json")
    assert result.exit_code == 1
    assert [one["ok"] for one in json.loads(result.stdout)["savepoints"]] == [False, False]
    assert f"savepoint 3 in {own.uri}: {key}: expected 70000 bytes" in result.stderr
    own.write("manifest.json", b"{}")
    result = run("verify", storage)
    assert result.exit_code == 1
    assert "unreadable" in result.stdout
    assert f"savepoint 3 in {own.uri}: 'manifest.json'" in result.stderr


def test_verify_fails_on_an_unreadable_manifest(storage: str, flights: LocalStore) -> None:
    flights.write("checkpoints/2/manifest.json", flights.read("checkpoints/2/manifest.json")[:-5])
    result = run("verify", storage)
    assert result.exit_code == 1
    assert "checkpoints/2/manifest.json" in result.stderr


def test_verify_fails_on_a_damaged_savepoint(savepoint: LocalStore) -> None:
    savepoint.write("manifest.json", b"{}")
    for command in ("show", "verify"):
        result = run(command, savepoint.uri)
        assert result.exit_code == 1
        assert "damaged" in result.stderr


def test_gc_spares_young_objects_unless_forced_and_deletes_nothing_in_a_dry_run(
    storage: str, flights: LocalStore
) -> None:
    before = flights.list()
    nothing = {"keys": [], "bytes": 0, "young": 0, "damaged": [], "spared": 0, "failed": {}}
    flights.write(shared("a"), b"12345")
    assert run_json("gc", storage) == nothing | {"young": 1, "dry_run": False}
    expected = nothing | {"keys": [shared("a")], "bytes": 5}
    assert run_json("gc", storage, "--force", "--dry-run") == expected | {"dry_run": True}
    assert len(flights.list()) == len(before) + 1
    result = run("gc", storage, "--force")
    assert "deleted 1 objects, 5 bytes" in result.stdout
    assert flights.list() == before


def test_gc_spares_what_a_damaged_manifest_may_need_and_says_what_to_do(
    storage: str, flights: LocalStore
) -> None:
    flights.write("checkpoints/1/manifest.json", b"{}")
    flights.write(shared("a"), b"12345")
    before = flights.list()
    result = run("gc", storage, "--force")
    assert result.exit_code == 0
    assert (
        "damaged manifests may need them: checkpoints/1/manifest.json; replace the manifests" in result.stderr
    )
    assert flights.list() == before


def test_clean_tells_and_deletes_what_killed_processes_left_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHANDY_RUNTIME_DIR", str(tmp_path / "run"))
    dead = tmp_path / "run" / "queries" / "flights-1"
    dead.mkdir(parents=True)
    write_owner(dead / "alive", OwnerRecord("queries", "flights"))
    (dead / "offsets").write_bytes(b"x" * 1500)
    kept = run_json("clean")
    assert (kept["deleted"], [one["path"] for one in kept["young"]]) == ([], [str(dead)])
    dry = run_json("clean", "--force", "--dry-run")
    assert [(one["path"], one["what"], one["bytes"]) for one in dry["deleted"]] == [
        (str(dead), "a driver", 1500 + (dead / "alive").stat().st_size)
    ]
    assert dead.exists()
    os.utime(dead / "offsets", (1, 1))
    os.utime(dead / "alive", (1, 1))
    os.utime(dead, (1, 1))
    result = run("clean")
    assert result.exit_code == 0, result.output
    assert str(dead) in result.stdout
    assert "days ago" in result.stdout
    assert "deleted 1 directories, 1.6 kB; kept 0 young ones and 0 in use" in result.stdout
    assert not dead.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "gopher://x"], "there is no store for 'gopher://x'"),
        (["list", "relative"], "there are no checkpoints in /"),
        (["list", "{tmp}/empty"], "found no pipeline"),
        (["show", "{tmp}/storage", "--checkpoint", "9"], "there is no checkpoint 9"),
        (["verify", "{tmp}/storage", "--pipeline", "trains"], "found flights"),
        (["gc", "{tmp}/storage", "--pipeline", "../x"], "pipeline name"),
    ],
)
def test_an_error_is_told_on_stderr_without_a_traceback(
    storage: str, tmp_path: Path, arguments: list[str], message: str
) -> None:
    result = run(*(argument.replace("{tmp}", str(tmp_path)) for argument in arguments))
    assert result.exit_code == 1
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""


def test_a_newer_manifest_says_to_upgrade(storage: str, flights: LocalStore) -> None:
    document = json.loads(encode_manifest(Catalog(flights).read(2))) | {"schema": 99}
    document["manifest"]["since_schema_99"] = True
    flights.write("checkpoints/2/manifest.json", json.dumps(document).encode())
    result = run("show", storage)
    assert result.exit_code == 1
    assert "upgrade chandy" in result.stderr
    assert "too new" in run("list", storage).stdout


def test_texts_are_neither_taken_for_markup_nor_obeyed_by_a_terminal(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "storage" / "flights")
    catalog = Catalog(store)
    catalog.take_over("driver-1", 1.0)
    channel = ChannelRecord("a", None, "b", "[bold]t[/]\x1b[2J", None, 0)
    catalog.commit(attrs.evolve(make_manifest(), channels=(channel,)))
    assert r"[bold]t[/]\x1b[2J" in run("show", str(tmp_path / "storage")).stdout
    assert r"no-such\x1b[2J" in run("show", str(tmp_path / "no-such\x1b[2J")).stderr


def test_the_command_starts_without_spark() -> None:
    code = "import sys, chandy.coordinator.cli; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_command_is_installed(storage: str) -> None:
    command = Path(sys.executable).with_name("chandy")
    result = subprocess.run([command, "list", storage], check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "flights: 2 checkpoints" in result.stdout


# --- adoption -----------------------------------------------------------------------------------------------


def test_adoption_says_what_a_plain_checkpoint_has(tmp_path: Path) -> None:
    old = tmp_path / "old"
    for log in ("offsets", "commits"):
        (old / log).mkdir(parents=True)
    (old / "metadata").write_text('{"id":"1"}')
    (old / "offsets" / "0").write_text('v1\n{"batchWatermarkMs":0}\n{"logOffset":0}')
    (old / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    told = run("adoption", str(old))
    assert told.exit_code == 0
    assert "can be adopted" in told.output
    assert "Progress: batches up to 0 have committed, the next one is 1." in told.output
    assert run_json("adoption", str(old))["batch"] == 0
    assert run("adoption", old.as_uri()).exit_code == 0
    assert "'s3://bucket/old' cannot be adopted" in run("adoption", "s3://bucket/old").stderr
    wrong = run("adoption", str(tmp_path))
    assert wrong.exit_code == 1
    assert f"did you mean {old}?" in wrong.output
