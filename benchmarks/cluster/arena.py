"""The setting of the contestants: machines with an executor each, and a session whose driver is this process."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
from pyspark.sql import SparkSession

from ..lives import REPOSITORY, await_hosts, runtime
from ..stage import MANAGER, output_to
from . import choice
from .machine import Machine, Machines
from .standalone import SOON, Standalone, wait_for

_MACHINES: Final = ("m1", "m2", "m3")
TASKS: Final = 3
"""Tasks of an operator with state: one for each executor at first."""
_EXECUTOR_SECONDS: Final = 120.0
_STREAMING: Final = "org.apache.spark.sql.execution.streaming"


@attrs.define
class Arena:
    """A cluster, and a session on it."""

    machines: Machines
    standalone: Standalone
    spark: SparkSession
    folder: Path
    """All machines see it under this path."""
    _lost: set[str] = attrs.field(factory=set)

    @property
    def live(self) -> list[Machine]:
        """The machines that have power."""
        return [one for one in self.machines.machines if one.name not in self._lost]

    def kill(self, machine: Machine) -> None:
        """Cut a machine's power."""
        self._lost.add(machine.name)
        machine.kill()

    def add(self) -> Machine:
        """Let one more machine join. Its executor comes later."""
        machine = self.machines.add(f"m{len(self.machines.machines) + 1}")
        self.standalone.start_worker(machine)
        return machine

    def executors(self) -> set[str]:
        """Return the addresses of the machines whose executors Spark knows."""
        known = self.spark.sparkContext._jsc.sc().getExecutorMemoryStatus().keySet().mkString(" ")
        return {address.rpartition(":")[0] for address in str(known).split()} - {self.machines.address}

    def await_executors(self) -> None:
        """Wait until each machine that has power has an executor, and Spark has given up all others.

        Raises:
            TimeoutError: this takes too long.
        """
        wanted = {machine.address for machine in self.live}
        wait_for("an executor on each machine", lambda: self.executors() == wanted, _EXECUTOR_SECONDS)


@contextlib.contextmanager
def arena(*, anchored: bool) -> Iterator[Arena]:
    """Provide three machines and a session with all of their executors. All is removed afterwards.

    Args:
        anchored: whether Spark lets tasks run where their state is.
    """
    folder = Path(tempfile.mkdtemp(prefix="chandy-")).resolve()
    os.environ["CHANDY_RUNTIME_DIR"] = str(runtime(folder))
    # Spark takes the executors' Python from the environment of the driver, and their modules from that of the workers.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    shared = folder / "shared"
    shared.mkdir()
    try:
        visible: list[str | Path] = [shared, REPOSITORY, sys.prefix]
        machines = choice.machines(_MACHINES, visible, isolated=True)
        with (
            machines,
            Standalone(
                machines, shared / "logs", memory="2g", env={"PYTHONPATH": str(REPOSITORY)}
            ) as standalone,
        ):
            with output_to(folder / "spark.log"):
                spark = _session(standalone, folder, anchored)
            try:
                found = Arena(machines, standalone, spark, shared)
                found.await_executors()
                yield found
            finally:
                spark.stop()
    finally:
        await_hosts(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _session(standalone: Standalone, folder: Path, anchored: bool) -> SparkSession:
    settings = {
        **standalone.session_settings(),
        **SOON,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        "spark.executor.memory": "1g",
        # A lost executor is replaced as often as one is lost.
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.sql.shuffle.partitions": str(TASKS),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        # Said in any case: the JVM keeps the settings of an earlier session.
        "spark.shuffle.reduceLocality.enabled": str(not anchored).lower(),
        # The fastest settings for Spark's own state, and the file manager that forks no processes.
        "spark.sql.streaming.stateStore.providerClass": f"{_STREAMING}.state.RocksDBStateStoreProvider",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        MANAGER: f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager",
    }
    spark = SparkSession.builder.appName("benchmark").config(map={**settings}).getOrCreate()
    # Spark logs each task that a loss fails.
    spark.sparkContext.setLogLevel("OFF")
    return spark
