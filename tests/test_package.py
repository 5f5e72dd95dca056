"""The distributions: what a wheel and a source distribution have, and whether an installed one works."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.examples]

ROOT = Path(__file__).parents[1]
FOLDERS = ("coordinator", "barrier", "state", "storage")

PROGRAM = """
import importlib.metadata, importlib.resources, sys
import chandy

assert chandy.__file__.startswith(sys.prefix), chandy.__file__
assert chandy.__version__ == importlib.metadata.version("chandy")
for package in (chandy, chandy.coordinator, chandy.state):
    for name in package.__all__:
        getattr(package, name)
for name in ("alerts.yaml", "dashboard.json"):
    assert importlib.resources.files("chandy.coordinator.monitor").joinpath(name).read_bytes()
for package in ("chandy", "chandy.coordinator", "chandy.barrier", "chandy.state", "chandy.storage"):
    assert importlib.resources.files(package).joinpath("py.typed").is_file()
"""


def run(*command: str | Path, at: Path) -> str:
    done = subprocess.run(command, cwd=at, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project without builds and caches."""
    copy = tmp_path_factory.mktemp("source")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source, at=folder)
    return folder


def modules(names: list[str]) -> set[str]:
    return {name for name in names if name.endswith((".py", ".pyi", ".json", ".yaml", "py.typed"))}


def test_both_have_all_modules_and_the_licence(built: Path, source: Path) -> None:
    mine = {str(path.relative_to(source)) for folder in FOLDERS for path in (source / folder).rglob("*.*")}
    (wheel,), (sources,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        packed = archive.namelist()
    installed = {
        name.replace("coordinator/face/", "chandy/") if "face/" in name else f"chandy/{name}"
        for name in modules(list(mine))
    }
    assert modules(packed) == installed
    assert any(name.endswith("licenses/LICENSE") for name in packed)
    with tarfile.open(sources) as archive:
        shipped = {name.partition("/")[2] for name in archive.getnames()}
    assert modules(list(mine)) <= shipped
    assert {"LICENSE", "README.md", "setup.cfg", "pyproject.toml"} <= shipped


def test_what_an_index_shows_of_them_is_in_order(built: Path) -> None:
    shown = run(sys.executable, "-m", "twine", "check", "--strict", *built.iterdir(), at=built)
    assert shown.count("PASSED") == 2


@pytest.fixture(scope="module")
def programs(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the programs of an environment in which the wheel is installed."""
    # What it depends on is this environment's; the folder of the sources is on no path.
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    run(
        *(sys.executable, "-m", "pip", "--python", python, "install"),
        *("--quiet", "--no-deps", "--no-index", wheel),
        at=folder,
    )
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", at=folder).strip()
    Path(packages, "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return python.parent


def test_an_installed_one_works_without_the_sources(programs: Path, tmp_path: Path) -> None:
    run(programs / "python", "-I", "-c", PROGRAM, at=tmp_path)
    assert "savepoint" in run(programs / "chandy", "--help", at=tmp_path)


@pytest.mark.kills
def test_the_demo_of_an_installed_one_is_killed_and_right(programs: Path, tmp_path: Path) -> None:
    said = run(programs / "chandy", "demo", "--keep", at=tmp_path)
    assert re.search(
        r"restored checkpoint \d+, and went on with batch \d+\nAfter (\d+) batches, each digit has", said
    )
    _, kept = said.rsplit("chandy list ")
    try:
        assert "digits" in run(programs / "chandy", "list", kept.strip(), at=tmp_path)
    finally:
        shutil.rmtree(Path(kept.strip()).parent)
