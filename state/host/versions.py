"""Whether an executor has the driver's versions of what must be the same everywhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Final

from ..errors import HostStartError
from ..local.machine import machine_name

SAME: Final = ("chandy", "rocksdict")
"""What must have one version everywhere: messages and files of state go from one to the other."""


def versions_of(packages: Iterable[str] = SAME) -> dict[str, str]:
    """Return the versions of packages in this process, without those that have none: one that came as a zip file."""
    # Imported here: a task in local mode does without it.
    import importlib.metadata

    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def check_same(driver: Mapping[str, str], here: Mapping[str, str]) -> None:
    """Check that this process may start a state host.

    Args:
        driver: the versions that the driver has, by package.
        here: those of this process.

    Raises:
        HostStartError: one differs. The error names this machine.
    """
    for name, version in driver.items():
        if here.get(name, version) != version:
            raise HostStartError(
                f"the executor on {machine_name()} cannot run operators",
                f"{name} {version}, which the driver has",
                f"{name} {here[name]} in {sys.executable}",
                f"install {name}=={version} there",
            )
