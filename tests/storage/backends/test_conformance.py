"""What every store must do, on every backend: files, fakes, and real servers."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chandy.storage import InvalidNameError, InvalidPlaceError, ObjectExistsError, ObjectMissingError, Store
from chandy.storage.backends.probe import probe_exclusive_create
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.transfer import PART

from ...builders import MemoryStore, make_manifest
from ..conftest import EXCLUSIVE

exclusive = pytest.mark.parametrize("backend", EXCLUSIVE, indirect=True)


def test_what_was_written_is_read_whole_and_in_parts(any_store: Store) -> None:
    any_store.write("a/b", b"0123456789")
    assert any_store.read("a/b") == b"0123456789"
    assert any_store.read("a/b", 3, 4) == b"3456"
    assert any_store.read("a/b", 8) == b"89"
    assert any_store.read("a/b", 8, 4) == b"89"
    assert any_store.read("a/b", 3, 1 << 50) == b"3456789"
    assert any_store.read("a/b", 10, 4) == b""
    assert any_store.read("a/b", 20, 4) == b""
    assert any_store.read("a/b", 3, 0) == b""
    any_store.write("a/b", b"new")
    assert any_store.read("a/b") == b"new"
    assert any_store.stat("a/b").size == 3


def test_an_empty_object_is_an_object(any_store: Store, tmp_path: Path) -> None:
    any_store.write("a", b"")
    assert any_store.read("a") == b""
    assert any_store.read("a", 0, 1) == b""
    assert any_store.list() == ["a"]
    any_store.download("a", tmp_path / "file", 0)
    assert (tmp_path / "file").read_bytes() == b""


@pytest.mark.parametrize("key", ["missing", "folder", "missing/deep/down"])
def test_an_absent_object_is_missing_and_its_deletion_no_error(
    any_store: Store, backend: str, tmp_path: Path, key: str
) -> None:
    if (backend, key) == ("rclone", "folder"):
        pytest.skip("rclone answers with an error of its own: its objects are files in folders")
    any_store.write("folder/object", b"x")
    for operation in (
        any_store.read,
        any_store.stat,
        lambda key: any_store.read(key, 0, 0),
        lambda key: any_store.read(key, 2, 5),
        lambda key: any_store.download(key, tmp_path / "file"),
        lambda key: any_store.download(key, tmp_path / "file", 10),
    ):
        with pytest.raises(ObjectMissingError) as caught:
            operation(key)
        assert caught.value.key == key
    any_store.delete(key)
    any_store.delete_all([key])
    assert any_store.list() == ["folder/object"]


def test_an_empty_place_lists_nothing(any_store: Store) -> None:
    assert any_store.list() == []
    assert any_store.list("checkpoints/") == []
    assert any_store.scan() == {}


def test_a_list_has_the_keys_with_the_prefix_sorted(any_store: Store) -> None:
    for key in ("checkpoints/10/m", "checkpoints/1/m", "check", "shared/x"):
        any_store.write(key, b"x")
    assert any_store.list() == ["check", "checkpoints/1/m", "checkpoints/10/m", "shared/x"]
    assert any_store.list("checkpoints/1") == ["checkpoints/1/m", "checkpoints/10/m"]
    assert any_store.list("checkpoints/1/") == ["checkpoints/1/m"]
    assert any_store.list("che") == ["check", "checkpoints/1/m", "checkpoints/10/m"]
    assert any_store.list("missing/") == []
    assert list(any_store.scan("checkpoints/1/")) == ["checkpoints/1/m"]


def test_what_another_client_wrote_is_seen_at_once(make_store: Callable[[], Store]) -> None:
    one, other = make_store(), make_store()
    assert other.list() == []
    one.write("a", b"1")
    assert other.list() == ["a"]
    assert other.read("a") == other.afresh().read("a") == b"1"
    one.write("a", b"22")
    assert other.stat("a").size == 2
    one.delete("a")
    assert other.list() == []


@exclusive
def test_the_second_create_fails_and_changes_nothing(any_store: Store) -> None:
    any_store.create("a/b", b"first")
    with pytest.raises(ObjectExistsError):
        any_store.create("a/b", b"second")
    assert any_store.read("a/b") == b"first"
    assert any_store.list() == ["a/b"]


@exclusive
def test_of_many_racing_creates_exactly_one_wins(make_store: Callable[[], Store]) -> None:
    ready = threading.Barrier(8)
    stores = [make_store() for _ in range(8)]

    def create(number: int) -> bytes | None:
        content = b"%d" % number * 1000
        ready.wait()
        try:
            stores[number].create("deep/key", content)
        except ObjectExistsError:
            return None
        return content

    with ThreadPoolExecutor(8) as pool:
        winners = [won for won in pool.map(create, range(8)) if won is not None]
    assert winners == [stores[0].read("deep/key")]


@exclusive
def test_a_store_with_exclusive_create_passes_the_probe_and_nothing_is_left(any_store: Store) -> None:
    probe_exclusive_create(any_store)
    assert any_store.list() == []


@pytest.mark.parametrize("backend", ["rclone"], indirect=True)
def test_a_server_that_ignores_the_condition_is_refused(any_store: Store) -> None:
    assert any_store.fenced
    with pytest.raises(InvalidPlaceError):
        probe_exclusive_create(any_store)
    assert any_store.list() == []


def test_a_catalog_works_on_every_backend(any_store: Store) -> None:
    # On one that is not fenced, too: whoever allows that says that no other driver runs.
    catalog = Catalog(any_store)
    first = catalog.take_over("driver-1", 1.0)
    assert (first.generation, first.next_id) == (1, 1)
    catalog.commit(make_manifest(1, first.generation))
    catalog.confirm(make_manifest(1, first.generation))
    second = catalog.take_over("driver-2", 2.0)
    assert (second.generation, second.next_id) == (2, 2)
    latest = catalog.latest()
    assert latest == make_manifest(1, first.generation)


def test_a_deletion_of_many_spares_the_others(any_store: Store) -> None:
    for number in range(12):
        any_store.write(f"shared/{number % 3}/{number}", b"x")
    any_store.delete_all([f"shared/{number % 3}/{number}" for number in range(1, 12)] + ["shared/none"])
    assert any_store.list() == ["shared/0/0"]
    any_store.delete_all([])


@pytest.mark.parametrize("size", [0, 1, 100_000, PART, 2 * PART + 12_345])
def test_files_of_any_size_come_back(any_store: Store, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "source").write_bytes(data)
    any_store.upload(tmp_path / "source", "shared/aa/x.sst")
    found = any_store.download("shared/aa/x.sst", tmp_path / "target", size)
    assert (tmp_path / "target").read_bytes() == data
    assert found in (None, hashlib.sha256(data).hexdigest())
    assert any_store.stat("shared/aa/x.sst").size == size
    assert any_store.list() == ["shared/aa/x.sst"]


@pytest.mark.parametrize(("stored", "expected"), [(5, 3), (3, 5), (PART + 5, PART + 1), (PART + 1, PART * 3)])
def test_a_file_of_another_size_than_expected_is_seen(
    any_store: Store, tmp_path: Path, stored: int, expected: int
) -> None:
    any_store.write("x", b"x" * stored)
    any_store.download("x", tmp_path / "target", expected)
    assert ((tmp_path / "target").stat().st_size > expected) == (stored > expected)
    assert ((tmp_path / "target").stat().st_size < expected) == (stored < expected)


def test_a_download_writes_over_what_a_failed_one_left(any_store: Store, tmp_path: Path) -> None:
    if any_store.uri.startswith("file:"):
        pytest.skip("a hard link is there or not")
    any_store.write("x", b"data")
    (tmp_path / "target").write_bytes(b"something longer that was left")
    any_store.download("x", tmp_path / "target", 4)
    assert (tmp_path / "target").read_bytes() == b"data"


def test_a_copy_lives_without_its_source(make_store: Callable[[], Store], any_store: Store) -> None:
    # The same service: another client of it stands for another folder.
    source = make_store()
    source.write("from/x", b"data")
    if not any_store.copy(source, "from/x", "to/y"):
        assert any_store.list() == ["from/x"]
        return
    source.delete("from/x")
    assert any_store.read("to/y") == b"data"
    with pytest.raises(ObjectMissingError):
        any_store.copy(source, "from/x", "to/z")


@pytest.mark.parametrize("backend", ["file", "memory", "moto", "rclone"], indirect=True)
def test_a_store_with_a_copy_of_its_own_says_so(make_store: Callable[[], Store]) -> None:
    source = make_store()
    source.write("from/x", b"data")
    assert make_store().copy(source, "from/x", "to/y")


def test_nothing_is_copied_from_another_kind_of_store(any_store: Store, backend: str) -> None:
    if backend == "fake":
        pytest.skip("it is the other kind")
    source = MemoryStore()
    source.write("x", b"1")
    assert not any_store.copy(source, "x", "y")
    assert any_store.list() == []


def test_an_upload_makes_an_object_young_again(any_store: Store, tmp_path: Path) -> None:
    began = time.time() - 2
    (tmp_path / "source").write_bytes(b"data")
    os.utime(tmp_path / "source", (1, 1))
    for _ in range(2):
        any_store.upload(tmp_path / "source", "x")
        modified = any_store.stat("x").modified
        assert modified is not None
        assert modified >= began


def test_a_sweep_spares_every_object(any_store: Store) -> None:
    any_store.write("a/b", b"x")
    any_store.sweep(time.time() + 100)
    assert any_store.list() == ["a/b"]


@pytest.mark.parametrize("key", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/", "./a", "a\\b", "a\0b"])
def test_a_key_that_leads_elsewhere_is_refused(any_store: Store, backend: str, key: str) -> None:
    if backend == "fake":
        pytest.skip("it has no paths")
    for operation in (
        any_store.read,
        any_store.delete,
        any_store.stat,
        lambda key: any_store.write(key, b"x"),
        lambda key: any_store.create(key, b"x"),
    ):
        with pytest.raises(InvalidNameError):
            operation(key)


def test_keys_with_odd_letters_are_keys(any_store: Store) -> None:
    keys = sorted(["a b/c", "a+b/%41", "ä/ö", "x?y=z&w", "a#b", "sources/0/3"])
    for key in keys:
        any_store.write(key, key.encode())
    assert any_store.list() == keys
    assert [any_store.read(key).decode() for key in keys] == keys


def test_many_threads_use_one_store(any_store: Store) -> None:
    # Rclone keeps objects in folders, and removes one that is empty while another thread writes into it.
    any_store.write("a/b/stays", b"")

    def churn(name: str) -> None:
        for number in range(8):
            any_store.write(f"a/b/{name}", b"%d" % number)
            assert any_store.read(f"a/b/{name}") == b"%d" % number
            any_store.delete(f"a/b/{name}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(churn, "wxyz"))
    assert any_store.list() == ["a/b/stays"]
