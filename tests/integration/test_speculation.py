"""Tasks that Spark runs twice at once: every answer stays exact."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark import TaskContext
from pyspark.sql import Row, SparkSession

from benchmarks.ports import free_ports
from benchmarks.servers.process import Server, listens
from chandy.coordinator import CheckpointConfig, CheckpointCoordinator

from ..spark_settings import LOCAL, WITH_EXECUTORS
from ..waiting import DEADLINE
from .support import TOTALS, Events, Totals

pytestmark = [pytest.mark.spark, pytest.mark.server]

SETTINGS = {
    "speculation": {
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.25",
        "spark.speculation.minTaskRuntime": "50ms",
        # By default a task that has read its rows is taken for a fast one.
        "spark.speculation.efficiency.enabled": "false",
    },
}


class SlowTotals(Totals):
    """Waits at one key, in the first attempt of its task, for the second one; each attempt leaves a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        context = TaskContext.get()
        assert context is not None
        attempt, partition = context.attemptNumber(), context.partitionId()
        Path(self.folder, f"{partition}-{attempt}-{context.taskAttemptId()}").touch()
        if key[0] == "k0" and attempt == 0:
            # Until Spark has begun a second attempt. Executors cannot import what tests wait with.
            deadline = time.monotonic() + DEADLINE
            while not list(Path(self.folder).glob(f"{partition}-[1-9]*")) and time.monotonic() < deadline:
                time.sleep(0.05)
        yield from super().handleInputRows(key, rows, timerValues)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The master of a standalone cluster with two workers, whose addresses differ.

    Spark runs no second attempt on a host that runs the first, and in ``local-cluster`` mode all have one host.
    """
    folder = tmp_path_factory.mktemp("cluster")
    (port,) = free_ports(1)
    master = f"spark://127.0.0.1:{port}"
    classes, spark_class = (
        "org.apache.spark.deploy",
        str(Path(pyspark.__file__).parent / "bin" / "spark-class"),
    )

    def server(name: str, host: str, is_ready: Callable[[Server], bool], *arguments: str) -> Server:
        (folder / name).mkdir()
        command = [spark_class, f"{classes}.{name.partition('-')[0]}", "--host", host, *arguments]
        options = {"SPARK_LOCAL_IP": host, "SPARK_DAEMON_MEMORY": "384m", "SPARK_NO_DAEMONIZE": "1"}
        return Server(command, port, folder / name, is_ready, options)

    def has_registered(worker: Server) -> bool:
        return "Successfully registered" in worker.log.read_text()

    servers = [
        server(
            "master.Master",
            "127.0.0.1",
            lambda one: listens(one.port),
            "--port",
            str(port),
            "--webui-port",
            "0",
        )
    ]
    for number in (1, 2):
        size = ["--cores", "1", "--memory", "1g", "--webui-port", "0"]
        work = ["--work-dir", str(folder / f"work-{number}")]
        servers.append(
            server(f"worker.Worker-{number}", f"127.0.0.{number}", has_registered, *size, *work, master)
        )
    try:
        for one in servers:
            one.start()
        yield master
    finally:
        for one in reversed(servers):
            one.kill()


def life(kind: str, cluster: str, folder: Path) -> dict[str, Any]:
    """Run a pipeline in a driver of its own, with these settings, and return what it has found."""
    # Spark allows one session a process, and this one needs executors of its own.
    with tempfile.TemporaryDirectory(prefix="chandy-") as runtime:
        environment = {**os.environ, "CHANDY_RUNTIME_DIR": runtime, "PYSPARK_PYTHON": sys.executable}
        driver = [sys.executable, "-m", "tests.integration.test_speculation", kind, cluster, str(folder)]
        root = Path(__file__).parents[2]
        done = subprocess.run(
            driver, cwd=root, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_tasks_that_run_twice_at_once_count_once(cluster: str, tmp_path: Path) -> None:
    found = life("speculation", cluster, tmp_path)
    assert found["exact"] is True
    assert found["output is exact"] is True
    assert found["second attempts"] >= 1


# --- the driver's side --------------------------------------------------------------------------------------


def main(kind: str, master: str, folder: Path) -> None:
    builder = SparkSession.builder.master(master)
    settings = {
        "spark.executor.memory": "640m",
        **WITH_EXECUTORS,
        **LOCAL,
    }
    for name, value in (settings | SETTINGS[kind]).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    events, attempts, out = Events(folder / "in"), folder / "attempts", folder / "out"
    attempts.mkdir()
    seen: dict[str, int] = {}
    # The two workers are on one machine.
    config = CheckpointConfig(interval=None, shared=True)
    with CheckpointCoordinator(
        spark, pipeline="p", storage=str(folder / "store"), config=config
    ) as coordinator:
        processor = SlowTotals(attempts)
        totals = coordinator.transform_with_state(
            events.stream(spark),
            key=["k"],
            processor=processor,
            output=TOTALS,
            uid="t",
            shards=8,
            parallelism=4,
        )
        query = coordinator.start(totals.writeStream.format("parquet").option("path", str(out)), name="q")

        def run(files: int) -> None:
            events.add(files)
            query.processAllAvailable()

        run(2)
        run(2)
        coordinator.checkpoint().result(DEADLINE)
    rows = [tuple(row) for row in spark.read.parquet(str(out)).collect()]
    expected = answer(events)
    seen["second attempts"] = sum(path.name.split("-")[1] != "0" for path in attempts.iterdir())
    print(
        json.dumps(
            {
                **seen,
                "exact": {key: max(row[1:] for row in rows if row[0] == key) for key in expected}
                == {key: history[-1] for key, history in expected.items()},
                "output is exact": sorted(rows)
                == sorted((key, *row) for key, history in expected.items() for row in history),
            }
        )
    )
    spark.stop()


def answer(events: Events) -> dict[str, list[tuple[int, int]]]:
    """By key what the operator gives out, batch by batch; a file is a batch."""
    found: dict[str, list[tuple[int, int]]] = {}
    for path in sorted(events.folder.glob("*.json")):
        state = {key: history[-1] for key, history in found.items()}
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for row in lines:
            n, total = state.get(row["k"], (0, 0))
            state[row["k"]] = n + 1, total + row["v"]
        for key in {row["k"] for row in lines}:
            found.setdefault(key, []).append(state[key])
    return found


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
