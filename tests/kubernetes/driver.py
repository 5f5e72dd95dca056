"""A driver on Kubernetes in client mode, ``python -m tests.kubernetes.driver FOLDER``.

Spark's own backend for Kubernetes asks a stand-in for its API server for executors, which are pods on this machine. It
runs a stream through what happens to pods, and prints what it has seen as a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from benchmarks.cluster.namespaces import Network
from benchmarks.cluster.standalone import HOME, SOON
from chandy.coordinator import (
    AssignedShard,
    CheckpointConfig,
    CheckpointCoordinator,
    HostReplaced,
    PipelineEvent,
)

from ..cluster.stream import Stream
from ..integration import drivers
from ..spark_settings import WITH_EXECUTORS
from ..waiting import DEADLINE, eventually
from .api_server import ApiServer
from .pods import Kubelet, Pod

NODES: Final = 2
EXECUTORS: Final = 4
GRACE_SECONDS: Final = 600
TEMPLATE: Final = Path(__file__).parents[2] / "docs" / "kubernetes" / "executor.yaml"
_IMAGE: Final = Path(__file__).with_name("image")


def main(folder: Path) -> None:
    """Run the stream."""
    cloudpickle.register_pickle_by_value(drivers)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    (folder / "logs").mkdir()
    with Network([], [folder, Path(__file__).parents[2], Path(sys.prefix)]) as network:
        kubelet = Kubelet(network, _IMAGE, folder / "logs", NODES)
        with ApiServer(network.address, kubelet) as server:
            spark = SparkSession.builder.config(map=_settings(server, network, folder)).getOrCreate()
            spark.sparkContext.setLogLevel("OFF")
            try:
                found = _Run(spark, server, folder).all()
            finally:
                # Before the pods end: it would ask for others.
                spark.stop()
    print(json.dumps(found))


def _settings(server: ApiServer, network: Network, folder: Path) -> dict[str, str]:
    return {
        **SOON,
        "spark.master": f"k8s://{server.url}",
        "spark.driver.host": network.address,
        "spark.driver.bindAddress": network.address,
        "spark.kubernetes.container.image": "none",
        "spark.kubernetes.executor.podTemplateFile": str(TEMPLATE),
        "spark.kubernetes.executor.podTemplateContainerName": "executor",
        "spark.kubernetes.executor.disableConfigMap": "true",
        # The stand-in is asked again and again instead of being watched.
        "spark.kubernetes.executor.enableApiWatcher": "false",
        "spark.kubernetes.executor.apiPollingInterval": "1s",
        "spark.kubernetes.allocation.batch.delay": "1s",
        "spark.kubernetes.allocation.batch.size": str(EXECUTORS),
        "spark.executor.instances": str(EXECUTORS),
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.executorEnv.SPARK_HOME": str(HOME),
        "spark.decommission.enabled": "true",
        # Longer than tests wait: a pod must end before.
        "spark.kubernetes.executor.terminationGracePeriodSeconds": f"{GRACE_SECONDS}s",
        "spark.local.dir": "/tmp/spark-local",
        **WITH_EXECUTORS,
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        "spark.shuffle.reduceLocality.enabled": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }


class _Run:
    """One stream, and what happens to its pods."""

    def __init__(self, spark: SparkSession, server: ApiServer, folder: Path) -> None:
        self._server = server
        self._told: list[PipelineEvent] = []
        config = CheckpointConfig(
            interval=None, host_timeout="10 s", standbys=1, shared=True, on_event=self._told.append
        )
        self._coordinator = CheckpointCoordinator(
            spark, pipeline="p", storage=str(folder / "store"), config=config
        )
        self._stream = Stream(spark, self._coordinator, folder)

    def all(self) -> dict[str, Any]:
        """Go through everything and return what was seen."""
        with self._coordinator:
            self._go_on()
            self._await_standbys()
            started = {
                "pods": [pod.resource for pod in self._running()],
                "machines": sorted({str(one.machine) for one in self._shards()}),
            }
            return {"started": started, "lost": self._lose(), "left": self._leave(), **self._end()}

    def _lose(self) -> dict[str, Any]:
        """A node takes a pod with shards along, at once."""
        pod = self._with_shards()
        self._go_on(wait=False)
        pod.kill()
        self._go_on()
        eventually(lambda: len(self._running()) == EXECUTORS, "Spark asks for another pod")
        return {"recoveries": len(self._coordinator.recoveries), "promoted": self._promotions()}

    def _leave(self) -> dict[str, Any]:
        """A pod with shards is deleted in order, as when its node is drained."""
        self._await_standbys()
        pod = self._with_shards()
        self._told.clear()
        self._server.delete(lambda one: one is pod)
        end = time.monotonic() + DEADLINE
        while not pod.has_ended and time.monotonic() < end:
            # Shards move between batches.
            self._go_on()
        self._go_on()
        return {
            "recoveries": len(self._coordinator.recoveries),
            "promoted": self._promotions(),
            "phase": pod.resource["status"]["phase"],
        }

    def _end(self) -> dict[str, Any]:
        return {"batches": [one.batchId for one in self._stream.query.recentProgress if one.numInputRows]}

    def _promotions(self) -> int:
        """Return how many hosts were lost whose standbys took their place."""
        return sum(isinstance(one, HostReplaced) and one.promoted > 0 for one in self._told)

    def _go_on(self, wait: bool = True) -> None:
        self._stream.add(1)
        if wait:
            self._stream.await_all()

    def _await_standbys(self) -> None:
        """Take checkpoints until each shard has a standby on another node."""

        def are_there() -> bool:
            self._coordinator.checkpoint().result(DEADLINE)
            return all(one.standby and one.standby != one.machine for one in self._shards())

        eventually(are_there, "a standby of every shard")

    def _with_shards(self) -> Pod:
        """Return a pod whose state host has shards."""
        executor = self._stream.hosts()[0].spark_executor
        return next(
            pod for pod in self._running() if pod.resource["metadata"]["labels"]["spark-exec-id"] == executor
        )

    def _running(self) -> list[Pod]:
        return [pod for pod in self._server.pods if not pod.has_ended]

    def _shards(self) -> Sequence[AssignedShard]:
        return self._coordinator.assignment()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
