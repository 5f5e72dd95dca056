"""What README.md tells users to paste works when it is pasted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

README = Path(__file__).parents[2] / "README.md"


def test_the_quick_start_runs_twice_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    storage = str(tmp_path / "storage")
    assert "/tmp/chandy-quickstart" in code
    (tmp_path / "quickstart.py").write_text(code.replace("/tmp/chandy-quickstart", storage))
    outputs = [run(tmp_path, sys.executable, "quickstart.py") for _ in range(2)]
    assert "restored: None" in outputs[0]
    for output in outputs:
        assert "checkpoint: Checkpoint(id=" in output
        assert "savepoint: Checkpoint(id=" in output
    assert "restored: Checkpoint(id=" in outputs[1]
    for command in ("list", "show", "verify"):
        assert run(tmp_path, str(Path(sys.executable).with_name("chandy")), command, storage)


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "CHANDY_RUNTIME_DIR": str(folder / "r")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    return done.stdout
