"""Verifying a checkpoint finds every damaged byte."""

from __future__ import annotations

import hashlib
from pathlib import Path

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.manifest import EpochRecord, FileRef, Handle, Manifest, OutputRecord
from chandy.storage.checkpoints.snapshots import SnapshotWriter
from chandy.storage.checkpoints.verification import missing_object, verify

from ...builders import make_manifest
from ...effort import examples

CONTENTS = {"1.sst": bytes(range(250)), "2.sst": b"b" * 300, "CURRENT": b"1", "empty": b""}


@pytest.fixture
def manifest(store: LocalStore, tmp_path: Path) -> Manifest:
    for name, content in CONTENTS.items():
        (tmp_path / name).write_bytes(content)
    writer = SnapshotWriter(store, "checkpoints/1/host.pack", pack_below=100)
    files = {name: tmp_path / name for name in CONTENTS}
    writer.add("shard", files)
    writer.add("query", {"offsets/1": tmp_path / "1.sst"})
    stored = writer.finish()
    return make_manifest(1, shards=[None, stored["shard"].handle], files=stored["query"].handle)


def test_a_whole_checkpoint_has_no_problems(store: LocalStore, manifest: Manifest) -> None:
    report = verify(store, manifest)
    assert report.ok
    assert report.files == 5
    assert report.bytes == manifest.size == 250 + 300 + 1 + 250


@settings(
    max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_changed_byte_is_found_with_the_files_that_it_spoils(
    store: LocalStore, manifest: Manifest, data: st.DataObject
) -> None:
    key = data.draw(st.sampled_from(store.list()))
    whole = store.read(key)
    position = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytes([whole[position] ^ data.draw(st.integers(1, 255))])
    store.write(key, whole[:position] + flipped + whole[position + 1 :])
    try:
        report = verify(store, manifest)
    finally:
        store.write(key, whole)
    assert report.problems
    assert {problem.key for problem in report.problems} == {key}


def test_each_file_that_an_object_holds_is_named(store: LocalStore, manifest: Manifest) -> None:
    shared = next(file.key for file in manifest.queries[0].files.files)
    store.delete(shared)
    problems = verify(store, manifest).problems
    assert sorted(problem.file for problem in problems) == [
        "operator totals shard 1 1.sst",
        "query delays offsets/1",
    ]
    assert all(problem.found == "no such object" for problem in problems)
    assert all(shared in str(problem) for problem in problems)


@pytest.mark.parametrize("damage", [b"row?", b"ro", None])
def test_damaged_staged_rows_are_found_with_the_sinks_that_would_publish_them(
    store: LocalStore, manifest: Manifest, damage: bytes | None
) -> None:
    store.write("staged/delays/1.parquet", b"rows")
    sha256 = hashlib.sha256(b"rows").hexdigest()
    staged = Handle((FileRef("1.parquet", "staged/delays/1.parquet", 4, sha256),))
    outputs = tuple(OutputRecord(sink, (EpochRecord(1, 2, staged),)) for sink in ("table", "topic"))
    queries = tuple(attrs.evolve(query, outputs=outputs) for query in manifest.queries)
    with_output = attrs.evolve(manifest, queries=queries)
    whole = verify(store, with_output)
    assert (whole.ok, whole.files) == (True, 7)
    if damage is None:
        store.delete("staged/delays/1.parquet")
        assert missing_object(store, with_output) == "staged/delays/1.parquet"
    else:
        store.write("staged/delays/1.parquet", damage)
    report = verify(store, with_output)
    assert [(problem.key, problem.file) for problem in report.problems] == [
        ("staged/delays/1.parquet", f"query delays epoch 1 of sink {sink} 1.parquet")
        for sink in ("table", "topic")
    ]


def test_all_problems_are_told_not_only_the_first(store: LocalStore, manifest: Manifest) -> None:
    for key in store.list():
        store.delete(key)
    assert len(verify(store, manifest).problems) == 5


@pytest.mark.parametrize("what", ["name", "key"])
@pytest.mark.parametrize("path", ["../../outside", "/etc/outside", "a\\b"])
def test_a_file_whose_name_or_key_no_restore_would_take_is_a_problem(
    store: LocalStore, manifest: Manifest, what: str, path: str
) -> None:
    (query,) = manifest.queries
    (file,) = query.files.files
    moved = Handle((attrs.evolve(file, **{what: path}),))
    (problem,) = verify(store, attrs.evolve(manifest, queries=(attrs.evolve(query, files=moved),))).problems
    assert repr(path) in str(problem) if what == "name" else problem.found == "no such object"
    assert "query" in problem.file


def test_bytes_behind_the_end_of_a_shared_file_are_damage(store: LocalStore, manifest: Manifest) -> None:
    key = manifest.queries[0].files.files[0].key
    store.write(key, store.read(key) + b"x")
    assert {problem.found for problem in verify(store, manifest).problems} == {"more bytes"}
