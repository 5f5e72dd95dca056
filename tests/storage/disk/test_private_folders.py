"""Folders of this user alone: those above them, too."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from chandy.storage.checkpoints.files import FileCache
from chandy.storage.disk.directories import make_private_folder


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """As most users have it: what they make is for all to read."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(*folders: Path) -> list[int]:
    return [stat.S_IMODE(folder.stat().st_mode) for folder in folders]


def test_all_that_is_made_is_private_and_what_was_there_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    folder = tmp_path / "there" / "a" / "b" / "c"
    for _ in range(2):
        make_private_folder(folder)
        assert modes(folder, *list(folder.parents)[:3]) == [0o700, 0o700, 0o700, 0o755]


def test_a_folder_that_can_never_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with pytest.raises(NotADirectoryError):
        make_private_folder(tmp_path / "file" / "folder")
    with pytest.raises(FileNotFoundError):
        make_private_folder(tmp_path / "link" / "folder")


def test_the_first_file_of_a_cache_leaves_nothing_open_to_others(tmp_path: Path) -> None:
    (tmp_path / "1.sst").write_bytes(b"x")
    cache = FileCache(tmp_path / "run" / "cache")
    cache.put("ab" * 32, tmp_path / "1.sst")
    folders = [tmp_path / "run", cache.directory, cache.files, cache.files / "ab"]
    assert modes(*folders) == [0o700] * 4
