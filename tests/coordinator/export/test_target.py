"""An export's directory has all of it, or nothing that can be used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from chandy.coordinator.export.errors import ExportError
from chandy.coordinator.export.target import UNFINISHED, check_empty, directory_of, filled

from ...waiting import DEADLINE


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_a_directory_is_filled_when_all_is_written(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b"
    with filled(target, last="z") as folder:
        (folder / "z").mkdir()
        (folder / "z" / "deep").write_text("1")
        (folder / "a").write_text("2")
        assert [path.name for path in target.iterdir()] == [UNFINISHED]
    assert names(target) == ["a", "z", "z/deep"]
    assert names(tmp_path) == ["a", "a/b", "a/b/a", "a/b/z", "a/b/z/deep"]


def test_an_empty_directory_will_do(tmp_path: Path) -> None:
    with filled(tmp_path, last="") as folder:
        (folder / "a").touch()
    assert names(tmp_path) == ["a"]


def test_a_directory_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(ExportError, match=r"new or empty directory.*'mine'"), filled(tmp_path, last=""):
        pytest.fail("it must not be written to")
    assert names(tmp_path) == ["mine"]
    with pytest.raises(ExportError, match="found a file"):
        check_empty(tmp_path / "mine")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    with pytest.raises(ExportError, match="found a file"):
        check_empty(tmp_path / "nowhere")


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyError), filled(tmp_path / "new", last="") as folder:
        (folder / "a").touch()
        raise KeyError
    assert names(tmp_path) == []
    (tmp_path / "there").mkdir()
    with pytest.raises(KeyError), filled(tmp_path / "there", last=""):
        raise KeyError
    assert names(tmp_path) == ["there"]


def test_two_exports_at_once_do_not_mix(tmp_path: Path) -> None:
    with filled(tmp_path, last="") as folder:
        (folder / "a").touch()
        with pytest.raises(ExportError, match="being written, or was killed"), filled(tmp_path, last=""):
            pytest.fail("it must not be written to")
    assert names(tmp_path) == ["a"]


KILLED = """
import os, signal, sys
from pathlib import Path
from chandy.coordinator.export.target import filled

moves, rename = int(sys.argv[2]), Path.rename
left = [moves]

def counted(self, target):
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    return rename(self, target)

Path.rename = counted
with filled(Path(sys.argv[1]), last="checkpoints") as folder:
    for name in ("state", "checkpoints", "a", "z"):
        (folder / name).mkdir()
"""


@pytest.mark.parametrize("moves", range(4))
def test_a_killed_export_is_known_and_has_nothing_to_go_on_from(tmp_path: Path, moves: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), str(moves)], timeout=DEADLINE, check=False
    )
    assert done.returncode == -9
    assert UNFINISHED in names(tmp_path)
    assert "checkpoints" not in names(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1 + moves
    with pytest.raises(ExportError, match=r"was killed.*delete .* and export again"):
        check_empty(tmp_path)


def test_a_directory_of_another_file_system_is_refused() -> None:
    with pytest.raises(ExportError, match="local file system"):
        directory_of("s3://bucket/export")
    assert directory_of("file:///data/export") == Path("/data/export")
    assert directory_of("export") == Path.cwd() / "export"
