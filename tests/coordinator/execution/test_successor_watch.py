"""When a driver looks for a successor, and who is told of one."""

from __future__ import annotations

import pytest

from chandy.coordinator.execution.successor_watch import SuccessorWatch
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.errors import FencedError, StoreFailedError

from ...builders import MemoryStore
from ...waiting import eventually
from ..stand_ins import watch_of


@pytest.fixture
def catalog() -> Catalog:
    return Catalog(MemoryStore())


@pytest.mark.parametrize("takeover_timeout", [0.0, 1.0, 2.0, 30.0])
def test_a_proof_is_no_older_than_half_of_what_a_successor_waits(
    catalog: Catalog, takeover_timeout: float
) -> None:
    now = [100.0]
    watch = SuccessorWatch(
        catalog,
        catalog.take_over("one", 0.0).generation,
        clock=lambda: now[0],
        trusts_look=takeover_timeout / 2,
        hold_lease=lambda: 0.0,
        within=None,
    )
    watch.proof.check()
    assert watch.pause <= max(takeover_timeout / 4, 0.05)
    catalog.take_over("another", 0.0)
    now[0] += takeover_timeout / 2 + 0.01
    with pytest.raises(FencedError):
        watch.proof.check()


def test_a_watch_that_has_not_looked_yet_proves_nothing(catalog: Catalog) -> None:
    """The driver may have been frozen since it has claimed its generation."""
    generation = catalog.take_over("one", 0.0).generation
    catalog.take_over("another", 0.0)
    with pytest.raises(FencedError):
        watch_of(catalog, generation, trusts_look=1000.0).proof.check()


def test_a_look_before_a_gap_of_the_lease_proves_nothing(catalog: Catalog) -> None:
    held_since = [0.0]
    watch = SuccessorWatch(
        catalog,
        catalog.take_over("one", 0.0).generation,
        clock=lambda: 100.0,
        trusts_look=1000.0,
        hold_lease=lambda: held_since[0],
        within=None,
    )
    watch.proof.check()
    catalog.take_over("another", 0.0)
    watch.proof.check()
    held_since[0] = 101.0
    with pytest.raises(FencedError):
        watch.proof.check()


def test_a_successor_is_noticed_without_anybody_asking_and_told_once(catalog: Catalog) -> None:
    watch = watch_of(catalog, catalog.take_over("one", 0.0).generation, trusts_look=0.0)
    told: list[FencedError] = []
    watch.listen(told.append)
    watch.begin()
    successor = catalog.take_over("another", 0.0)
    eventually(lambda: bool(told))
    with pytest.raises(FencedError):
        watch.proof.check_now()
    assert [error.by for error in told] == [successor.generation]
    watch.close()


def test_who_listens_after_a_successor_was_found_is_told(catalog: Catalog) -> None:
    watch = watch_of(catalog, catalog.take_over("one", 0.0).generation)
    catalog.take_over("another", 0.0)
    with pytest.raises(FencedError):
        watch.proof.check_now()
    told: list[FencedError] = []
    watch.listen(told.append)
    assert len(told) == 1


def test_once_fenced_a_proof_says_so_though_the_store_is_away(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = watch_of(catalog, catalog.take_over("one", 0.0).generation)
    watch.fence(FencedError("store", 1, 2, "another"))

    def is_away(*_: object) -> None:
        raise StoreFailedError("store", "key", "read", "it is away", transient=True)

    monkeypatch.setattr(MemoryStore, "list", is_away)
    monkeypatch.setattr(MemoryStore, "read", is_away)
    for check in (watch.proof.check, watch.proof.check_now, watch.look):
        with pytest.raises(FencedError):
            check()
