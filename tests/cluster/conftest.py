"""One cluster of three machines, and one session on it, for all tests of machines that come and go."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from benchmarks.cluster import choice
from benchmarks.cluster.machine import Machine, Machines
from benchmarks.cluster.standalone import SOON, Standalone, wait_for
from chandy.coordinator import CheckpointConfig, CheckpointCoordinator, FixedDelay
from chandy.coordinator.spark.executors import executor_addresses
from chandy.state.rpc.messages import HostHello

from ..integration import drivers, support
from ..spark_settings import WITH_EXECUTORS

# Executors have this code, for its files are theirs too, but not as a package that Python finds.
for module in (drivers, support):
    cloudpickle.register_pickle_by_value(module)


@attrs.frozen
class Cluster:
    """Three machines with a worker each, and a session whose driver is this process. Tests add others."""

    machines: Machines
    standalone: Standalone
    spark: SparkSession
    shared: Path
    """A folder that all machines see under this path."""
    is_isolated: bool
    """Whether machines have a network of their own."""
    workers: list[Machine]
    """The machines that have a worker and were not lost."""

    def machine_of(self, host: HostHello) -> Machine:
        """Return the machine that a state host runs on."""
        return next(one for one in self.machines.machines if one.name == host.machine)

    def replace(self, machine: Machine) -> None:
        """Start a worker on a new machine in the place of one that was lost."""
        added = self.machines.add(f"{machine.name}-{len(self.machines.machines)}")
        self.workers[self.workers.index(machine)] = added
        self.standalone.start_worker(added)
        self.await_workers()

    def await_executors(self) -> None:
        """Wait until three workers live, each with an executor that Spark knows."""
        self.await_workers()
        # Spark may have given up an executor while its machine was cut off, and that still holds the machine's cores.
        with contextlib.suppress(TimeoutError):
            wait_for("an executor of each worker", lambda: not self._without_executor(), 60)
        for machine in self.workers:
            if machine.address in self._without_executor():
                with contextlib.suppress(subprocess.CalledProcessError):
                    machine.run("pkill", "-KILL", "-f", "CoarseGrainedExecutorBackend")
        wait_for("an executor of each worker", lambda: not self._without_executor(), 120)

    def _without_executor(self) -> set[str]:
        having = {address.rpartition(":")[0] for address in executor_addresses(self.spark)}
        return self._addresses() - having

    def _addresses(self) -> set[str]:
        return {machine.address for machine in self.workers}

    def await_workers(self) -> None:
        """Wait until the master knows the workers. One whose machine was lost lives for a minute more, as it thinks."""
        wait_for("the workers", lambda: self._addresses() <= set(self.standalone.worker_addresses()), 120)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    is_isolated = choice.are_isolated()
    if not is_isolated:
        warnings.warn(
            "machines share one network and one disk: no namespaces are permitted here, or CHANDY_MACHINES=loopback",
            stacklevel=1,
        )
    names = ["m1", "m2", "m3"]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory(prefix="chandy-shared-", ignore_cleanup_errors=True) as folder:
        shared = Path(folder)
        visible = [shared, Path(__file__).parents[2], Path(sys.prefix)]
        machines = choice.machines(names, visible, isolated=is_isolated)
        with machines, Standalone(machines, shared / "logs") as standalone:
            settings = {
                **standalone.session_settings(),
                **SOON,
                **WITH_EXECUTORS,
                "spark.executor.memory": "512m",
                "spark.sql.shuffle.partitions": "3",
                "spark.sql.session.timeZone": "UTC",
                # So that tasks run where their shards are.
                "spark.shuffle.reduceLocality.enabled": "false",
                "spark.sql.warehouse.dir": str(shared / "warehouse"),
                # A lost executor is replaced as often as tests lose one.
                "spark.deploy.maxExecutorRetries": "-1",
                # SIGPWR tells an executor to go.
                "spark.decommission.enabled": "true",
            }
            spark = SparkSession.builder.config(map=settings).getOrCreate()
            spark.sparkContext.setLogLevel("OFF")
            yield Cluster(machines, standalone, spark, shared, is_isolated, [*machines.machines])
            spark.stop()


def coordinate(cluster: Cluster, pipeline: str) -> CheckpointCoordinator:
    """Make a coordinator on the cluster's storage, which goes on after a loss at once."""
    config = CheckpointConfig(
        interval=None,
        host_timeout="6 s",
        restart=FixedDelay("100 ms", attempts=1000),
        work_dir=str(cluster.shared / "work"),
        shared=True,
    )
    return CheckpointCoordinator(
        cluster.spark, pipeline=pipeline, storage=str(cluster.shared / "store"), config=config
    )
