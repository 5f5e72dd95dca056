"""The connector in ``examples/connector``, as its author would test it: outside of this project's tests."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.examples
FOLDER = Path(__file__).parents[2] / "examples" / "connector"


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, "-c", str(FOLDER / "pyproject.toml"), *arguments],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def test_the_sink_keeps_what_every_sink_must() -> None:
    assert " passed" in (said := run()), said
    assert "failed" not in said


def test_the_kit_finds_a_sink_that_lets_an_earlier_life_publish(tmp_path: Path) -> None:
    (tmp_path / "test_chandy_sqlite.py").write_text((FOLDER / "test_chandy_sqlite.py").read_text())
    source = (FOLDER / "chandy_sqlite.py").read_text()
    right = "position = found.taken_by(attrs.evolve(self.fence, may_take_over=False))"
    assert right in source
    (tmp_path / "chandy_sqlite.py").write_text(source.replace(right, "position = found"))
    said = run("--rootdir", str(tmp_path), str(tmp_path))
    assert "test_an_earlier_life_publishes_nothing_any_more" in said
    assert "failed" in said


def test_the_project_names_its_module() -> None:
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text())
    assert [f"{name}.py" for name in project["tool"]["setuptools"]["py-modules"]] == ["chandy_sqlite.py"]
    assert project["project"]["dependencies"] == ["chandy"]
