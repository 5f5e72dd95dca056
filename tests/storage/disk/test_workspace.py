"""Directories that a process holds, also against cleaners of temporary directories."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
import pytest

from chandy.storage.codec import to_json
from chandy.storage.disk import owners
from chandy.storage.disk.owners import OwnerRecord, write_owner
from chandy.storage.disk.workspace import ALIVE, Workspace, remove_unless_held, workspaces

MINE: Final = OwnerRecord("mine", "us")


def may_be_cleaned(folder: Path) -> bool:
    """Whether a cleaner may delete what is old in a folder: systemd-tmpfiles takes this lock first."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


@pytest.mark.parametrize("end", [Workspace.release, Workspace.remove])
def test_cleaners_leave_a_directory_alone_as_long_as_it_is_held(tmp_path: Path, end: object) -> None:
    workspace = Workspace.create(tmp_path / "base", "mine", MINE)
    other = Workspace.create(tmp_path / "base", "other", MINE)
    assert not may_be_cleaned(workspace.path)
    assert callable(end)
    end(workspace)
    if workspace.path.exists():
        assert may_be_cleaned(workspace.path)
    assert not may_be_cleaned(other.path)
    other.remove()
    assert not other.path.exists()


def test_a_directory_that_a_cleaner_is_just_looking_at_is_held_nevertheless(tmp_path: Path) -> None:
    base = tmp_path / "base"
    (base / "mine").mkdir(parents=True, mode=0o700)
    base.chmod(0o700)
    descriptor = os.open(base / "mine", os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    workspace = Workspace.create(base, "mine", MINE)
    os.close(descriptor)
    workspace.remove()
    assert not workspace.path.exists()


def foreign(base: Path) -> Iterator[Path]:
    """Yield directories that look much like Chandy's and have no record of it."""
    records = {
        "heartbeat": b"2026-11-29 12:00\n",
        "json": b'{"kind": "mine", "of": "us", "program": "another"}',
        "array": b"[]",
        "number": b"7",
        "an-earlier-version": b"",
        "large": b" " * (1 << 17) + to_json(MINE),
        "other-kind": to_json(attrs.evolve(MINE, kind="other")),
    }
    for name, record in records.items():
        (base / name).mkdir()
        (base / name / ALIVE).write_bytes(record)
        yield base / name
    for name in ("without", "pipe", "link", "folder"):
        (base / name).mkdir()
        yield base / name
    os.mkfifo(base / "pipe" / ALIVE)
    write_owner(base / ".record", MINE)
    (base / "link" / ALIVE).symlink_to(base / ".record")
    (base / "folder" / ALIVE).mkdir()


def test_only_what_a_record_of_ones_own_names_is_removed_and_the_rest_is_not_even_opened(
    tmp_path: Path,
) -> None:
    base = tmp_path / "base"
    living = Workspace.create(base, "living", MINE)
    dead = Workspace.create(base, "dead", MINE)
    (dead.path / "data").write_text("x")
    dead.release()
    others = list(foreign(base))
    for path in others:
        (path / "data").write_text("a year of work")
    before = {path: sorted(path.iterdir()) for path in others}
    assert workspaces(base, MINE.kind) == [dead.path, living.path]
    assert not any(
        remove_unless_held(path, MINE.kind, "start", ALIVE) for path in [*others, base / "nothing"]
    )
    new = Workspace.create(base, "new", MINE)
    assert not dead.path.exists()
    assert {path: sorted(path.iterdir()) for path in others} == before
    assert workspaces(base, MINE.kind) == [living.path, new.path]
    living.remove()
    assert workspaces(base, MINE.kind) == [new.path]
    new.remove()


def test_what_is_deleted_in_part_is_still_known_by_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = Workspace.create(tmp_path / "base", "dead", MINE)
    (dead.path / "folder").mkdir()
    rmtree = shutil.rmtree
    for name in ("a", "zzz"):
        (dead.path / name).write_text("x")
    with monkeypatch.context() as patch:
        # Killed when all but the record is gone.
        patch.setattr(owners.shutil, "rmtree", lambda path, **_: None if path == dead.path else rmtree(path))
        dead.remove()
    assert [path.name for path in dead.path.iterdir()] == [ALIVE]
    Workspace.create(tmp_path / "base", "next", MINE).remove()
    assert not dead.path.exists()
