"""Directories for files of a moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chandy.storage.disk.scratch import SCRATCH, scratch_directory

KILLED = """
import os, signal
from chandy.storage.disk.scratch import scratch_directory
with scratch_directory("copy") as folder:
    (folder / "data").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHANDY_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path / "run"


def left(runtime: Path) -> list[Path]:
    return [path for path in (runtime / SCRATCH).iterdir() if path.is_dir()]


def test_a_scratch_directory_is_empty_private_and_gone_in_the_end(runtime: Path) -> None:
    with scratch_directory("copy") as folder, scratch_directory("copy") as other:
        assert folder != other
        assert list(folder.iterdir()) == []
        assert (runtime / SCRATCH).stat().st_mode & 0o077 == 0
        (folder / "data").write_bytes(b"x")
    assert left(runtime) == []
    with pytest.raises(ZeroDivisionError), scratch_directory("copy") as folder:
        raise ZeroDivisionError
    assert left(runtime) == []


def test_what_a_killed_process_has_left_goes_with_the_next_one_and_what_others_use_stays(
    runtime: Path,
) -> None:
    with scratch_directory("mine") as mine:
        killed = subprocess.run([sys.executable, "-c", KILLED], env=dict(os.environ), check=False)
        assert killed.returncode == -signal.SIGKILL
        assert len(left(runtime)) == 2
        (runtime / SCRATCH / "copy-of-my-thesis").mkdir()
        with scratch_directory("next"):
            assert mine.is_dir()
            assert sorted(path.name.partition("-")[0] for path in left(runtime)) == ["copy", "mine", "next"]
    assert [path.name for path in left(runtime)] == ["copy-of-my-thesis"]
