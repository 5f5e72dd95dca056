"""Which PySpark the workers have: never another than Spark's own."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from chandy.state.operators import daemon
from chandy.state.operators.daemon import without_archive


def installed(folder: Path, version: str) -> str:
    package = folder / "pyspark"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "version.py").write_text(version)
    return str(folder)


def archive(folder: Path, version: str) -> str:
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "pyspark.zip", "w") as file:
        file.writestr("pyspark/__init__.py", "")
        file.writestr("pyspark/version.py", version)
    return str(folder / "pyspark.zip")


def test_the_archive_is_left_out_where_the_same_pyspark_is_installed(tmp_path: Path) -> None:
    path = ["", archive(tmp_path / "spark", "4.3.0"), "/lib", installed(tmp_path / "site", "4.3.0")]
    assert without_archive(path) == ["", "/lib", path[3]]


def test_the_archive_stays_where_another_pyspark_is_installed(tmp_path: Path) -> None:
    path = [archive(tmp_path / "spark", "4.3.0"), installed(tmp_path / "site", "4.3.1")]
    assert without_archive(path) == path


def test_the_archive_stays_where_no_pyspark_is_installed(tmp_path: Path) -> None:
    path = [archive(tmp_path / "spark", "4.3.0"), str(tmp_path)]
    assert without_archive(path) == path


@pytest.mark.parametrize("damage", [b"", b"no archive"])
def test_an_archive_that_cannot_be_read_stays(tmp_path: Path, damage: bytes) -> None:
    path = [archive(tmp_path / "spark", "4.3.0"), installed(tmp_path / "site", "4.3.0")]
    Path(path[0]).write_bytes(damage)
    assert without_archive(path) == path


def test_a_path_without_an_archive_stays(tmp_path: Path) -> None:
    path = [str(tmp_path / "missing" / "pyspark.zip"), installed(tmp_path / "site", "4.3.0")]
    assert without_archive(path[1:]) == path[1:]
    assert without_archive(path) == path[1:]


def test_the_daemon_loads_nothing_of_pyspark_before_it_has_chosen() -> None:
    program = f"import sys, {daemon.__name__}; print(*sys.modules, sep='\\n')"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {name for name in loaded.stdout.split() if name.startswith("pyspark")}


TELL = "print(*sys.modules, sep='\\n')"


def told_by(*lines: str) -> str:
    """What a program prints whose daemon names the modules that it has loaded, where it would start workers."""
    program = ["import sys, pyspark.daemon", "from chandy.state.operators import daemon"]
    program += [f"pyspark.daemon.manager = lambda: {TELL}", *lines]
    ran = subprocess.run(
        [sys.executable, "-c", "\n".join(program)], capture_output=True, text=True, check=True
    )
    return ran.stdout


def test_the_packages_that_tasks_import_are_loaded_before_workers_are_forked() -> None:
    told = told_by("daemon.main()", "print('a worker:')", "import chandy.barrier.task", TELL)
    forked, worker = (set(part.split()) for part in told.split("a worker:"))
    assert "chandy.barrier.task" in worker - forked
    assert {name.partition(".")[0] for name in worker - forked} == {"chandy"}


def test_a_package_that_cannot_be_imported_ends_no_workers_but_those_that_need_it() -> None:
    told = told_by("sys.modules['pyarrow'] = None", "daemon.main()").split()
    assert "chandy.state.host" in told
    assert "chandy.state.host.discovery" not in told
