"""Whether executors can run what the driver sends them: Chandy, RocksDB and Arrow in the driver's versions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import attrs

from ...state.host.versions import SAME, versions_of
from ..errors import SetupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES: Final = ("chandy", "rocksdict", "pyarrow")
"""What state hosts and tasks cannot do without."""
_TASKS_PER_CORE: Final = 2


@attrs.frozen
class FoundExecutor:
    """What a task has found on its executor."""

    machine: str
    python: str
    """The path of the interpreter."""
    versions: tuple[tuple[str, str | None], ...]
    """By package; empty if it is there, without a version; None if it is not there."""


def executor_addresses(spark: SparkSession) -> frozenset[str]:
    """Return an address of each executor that Spark has now, and the driver's own."""
    return frozenset(
        str(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().keySet().mkString(" ")).split()
    )


def executor_hosts(spark: SparkSession) -> dict[str, str]:
    """Return the address of each executor that takes tasks, without its port, by the executor's id."""
    scheduler = spark.sparkContext._jsc.sc().taskScheduler()
    found = {}
    for host in {address.rpartition(":")[0] for address in executor_addresses(spark)}:
        # Without those that are decommissioned. The driver is no executor.
        ids = scheduler.getExecutorsAliveOnHost(host)
        found.update(dict.fromkeys(str(ids.get().mkString(" ")).split(), host) if ids.isDefined() else {})
    return found


def executor_ids(spark: SparkSession) -> frozenset[str]:
    """Return Spark's ids of the executors that are there."""
    return frozenset(str(spark.sparkContext._jsc.sc().getExecutorIds().mkString(" ")).split())


def decommissioned(spark: SparkSession) -> frozenset[str]:
    """Return the ids of the executors that Spark decommissions just now: no task starts there, and they end soon."""
    scheduler = spark.sparkContext._jsc.sc().taskScheduler()
    return frozenset(
        one for one in executor_ids(spark) if scheduler.getExecutorDecommissionState(one).isDefined()
    )


def check_executors(spark: SparkSession) -> None:
    """Check the executors that are there now, by a job of a second.

    An executor that joins later checks itself before it starts its state host.

    Raises:
        SetupError: one lacks a package, or has another version of it than the driver. The error names it.
    """
    context = spark.sparkContext
    tasks = max(1, context.defaultParallelism) * _TASKS_PER_CORE
    rows = context.parallelize(range(tasks), tasks).mapPartitions(_look()).distinct().collect()
    judge([FoundExecutor(machine, python, versions) for machine, python, versions in rows], versions_here())


def versions_here() -> dict[str, str | None]:
    """Return the versions of the packages in this process."""
    found = versions_of(PACKAGES)
    return {name: found.get(name) for name in PACKAGES}


def judge(found: Iterable[FoundExecutor], driver: Mapping[str, str | None]) -> None:
    """Compare executors with the driver.

    Raises:
        SetupError: as for ``check_executors``.
    """
    for one in sorted(found, key=lambda found: (found.machine, found.python)):
        for name, version in one.versions:
            if version is None:
                raise _unfit(one, f"the package {name}", "none", f"install {_wanted(name, driver)} there")
            if version and name in SAME and driver[name] not in (None, version):
                expected = f"{name} {driver[name]}, which the driver has"
                raise _unfit(one, expected, f"{name} {version}", f"install {_wanted(name, driver)} there")


def _look() -> Callable[[Iterable[int]], Iterator[tuple[str, str, tuple[tuple[str, str | None], ...]]]]:
    """Return what a task runs. It travels by value, because an executor may not have Chandy: so it has no globals."""
    names = PACKAGES

    def look(_: Iterable[int]) -> Iterator[tuple[str, str, tuple[tuple[str, str | None], ...]]]:
        import importlib.metadata
        import importlib.util
        import os
        import socket
        import sys

        versions: list[tuple[str, str | None]] = []
        for name in names:
            try:
                versions.append((name, importlib.metadata.version(name)))
            except importlib.metadata.PackageNotFoundError:
                # A package that came as a zip file has no version.
                versions.append((name, "" if importlib.util.find_spec(name) else None))
        yield os.environ.get("CHANDY_MACHINE") or socket.gethostname(), sys.executable, tuple(versions)

    # As code of the program, not of this package: cloudpickle then takes it along.
    look.__module__ = "__main__"
    return look


def _wanted(name: str, driver: Mapping[str, str | None]) -> str:
    return f"{name}=={driver[name]}" if driver[name] else name


def _unfit(one: FoundExecutor, expected: str, found: str, advice: str) -> SetupError:
    return SetupError(
        f"the executor on {one.machine} cannot run operators",
        expected,
        f"{found} in {one.python}",
        f"{advice}, or send the driver's environment along with --archives; its Python is {sys.version.split()[0]}",
    )
