"""Verifying a checkpoint finds every damaged byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chandy.storage.local import LocalStore
from chandy.storage.manifest import Manifest
from chandy.storage.snapshots import SnapshotWriter
from chandy.storage.verification import verify

from ..builders import make_manifest

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


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_changed_byte_is_found_with_the_files_that_it_spoils(
    store: LocalStore, manifest: Manifest, data: st.DataObject
) -> None:
    # Promise 5
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


def test_all_problems_are_told_not_only_the_first(store: LocalStore, manifest: Manifest) -> None:
    for key in store.list():
        store.delete(key)
    assert len(verify(store, manifest).problems) == 5


def test_bytes_behind_the_end_of_a_shared_file_are_damage(store: LocalStore, manifest: Manifest) -> None:
    key = manifest.queries[0].files.files[0].key
    store.write(key, store.read(key) + b"x")
    assert {problem.found for problem in verify(store, manifest).problems} == {"more bytes"}
