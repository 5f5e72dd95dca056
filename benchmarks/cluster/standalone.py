"""A Spark standalone cluster: the master here, a worker on each machine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pyspark

from ..ports import free_ports
from .machine import Machine, SomeMachines

HOME: Final = Path(pyspark.__file__).parent
_CLASS: Final = "org.apache.spark.deploy"
_LIGHT: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""For processes that live for one test: they start with half of the work."""
_START_SECONDS: Final = 120.0

SOON: Final = {
    "spark.network.timeout": "10s",
    "spark.network.timeoutInterval": "2s",
    "spark.executor.heartbeatInterval": "2s",
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "1s",
    "spark.shuffle.io.connectionTimeout": "5s",
    "spark.shuffle.io.connectionCreationTimeout": "3s",
}
"""Settings of a session with which Spark gives up a machine that has lost its power after ten seconds, not forty."""


class Standalone:
    """A cluster, ready when the ``with`` begins."""

    def __init__(
        self,
        machines: SomeMachines,
        logs: Path,
        cores: int = 2,
        memory: str = "1g",
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Describe the cluster.

        Args:
            machines: each gets a worker.
            logs: folder for the logs of master and workers.
            cores: of each worker.
            memory: of each worker.
            env: adds to the environment of workers, which executors inherit.
        """
        self._machines, self._logs, self._cores, self._memory = machines, logs, cores, memory
        self._env = dict(env or {})
        self._ports = free_ports(2, machines.address)
        self.url = f"spark://{machines.address}:{self._ports[0]}"
        self._state = f"http://{machines.address}:{self._ports[1]}/json/"
        self._master: subprocess.Popen[bytes] | None = None

    def session_settings(self) -> dict[str, str]:
        """Return what a session whose driver is here needs. ``PYSPARK_PYTHON`` must name the executors' Python."""
        address = self._machines.address
        return {"spark.master": self.url, "spark.driver.host": address, "spark.driver.bindAddress": address}

    def workers(self) -> int:
        """Return how many workers live, as the master knows them; 0 before it answers."""
        return len(self.worker_addresses())

    def worker_addresses(self) -> list[str]:
        """Return the addresses of the workers that live, as the master knows them; none before it answers."""
        try:
            with urllib.request.urlopen(self._state, timeout=5) as answer:
                workers = json.load(answer)["workers"]
        except (OSError, ValueError):
            # It may answer with nothing while it starts.
            return []
        return [worker["host"] for worker in workers if worker["state"] == "ALIVE"]

    def start_worker(self, machine: Machine) -> subprocess.Popen[bytes]:
        """Start a worker on a machine."""
        arguments = ["--host", machine.address, "--cores", str(self._cores), "--memory", self._memory]
        work = machine.run("mktemp", "-d", "-t", "work.XXXX").strip()
        command = [
            str(HOME / "bin/spark-class"),
            f"{_CLASS}.worker.Worker",
            *arguments,
            "--work-dir",
            work,
            self.url,
        ]
        with (self._logs / f"{machine.name}.log").open("ab") as log:
            return machine.start(command, self._environment(machine.address), log)

    def __enter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
        address = self._machines.address
        ports = ["--port", str(self._ports[0]), "--webui-port", str(self._ports[1])]
        command = [str(HOME / "bin/spark-class"), f"{_CLASS}.master.Master", "--host", address, *ports]
        env = {**os.environ, **self._environment(address)}
        with (self._logs / "master.log").open("ab") as log:
            self._master = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            for machine in self._machines.machines:
                self.start_worker(machine)
            wait_for("the workers", lambda: self.workers() == len(self._machines.machines), _START_SECONDS)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the master; workers end with their machines."""
        if self._master is not None:
            self._master.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._master.wait(10)
            self._master.kill()
            self._master.wait()

    def _environment(self, address: str) -> dict[str, str]:
        return {
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": address,
            "SPARK_DAEMON_MEMORY": "384m",
            "SPARK_DAEMON_JAVA_OPTS": f"{_LIGHT} -Dspark.master.rest.enabled=false",
            "PYSPARK_PYTHON": sys.executable,
            **self._env,
        }


def wait_for(what: str, ready: Callable[[], bool], seconds: float, poll: float = 0.1) -> None:
    """Wait until ``ready()`` is true; ask every ``poll`` seconds.

    Raises:
        TimeoutError: it is not within the time.
    """
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(poll)
