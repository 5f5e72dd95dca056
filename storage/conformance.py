"""What every store must do, tried on the real one: the tests of a backend inherit these classes. They need pytest."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .backends.probe import probe_exclusive_create
from .errors import InvalidNameError, ObjectExistsError, ObjectMissingError
from .store import Store
from .transfer import PART


class StoreConformance:
    """The tests of a store. A subclass has the fixture ``make_store``: each call opens the same empty place again."""

    @pytest.fixture
    def make_store(self) -> Callable[[], Store]:
        raise NotImplementedError

    @pytest.fixture
    def store(self, make_store: Callable[[], Store]) -> Store:
        return make_store()

    def test_what_was_written_is_read_whole_and_in_parts(self, store: Store) -> None:
        store.write("a/b", b"0123456789")
        assert store.read("a/b") == b"0123456789"
        assert store.read("a/b", 3, 4) == b"3456"
        assert store.read("a/b", 8) == b"89"
        assert store.read("a/b", 8, 4) == b"89"
        assert store.read("a/b", 3, 1 << 50) == b"3456789"
        assert store.read("a/b", 10, 4) == b""
        assert store.read("a/b", 20, 4) == b""
        assert store.read("a/b", 3, 0) == b""
        store.write("a/b", b"new")
        assert store.read("a/b") == b"new"
        assert store.stat("a/b").size == 3

    def test_an_empty_object_is_an_object(self, store: Store, tmp_path: Path) -> None:
        store.write("a", b"")
        assert store.read("a") == b""
        assert store.read("a", 0, 1) == b""
        assert store.list() == ["a"]
        store.download("a", tmp_path / "file", 0)
        assert (tmp_path / "file").read_bytes() == b""

    @pytest.mark.parametrize("key", ["missing", "folder", "missing/deep/down"])
    def test_an_absent_object_is_missing_and_its_deletion_no_error(
        self, store: Store, tmp_path: Path, key: str
    ) -> None:
        store.write("folder/object", b"x")
        for operation in (
            store.read,
            store.stat,
            lambda key: store.read(key, 0, 0),
            lambda key: store.read(key, 2, 5),
            lambda key: store.download(key, tmp_path / "file"),
            lambda key: store.download(key, tmp_path / "file", 10),
        ):
            with pytest.raises(ObjectMissingError) as caught:
                operation(key)
            assert caught.value.key == key
        store.delete(key)
        store.delete_all([key])
        assert store.list() == ["folder/object"]

    def test_an_empty_place_lists_nothing(self, store: Store) -> None:
        assert store.list() == []
        assert store.list("checkpoints/") == []
        assert store.scan() == {}

    def test_a_list_has_the_keys_with_the_prefix_sorted(self, store: Store) -> None:
        for key in ("checkpoints/10/m", "checkpoints/1/m", "check", "shared/x"):
            store.write(key, b"x")
        assert store.list() == ["check", "checkpoints/1/m", "checkpoints/10/m", "shared/x"]
        assert store.list("checkpoints/1") == ["checkpoints/1/m", "checkpoints/10/m"]
        assert store.list("checkpoints/1/") == ["checkpoints/1/m"]
        assert store.list("che") == ["check", "checkpoints/1/m", "checkpoints/10/m"]
        assert store.list("missing/") == []
        assert list(store.scan("checkpoints/1/")) == ["checkpoints/1/m"]

    def test_what_another_client_wrote_is_seen_at_once(self, make_store: Callable[[], Store]) -> None:
        one, other = make_store(), make_store()
        assert other.list() == []
        one.write("a", b"1")
        assert other.list() == ["a"]
        assert other.read("a") == other.afresh().read("a") == b"1"
        one.write("a", b"22")
        assert other.stat("a").size == 2
        one.delete("a")
        assert other.list() == []

    def test_a_deletion_of_many_spares_the_others(self, store: Store) -> None:
        for number in range(12):
            store.write(f"shared/{number % 3}/{number}", b"x")
        store.delete_all([f"shared/{number % 3}/{number}" for number in range(1, 12)] + ["shared/none"])
        assert store.list() == ["shared/0/0"]
        store.delete_all([])

    @pytest.mark.parametrize("size", [0, 1, 100_000, PART, 2 * PART + 12_345])
    def test_files_of_any_size_come_back(self, store: Store, tmp_path: Path, size: int) -> None:
        data = os.urandom(size)
        (tmp_path / "source").write_bytes(data)
        store.upload(tmp_path / "source", "shared/aa/x.sst")
        found = store.download("shared/aa/x.sst", tmp_path / "target", size)
        assert (tmp_path / "target").read_bytes() == data
        assert found in (None, hashlib.sha256(data).hexdigest())
        assert store.stat("shared/aa/x.sst").size == size
        assert store.list() == ["shared/aa/x.sst"]

    @pytest.mark.parametrize(
        ("stored", "expected"), [(5, 3), (3, 5), (PART + 5, PART + 1), (PART + 1, PART * 3)]
    )
    def test_a_file_of_another_size_than_expected_is_seen(
        self, store: Store, tmp_path: Path, stored: int, expected: int
    ) -> None:
        store.write("x", b"x" * stored)
        store.download("x", tmp_path / "target", expected)
        assert ((tmp_path / "target").stat().st_size > expected) == (stored > expected)
        assert ((tmp_path / "target").stat().st_size < expected) == (stored < expected)

    def test_a_download_writes_over_what_a_failed_one_left(self, store: Store, tmp_path: Path) -> None:
        store.write("x", b"data")
        (tmp_path / "target").write_bytes(b"something longer that was left")
        store.download("x", tmp_path / "target", 4)
        assert (tmp_path / "target").read_bytes() == b"data"

    def test_a_copy_lives_without_its_source(self, make_store: Callable[[], Store], store: Store) -> None:
        # The same service: another client of it stands for another folder.
        source = make_store()
        source.write("from/x", b"data")
        if not store.copy(source, "from/x", "to/y"):
            assert store.list() == ["from/x"]
            return
        source.delete("from/x")
        assert store.read("to/y") == b"data"
        with pytest.raises(ObjectMissingError):
            store.copy(source, "from/x", "to/z")

    def test_an_upload_makes_an_object_young_again(self, store: Store, tmp_path: Path) -> None:
        began = time.time() - 2
        (tmp_path / "source").write_bytes(b"data")
        os.utime(tmp_path / "source", (1, 1))
        for _ in range(2):
            store.upload(tmp_path / "source", "x")
            modified = store.stat("x").modified
            assert modified is not None
            assert modified >= began

    def test_a_sweep_spares_every_object(self, store: Store) -> None:
        store.write("a/b", b"x")
        store.sweep(time.time() + 100)
        assert store.list() == ["a/b"]

    @pytest.mark.parametrize(
        "key", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/", "./a", "a\\b", "a\0b"]
    )
    def test_a_key_that_leads_elsewhere_is_refused(self, store: Store, key: str) -> None:
        for operation in (
            store.read,
            store.delete,
            store.stat,
            lambda key: store.write(key, b"x"),
            lambda key: store.create(key, b"x"),
        ):
            with pytest.raises(InvalidNameError):
                operation(key)

    def test_keys_with_odd_letters_are_keys(self, store: Store) -> None:
        keys = sorted(["a b/c", "a+b/%41", "ä/ö", "x?y=z&w", "a#b", "sources/0/3"])
        for key in keys:
            store.write(key, key.encode())
        assert store.list() == keys
        assert [store.read(key).decode() for key in keys] == keys

    def test_many_threads_use_one_store(self, store: Store) -> None:
        # Rclone keeps objects in folders, and removes one that is empty while another thread writes into it.
        store.write("a/b/stays", b"")

        def churn(name: str) -> None:
            for number in range(8):
                store.write(f"a/b/{name}", b"%d" % number)
                assert store.read(f"a/b/{name}") == b"%d" % number
                store.delete(f"a/b/{name}")

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(churn, "wxyz"))
        assert store.list() == ["a/b/stays"]


class ExclusiveCreateConformance:
    """The tests of a store that can fence, because it creates an object only if there is none.

    A subclass has the fixture ``make_store``, too.
    """

    @pytest.fixture
    def make_store(self) -> Callable[[], Store]:
        raise NotImplementedError

    @pytest.fixture
    def store(self, make_store: Callable[[], Store]) -> Store:
        return make_store()

    def test_the_second_create_fails_and_changes_nothing(self, store: Store) -> None:
        store.create("a/b", b"first")
        with pytest.raises(ObjectExistsError):
            store.create("a/b", b"second")
        assert store.read("a/b") == b"first"
        assert store.list() == ["a/b"]

    def test_of_many_racing_creates_exactly_one_wins(self, make_store: Callable[[], Store]) -> None:
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

    def test_a_store_with_exclusive_create_passes_the_probe_and_nothing_is_left(self, store: Store) -> None:
        probe_exclusive_create(store)
        assert store.list() == []
