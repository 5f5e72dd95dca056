"""What every store must do, on every backend: files, fakes, and real servers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chandy.storage import InvalidPlaceError, Store
from chandy.storage.backends.probe import probe_exclusive_create
from chandy.storage.checkpoints.catalog import Catalog
from chandy.testing import ExclusiveCreateConformance, StoreConformance

from ...builders import MemoryStore, make_manifest
from ..conftest import EXCLUSIVE

UNLIKE = {
    (
        "rclone",
        "test_an_absent_object_is_missing_and_its_deletion_no_error[rclone-folder]",
    ): "objects are files",
    ("file", "test_a_download_writes_over_what_a_failed_one_left[file]"): "a hard link is there or not",
}
"""Tests in which a backend answers otherwise, and why it may."""


class OnEveryBackend:
    @pytest.fixture
    def make_store(
        self, make_store: Callable[[], Store], backend: str, request: pytest.FixtureRequest
    ) -> Callable[[], Store]:
        if (why := UNLIKE.get((backend, request.node.name))) is not None:
            pytest.skip(why)
        if backend == "fake" and request.node.originalname == "test_a_key_that_leads_elsewhere_is_refused":
            pytest.skip("it has no paths")
        return make_store


class TestStores(OnEveryBackend, StoreConformance):
    pass


@pytest.mark.parametrize("backend", EXCLUSIVE, indirect=True)
class TestExclusiveCreates(OnEveryBackend, ExclusiveCreateConformance):
    pass


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
