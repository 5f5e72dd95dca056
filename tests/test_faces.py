"""What packages hand on, and what a process loads that imports them: each pays for what it uses."""

from __future__ import annotations

import configparser
import pkgutil
import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.processes

FACES = ("chandy", "chandy.coordinator", "chandy.state", "chandy.storage")


def public_names(package: ModuleType) -> list[str]:
    """The names that a package hands on; only one that imports them late has a list of them."""
    listed: list[str] | None = getattr(package, "__all__", None)
    return listed or [name for name, value in vars(package).items() if isinstance(value, type)]


@pytest.mark.parametrize("face", (*FACES, "chandy.testing"))
def test_every_name_that_a_package_hands_on_is_there(face: str) -> None:
    package = import_module(face)
    assert public_names(package) != []
    assert [name for name in public_names(package) if getattr(package, name, None) is None] == []


@pytest.mark.parametrize("face", FACES)
def test_no_name_is_hidden_by_a_module_of_the_same_name(face: str) -> None:
    # Once it is imported, a module is an attribute of its package, and ``__getattr__`` is not asked any more.
    package = import_module(face)
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert modules.isdisjoint(public_names(package))


@pytest.mark.parametrize("face", FACES)
def test_a_name_that_a_package_does_not_have_is_an_attribute_error(face: str) -> None:
    with pytest.raises(AttributeError, match=f"{face}.*nonsense"):
        getattr(import_module(face), "nonsense")  # noqa: B009 (a plain access would not type-check)


@pytest.mark.parametrize(
    ("module", "without"),
    [
        # A driver that comes back after a failure, and the first task in a worker: everybody waits for both.
        ("chandy.coordinator.coordinator", {"pandas", "rocksdict", "structlog", "fsspec"}),
        ("chandy.barrier.task", {"pandas", "rocksdict", "structlog", "fsspec", "chandy.state.aggregation"}),
        ("chandy.state.host.process", {"pandas", "pyspark", "fsspec"}),
        ("chandy", {"pandas", "pyspark", "pyarrow", "attrs", "chandy.state", "chandy.coordinator"}),
    ],
)
def test_a_process_does_not_load_what_it_does_not_need_yet(module: str, without: set[str]) -> None:
    program = f"import sys, {module}; print(*sys.modules, sep='\\n')"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert set(loaded.stdout.split()) & without == set()


def test_programs_import_what_they_use_from_the_package_itself() -> None:
    import chandy
    from chandy import CheckpointCoordinator
    from chandy.coordinator import CheckpointCoordinator as Known

    assert CheckpointCoordinator is Known
    assert chandy.__version__ == metadata.version("chandy")


def test_every_package_is_part_of_a_distribution() -> None:
    root = Path(__file__).parents[1]
    settings = configparser.ConfigParser()
    settings.read(root / "setup.cfg")
    folders = dict(line.split(" = ") for line in settings["options"]["package_dir"].strip().splitlines())
    listed = {_folder(package, folders) for package in settings["options"]["packages"].split()}
    found = {
        str(path.parent.relative_to(root))
        for part in ("coordinator", "barrier", "state", "storage")
        for path in (root / part).rglob("__init__.py")
    }
    assert listed == found


def _folder(package: str, folders: dict[str, str]) -> str:
    """The folder of a package: its own, or below that of the nearest package above it that has one."""
    if package in folders:
        return folders[package]
    above, _, name = package.rpartition(".")
    return f"{_folder(above, folders)}/{name}"
