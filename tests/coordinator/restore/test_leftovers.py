"""What killed processes have left on a machine: found by locks and age, and nothing else is touched."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import attrs
import pytest

from chandy.coordinator.restore import leftovers
from chandy.coordinator.restore.leftovers import Places, clean
from chandy.coordinator.restore.run_record import boot_id
from chandy.storage.codec import to_json
from chandy.storage.disk.locks import acquire
from chandy.storage.disk.owners import OwnerRecord
from chandy.storage.disk.workspace import ALIVE

from .left_behind import RECORD, ROOT, left_behind

DAY = 24 * 3600.0


def tomorrow() -> float:
    return time.time() + DAY + 60


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "queries", tmp_path / "cache", tmp_path / "run")


def make(path: Path, alive: bytes = b"") -> Path:
    """Make a directory of the kind that the folder around it is for, or one with another program's file."""
    path.mkdir(parents=True)
    (path / "data").write_bytes(b"12345")
    (path / ALIVE).write_bytes(alive or to_json(OwnerRecord(path.parent.name)))
    return path


def driver(places: Places, name: str = "dead", query_id: str = "id", java: int = 0) -> Path:
    """Leave what a killed driver leaves; return the directory of the driver."""
    record = attrs.evolve(RECORD, query_id=query_id, java=java, boot=boot_id())
    left_behind(places.work, places.cache / "journals", record, committed=4, place=name)
    return places.work / name


def changelogs(places: Places, query_id: str = "id") -> Path:
    return places.cache / "journals" / query_id


def everything(places: Places) -> list[Path]:
    return [
        driver(places),
        changelogs(places),
        make(places.cache / "hosts" / "h"),
        make(places.cache / "changelogs" / "driver-h"),
        make(places.runtime / "meet" / "m"),
        make(places.runtime / "scratch" / "copy-x"),
    ]


def test_what_nobody_uses_is_told_with_its_size_and_age_and_deleted(places: Places) -> None:
    left = everything(places)
    found = clean(places, tomorrow(), DAY, dry_run=True)
    assert [one.path for one in found.deleted] == left
    assert [one.what for one in found.deleted[:2]] == [
        f"a driver of {ROOT}",
        f"changelogs of a driver of {ROOT}",
    ]
    assert found.deleted[2].bytes == 5 + len(to_json(OwnerRecord("hosts")))
    assert all(abs(one.written_at - time.time()) < DAY for one in found.deleted)
    assert all(path.exists() for path in left)
    assert clean(places, tomorrow(), DAY) == found
    assert not any(path.exists() for path in left)
    assert clean(places, tomorrow(), DAY).deleted == ()


def test_what_is_young_is_kept_for_a_pipeline_that_starts_again(places: Places) -> None:
    left = everything(places)
    found = clean(places, time.time(), DAY)
    assert [one.path for one in found.young] == left
    assert all(path.exists() for path in left)


def test_what_a_living_process_holds_is_kept(places: Places) -> None:
    left = everything(places)
    locks = [acquire(path / ALIVE) for path in left if (path / ALIVE).exists()]
    found = clean(places, tomorrow(), DAY)
    assert (found.deleted, found.in_use) == ((), 6)
    assert all(path.exists() for path in left)
    for lock in locks:
        lock.release()
    assert len(clean(places, tomorrow(), DAY).deleted) == 6


def test_what_a_jvm_may_still_write_into_is_kept(places: Places) -> None:
    driver(places, "with its JVM", "a", java=os.getpid())
    dead = driver(places, "dead", "b")
    assert [one.path for one in clean(places, tomorrow(), DAY).deleted] == [dead, changelogs(places, "b")]
    assert changelogs(places, "a").exists()


def test_changelogs_whose_driver_is_gone_are_deleted_and_those_of_drivers_elsewhere_stay(
    places: Places, tmp_path: Path
) -> None:
    shutil.rmtree(driver(places, "gone", "a"))
    elsewhere = attrs.evolve(places, work=tmp_path / "other work_dir")
    driver(elsewhere, "dead", "b")
    assert [one.path for one in clean(places, tomorrow(), DAY).deleted] == [changelogs(places, "a")]
    assert changelogs(places, "b").exists()


def test_a_driver_that_wrote_lately_keeps_its_old_changelogs(places: Places) -> None:
    old = driver(places)
    for path in [*changelogs(places).rglob("*"), changelogs(places)]:
        os.utime(path, (1, 1))
    found = clean(places, time.time(), DAY)
    assert [one.path for one in found.young] == [old, changelogs(places)]


def test_nothing_of_other_programs_is_touched(places: Places) -> None:
    # Somebody names a folder with other things in it.
    foreign = [
        make(places.work / "photos", b"a heartbeat"),
        make(places.cache / "hosts" / "x", b"1"),
        make(places.runtime / "meet" / "x", b"{}"),
        make(places.runtime / "scratch" / "chandy-copy-of-my-thesis", to_json(OwnerRecord("another kind"))),
        make(places.cache / "files" / "ab"),
    ]
    found = clean(places, tomorrow(), 0)
    assert (found.deleted, found.young, found.in_use) == ((), (), 0)
    assert [sorted(path.name for path in folder.iterdir()) for folder in foreign] == [[ALIVE, "data"]] * 5


def test_what_cannot_be_deleted_is_told_and_keeps_nothing_else(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = everything(places)
    rmtree = shutil.rmtree

    def refuse(path: Path, ignore_errors: bool = False) -> None:
        if path != left[0]:
            rmtree(path, ignore_errors)
        elif not ignore_errors:
            raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    found = clean(places, tomorrow(), DAY)
    assert found.failed.keys() == {str(left[0]), str(left[1])}
    assert "Permission denied" in found.failed[str(left[0])]
    assert [path.exists() for path in left] == [True, True, False, False, False, False]


def test_what_a_process_takes_at_the_last_moment_is_kept(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = driver(places)
    found = list(leftovers._find(places))
    held = acquire(left / ALIVE)
    monkeypatch.setattr(leftovers, "_find", lambda _: found)
    assert clean(places, tomorrow(), DAY).failed == {
        str(left): "a process has begun to use it",
        str(changelogs(places)): "a process has begun to use it",
    }
    assert left.exists()
    assert changelogs(places).exists()
    held.release()
