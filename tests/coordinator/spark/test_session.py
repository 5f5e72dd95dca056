"""What the coordinator reads from a Spark session and sets in it. The session is a plain object."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chandy.coordinator.spark import session

from ..stand_ins import Spark


def prepared(master: str, **conf: str) -> Any:
    spark: Any = Spark(master, **conf)
    session.use_this_python(spark)
    return spark


def test_local_workers_run_by_this_python_unless_another_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert prepared("local[*]").pythonExec == sys.executable
    assert prepared("spark://host:7077").pythonExec == "python3"
    monkeypatch.setenv("PYSPARK_PYTHON", "/their/python")
    assert prepared("local[*]").pythonExec == "/their/python"


def test_local_workers_that_run_by_this_python_have_its_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert prepared("local[2]").conf == {session.DAEMON: "chandy.state.operators.daemon"}
    assert prepared("local[2]", **{session.DAEMON: "theirs"}).conf == {session.DAEMON: "theirs"}
    assert prepared("spark://host:7077").conf == {}
    monkeypatch.setenv("PYSPARK_PYTHON", "/their/python")
    assert prepared("local[2]").conf == {}


@pytest.mark.parametrize("command", ["python", "python3", "{bin}/python3"])
def test_this_python_is_known_by_any_of_its_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    own, other = environment(tmp_path / "own"), environment(tmp_path / "other")
    monkeypatch.setattr(sys, "executable", str(own / "python"))
    monkeypatch.setenv("PATH", str(own))
    assert session.is_this_python(command.format(bin=own))
    # The same file, but with other packages.
    monkeypatch.setenv("PATH", str(other))
    assert not session.is_this_python(command.format(bin=other))
    assert not session.is_this_python("/nowhere/python")


def environment(folder: Path) -> Path:
    """Make a folder with the links that a virtual environment has to Python; return it."""
    folder.mkdir()
    for name in ("python", "python3"):
        (folder / name).symlink_to(sys.executable)
    return folder


@pytest.mark.parametrize(
    ("master", "host"),
    [
        ("local", "127.0.0.1"),
        ("local[*]", "127.0.0.1"),
        ("local[2,3]", "127.0.0.1"),
        ("local-cluster[2,1,1024]", "driver.example"),
        ("spark://local:7077", "driver.example"),
    ],
)
def test_executors_of_their_own_reach_the_driver_by_its_name(master: str, host: str) -> None:
    spark: Any = Spark(master, **{"spark.driver.host": "driver.example"})
    assert session.driver_host(spark) == host
    assert session.is_local_mode(spark) == (host == "127.0.0.1")


@pytest.mark.parametrize(("command", "timeout", "code"), [(["cat"], 60.0, 0), (["sleep", "600"], 0.0, -9)])
def test_java_ends_with_its_input_or_is_killed(command: list[str], timeout: float, code: int) -> None:
    java = subprocess.Popen(command, stdin=subprocess.PIPE)
    spark: Any = SimpleNamespace(
        sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=java)), stop=lambda: None
    )
    assert session.end(spark, timeout) == code
