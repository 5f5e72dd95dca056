"""A pipeline on YARN, in one session: two node managers and an HDFS on this machine, each executor in its container."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers.process import Server

from ..maven import class_path, or_skip, program
from .driver import ANSWER
from .session import environment

pytestmark = [pytest.mark.yarn, pytest.mark.spark, pytest.mark.server]

Ask = Callable[[str], dict[str, Any]]
POM = Path(__file__).parents[1] / "storage" / "hdfs" / "pom.xml"


@pytest.fixture(scope="module")
def cluster(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a cluster that runs. Skips where it cannot be had, unless ``CHANDY_REQUIRE_HDFS=1``."""
    directory = tmp_path_factory.mktemp("yarn")
    assert pytestconfig.cache is not None
    with or_skip("YARN", unless="CHANDY_REQUIRE_HDFS"):
        jars = class_path(POM, pytestconfig.cache.mkdir("hdfs"))
        java = program("java")
    command = [java, "-Xmx768m", "--add-opens", "java.base/java.lang=ALL-UNNAMED", "-cp", jars]
    source = Path(__file__).with_name("MiniCluster.java")
    server = Server(
        [*command, str(source), str(directory)],
        0,
        directory,
        lambda _: (directory / "ready").exists(),
        deadline=120,
    )
    server.start()
    yield directory
    server.kill()


@pytest.fixture(scope="module")
def ask(cluster: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Has the driver take a step, and returns its answer."""
    folder = tmp_path_factory.mktemp("driver")
    store = f"{(cluster / 'ready').read_text()}/chandy"
    with tempfile.TemporaryDirectory(prefix="chandy-") as runtime, (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.yarn.driver", str(folder), store],
            cwd=Path(__file__).parents[2],
            env={**os.environ, **environment(cluster, Path(runtime))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            process_group=0,
        )
        assert process.stdin is not None
        assert process.stdout is not None

        def answer() -> dict[str, Any]:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith(ANSWER):
                    found: dict[str, Any] = json.loads(line[len(ANSWER) :])
                    assert "error" not in found, found["error"]
                    return found
            raise AssertionError(f"the driver has ended:\n{(folder / 'log').read_text()[-5000:]}")

        def ask(step: str) -> dict[str, Any]:
            assert process.stdin is not None
            process.stdin.write(f"{step}\n")
            process.stdin.flush()
            return answer()

        try:
            assert answer() == {"ready": True}
            yield ask
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


# The tests follow each other: each goes on with the pipeline of the one before.


def test_a_pipeline_runs_and_is_checkpointed(ask: Ask) -> None:
    assert ask("quick_start") == {"exact": True, "batches": {"totals": 2, "counts": 2}, "again": []}


@pytest.mark.full(
    "integration/test_native_state_on_hdfs.py::test_drivers_that_are_killed_at_each_step_leave_nothing_and_change_no_answer"
)
def test_both_kinds_of_state_are_restored(ask: Ask) -> None:
    found = ask("restore")
    # One batch came after the checkpoint. It runs again, as the first of the new life.
    assert found == {
        "exact": True,
        "batches": {"totals": 4, "counts": 4},
        "again": [],
        "restored": 1,
        "left": [],
        "lives": 1,
        "native": True,
    }


@pytest.mark.full("cluster/test_losses.py::test_what_is_lost_is_lost_once")
def test_an_executor_that_is_killed_takes_no_state_along(ask: Ask) -> None:
    assert ask("kill_executor")["batches"] == {"totals": 6, "counts": 6}


@pytest.mark.full("cluster/test_losses.py::test_what_is_lost_is_lost_once")
def test_a_state_host_that_is_killed_takes_no_state_along(ask: Ask) -> None:
    found = ask("kill_host")
    assert found["batches"] == {"totals": 9, "counts": 9}
    # The next one on its machine has opened its shards: what had committed since the checkpoint has not run again.
    assert found["again"] == []


def test_what_machines_cannot_reach_is_refused_in_a_sentence(ask: Ask) -> None:
    on_hdfs, on_disk, storage = ask("refuse")["refused"]
    assert "'/out', which is hdfs://" in on_hdfs
    assert "by fs.defaultFS" in on_hdfs
    assert "FilesSink('hdfs://" in on_hdfs
    assert "the output of query 'files' cannot be kept in /tmp/chandy-out" in on_disk
    assert "shared=True" in on_disk
    assert "the checkpoints cannot be kept in /tmp/chandy-store" in storage


def test_nothing_is_left_on_the_store(ask: Ask) -> None:
    assert ask("end") == {"left": []}
