"""What the configuration of all tests does to a test that fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
from pathlib import Path
import pytest

BUSY = "the query failed: Python worker failed to connect back."


def fail(name, *errors):
    place = Path(__file__).with_name(name)
    with place.open("a") as file:
        file.write("x")
    if (attempt := place.stat().st_size) <= len(errors):
        raise ValueError(errors[attempt - 1])


@pytest.fixture
def asked():
    fail("fixture", BUSY, BUSY)


def test_a_fixture(asked):
    pass


def test_a_while(tmp_path):
    assert not list(tmp_path.iterdir())
    (tmp_path / "left").touch()
    fail("while", BUSY)


def test_too_long():
    fail("too long", *[BUSY] * 9)


def test_another():
    fail("another", "another failure", "and one more")
"""


def test_a_test_is_tried_again_where_spark_gave_a_process_too_little_time_and_nowhere_else(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    (tmp_path / "test_again.py").write_text(CODE)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull),
            *pytestconfig.getini("addopts"),
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 failed, 2 passed" in done.stdout, done.stdout
    attempts = {
        name: (tmp_path / name).stat().st_size for name in ("fixture", "while", "too long", "another")
    }
    assert attempts == {"fixture": 3, "while": 2, "too long": 3, "another": 1}
