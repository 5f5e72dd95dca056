"""All pipelines of a storage in one list: who leads each, and how far it has come; and the pages of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
from typing_extensions import override

from chandy.coordinator.listening import Page
from chandy.coordinator.monitor.page.listing import storage_page
from chandy.coordinator.monitor.page.render import html
from chandy.coordinator.monitor.server import Monitor
from chandy.coordinator.monitor.storage_routes import StorageRoutes
from chandy.coordinator.monitor.stored import StoredPipeline
from chandy.coordinator.monitor.stored_pipelines import PipelineStanding, StoredPipelines, standing
from chandy.coordinator.monitor.trend_keeper import TrendKeeper
from chandy.coordinator.monitor.trends import Measured
from chandy.coordinator.recovery.pipeline_events import PipelineEnded
from chandy.state.local.machine import machine_id
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.fencing import DriverRecord
from chandy.storage.checkpoints.journal import Journal, JournalEntry
from chandy.storage.errors import StoreFailedError
from chandy.storage.store import Store
from tests.builders import MemoryStore, make_manifest

from .parsed_page import Parsed
from .served import ask

LED = DriverRecord(1, "node-7", "another machine", 41, 1, 42, 1)


def fill(store: Store, leader: DriverRecord | None = None) -> StoredPipeline:
    """A pipeline with a checkpoint and a driver."""
    catalog = Catalog(store)
    generation = catalog.take_over("me", 1.0).generation
    catalog.commit(make_manifest(1, generation, triggered_at=10.0, completed_at=12.0))
    if leader is not None:
        catalog.take_leadership(attrs.evolve(leader, generation=generation))
    return StoredPipeline(catalog, lambda: 100.0)


def test_a_pipeline_says_who_leads_it_and_how_far_it_has_come() -> None:
    store = MemoryStore()
    led = fill(store, LED)
    keeper = TrendKeeper(store, 1, lambda: 90.0)
    keeper.add(Measured(batches=1, behind=1234.0))
    keeper.take(PipelineEnded(at=91.0, error=None))
    found = standing("a", led)
    assert (found.state, found.is_well, found.leader, found.generation) == (
        "is led",
        None,
        "node-7, pid 41",
        1,
    )
    assert (found.checkpoint, found.completed_at, found.behind) == (1, 12.0, 1234.0)
    (row,) = storage_page("s3://b", [found], 100.0).rows
    assert (row.behind, row.checkpoint, row.leader) == (
        "1,234",
        "1, 1 min 28 s ago",
        "node-7, pid 41, 1st driver",
    )


def test_a_driver_that_is_gone_is_told_from_one_that_has_stopped_and_one_that_failed() -> None:
    # No process has this start.
    gone = attrs.evolve(
        LED, machine=machine_id(), pid=os.getpid(), started=1, java=os.getpid(), java_started=1
    )
    assert (standing("a", fill(MemoryStore(), gone)).state, standing("a", fill(MemoryStore())).state) == (
        "its driver is gone",
        "nobody leads it",
    )
    store = MemoryStore()
    pipeline = fill(store)
    Journal(store, 1).add(JournalEntry(at=15.0, what="failed for good", says="a disk was full"))
    found = standing("a", pipeline)
    assert (found.state, found.is_well) == ("has failed for good", False)
    # Another driver has gone on since.
    Catalog(store).take_over("me", 20.0)
    assert standing("a", pipeline).state == "nobody leads it"


def test_a_storage_that_is_away_is_said_of_each_pipeline() -> None:
    class Away(MemoryStore):
        is_away = False

        @override
        def list(self, prefix: str = "") -> list[str]:
            if self.is_away:
                raise StoreFailedError(self.uri, prefix, "list", "it is away")
            return super().list(prefix)

    store = Away()
    pipeline = fill(store)
    store.is_away = True
    found = standing("a", pipeline)
    assert "cannot be read" in found.state
    assert found.is_well is False


def test_names_and_states_are_text() -> None:
    evil = "<script>alert(1)</script>"
    page = html(
        storage_page(evil, [PipelineStanding(name=evil, state=evil, is_well=False, leader=evil)], 1.0, evil)
    )
    assert "<script>alert" not in page
    assert Parsed(page).text.count(evil) >= 5
    assert "/pipelines/%3Cscript%3Ealert%281%29%3C%2Fscript%3E/" in page


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[[str], tuple[int, str]]]:
    """Asks a server of a storage with two pipelines and a replica of one."""
    for name in ("orders", "returns", "orders.replica.warehouse"):
        fill(LocalStore(tmp_path / name))
    routes = StorageRoutes(StoredPipelines(str(tmp_path), lambda: 100.0))
    monitor = Monitor.begin(routes, Page("127.0.0.1:0"))
    yield lambda path: ask(monitor, path)
    monitor.close()


def test_the_list_leads_to_each_pipeline(served: Callable[[str], tuple[int, str]]) -> None:
    status, text = served("/")
    page = Parsed(text)
    assert status == 200
    links = [one["href"] for one in page.of("a") if (one["href"] or "").startswith("/pipelines/")]
    assert links == ["/pipelines/orders/", "/pipelines/returns/", "/pipelines/orders.replica.warehouse/"]
    assert "a replica of orders" in page.text
    for link in links[:2]:
        status, text = served(str(link))
        assert status == 200
        assert "Stored:" in text
        # All that it leads to is below it.
        inside = [one["href"] for one in Parsed(text).of("a") if not (one["href"] or "").startswith("#")]
        assert inside
        assert all(str(one).startswith(str(link)) for one in inside)
        assert {served(str(one))[0] for one in inside} == {200}
    assert served("/pipelines/nobody/")[0] == 404
    assert served("/healthz") == (200, "ok\n")


def test_a_list_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    monitor = Monitor.begin(StorageRoutes(StoredPipelines(str(tmp_path), lambda: 100.0)), Page("127.0.0.1:0"))
    status, text = ask(monitor, "/")
    monitor.close()
    assert (status, "there are no checkpoints in" in text) == (200, True)
