"""Directories that a process holds, also against cleaners of temporary directories."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from chandy.storage.disk.workspace import Workspace


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
    workspace = Workspace.create(tmp_path / "base", "mine")
    other = Workspace.create(tmp_path / "base", "other")
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
    workspace = Workspace.create(base, "mine")
    os.close(descriptor)
    workspace.remove()
    assert not workspace.path.exists()
