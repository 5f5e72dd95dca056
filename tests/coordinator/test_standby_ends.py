"""What a coordinator that stands by leaves to its standbys when it ends, and what one restores whose turn has come."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator, coordinator
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.catalog import Catalog

from ..builders import make_manifest
from ..waiting import DEADLINE
from .stand_in_pipeline import cluster


@pytest.fixture(autouse=True)
def stands_by(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once a driver stands by. There is nothing to warm up."""
    begun = threading.Event()
    monkeypatch.setattr(coordinator, "warm_up", lambda spark, coordinators, needed: begun.set())
    return begun


def standing_by(folder: Path, restore: str = "latest") -> CheckpointCoordinator:
    return CheckpointCoordinator(
        cluster(),
        pipeline="p",
        storage=str(folder / "store"),
        config=CheckpointConfig(
            shared=True, interval=None, work_dir=str(folder / "work"), cache_dir=str(folder / "cache")
        ),
        restore=restore,
        standby=True,
    )


def was_stopped(folder: Path) -> bool:
    lease = Catalog(LocalStore(folder / "store" / "p")).lease(1)
    assert lease is not None
    return lease.stopped


def test_a_stop_is_on_purpose_unless_it_hands_over(tmp_path: Path) -> None:
    standing_by(tmp_path / "a").stop()
    standing_by(tmp_path / "b").stop(hand_over=True)
    assert (was_stopped(tmp_path / "a"), was_stopped(tmp_path / "b")) == (True, False)


def test_a_program_that_fails_hands_over_and_one_that_is_interrupted_does_not(tmp_path: Path) -> None:
    with pytest.raises(ValueError), standing_by(tmp_path / "a"):
        raise ValueError
    with pytest.raises(KeyboardInterrupt), standing_by(tmp_path / "b"):
        raise KeyboardInterrupt
    with standing_by(tmp_path / "c"):
        pass
    assert [was_stopped(tmp_path / name) for name in "abc"] == [False, True, True]


@pytest.mark.parametrize(("completed", "restored"), [(False, None), (True, 1)])
def test_a_standby_restores_what_its_leader_has_completed_else_what_it_was_told_to(
    tmp_path: Path, stands_by: threading.Event, completed: bool, restored: int | None
) -> None:
    catalog = Catalog(LocalStore(tmp_path / "store" / "p"))
    leader = standing_by(tmp_path)
    made: list[CheckpointCoordinator] = []
    waiting = threading.Thread(target=lambda: made.append(standing_by(tmp_path, "none")), daemon=True)
    waiting.start()
    assert stands_by.wait(DEADLINE)
    assert not made
    if completed:
        catalog.commit(make_manifest(1, 1, queries=(), operators=()))
    leader.stop(hand_over=True)
    waiting.join(DEADLINE)
    (second,) = made
    assert (second.restored.id if second.restored else None) == restored
    assert catalog.newest_generation() == 2
    second.stop()
